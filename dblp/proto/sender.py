"""The sending half of a round: Algorithm 1, with epochs, and a way out when UDP is blocked."""

from __future__ import annotations

import numpy as np

from ..errors import DBLPError, RemoteProtocolError
from ..stats import RoundReport
from ..tolerance import EXACT
from ..wire import Bitmap, Probe, Stop, Zeros
from .bitmap import Indices, decode_fragment, decode_ranges
from .copies import repeated
from .events import FallbackToReliable, Path, SendFinished
from .layout import ChunkLayout
from .link import Link, tolerance_text
from .machine import Machine
from .order import subset_mask
from .outline import outline_frames
from .plans import SendPlan
from .reliable import chunk_frames
from .states import SENDER_HARMLESS, SENDER_TRANSITIONS, SenderInput, SenderState
from .zeros import ZeroChunks

__all__ = ["Sender"]

IDLE_PASSES_MAX = 3
"""Passes in a row that delivered nothing: datagrams do not get through (hazard 9)."""

PASSES_MAX = 64
"""Passes before the rest goes over TCP in any case: at 70 % loss a chunk is missing after 64 passes
once in 10 billion."""

RELIABLE_BUDGET_BYTES = 1 << 20
"""Payload on TCP between two probes: bounds what a STOP can no longer take back (S1)."""


