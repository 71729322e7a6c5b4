"""What the server keeps for one round of one stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .. import fastpath
from ..config import TransportConfig
from ..phase import Decision, Regime
from ..proto import Receiver, Sender, Session, ZeroChunks, energy_of, send_order
from ..stats import RoundReport
from ..tolerance import Tolerance
from ..wire import Open
from .round_layout import RoundLayout
from .worker_round import NO_CHUNKS

if TYPE_CHECKING:
    import numpy.typing as npt

    from .buffers import BufferPool

__all__ = ["MEANS_HELD", "ServerRound", "Stage"]

MEANS_HELD = 2
"""Means of a stream that exist at once: one goes down while the next comes up."""


class Stage(Enum):
    """Where a round of the server stands.

    GATHERING → ARMED → FLOWING → REDUCED → DONE; a changed layout goes back from ARMED to
    GATHERING.  With `norm="received"` a round goes from ARMED to REDUCED directly, because its
    downlink cannot start before the reduction.
    """

    GATHERING = "gathering the announcements"
    """Nothing is armed: the layout is not known before every rank has announced it."""
    ARMED = "receiving"
    """Every rank may send; some announcements are still to come."""
    FLOWING = "receiving and sending"
    """Every rank has announced the round: chunks that all ranks delivered go down already."""
    REDUCED = "sending the result"
    """Every uplink has stopped and the mean is complete."""
    DONE = "done"


class LocalSource(Protocol):
    """What a round needs of the local rank's part."""

    buffer: memoryview


