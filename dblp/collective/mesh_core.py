"""One rank of a mesh without sockets or clock: a worker of every server, and maybe a server."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import DBLPError, LocalProtocolError, PeerLostError
from ..proto.stopping import STOP_DATA_BYTES_MAX
from ..tolerance import EXACT, Tolerance
from ..wire import Abort, Frame
from .local_rank import LocalRound
from .mesh_round import FinishedMeshRound, MeshRound, Part
from .round_layout import check_buffer
from .server_core import ServerCore
from .sharding import Shard, ShardPlan
from .worker_core import WorkerCore

__all__ = ["MeshCore"]

TOLD_CHUNKS_MAX = STOP_DATA_BYTES_MAX
"""Runs of missing chunks take two bytes each or less than one byte per chunk."""


class MeshCore:
    """Several servers that share a buffer, seen from one rank.

    Theory of operation.  Every buffer is cut into one shard per server (`ShardPlan`).  A rank is a
    worker of every other server (`WorkerCore`), and the local rank of its own (`ServerCore`).  The
    shards are rounds that know nothing of each other: the all-reduce is over when all of them are.
    Every announcement carries the squared norm of the whole gradient, so every server computes the
    same mean of them, and its tolerance, so nobody has to ask a policy.

    The first error of any part ends the mesh: every rank is told, and every round ends with it.

    *Commands*: `join`, `all_reduce`, `fail`.
    *Inputs*: `on_worker_events`, `on_server_events`, `link_failed`, `on_timeout`.
    *Outputs*: `take_finished`, `take_frames`, `take_notices`, `next_timeout`, and what the sessions
    have to send.
    *Getters*: `error`, `stall`, `idle`.
    """

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        server: ServerCore | None,
    ) -> None:
        """`server`: the core of the own shard, None where this rank serves none."""
        self.rank = rank
        self.world = world
        self.server = server
        self.workers: dict[int, WorkerCore] = {}
        """By the rank of the server."""
        self.error: DBLPError | None = None
        """Why no round can be started any more; None while rounds can be."""
        self._plan: ShardPlan | None = None
        self._left: set[int] = set()
        self._parts: dict[int, tuple[MeshRound, Part]] = {}  # by id() of a core's round
        self._open: dict[int, MeshRound] = {}  # by id(), in order of their start
        self._finished: list[FinishedMeshRound] = []
        self._frames: list[tuple[int, bool, Frame]] = []

    # --- commands ---------------------------------------------------------------------------

    def join(self, plan: ShardPlan, workers: Mapping[int, WorkerCore]) -> None:
        """The connections are there: rounds may start.  `workers`: by the rank of the server."""
        self._plan = plan
        self.workers = dict(workers)

    def all_reduce(
        self,
        buffer: memoryview,
        dtype: str,
        *,
        stream: int = 0,
        tolerance: Tolerance | None = None,
        critical: bool = False,
        squared_norm: float = math.nan,
        now: float,
    ) -> MeshRound:
        """Starts (or queues) the all-reduce of `buffer`, in place.

        Args:
            buffer: writable contiguous bytes of the gradient; becomes the mean.
            dtype: element type.
            stream: 0 … 65535; rounds of one stream follow each other.
            tolerance: of this round, the same on all ranks; None is exact.
            critical: whether this is a critical learning regime; the same on all ranks.
            squared_norm: sum of the squared elements; NaN when unknown.
            now: seconds.

        Raises:
            LocalProtocolError: the buffer cannot be averaged.
            DBLPError: the error with which this mesh has ended before.
        """
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self._plan is None:
            raise LocalProtocolError(f"rank {self.rank} is not connected: call connect first")
        check_buffer(buffer, dtype, stream)
        told = EXACT if tolerance is None else tolerance
        round_ = MeshRound(
            buffer, dtype, stream=stream, tolerance=told, critical=critical,
            squared_norm=squared_norm, chunk_bytes=self._plan.chunk_bytes,
        )  # fmt: skip
        shards = self._plan.shards(buffer.nbytes, stream) if self.world > 1 else ()
        for shard in shards:
            if shard.server in self._left:
                self.fail(
                    PeerLostError(
                        f"rank {shard.server} has closed its mesh: all ranks must run the same "
                        f"rounds"
                    )
                )
                assert self.error is not None
                raise self.error.with_traceback(None)
            self._check_length(shard.stop - shard.start, told)
        self._open[id(round_)] = round_
        try:
            for shard in shards:
                self._start_part(round_, shard, now)
        except DBLPError as error:  # a session knows of it already, and this core does not yet
            del self._open[id(round_)]  # its caller learns it here, and has no future
            self.fail(error)
            raise
        round_.left = len(round_.parts)
        self._finish_if_done(round_)
        return round_

    def _start_part(self, round_: MeshRound, shard: Shard, now: float) -> None:
        """Starts the round of one shard."""
        part = Part(shard)
        round_.parts.append(part)
        view, whole_bytes = round_.buffer[shard.start : shard.stop], round_.buffer.nbytes
        if self.server is not None and shard.server == self.rank:
            local = LocalRound(
                buffer=view, dtype=round_.dtype, stream=round_.stream,
                squared_norm=round_.squared_norm, tolerance=round_.tolerance,
                critical=round_.critical, whole_bytes=whole_bytes,
            )  # fmt: skip
            self._parts[id(local)] = (round_, part)
            part.work = local
            self.server.all_reduce_local(local, now=now)
        else:
            part.work = self.workers[shard.server].all_reduce(
                view, round_.dtype, stream=round_.stream, squared_norm=round_.squared_norm,
                tolerance=round_.tolerance, critical=round_.critical, whole_bytes=whole_bytes,
                now=now,
            )  # fmt: skip
            self._parts[id(part.work)] = (round_, part)

    def fail(self, error: DBLPError) -> None:
        """Ends every round with `error`, tells all ranks, and refuses new rounds.  Idempotent."""
        if self.error is not None:
            return
        self.error = error
        for worker in self.workers.values():
            worker.fail(error)
        if self.server is not None:
            self.server.fail(error)
            self._frames += [(rank, True, frame) for rank, frame in self.server.take_broadcast()]
        abort = Abort(kind=type(error).__name__, reason=str(error))
        self._frames += [(server, False, abort) for server in self.workers]
        self._parts.clear()
        for round_ in self._open.values():
            self._finished.append(FinishedMeshRound(round_, error))
        self._open.clear()

    # --- inputs -----------------------------------------------------------------------------

    def on_worker_events(self, server: int, *, now: float) -> None:
        """The session to `server` may have something to tell."""
        worker = self.workers[server]
        if self.error is not None:
            return
        worker.on_events(now=now)
        if worker.server_left:
            self._left.add(server)
        self.collect()

    def on_server_events(self, rank: int, *, now: float, pause: bool = False) -> bool:
        """The session of `rank` to the own server may have something to tell; as
        `ServerCore.on_events`."""
        assert self.server is not None
        again = self.server.on_events(rank, now=now, pause=pause)
        if not again:
            self.collect()
        return again

    def link_failed(self, rank: int, error: DBLPError, *, served: bool, now: float) -> None:
        """A connection with `rank` is gone or broken; `served`: one to the own server."""
        if self.error is not None:
            return
        if served and self.server is not None:
            self.server.peer_lost(rank, error, now=now)
        else:
            if rank in self.workers:  # else the others are still connecting
                self.workers[rank].fail(error)
            if rank in self._left:
                return
        self.collect()
        self.fail(error)

    def on_timeout(self, *, now: float) -> None:
        """Acts on the timers that are due."""
        for core in self._cores():
            due = core.next_timeout()
            if due is not None and due <= now:
                core.on_timeout(now=now)
        self.collect()

    # --- outputs ----------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedMeshRound]:
        """Rounds that ended since the last call, in the order in which they ended."""
        taken, self._finished = self._finished, []
        return taken

    def take_frames(self) -> list[tuple[int, bool, Frame]]:
        """(rank, served, frame) for the reliable channels; `served`: of the connection to the own
        server, else of the one to the server of that rank."""
        taken, self._frames = self._frames, []
        return taken

    def take_notices(self) -> list[str]:
        """One-sentence warnings since the last call."""
        return [notice for core in self._cores() for notice in core.take_notices()]

    def next_timeout(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds, or None."""
        times = [core.next_timeout() for core in self._cores()]
        return min((time for time in times if time is not None), default=None)

    # --- getters ----------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no round of this rank is open."""
        return not self._open

    def stall(self) -> str:
        """What the open rounds wait for; '' when idle."""
        return "; ".join(text for text in (core.stall() for core in self._cores()) if text)

    # --- inside -----------------------------------------------------------------------------

    def collect(self) -> None:
        """Takes what has ended in the cores."""
        server = self.server
        for worker in self.workers.values():
            for finished in worker.take_finished():
                if finished.error is None:
                    self._part_over(finished.work)
        if server is not None:
            server.take_reports()
            for local in server.take_local():
                if local.error is None:
                    self._part_over(local.round)
        if self.error is None:
            for core in self._cores():
                if core.error is not None:
                    self.fail(core.error)
                    return

    def _check_length(self, nbytes: int, tolerance: Tolerance) -> None:
        """A STOP names the missing chunks in one frame, and the caller is promised to know them."""
        assert self._plan is not None
        limit = TOLD_CHUNKS_MAX * self._plan.chunk_bytes
        if nbytes > limit and not tolerance.is_exact:
            raise LocalProtocolError(
                f"a shard of {nbytes:,} bytes is too long for a tolerance of {tolerance}: use "
                f"buckets with shards of at most {limit:,} bytes, or no tolerance"
            )

    def _cores(self) -> list[ServerCore | WorkerCore]:
        cores: list[ServerCore | WorkerCore] = list(self.workers.values())
        return cores if self.server is None else [*cores, self.server]

    def _part_over(self, work: object) -> None:
        known = self._parts.pop(id(work), None)
        if known is not None:  # else the mesh has failed
            round_, _ = known
            round_.left -= 1
            self._finish_if_done(round_)

    def _finish_if_done(self, round_: MeshRound) -> None:
        if round_.left == 0:
            del self._open[id(round_)]
            self._finished.append(FinishedMeshRound(round_, None))
