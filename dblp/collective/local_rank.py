"""The rank that lives with the server: its gradient never touches a socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import DBLPError
from ..proto.bitmap import Indices
from ..tolerance import Tolerance
from ..wire import Open
from .server_round import ServerRound
from .server_streams import StreamTable
from .worker_round import NO_CHUNKS

__all__ = ["FinishedLocal", "LocalRank", "LocalRound"]


@dataclass(slots=True, eq=False, kw_only=True)
class LocalRound:
    """One all-reduce of the rank that lives with the server, from the call to the result."""

    buffer: memoryview
    """Its gradient, replaced by the mean; nobody else may touch it before the round ends."""
    dtype: str
    stream: int
    squared_norm: float
    tolerance: Tolerance | None
    critical: bool
    whole_bytes: int
    mean_squared_norm: float = float("nan")
    """Mean over the ranks; known at the end."""
    left_out: Indices = field(default_factory=lambda: NO_CHUNKS)
    """As in `OpenRound`."""

    def lost(self) -> Indices:
        """As in `OpenRound`; the server has all of this gradient."""
        return self.left_out

    def announcement(self, round_id: int, chunk_bytes: int) -> Open:
        """What a remote rank would announce."""
        return Open(
            stream=self.stream,
            round=round_id,
            nbytes=self.buffer.nbytes,
            chunk_bytes=chunk_bytes,
            dtype=self.dtype,
            wants_ready=False,
            squared_norm=self.squared_norm,
            tolerance=None if self.tolerance is None else self.tolerance.wire(),
            critical=self.critical,
            next_tolerance=None,
            whole_bytes=self.whole_bytes,
        )


@dataclass(frozen=True, slots=True)
class FinishedLocal:
    """The end of one `LocalRound`."""

    round: LocalRound
    error: DBLPError | None
    """None: the buffer holds the mean.  Otherwise its contents are unspecified."""


class LocalRank:
    """The rounds of the local rank: at most one per stream is going on, the others wait in order.

    The reducer reads the gradient where the caller has it and writes the mean over it, and the
    downlinks are sent from there: no copy, and no second buffer of the size of the shard.  The
    price is that the round ends for the local rank when the last downlink has ended (S2), half a
    round trip after the last remote rank has the mean.  A copy for the downlinks would cost a pass
    over the shard in every round and gain nothing: the next round needs all ranks anyway.

    Commands: `add`, `announcements`, `finish`, `fail`.  Outputs: `take_finished`.
    """

    __slots__ = ("_finished", "_open", "_waiting", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._waiting: dict[int, deque[LocalRound]] = {}
        self._open: list[LocalRound] = []
        self._finished: list[FinishedLocal] = []

    def add(self, round_: LocalRound) -> None:
        """`round_` waits for its turn."""
        self._waiting.setdefault(round_.stream, deque()).append(round_)

    def announcements(self, streams: StreamTable, chunk_bytes: int) -> Iterator[Open]:
        """Announces the next round of every stream whose round before has ended here.

        As with a remote rank, the announcement of a round says that this rank has the one before.
        """
        for stream in list(self._waiting):
            waiting = self._waiting.get(stream)
            if waiting is None:  # what was announced before has ended the job
                return
            state = streams.take(stream)
            current = state.current
            if state.previous is not None or current.offers[self.rank] is not None:
                continue
            round_ = waiting.popleft()
            if not waiting:
                del self._waiting[stream]
            self._open.append(round_)
            current.local = round_
            yield round_.announcement(current.round_id, chunk_bytes)

    def finish(self, round_: ServerRound) -> None:
        """The mean is in place, and nobody reads it any more."""
        local = round_.local
        assert isinstance(local, LocalRound)
        local.mean_squared_norm = round_.mean_square
        local.left_out = round_.left_out
        self._open.remove(local)
        self._finished.append(FinishedLocal(local, None))

    def fail(self, error: DBLPError) -> None:
        """Every round ends with `error`."""
        waiting = [round_ for rounds in self._waiting.values() for round_ in rounds]
        self._finished += [FinishedLocal(round_, error) for round_ in (*self._open, *waiting)]
        self._open.clear()
        self._waiting.clear()

    def take_finished(self) -> list[FinishedLocal]:
        """Rounds that ended since the last call, in the order in which they ended."""
        taken, self._finished = self._finished, []
        return taken
