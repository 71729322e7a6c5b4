"""The worker's end of an all-reduce: what a training script holds."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from .. import fastpath
from ..buffers import byte_view_of
from ..config import TransportConfig
from ..errors import ConfigError, DBLPError, LocalProtocolError, RoundAbortedError
from ..faults import Impairment
from ..io.control import parse_address
from ..io.driver import Driver, PeerLink, make_link
from ..io.handshake import connect
from ..io.loop import LoopThread
from ..stats import RoundReport
from ..tolerance import Tolerance
from ..wire import Bye
from .worker_core import FinishedRound, WorkerCore

__all__ = ["AllReduceReport", "Worker"]

CALL_MARGIN_S = 10.0
"""How much longer than its own time limits a blocking call waits for the loop thread to answer."""

log = logging.getLogger("dblp")


@dataclass(frozen=True, slots=True)
class AllReduceReport:
    """What one all-reduce did, seen from this worker."""

    uplink: RoundReport
    """Worker → server."""
    downlink: RoundReport
    """Server → worker."""
    elapsed_s: float
    """From the call to the result, in seconds."""

    @property
    def regime(self) -> str | None:
        """"critical" or "normal": the regime decided on with this round."""
        return self.downlink.regime

    @property
    def tolerance(self) -> str:
        """Uplink tolerance of this round, such as "40.8%"."""
        return self.uplink.tolerance

    @property
    def delivered_share(self) -> float:
        """Share of this worker's chunks that the server received, 0 … 1."""
        return self.uplink.delivered_share


class _WorkerOwner:
    """Lives on the loop thread: the core, its link, and the futures of the trainer threads."""

    def __init__(self, thread: LoopThread, config: TransportConfig) -> None:
        self._thread = thread
        self._config = config
        self._futures: dict[int, tuple[Future[AllReduceReport], float]] = {}
        self.driver = Driver(thread.loop, thread.wake_fd, config, self)
        self.link: PeerLink | None = None
        self.core: WorkerCore | None = None

    # --- Owner of the driver

    def on_tick(self, now: float) -> None:
        core = self.core
        if core is None:
            return
        due = core.next_timeout()
        if due is not None and due <= now:
            core.on_timeout(now=now)
        for notice in core.take_notices():
            log.warning("%s", notice)
        for finished in core.take_finished():
            self._finish(finished, now)

    def next_timeout(self) -> float | None:
        return self.core.next_timeout() if self.core is not None else None

    def on_link_failed(self, link: PeerLink, error: DBLPError) -> None:
        if self.core is not None:
            self.core.fail(error)

    def stall(self) -> str:
        return self.core.stall() if self.core is not None else ""

    # --- commands, on the loop thread

    def on_events(self, now: float) -> None:
        assert self.core is not None and self.link is not None
        if self.link.session.peer_left and self.core.error is None and not self.core.stall():
            self.core.fail(RoundAbortedError("the server has ended the job"))
        self.core.on_events(now=now)

    def begin(
        self,
        future: Future[AllReduceReport],
        view: memoryview,
        dtype: str,
        stream: int,
        norm: float,
        called: float,
    ) -> None:
        assert self.core is not None
        try:
            round_ = self.core.all_reduce(
                view, dtype, stream=stream, squared_norm=norm, now=self.driver.now()
            )
        except DBLPError as error:
            future.set_exception(error)
            return
        self._futures[id(round_)] = (future, called)
        self.driver.kick()

    def _finish(self, finished: FinishedRound, now: float) -> None:
        future, called = self._futures.pop(id(finished.round))
        if finished.error is not None:
            future.set_exception(finished.error)
            return
        assert finished.uplink is not None and finished.downlink is not None
        future.set_result(AllReduceReport(finished.uplink, finished.downlink, now - called))

    async def shut_down(self) -> None:
        if self.core is not None:
            self.core.fail(RoundAbortedError("the worker was closed while rounds were open"))
            self.on_tick(self.driver.now())
        if self.link is not None and not self.link.failed:
            self.link.control.send(Bye())
        self.driver.close()


