"""The worker's end of an all-reduce: what a training script holds."""

from __future__ import annotations

import math
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from .. import fastpath
from ..buffers import byte_view_of
from ..config import TransportConfig
from ..errors import ConfigError
from ..faults import Impairment
from ..io.control import parse_address
from ..io.handshake import connect
from ..io.loop import LoopThread
from ..stats import RoundReport
from ..tolerance import Tolerance
from .endpoint import Endpoint, EndpointGroup, close_thread, wait_for
from .worker_core import FinishedRound, WorkerCore

__all__ = ["AllReduceReport", "Worker"]

CALL_MARGIN_S = 10.0
"""How much longer than its own time limits a blocking call waits for the loop thread to answer."""


@dataclass(frozen=True, slots=True)
class AllReduceReport:
    """What one all-reduce did, seen from this worker."""

    uplink: RoundReport
    """Worker → server."""
    downlink: RoundReport
    """Server → worker."""
    elapsed_s: float
    """From the call to the result, in seconds."""
    mean_squared_norm: float = math.nan
    """Mean over the workers of the squared norms of their gradients, the same on all of them; NaN
    or infinity when one of them has such elements."""

    @property
    def regime(self) -> str | None:
        """The regime that was decided on with this round, "critical" or "normal"."""
        return self.downlink.regime

    @property
    def tolerance(self) -> str:
        """Uplink tolerance of this round, such as "40.8%"."""
        return self.uplink.tolerance

    @property
    def delivered_share(self) -> float:
        """Share of this worker's chunks that the server received, 0 … 1."""
        return self.uplink.delivered_share


class Worker:
    """One rank of a data-parallel job, connected to a `ParameterServer` (Algorithm 4).

    ```python
    with dblp.Worker("10.0.0.1:5000", rank=0) as worker:
        report = worker.all_reduce(grad)
    ```

    Calls may come from any thread.  After an error every later call raises it again, and the
    contents of buffers that were on the way are unspecified.
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
            fingerprint: any text that must be equal on all ranks, such as a hash of the model; ""
                is not compared.
            impairment: faults to inject into what arrives here.

        Raises:
            ConfigError: a bad argument.
            PeerLostError: the server cannot be reached or does not answer.
            RemoteProtocolError: the server refuses (rank taken, other world size, other version).
        """
        self.config = config if config is not None else TransportConfig()
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise ConfigError(
                f"rank is {rank!r}: choose an integer from 0 to the number of workers - 1"
            )
        if world is not None and (not isinstance(world, int) or world <= rank):
            raise ConfigError(f"world is {world!r}: it must be an integer above rank {rank}")
        self.rank = rank
        host, port = parse_address(address)
        self._thread = LoopThread(self.config.loop, f"dblp-worker-{rank}")
        try:
            wait_s = self.config.connect_timeout_s + CALL_MARGIN_S
            self._group, self._endpoint = self._thread.call(
                self._start(host, port, world or 0, fingerprint, impairment), wait_s
            )
        except BaseException:
            self._thread.close()
            raise

    async def _start(
        self, host: str, port: int, world: int, fingerprint: str, impairment: Impairment | None
    ) -> tuple[EndpointGroup, Endpoint]:
        connection = await connect(
            host,
            port,
            rank=self.rank,
            world=world,
            config=self.config,
            fingerprint=fingerprint,
            impairment=impairment,
        )
        welcome = connection.welcome
        self.downlink: str = welcome.downlink
        """The server's: "exact", "common" or "lossy"."""
        group = EndpointGroup(self._thread, self.config)
        endpoint = Endpoint(
            group,
            "the server",
            connection,
            self.config,
            lambda session: WorkerCore(
                rank=self.rank,
                world=welcome.world,
                session=session,
                config=self.config,
                tolerance=Tolerance.of(welcome.tolerance),
                common=welcome.downlink == "common",
            ),
            _report_of,
        )
        return group, endpoint

    @property
    def _core(self) -> WorkerCore:
        return cast(WorkerCore, self._endpoint.core)

    @property
    def world(self) -> int:
        """Number of workers in the job."""
        return self._core.world

    def all_reduce(self, grad: Any, *, stream: int = 0) -> AllReduceReport:
        """Replaces `grad` by its mean over all workers, and says what it took.

        Args:
            grad: contiguous numpy array or CPU tensor of float16, bfloat16, float32, float64 or
                complex numbers, of the same shape and dtype on every rank; written in place.
            stream: 0 … 65535; calls with the same stream follow each other, different streams run
                side by side.

        Raises:
            LocalProtocolError: the buffer cannot be averaged in place, or the worker is closed.
            RemoteProtocolError: the ranks do not agree on shape or dtype.
            PeerLostError: the server or another rank is gone; named.
            RoundTimeoutError: not done within `config.timeout_s`.
        """
        return cast(
            AllReduceReport,
            wait_for(self._thread, self.all_reduce_async(grad, stream=stream), "all_reduce"),
        )

    def all_reduce_async(
        self, grad: Any, *, stream: int = 0, squared_norm: float | None = None
    ) -> Future[AllReduceReport]:
        """Like `all_reduce`, at once: `grad` belongs to the transport until the future is done.

        `squared_norm` is what the server's policy sees of the gradient; None computes it.  The
        future is completed on the transport's own thread: callbacks must be short and must not wait
        for another all-reduce.
        """
        self._thread.check_usable()
        view, dtype = byte_view_of(grad, what="grad", writable=True)
        norm = fastpath.squared_norm(view, dtype) if squared_norm is None else squared_norm
        future: Future[AllReduceReport] = self._endpoint.submit(
            lambda now: self._core.all_reduce(
                view, dtype, stream=stream, squared_norm=norm, now=now
            )
        )
        return future

    def close(self) -> None:
        """Says goodbye and releases sockets and thread; idempotent, never waits for other ranks."""
        close_thread(self._thread, self._group)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_group") and not sys.is_finalizing():
            self.close()


def _report_of(finished: FinishedRound, elapsed_s: float) -> AllReduceReport:
    assert finished.uplink is not None and finished.downlink is not None
    mean = finished.round.mean_squared_norm
    return AllReduceReport(finished.uplink, finished.downlink, elapsed_s, mean)
