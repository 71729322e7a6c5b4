"""The parameter server: sockets, clock and thread around `ServerCore`."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ..config import TransportConfig
from ..errors import (
    ConfigError,
    DBLPError,
    RoundAbortedError,
)
from ..faults import Impairment
from ..io.acceptor import Acceptor, Terms
from ..io.control import parse_address
from ..io.driver import Driver, PeerLink
from ..io.loop import LoopThread
from ..io.signals import signals_come_through
from ..phase import FixedTolerance, TolerancePolicy
from ..stats import RoundReport
from ..wire import Bye
from .admission import Admission, Job, tell
from .round_layout import MAX_ROUND_BYTES
from .server_core import Downlink, MissingRule, NormSource, ServerCore
from .server_round import MEANS_HELD

__all__ = ["ParameterServer"]

REPORTS_KEPT = 100_000
"""Newest reports that `ParameterServer.reports` remembers: some 60 MB; `on_report` sees all."""

START_MARGIN_S = 10.0
"""How long opening sockets may take at most."""

log = logging.getLogger("dblp")

ReportSink = Callable[[RoundReport], None]


class _ServerOwner:
    """Lives on the loop thread: drives the workers' links, tells the core."""

    def __init__(
        self,
        thread: LoopThread,
        core: ServerCore,
        admission: Admission,
        on_report: ReportSink,
        over: threading.Event,
    ) -> None:
        self.core = core
        self._admission = admission
        self._on_report = on_report
        self._over = over
        self._links = admission.links
        self._left: set[int] = set()
        self.driver = Driver(thread.loop, thread.wake_fd, admission.config, self)
        admission.error = lambda: core.error
        admission.on_events = self._on_events
        admission.on_joined = self._on_joined

    async def start(self) -> None:
        self.driver.extra_fds = await self._admission.start()

    def _on_joined(self, rank: int, link: PeerLink) -> None:
        self.driver.add(link)
        self.core.attach(rank, link.session, now=self.driver.now())
        if self.core.error is not None:  # the job has ended during the handshake
            link.session.abort(self.core.error)
            tell(link, self.core.error)
        self.driver.kick()

    # --- Owner of the driver

    def _on_events(self, rank: int, now: float) -> None:
        if self._links[rank].session.peer_left:
            self._left.add(rank)
        while self.core.on_events(rank, now=now, pause=True):
            self.driver.transmit()

    def on_tick(self, now: float) -> None:
        core = self.core
        due = core.next_timeout()
        if due is not None and due <= now:
            core.on_timeout(now=now)
        for notice in core.take_notices():
            log.warning("%s", notice)
        for report in core.take_reports():
            self._on_report(report)
        for rank, frame in core.take_broadcast():
            self._links[rank].control.send(frame)
        if core.error is not None or len(self._left) == core.world:
            self._over.set()

    def next_timeout(self) -> float | None:
        return self.core.next_timeout()

    def on_link_failed(self, link: PeerLink, error: DBLPError) -> None:
        rank = self._admission.rank_of(link)
        assert rank is not None
        if rank not in self._left:
            self.core.peer_lost(rank, error, now=self.driver.now())
        tell(link, error)  # the core tells the others

    def stall(self) -> str:
        return self._admission.absent() or self.core.stall()

    async def shut_down(self) -> None:
        self._admission.stop()
        self.driver.settle()  # what has arrived counts: a round may be over by now
        if self.core.error is None and len(self._left) < self.core.world:
            if self.core.stall():
                self.core.fail(RoundAbortedError("the server was closed while a round was open"))
            for rank, link in self._links.items():
                if rank not in self._left:
                    link.control.send(Bye())
        self.on_tick(self.driver.now())
        self.driver.close()
        self._admission.close()