class Worker:
    """One rank of a data-parallel job, connected to a `ParameterServer` (Algorithm 4).

    ```python
    with dblp.Worker("10.0.0.1:5000", rank=0) as worker:
        report = worker.all_reduce(grad)
    ```

    Calls may come from any thread.  After an error every later call raises it again, and the contents of buffers
    that were on the way are unspecified.
    """

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        rank: int,
        world: int | None = None,
        config: TransportConfig | None = None,
        fingerprint: str = "",
        impairment: Impairment | None = None,
    ) -> None:
        """Connects; waits at most `config.connect_timeout_s` for the server.

        Args:
            address: the server's "host:port" or (host, port).
            rank: this worker's rank, 0 … world-1.
            world: expected number of workers; None takes the server's word.
            config: how bytes travel; the default fits.
            fingerprint: any text that must be equal on all ranks, such as a hash of the model; "" is not compared.
            impairment: faults to inject into what arrives here.

        Raises:
            ConfigError: a bad argument.
            PeerLostError: the server cannot be reached or does not answer.
            RemoteProtocolError: the server refuses (rank taken, other world size, other version).
        """
        self.config = config if config is not None else TransportConfig()
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise ConfigError(f"rank is {rank!r}: choose an integer from 0 to the number of workers - 1")
        if world is not None and (not isinstance(world, int) or world <= rank):
            raise ConfigError(f"world is {world!r}: it must be an integer above rank {rank}")
        self.rank = rank
        host, port = parse_address(address)
        self._thread = LoopThread(self.config.loop, f"dblp-worker-{rank}")
        try:
            wait_s = self.config.connect_timeout_s + CALL_MARGIN_S
            self._owner = self._thread.call(
                self._start(host, port, world or 0, fingerprint, impairment), wait_s
            )
        except BaseException:
            self._thread.close()
            raise

    async def _start(
        self, host: str, port: int, world: int, fingerprint: str, impairment: Impairment | None
    ) -> _WorkerOwner:
        connection = await connect(
            host,
            port,
            rank=self.rank,
            world=world,
            config=self.config,
            fingerprint=fingerprint,
            impairment=impairment,
        )
        owner = _WorkerOwner(self._thread, self.config)
        link = make_link("the server", connection, self.config, owner.on_events)
        owner.core = WorkerCore(
            rank=self.rank,
            world=connection.welcome.world,
            session=link.session,
            config=self.config,
            tolerance=Tolerance.of(connection.welcome.tolerance),
        )
        owner.link = link
        owner.driver.add(link)
        return owner

    @property
    def world(self) -> int:
        """Number of workers in the job."""
        core = self._owner.core
        assert core is not None
        return core.world

    def all_reduce(self, grad: Any, *, stream: int = 0) -> AllReduceReport:
        """Replaces `grad` by its mean over all workers, and says what it took.

        Args:
            grad: contiguous numpy array or CPU tensor of float16, bfloat16, float32, float64 or complex numbers, of
                the same shape and dtype on every rank; written in place.
            stream: 0 … 65535; calls with the same stream follow each other, different streams run side by side.

        Raises:
            LocalProtocolError: the buffer cannot be averaged in place, or the worker is closed.
            RemoteProtocolError: the ranks do not agree on shape or dtype.
            PeerLostError: the server or another rank is gone; named.
            RoundTimeoutError: not done within `config.timeout_s`.
        """
        return self._wait(self.all_reduce_async(grad, stream=stream))

    def all_reduce_async(self, grad: Any, *, stream: int = 0) -> Future[AllReduceReport]:
        """Like `all_reduce`, at once: `grad` belongs to the transport until the future is done.

        The future is completed on the transport's own thread: callbacks must be short and must not wait for another
        all-reduce.
        """
        self._thread.check_usable()
        called = self._owner.driver.now()
        view, dtype = byte_view_of(grad, what="grad", writable=True)
        norm = fastpath.squared_norm(view, dtype) if view.nbytes else 0.0
        future: Future[AllReduceReport] = Future()
        owner = self._owner
        self._thread.submit(lambda: owner.begin(future, view, dtype, stream, norm, called))
        return future

    def _wait(self, future: Future[AllReduceReport]) -> AllReduceReport:
        if self._thread.on_loop_thread:
            raise LocalProtocolError(
                "all_reduce was called from a callback of the transport, where waiting would block it for ever: use "
                "all_reduce_async"
            )
        return self._thread.wait(future)

    def close(self) -> None:
        """Says goodbye and releases sockets and thread; idempotent, never waits for other ranks."""
        try:
            self._thread.check_usable()
        except LocalProtocolError:
            return
        try:
            self._thread.call(self._owner.shut_down(), CALL_MARGIN_S)
        finally:
            self._thread.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_owner") and not sys.is_finalizing():
            self.close()