class Sender:
    """One round towards one peer.

    Theory of operation.  A pass queues chunk indices in the fast path; when all of it is with the
    kernel the sender probes, under a new epoch.  The receiver answers with STOP or with bitmap
    fragments; each fragment of the current epoch is acted on once and starts (or extends) the next
    pass.  Fragments of older epochs are ignored, so a late one cannot restart a pass.  While
    PROBED a timer resends the probe; in no other state is one armed (T1).

    *Commands*: `begin`, `tell_zeros`, `imply_stop`, `fail`.
    *Inputs*: `on_progress`, `on_stall`, `on_bitmap`, `on_stop`, `on_timeout`.
    *Outputs*: `timer`; frames and events go to the session's link.
    *Getters*: everything else.
    """

    __slots__ = (
        "_accepted", "_answered", "_began", "_first_pass", "_idle_passes", "_link", "_loss",
        "_machine", "_order", "_resends", "_sent_before", "_zeros", "epoch", "error",
        "fallback", "final_missing", "passes", "plan", "reliable", "report", "slot", "timer",
    )  # fmt: skip

    def __init__(self, link: Link, plan: SendPlan, *, now: float) -> None:
        """Registers the source with the channel and announces the round."""
        self.plan = plan
        self.epoch = 0
        """Probes sent, resends not counted."""
        self.passes = 0
        """Passes begun."""
        self.timer: float | None = None
        """When `on_timeout` wants to be called, in seconds."""
        self.reliable = False
        """Payload goes over TCP from now on (hazard 9)."""
        self.fallback = False
        """Some payload went over TCP."""
        self.final_missing: Indices | None = None
        """Which chunks the receiver did not get; None until a STOP said so."""
        self.report: RoundReport | None = None
        """Set when the round is over."""
        self.error: DBLPError | None = None
        self._link = link
        self._machine = Machine(SenderState.IDLE, SENDER_TRANSITIONS, SENDER_HARMLESS)
        self._accepted = 0
        self._answered: list[tuple[int, int]] = []  # fragments of this epoch: (first, end)
        self._began = now
        self._first_pass: int | None = None  # datagrams
        self._idle_passes = 0
        self._sent_before = 0  # datagrams up to the last judged pass
        self._loss = 0.0  # share of the last pass that did not arrive
        self._resends = 0
        self._order: Indices | None = None
        self._zeros: ZeroChunks | None = None
        self.slot = link.channel.open_transmit(plan.open.stream, plan.open.round, plan.source)
        wants_ready = plan.open.wants_ready
        path = Path.RELIABLE if wants_ready else link.signal_path(plan.layout.count)
        link.outbox.put(plan.open, path, self)
        if not wants_ready:
            self.begin(now=now)

    # --- getters ----------------------------------------------------------------------------

    @property
    def state(self) -> SenderState:
        """Where the round stands."""
        return self._machine.state

    @property
    def is_over(self) -> bool:
        """STOPPED or FAILED."""
        return self._machine.state in (SenderState.STOPPED, SenderState.FAILED)

    @property
    def stream(self) -> int:
        """Stream id."""
        return self.plan.open.stream

    @property
    def round_id(self) -> int:
        """Round id, modulo 2**32."""
        return self.plan.open.round

    @property
    def layout(self) -> ChunkLayout:
        """How the buffer is cut."""
        return self.plan.layout

    @property
    def source_is_complete(self) -> bool:
        """Whether every chunk of the buffer may be sent: a reducer that is followed is done."""
        reducer = self.plan.reducer
        return reducer is None or reducer.ready == reducer.limit

    # --- commands ---------------------------------------------------------------------------

    def begin(self, *, now: float, exact: bool = False) -> None:
        """Starts the first pass; Ready arrived (and says whether every chunk is wanted) or none is
        needed."""
        if not self._machine.step(SenderInput.BEGIN):
            return
        self._began = now
        self.passes = 1
        if not self._link.datagrams.next_round_tries():
            self.reliable = self.fallback = True
        elif self.plan.reducer is not None:
            self._link.channel.follow(self.slot, self.plan.reducer)
        elif self.plan.order is not None:
            self._order = self.plan.order(exact)
            length = self._link.first_pass.chunks(self.plan.tolerance, self.layout.count)
            self._link.channel.queue(self.slot, self._order[:length])
            self._tell_order()
        self.on_progress(now=now)

    def tell_zeros(self, zeros: ZeroChunks) -> None:
        """These chunks, which are not sent, are zero: the receiver need not wait for them."""
        if not self.is_over:
            self._zeros = zeros
            path = self._link.signal_path(self.layout.count)
            self._put_zeros(zeros.frames(self._link.fragment_bytes), path)

    def imply_stop(self, *, now: float) -> None:
        """A later exchange shows that the receiver is done, though its STOP is not here (hazard 4).

        What it lacks is not known: the report names the most that it may lack (0 when the tolerance
        is not known here either).
        """
        if self._machine.step(SenderInput.STOP):
            if self.layout.count and not self.fallback:
                self._link.datagrams.worked()
            tolerance = self.plan.tolerance or EXACT
            count = self.layout.count
            missing = min(tolerance.missing_max(count), count - self._accepted)
            self._finish(missing, at_deadline=False, now=now)

    def fail(self, error: DBLPError) -> None:
        """The session is over; nothing is pending afterwards (T1)."""
        if self._machine.step(SenderInput.FAIL):
            self.error = error
            self._let_go()

    # --- inputs -----------------------------------------------------------------------------

    def on_progress(self, *, now: float) -> None:
        """The channel may have sent something: is the pass over (Algorithm 1, line 10)?"""
        if self._machine.state is not SenderState.SENDING:
            return
        if self.reliable:
            if self.source_is_complete:
                every = np.arange(self.layout.count, dtype=np.uint32)
                self._send_reliably(self._wanted(every), now)
        elif self._link.channel.pending(self.slot) == 0:
            self._end_pass(SenderInput.PASS_OVER, self._probe_path(), now)

    def on_stall(self, *, now: float) -> None:
        """The channel is blocked and nothing moves: ask, by both ways, what is there.

        A reducer that is not complete is not stalled: chunks that are not final must not be asked
        for yet.
        """
        if self._machine.state is SenderState.SENDING and self.source_is_complete:
            self._link.channel.cancel(self.slot)
            self._end_pass(SenderInput.STALL, Path.BOTH, now)

    def on_bitmap(self, bitmap: Bitmap, *, now: float) -> None:
        """A fragment (signal B): its missing chunks are the next pass (Algorithm 1, line 12)."""
        first, end = bitmap.first, bitmap.first + bitmap.count
        twice = any(first < known_end and known < end for known, known_end in self._answered)
        if self.is_over or bitmap.epoch != self.epoch or self.epoch == 0 or twice:
            return
        named = decode_fragment(bitmap, self.layout.count)
        if self._zeros is not None:  # those among the named: what told of them was lost
            again = self._zeros.frames_among(named, self._link.fragment_bytes)
            self._put_zeros(again, Path.BOTH)
        missing = self._wanted(named)
        if not self._answered:
            self._judge_pass(bitmap.accepted)
        self._answered.append((first, end))
        if missing.size == 0 or not self._machine.step(SenderInput.MISSING):
            return
        self.timer = None
        if self.reliable:
            self._send_reliably(missing, now)
            return
        if len(self._answered) == 1:
            self.passes += 1
        in_order = self._in_send_order(missing)
        self._link.channel.queue(self.slot, repeated(in_order, self.layout.count, self._loss))

    def on_stop(self, stop: Stop, *, now: float) -> None:
        """Signal S (Algorithm 1, lines 5-7 and 13): the first ends the round, a later one may tell
        which chunks were missing."""
        count = self.layout.count
        if stop.count != count or not 0 <= stop.accepted <= count:
            raise RemoteProtocolError(
                f"the peer stopped round {self.round_id} with {stop.accepted} of {stop.count} "
                f"chunks and it has {count}: use the same version of dblp on both sides"
            )
        if stop.missing is not None and self.final_missing is None:
            missing = decode_ranges(stop.missing, count)
            if missing.size != count - stop.accepted:
                raise RemoteProtocolError(
                    f"the peer stopped round {self.round_id} with {stop.accepted} of {count} "
                    f"chunks but names {missing.size} as missing"
                )
            self.final_missing = missing
        if self._machine.step(SenderInput.STOP):
            if stop.accepted > 0 and not self.fallback:
                self._link.datagrams.worked()
            came = self._came(stop)
            if came is not None and self.epoch and self._resends >= 0 and not self._answered:
                self._measure_loss(came)  # the STOP has come in place of a bitmap
            self._finish(count - stop.accepted, at_deadline=stop.at_deadline, now=now)

    def on_timeout(self, *, now: float) -> None:
        """Sends the probe that is due, both ways: something is lost or late (hazard 3)."""
        if self.timer is None or now < self.timer:
            return
        self._machine.step(SenderInput.PROBE_DUE)
        self._resends += 1
        path = Path.RELIABLE if self.reliable else Path.BOTH
        self._send_probe(path, now)

    # --- inside -----------------------------------------------------------------------------

    def _end_pass(self, input_: SenderInput, path: Path, now: float) -> None:
        self._machine.step(input_)
        if self._first_pass is None:
            self._first_pass = self._link.channel.sent(self.slot)
        self.epoch += 1
        self._answered.clear()
        if self.epoch == 1 and path is not Path.RELIABLE and self._link.config.stop == "eager":
            # Without loss the STOP is on its way already: give it time, and save probe and answer.
            self._resends = -1
            self.timer = now + self._link.policy.first_probe_after_s()
            return
        self._resends = 0
        self._send_probe(path, now)

    def _probe_path(self) -> Path:
        """After a first loss by both ways: what took chunks may take probes too (hazard 3)."""
        return Path.BOTH if self.epoch else self._link.signal_path(self.layout.count)

    def _send_probe(self, path: Path, now: float) -> None:
        link = self._link
        zeros = 0 if self._zeros is None else len(self._zeros)
        probe = Probe(self.plan.open, self.epoch, link.channel.sent_sequence, zeros)
        link.outbox.put(probe, path, self)
        wait = link.policy.resend_after_s(self._resends, reliable=self.reliable)
        self.timer = now + wait * link.jitter()

    def _measure_loss(self, accepted: int) -> int:
        """The first answer of an epoch shows what the pass has delivered; returns how much."""
        gained = max(0, accepted - self._accepted)
        queued = self._link.channel.sent(self.slot) - self._sent_before
        self._sent_before += queued
        self._loss = 1.0 - min(1.0, gained / queued) if queued else 0.0
        if self.epoch == 1:
            self._link.first_pass.learn(self._loss)
        self._accepted += gained
        return gained

    def _judge_pass(self, accepted: int) -> None:
        """Whether the pass delivered anything (hazard 9)."""
        self._idle_passes = 0 if self._measure_loss(accepted) else self._idle_passes + 1
        self._link.datagrams.trusted &= not self._loss
        hopeless = self._idle_passes >= IDLE_PASSES_MAX or self.passes >= PASSES_MAX
        if hopeless and not self.reliable:
            self.reliable = self.fallback = True
            if self._link.datagrams.gave_up(any_delivered=self._accepted > 0):
                self._link.events.append(FallbackToReliable(self))

    def _in_send_order(self, missing: Indices) -> Indices:
        """Later passes keep the order of the first: an early stop must not prefer low indices."""
        order = self._order
        if order is None or missing.size < 2:
            return missing
        wanted = np.zeros(self.layout.count, np.bool_)
        wanted[missing] = True
        return order[wanted[order]]

    def _tell_order(self) -> None:
        if self._link.outbox.reliable_only or self._order is None or self.plan.lands:
            return
        count = self.layout.count
        for frame in outline_frames(self._order, count, self.stream, self.round_id):
            self._link.outbox.put(frame, Path.DATAGRAM, self)

    def _put_zeros(self, frames: list[Zeros], path: Path) -> None:
        for frame in frames:
            self._link.outbox.put(frame, Path.RELIABLE if self.reliable else path, self)

    def _came(self, stop: Stop) -> int | None:
        """How many chunks had come with their bytes by a STOP at a deadline; None: not known."""
        if not stop.at_deadline:
            return None
        if self._zeros is None:
            return stop.accepted
        if self.final_missing is None:
            return None
        return stop.accepted - len(self._zeros) + self._zeros.unknown_to(self.final_missing)

    def _wanted(self, chunks: Indices) -> Indices:
        """Those of `chunks` that may be sent: not what an order leaves out."""
        only, reducer = self.plan.only, self.plan.reducer
        if reducer is not None and reducer.limit < reducer.count:
            only = subset_mask(reducer.ready_indices()[: reducer.limit], reducer.count)
        return chunks if only is None else chunks[only[chunks]]

    def _send_reliably(self, missing: Indices, now: float) -> None:
        """Puts chunks on TCP, at most `RELIABLE_BUDGET_BYTES`, and probes behind them."""
        self._link.channel.cancel(self.slot)
        self.passes += 1 if self.epoch else 0
        for frame in chunk_frames(
            self.plan.open, self.plan.source, self.layout, missing, RELIABLE_BUDGET_BYTES
        ):
            self._link.outbox.put(frame, Path.RELIABLE, self)
        self._end_pass(SenderInput.PASS_OVER, Path.RELIABLE, now)

    def _let_go(self) -> int:
        """Nothing pending, no timer (T1); returns the datagrams sent over all passes."""
        channel = self._link.channel
        sent = channel.sent(self.slot)
        channel.cancel(self.slot)
        channel.close_transmit(self.slot)
        self._link.outbox.drop(self)
        self.timer = None
        return sent

    def _finish(self, missing: int, *, at_deadline: bool, now: float) -> None:
        if self.passes == 1 and not at_deadline and not self.fallback:
            self._link.first_pass.learn_from_credits()
        self.report = self._make_report(missing, self._let_go(), at_deadline, now)
        self._link.events.append(SendFinished(self))

    def progress_report(self, *, now: float) -> RoundReport:
        """The report so far, for `RoundTimeoutError`; the channel's counters are not in it."""
        sent = 0 if self.is_over else self._link.channel.sent(self.slot)
        return self._make_report(
            self.layout.count - self._accepted, sent, False, now, with_counters=False
        )

    def _make_report(
        self, missing: int, sent: int, at_deadline: bool, now: float, *, with_counters: bool = True
    ) -> RoundReport:
        plan = self.plan
        first_pass = sent if self._first_pass is None else self._first_pass
        return RoundReport(
            stream=self.stream,
            round_id=self.round_id,
            direction=plan.label.direction,
            rank=plan.label.rank,
            regime=plan.label.regime,
            tolerance=tolerance_text(plan.tolerance),
            chunks=self.layout.count,
            missing=missing,
            passes=max(1, self.passes),
            nbytes=self.layout.nbytes,
            datagrams=sent,
            retransmitted=sent - first_pass,
            elapsed_s=now - self._began,
            rtt_s=self._link.rtt.smoothed_s,
            at_deadline=at_deadline,
            fallback=self.fallback,
            **(self._link.take_counter_deltas() if with_counters else {}),
        )