class ParameterServer:
    """Averages the gradients of N workers, with a tolerance that follows the training phase
    (Algorithm 3).

    ```python
    policy = dblp.GradientNormPolicy(low="0.8%", high="40.8%")
    with dblp.ParameterServer.serve_in_thread("0.0.0.0:5000", workers=3, policy=policy) as server:
        server.wait()
    ```
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        workers: int,
        policy: TolerancePolicy | None = None,
        downlink: Downlink = "exact",
        rule: MissingRule = "zero",
        norm: NormSource = "sent",
        config: TransportConfig | None = None,
        fingerprint: str = "",
        impairment: Impairment | None = None,
        on_report: ReportSink | None = None,
        reserve: Sequence[int] = (),
    ) -> None:
        """Listens; workers may connect as soon as this returns.

        Args:
            address: "host:port" or (host, port); port 0 takes a free one.
            workers: number of workers, 1 … 254.
            policy: decides the tolerance of every round; None is exact (p = 0).
            downlink: "exact" keeps replicas bit-identical; "common" too, with the policy's
                tolerance: the server leaves out the chunks of least energy, for all workers the
                same; "lossy" is the paper's, with the policy's tolerance.
            rule: "zero" (paper) divides by the number of workers; "contributors" divides each chunk
                by the number of workers that delivered it.
            norm: "sent" detects phases on the workers' own gradients; "received" (paper) on the
                received mean.
            config: how bytes travel; the default fits.
            fingerprint: text that must equal the workers' when both are given.
            impairment: faults to inject into what arrives here.
            on_report: called with every `RoundReport`, on the transport's thread: short, and it
                must not wait for the transport.
            reserve: sizes in bytes of the gradients that are averaged at the same time (one per
                stream).  Their buffers are made here, so that the first rounds need not wait for
                fresh memory.

        Raises:
            ConfigError: a bad argument, or an address that cannot be used.
            MemoryError: the machine has not got what `reserve` asks for.
        """
        self.config = config if config is not None else TransportConfig()
        _check_workers(workers)
        _check_sizes("reserve", reserve)
        _check_choices(downlink, rule, norm)
        chosen = policy if policy is not None else FixedTolerance(0)
        self.reports: deque[RoundReport] = deque(maxlen=REPORTS_KEPT)
        """The newest reports; read it from any thread."""
        self._on_report = on_report
        self._over = threading.Event()
        core = ServerCore(
            world=workers, policy=chosen, config=self.config, downlink=downlink, rule=rule,
            norm=norm, rng=random.Random(self.config.seed),
        )  # fmt: skip
        terms = Terms(
            world=workers,
            downlink=downlink,
            rule=rule,
            tolerance=chosen.initial().tolerance.wire(),
            order=self.config.order,
            timeout_s=self.config.timeout_s,
        )
        acceptor = Acceptor(*parse_address(address), self.config, impairment)
        self.address = acceptor.address
        """Where it listens, as "host:port"; hand this to the workers."""
        job = Job(ranks=tuple(range(workers)), world=workers, fingerprint=fingerprint)
        self._owner = self._launch(core, Admission(acceptor, terms, self.config, job), reserve)

    def _launch(
        self, core: ServerCore, admission: Admission, reserve: Sequence[int]
    ) -> _ServerOwner:
        """The owner, started on its own loop thread; thread and sockets end when that fails."""
        try:
            core.pool.reserve(reserve, copies=core.world + MEANS_HELD)
            self._thread = LoopThread(self.config.loop, "dblp-server")
        except BaseException:
            admission.close()
            raise
        try:
            owner: _ServerOwner = self._thread.call(self._start(core, admission), START_MARGIN_S)
        except BaseException:
            self._thread.close()
            admission.close()
            raise
        return owner

    async def _start(self, core: ServerCore, admission: Admission) -> _ServerOwner:
        owner = _ServerOwner(
            self._thread,
            core,
            admission,
            report_keeper(self.reports, self._on_report),
            self._over,
        )
        await owner.start()
        return owner

    @classmethod
    def serve_in_thread(
        cls, address: str | tuple[str, int] = "127.0.0.1:0", *, workers: int, **options: object
    ) -> ParameterServer:
        """A running server; the arguments are those of the class."""
        return cls(address, workers=workers, **options)  # type: ignore[arg-type]

    @property
    def error(self) -> DBLPError | None:
        """Why the job ended early; None while it runs or when it ended well."""
        error: DBLPError | None = self._owner.core.error
        return error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until every worker has left, at most `timeout_s` seconds; False when time is up.

        Raises the error that ended the job early, such as PeerLostError naming the rank.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with signals_come_through():
            while not self._over.wait(0.2):
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        if self.error is not None:
            raise self.error.with_traceback(None)
        return True

    def close(self) -> None:
        """Says goodbye to the workers, frees sockets and thread; idempotent, waits for nobody."""
        self._thread.finish(self._owner.shut_down(), START_MARGIN_S)

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_owner") and not sys.is_finalizing():
            self.close()


def report_keeper(reports: deque[RoundReport], on_report: ReportSink | None) -> ReportSink:
    """What the owner calls; it must not know the server, which may be forgotten."""

    def keep(report: RoundReport) -> None:
        reports.append(report)
        if on_report is not None:
            try:
                on_report(report)
            except Exception:
                log.exception("on_report raised; the report is in ParameterServer.reports")

    return keep


def _check_workers(workers: object) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= 254:
        raise ConfigError(f"workers is {workers!r}: choose an integer from 1 to 254")


def _check_sizes(name: str, sizes: Sequence[int]) -> None:
    """ConfigError unless `sizes` are sizes in bytes."""
    known = isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes)
    if not known or not all(type(size) is int and 0 <= size <= MAX_ROUND_BYTES for size in sizes):
        raise ConfigError(
            f"{name} is {sizes!r}: give sizes in bytes, such as [gradient.nbytes], of at most "
            f"{MAX_ROUND_BYTES:,} bytes each"
        )


def _check_choices(downlink: object, rule: object, norm: object) -> None:
    check_choice("downlink", downlink, ("exact", "common", "lossy"))
    check_choice("rule", rule, ("zero", "contributors"))
    check_choice("norm", norm, ("sent", "received"))


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}")