class ServerRound:
    """One round of one stream on the server: N uplinks, one reduction, N downlinks.

    Commands: `arm`, `provide`, `disarm`, `limit`, `send_order`, `start_downlinks`, `reduce`,
    `give_back_result`.  Getters: `uplink_tolerance`, `where`, `waiting_for`, `progress_report`.
    Everything else is state that `ServerCore` keeps here.  Offers are indexed by rank; receivers,
    senders and sources are those of the remote ranks, in rank order.
    """

    __slots__ = (
        "announced", "deadline", "decision", "downlinks_open", "layout", "left_out", "local",
        "mean_square", "offered", "offers", "ranks", "receivers", "reducer", "result", "round_id",
        "senders", "sources", "stage", "step", "stream", "told", "uplink_decision", "uplinks_left",
        "zeros",
    )  # fmt: skip

    def __init__(
        self,
        *,
        stream: int,
        round_id: int,
        step: int,
        world: int,
        ranks: Sequence[int],
        decision: Decision,
    ) -> None:
        """`ranks`: the remote ones, of `world`."""
        self.stream = stream
        self.round_id = round_id
        self.step = step
        """Rounds of this stream before this one; does not wrap."""
        self.stage = Stage.GATHERING
        self.uplink_decision = decision
        """Fixed here for the life of the round and the same for all ranks (C1), unless they
        announce one."""
        self.told: Decision | None = None
        """What the ranks have announced; None: nothing, or not yet."""
        self.mean_square = math.nan
        """Mean over the ranks of the squared norms; NaN while it is not known."""
        self.decision: Decision | None = None
        """For this downlink and the next uplink; None before all norms are known."""
        self.announced: RoundLayout | None = None
        """What the first rank to announce the round announced."""
        self.layout: RoundLayout | None = None
        """What is armed."""
        self.offers: list[Open | None] = [None] * world
        self.offered = 0
        self.receivers: list[Receiver] = []
        self.senders: list[Sender] = []
        self.sources: list[npt.NDArray[np.uint8]] = []
        self.result: npt.NDArray[np.uint8] | None = None
        self.reducer: fastpath.Reducer | None = None
        self.left_out = NO_CHUNKS
        """Chunks of the mean that a common downlink leaves out, once it is complete; ascending."""
        self.zeros = NO_CHUNKS
        """Chunks of the complete mean that are named as zeros, and not sent: no rank has delivered
        them, and nothing is left out.  Ascending."""
        self.ranks = ranks
        self.local: LocalSource | None = None
        """The round of the local rank, once it is there."""
        self.uplinks_left = len(ranks)
        self.downlinks_open = set(ranks)
        """Ranks that may still read the result: their senders are not over."""
        self.deadline: float | None = None
        """When the round has taken too long, in seconds; None before the first announcement."""

    def set_deadline(self, config: TransportConfig, *, now: float) -> None:
        """A rank has announced the round: how long the others, or the round, may take."""
        if self.offered == len(self.offers) and (
            self.deadline is None or config.straggler_timeout_s is not None
        ):
            self.deadline = now + config.timeout_s
        elif self.deadline is None:
            self.deadline = now + config.announce_timeout_s

    def arm(
        self,
        layout: RoundLayout,
        sessions: Sequence[Session],
        pool: BufferPool,
        *,
        contributors: bool,
        now: float,
    ) -> None:
        """Makes every rank able to send this round; MemoryError when the buffers cannot be had."""
        assert self.stage is Stage.GATHERING, self.stage
        self.layout = layout
        if len(self.ranks) == len(self.offers):  # else the mean replaces the local gradient
            self.result = pool.acquire(layout.nbytes)
        # Chunks land where others have just been read (landing.pxi): of these little is used.
        self.sources = [pool.acquire(layout.nbytes, touched=False) for _ in self.ranks]
        by_rank: list[npt.NDArray[np.uint8] | None] = [None] * len(self.offers)
        for rank, source in zip(self.ranks, self.sources, strict=True):
            by_rank[rank] = source
        self.reducer = fastpath.Reducer(
            self.result, by_rank, layout.chunk_bytes, layout.dtype, contributors
        )
        tolerance = self.uplink_decision.tolerance
        self.receivers = [
            session.arm(
                stream=self.stream,
                round_id=self.round_id,
                buffer=source.data,
                dtype=layout.dtype,
                tolerance=tolerance,
                yields=True,
                reducer=self.reducer,
                source=rank,
                direction="uplink",
                rank=rank,
                regime=self.uplink_decision.regime.value,
                now=now,
            )
            for rank, source, session in zip(self.ranks, self.sources, sessions, strict=True)
        ]
        self.stage = Stage.ARMED
        self.provide()

    def provide(self) -> None:
        """The local rank's gradient arrives as a whole, if it is there and fits what is armed."""
        local = self.local
        if local is None or self.reducer is None or self.result is not None:
            return
        assert self.layout is not None
        if self.announced == self.layout:
            self.result = np.asarray(local.buffer)
            local_rank = next(r for r in range(len(self.offers)) if r not in self.ranks)
            self.reducer.provide(local_rank, self.result)

    def disarm(self, sessions: Sequence[Session], pool: BufferPool) -> None:
        """Takes back an armed round into which nothing has come: its layout has changed."""
        assert self.stage is Stage.ARMED, self.stage
        assert self.local is None or self.result is None, "a local gradient fits what is armed"
        for session in sessions:
            session.release(self.stream, self.round_id)
        self._give_back_sources(pool)
        if self.result is not None:
            self.give_back_result(pool)
        self.reducer = None
        self.receivers = []
        self.layout = None
        self.stage = Stage.GATHERING

    def send_order(
        self, config: TransportConfig, seed: int, tolerance: Tolerance, *, best: bool
    ) -> npt.NDArray[np.uint32]:
        """Order in which the complete mean goes down, the same for all ranks.

        With `best` only as many chunks as the tolerance needs go down, those of the most energy;
        the others become zero here too, so that all ranks have the same.
        """
        assert self.layout is not None and self.result is not None
        kind = config.order_for(exact=tolerance.is_exact, dtype=self.layout.dtype)
        order = send_order(
            "magnitude" if best else kind,
            self.receivers[0].layout,
            round_id=self.round_id,
            seed=seed << 16 | self.stream,
            buffer=self.result.data,
            dtype=self.layout.dtype,
            expected=tolerance,
        )
        if best:  # of most energy, in whatever order the uplinks came
            order = np.sort(order[: tolerance.needed(len(order))])  # all of them must arrive
            self._keep_only(order)
            self.zeros = NO_CHUNKS  # they are among those that are left out, or are sent
        elif self.zeros.size:
            carries = np.ones(order.size, bool)
            carries[self.zeros] = False
            order = order[carries[order]]
        return order

    def limit(self, tolerance: Tolerance) -> None:
        """Only as many chunks go down as `tolerance` needs: those that are complete first, then
        what `reduce` takes up.  The others become zero here too: all ranks have the same."""
        assert self.reducer is not None
        self.reducer.set_limit(tolerance.needed(self.reducer.count))

    def start_downlinks(
        self,
        sessions: Sequence[Session],
        tolerance: Tolerance,
        order: npt.NDArray[np.uint32] | None,
        *,
        now: float,
    ) -> None:
        """Announces the mean to every rank; `order` None sends chunks as they become ready."""
        assert self.decision is not None and self.layout is not None
        assert self.result is not None and not self.senders
        critical = self.decision.regime is Regime.CRITICAL
        self.senders = [
            session.send(
                stream=self.stream,
                round_id=self.round_id,
                buffer=self.result.data,
                dtype=self.layout.dtype,
                order=order,
                reducer=self.reducer if order is None else None,
                wait_ready=False,
                tolerance=tolerance,
                critical=critical,
                squared_norm=self.mean_square,
                next_tolerance=None if self.told is not None else self.decision.tolerance,
                whole_bytes=self.layout.whole_bytes,
                direction="downlink",
                rank=rank,
                now=now,
            )
            for rank, session in zip(self.ranks, sessions, strict=True)
        ]
        self._tell_zeros()

    def _tell_zeros(self) -> None:
        if self.zeros.size and self.senders:
            count = self.receivers[0].layout.count
            zeros = ZeroChunks(self.zeros, count, self.stream, self.round_id)
            for sender in self.senders:
                sender.tell_zeros(zeros)

    def reduce(self, sessions: Sequence[Session], pool: BufferPool, *, ranked: bool) -> None:
        """Completes the mean; every uplink has stopped.  Frees the receive buffers.

        Args:
            ranked: where the mean is limited, it takes up those chunks first that most ranks have
                delivered, and of these the ones of most energy.
        """
        assert self.reducer is not None and self.uplinks_left == 0
        bitmaps: list[bytearray | None] = [None] * len(self.offers)  # None: the local rank's
        for rank, receiver in zip(self.ranks, self.receivers, strict=True):
            bitmaps[rank] = receiver.bitmap.bits
        limited = self.reducer.limit < self.reducer.count
        self.zeros = self.reducer.finish(bitmaps, self._best_of(bitmaps) if ranked else ())
        self._tell_zeros()
        if limited:
            self._leave_out(self.reducer.ready_indices()[: self.reducer.limit])
        for session in sessions:
            session.release(self.stream, self.round_id)
        self._give_back_sources(pool)

    def _best_of(self, bitmaps: Sequence[bytearray | None]) -> npt.NDArray[np.uint32] | tuple[()]:
        """The chunks that not all ranks have delivered, best first; nothing where all are used."""
        assert self.reducer is not None and self.layout is not None and self.result is not None
        count = self.reducer.count
        if self.reducer.limit == count or self.local is None:
            return ()
        delivered = np.zeros(count, np.uint8)
        for bits in bitmaps:
            if bits is not None:
                delivered += np.unpackbits(
                    np.frombuffer(bits, np.uint8), count=count, bitorder="little"
                )
        partial = np.flatnonzero(delivered < len(bitmaps) - 1).astype(np.uint32)
        # What is there of a chunk that is not reduced is the local rank's gradient.
        energy = energy_of(
            self.result.data,
            self.layout.dtype,
            self.layout.chunk_bytes,
            turn=self.round_id,
            chunks=partial,
        )
        return partial[np.lexsort((-energy, -delivered[partial].astype(np.int16)))]

    def give_back_result(self, pool: BufferPool) -> None:
        """No sender reads the result any more."""
        assert self.result is not None
        if self.local is None:
            pool.release(self.result)
        self.result = None
        self.reducer = None

    def announced_mean_square(self) -> float:
        """Mean over the ranks of the squared norms that they have announced."""
        total = 0.0
        for offer in self.offers:  # one by one: sum() rounds differently from Python 3.12 on
            total += math.nan if offer is None else offer.squared_norm
        return total / len(self.offers)

    @property
    def uplink_tolerance(self) -> Tolerance:
        """Of all uplinks of the round, once all ranks have announced it."""
        return (self.told or self.uplink_decision).tolerance

    @property
    def dtype(self) -> str:
        """Element type of a round that is armed."""
        assert self.layout is not None
        return self.layout.dtype

    @property
    def where(self) -> str:
        """Names the round in errors."""
        return f"stream {self.stream} round {self.round_id}"

    def waiting_for(self) -> str:
        """Which ranks the round waits for, and for what."""
        absent = [str(rank) for rank, offer in enumerate(self.offers) if offer is None]
        if absent:
            return f"waiting for rank {', '.join(absent)} to announce it"
        parts = [
            f"the uplink of rank {rank} has {receiver.accepted} of {receiver.needed} chunks"
            for rank, receiver in zip(self.ranks, self.receivers, strict=False)
            if self.uplinks_left and not receiver.is_over
        ] or [
            f"rank {rank} has not confirmed its downlink"
            for rank, sender in zip(self.ranks, self.senders, strict=False)
            if not sender.is_over
        ]
        return ", ".join(parts) or "waiting for the server"

    def progress_report(self, *, now: float) -> RoundReport | None:
        """How far the first uplink is that has not ended; None when there is none."""
        for receiver in self.receivers:
            if not receiver.is_over:
                return receiver.progress_report(now=now)
        return None

    def _keep_only(self, order: npt.NDArray[np.uint32]) -> None:
        """Zeroes the chunks of the mean that `order` leaves out."""
        assert self.result is not None and self.layout is not None
        kept = self._leave_out(order)
        bits = np.packbits(kept, bitorder="little")
        fastpath.zero_missing(self.result, bits, kept.size, self.layout.chunk_bytes)

    def _leave_out(self, kept: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Remembers which chunks are not among those `kept`; a mask of these."""
        mask = np.zeros(self.receivers[0].layout.count, bool)
        mask[kept] = True
        self.left_out = np.flatnonzero(~mask).astype(np.uint32)
        return mask

    def _give_back_sources(self, pool: BufferPool) -> None:
        for buffer in self.sources:
            pool.release(buffer)
        self.sources = []
