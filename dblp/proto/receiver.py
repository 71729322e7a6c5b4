"""The receiving half of a round: Algorithm 2, with an exact bound and probe grace."""

from __future__ import annotations

from typing import Any

from .. import fastpath
from ..errors import DBLPError
from ..stats import RoundReport
from ..tolerance import EXACT, Tolerance
from ..wire import Bitmap, ChunkData, Open, Outline, Probe, Ready, Stop, Zeros
from .bitmap import ReceiveBitmap, decode_fragment
from .bound import Bound
from .events import Path, ReceiveFinished
from .layout import ChunkLayout
from .link import Link, tolerance_text
from .machine import Machine
from .outline import OrderToCome
from .plans import ReceivePlan
from .probing import QUIET_BOUND
from .reliable import deliver_chunks
from .states import RECEIVER_HARMLESS, RECEIVER_TRANSITIONS, ReceiverInput, ReceiverState
from .stopping import stop_frames
from .time_limit import TimeLimit

__all__ = ["Receiver"]


class Receiver:
    """One round from one peer.

    Theory of operation.  The fast path places chunks and sets bits as soon as the round is armed.
    STOP needs an announcement whose layout fits, and the bound: at once when it is met ("eager",
    the paper's early stop), or at completion or a probe ("patient").  A probe below the bound is
    answered with the bitmap after a quiet period, so that chunks which the probe overtook are not
    asked for again (hazard 2).  After STOP the slot is closed and nothing is armed (T1); the owner
    sees the round when `complete` has zeroed the missing chunks.

    *Commands*: `allow_deadline`, `complete`, `fail`.
    *Inputs*: `on_announcement`, `on_probe`, `on_outline`, `on_zeros`, `on_chunk_data`,
    `on_progress`, `on_timeout`.
    *Outputs*: `timer`; frames and events go to the session's link.
    *Getters*: everything else.
    """

    __slots__ = (
        "_accepted", "_answer_at", "_answer_by", "_answered", "_duplicates", "_limit", "_link",
        "_machine", "_probe", "_started", "_stopped", "_timed", "_to_come", "bitmap", "bound",
        "error", "mismatch_told", "open", "plan", "reliable", "report", "slot", "stop",
    )  # fmt: skip

    def __init__(self, link: Link, plan: ReceivePlan) -> None:
        """Arms the round in the channel."""
        self.plan = plan
        self.bitmap = ReceiveBitmap(plan.layout.count)
        self.open: Open | None = None
        """The announcement, once it is here."""
        self.stop: Stop | None = None
        """The decision (R2), short enough for a datagram."""
        self.report: RoundReport | None = None
        """Set by `complete`."""
        self.error: DBLPError | None = None
        self.mismatch_told = False
        self._link = link
        self._machine = Machine(ReceiverState.IDLE, RECEIVER_TRANSITIONS, RECEIVER_HARMLESS)
        self._accepted = 0
        self._duplicates = 0
        self._probe: Probe | None = None  # the newest
        self._answered = 0  # epochs answered with a bitmap
        self._answer_at: float | None = None
        self._answer_by = 0.0
        self._timed = plan.timed
        self._limit = TimeLimit(link.deadlines, link.channel, plan.stream, plan.layout.count)
        self.reliable = False
        """Payload comes over TCP (hazard 9)."""
        self._to_come = OrderToCome(plan.layout.count)
        self._started: float | None = None
        self._stopped = 0.0
        self.bound = Bound(plan.layout.count, eager=link.config.stop == "eager")
        """With how many chunks the round is over."""
        self.slot = link.channel.open_receive(
            plan.stream, plan.round_id, plan.buffer, self.bitmap.bits,
            aim=plan.aim, reducer=plan.reducer, source=plan.source,
        )  # fmt: skip
        if plan.tolerance is not None:
            self.bound.fix(plan.tolerance)
        self._set_notify()

    # --- getters ----------------------------------------------------------------------------

    @property
    def state(self) -> ReceiverState:
        """Where the round stands."""
        return self._machine.state

    @property
    def is_over(self) -> bool:
        """STOPPED or FAILED."""
        return self._machine.state in (ReceiverState.STOPPED, ReceiverState.FAILED)

    @property
    def timer(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds; None: not by time."""
        limit = self._limit.due
        if self._answer_at is None or limit is None:
            return self._answer_at if limit is None else limit
        return min(self._answer_at, limit)

    @property
    def stream(self) -> int:
        """Stream id."""
        return self.plan.stream

    @property
    def round_id(self) -> int:
        """Round id, modulo 2**32."""
        return self.plan.round_id

    @property
    def layout(self) -> ChunkLayout:
        """How the buffer is cut."""
        return self.plan.layout

    @property
    def accepted(self) -> int:
        """Chunks received, as of the last input."""
        return self._accepted

    @property
    def needed(self) -> int:
        """Chunks that are enough when no more come (with zeros more are waited for before)."""
        return self.bound.needed

    @property
    def tolerance(self) -> Tolerance | None:
        """Of this round; None while it is not known."""
        return self.bound.tolerance

    # --- inputs -----------------------------------------------------------------------------

    def on_announcement(
        self, open_: Open, tolerance: Tolerance | None, *, wants_ready: bool, now: float
    ) -> None:
        """An Open that fits; `tolerance` is what it asks for, None if nothing: it is used if none
        was armed, or a yielding one (C1: no chunk has been judged by the old one, STOP needs the
        announcement)."""
        if self.is_over:
            return
        if self._machine.step(ReceiverInput.ANNOUNCEMENT):
            self.open = open_
            if self._started is None:
                self._started = now
            if self.tolerance is None or (self.plan.yields and tolerance is not None):
                self.bound.fix(EXACT if tolerance is None else tolerance)
                self._set_notify()
            self._look(now)
            self._set_limit()
        if wants_ready:  # also if that was all: should STOP be lost, only Ready brings a probe
            owner = None if self.is_over else self
            exact = self.tolerance is not None and self.tolerance.is_exact
            self._link.outbox.put(Ready(self.stream, self.round_id, exact), Path.RELIABLE, owner)

    def on_probe(self, probe: Probe, *, now: float) -> None:
        """Signal P (Algorithm 2, lines 10-17): STOP, or the bitmap after a quiet period."""
        if not self._machine.step(ReceiverInput.PROBE):
            return
        if self._probe is not None and probe.epoch < self._probe.epoch:
            return
        self._look(now)
        if self.is_over:
            return
        if self._accepted >= self.bound.awaited:  # patient: the probe is what was waited for
            self._decide_stop(now)
            return
        self._probe = probe
        if self._answer_at is None:
            quiet = self._link.policy.quiet_s()
            self._answer_at = now + quiet
            self._answer_by = now + QUIET_BOUND * quiet

    def on_outline(self, frame: Outline) -> None:
        """A hint of the order: where to aim."""
        order = None if self.is_over else self._to_come.add(frame)
        if order is not None:
            self._link.channel.expect(self.slot, order)

    def on_zeros(self, frame: Zeros, *, now: float) -> None:
        """Chunks that are zero, and are not sent."""
        chunks = decode_fragment(frame, self.layout.count)
        if self._machine.step(ReceiverInput.NEWS):
            self.bound.add_zeros(self._link.channel.deliver_zeros(self.slot, chunks))
            self._set_notify()
            self._look(now)

    def on_chunk_data(self, frame: ChunkData, *, now: float) -> None:
        """Chunks that came over TCP (hazard 9)."""
        if self._machine.step(ReceiverInput.NEWS):
            self.reliable = True
            deliver_chunks(self._link.channel, self.slot, self.layout, frame)
            self._look(now)

    def on_progress(self, *, now: float) -> None:
        """The channel may have accepted chunks (Algorithm 2, lines 4-9 and 18-23)."""
        if not self.is_over and self._link.channel.accepted(self.slot) != self._accepted:
            self._look(now)

    def on_timeout(self, *, now: float) -> None:
        """Answers the probe if the quiet period is over; ends the round if its time is."""
        if self.timer is None or now < self.timer:
            return
        self._look(now)
        if self._limit.due is not None and now >= self._limit.due:
            self._meet_limit(now)
        if self._answer_at is not None and now >= self._answer_at:
            self._answer_or_stop(now)

    # --- commands ---------------------------------------------------------------------------

    def allow_deadline(self) -> None:
        """The round may end at the deadline from now on, which counts from its first sign."""
        self._timed = True
        self._set_limit()

    def complete(self) -> None:
        """After STOP, which leaves first: zeroes missing chunks (Algorithm 2, line 26) and makes
        the report.  A reducer needs no zeros: it does not read what is missing."""
        if self._machine.state is not ReceiverState.STOPPED or self.report is not None:
            return
        plan, count = self.plan, self.layout.count
        missing = count - self._accepted
        assert self.bitmap.accepted == self._accepted, "R1: the bitmap and the count disagree"
        if missing and plan.reducer is None:
            zeroed = fastpath.zero_missing(
                plan.buffer, self.bitmap.bits, count, plan.layout.chunk_bytes
            )
            assert zeroed == missing, "R3: a missing chunk is not zero"
        self.report = self._make_report(self._stopped, self._link.take_counter_deltas())

    def fail(self, error: DBLPError) -> None:
        """The session is over or the round given up; nothing is pending afterwards (T1)."""
        if self._machine.step(ReceiverInput.FAIL):
            self.error = error
            self._let_go()

    def progress_report(self, *, now: float) -> RoundReport:
        """The report so far, for `RoundTimeoutError`; the channel's counters are not in it."""
        return self._make_report(now, {})

    # --- inside -----------------------------------------------------------------------------

    def _set_notify(self) -> None:
        """When the fast path wakes us."""
        self._link.channel.set_notify(self.slot, self.bound.target)

    def _look(self, now: float) -> None:
        """Reads the accepted count and acts on it."""
        accepted = self._link.channel.accepted(self.slot)
        if accepted != self._accepted:
            self._accepted = accepted
            self._machine.step(ReceiverInput.NEWS)
            if self._started is None:
                self._started = now
            if self._answer_at is not None:  # hazard 2: the probe overtook these chunks
                self._answer_at = min(now + self._link.policy.quiet_s(), self._answer_by)
        if accepted >= self.bound.target and self._machine.state is ReceiverState.RECEIVING:
            self._decide_stop(now)

    def _set_limit(self) -> None:
        """Rounds that may lose chunks and are not critical have a time limit (hazard 11)."""
        if self.is_over or not self._timed or self.open is None or self._started is None:
            return
        regime = self._announced_regime() or self.plan.label.regime
        if self.tolerance is not None and not self.tolerance.is_exact and regime != "critical":
            self._limit.start(began=self._started, needed=self.bound.carried)

    def _meet_limit(self, now: float, *, pass_over: bool = False) -> None:
        """Takes what is there if it is enough; else what is enough becomes the bound."""
        came, bound = self._accepted - self.bound.zeros, self.bound
        floor = self._limit.look(now, came, bound.carried, pass_over=pass_over)
        if floor is None:
            return
        bound.lower(floor)
        if self._accepted >= bound.needed:
            self._decide_stop(now)
        else:
            self._set_notify()

    def _answer_or_stop(self, now: float) -> None:
        """Where it has become quiet, all of the sender's pass has arrived or is lost; over TCP it
        is one part of many."""
        assert self._probe is not None and self._answer_at is not None
        channel, newest = self._link.channel, self._probe.sequence
        quiet = self._answer_at < self._answer_by and not self.reliable
        if quiet and self._accepted >= self.needed and channel.received_sequence >= newest:
            return self._decide_stop(now)  # with zeros these are fewer than are awaited
        channel.sync_received(newest)
        self._meet_limit(now, pass_over=quiet and self.bound.zeros >= self._probe.zeros)
        if not self.is_over:
            self._machine.step(ReceiverInput.ANSWER_DUE)
            self._answer()

    def _answer(self) -> None:
        """Sends the bitmap (signal B, Algorithm 2 line 16)."""
        assert self._probe is not None and self.open is not None
        self._answer_at = None
        link, channel = self._link, self._link.channel
        fragments = self.bitmap.fragments(link.fragment_bytes)
        self._answered = max(self._answered, self._probe.epoch)
        seen = channel.received_sequence
        for fragment in fragments:
            frame = Bitmap(
                stream=self.stream,
                round=self.round_id,
                epoch=self._probe.epoch,
                accepted=self._accepted - self.bound.zeros,
                first=fragment.first,
                count=fragment.count,
                total_fragments=len(fragments),
                encoding=fragment.encoding,
                data=fragment.data,
                sequence_seen=seen,
                limit=seen + channel.window,
            )
            link.outbox.put(frame, Path.BOTH, self)  # hazard 3: there is loss

    def _decide_stop(self, now: float) -> None:
        """The one STOP of the round (R2; Algorithm 2, lines 12 and 20)."""
        self._machine.step(ReceiverInput.SATISFIED)
        link, count = self._link, self.layout.count
        self._stopped = now
        self._accepted = link.channel.accepted(self.slot)
        missing_count = count - self._accepted
        assert 0 <= missing_count <= count - self.needed, "R2: STOP below the bound"
        self._let_go()
        if self.tolerance is not None and self._started is not None and count:
            share = self.bound.share(self._accepted)
            self._limit.remember(now - self._started, self.tolerance.needed(count), share)
        self.stop, full = stop_frames(
            self.stream, self.round_id, self.bitmap,
            accepted=self._accepted, late=self._accepted < self.bound.tolerated,
            fits=link.fragment_bytes,
        )  # fmt: skip
        if full is None:
            asked = self.reliable or self._probe is not None or self._is_awaited()
            link.outbox.put(self.stop, Path.BOTH if asked else link.signal_path(count), self)
        else:
            if not link.outbox.reliable_only:
                link.outbox.put(self.stop, Path.DATAGRAM, self)
            link.outbox.put(full, Path.RELIABLE, self)
        link.events.append(ReceiveFinished(self))

    def _is_awaited(self) -> bool:
        """Whether the sender waits for what STOP says, even if it is done otherwise: a worker that
        announced a tolerance wants to know what was lost (`SendPlan.is_told`)."""
        return (
            self.plan.yields
            and self.open is not None
            and self.open.tolerance is not None
            and self.tolerance is not None
            and not self.tolerance.is_exact
        )

    def _let_go(self) -> None:
        channel = self._link.channel
        self._duplicates = channel.duplicates(self.slot)
        channel.close_receive(self.slot)
        self._link.outbox.drop(self)
        self._answer_at = None
        self._limit.stop()

    def _make_report(self, now: float, counters: dict[str, Any]) -> RoundReport:
        plan = self.plan
        return RoundReport(
            stream=self.stream,
            round_id=self.round_id,
            direction=plan.label.direction,
            rank=plan.label.rank,
            regime=self._announced_regime() or plan.label.regime,
            tolerance=tolerance_text(self.tolerance),
            chunks=self.layout.count,
            missing=self.layout.count - self._accepted,
            duplicate=self._duplicates,
            passes=1 + self._answered,
            nbytes=self.layout.nbytes,
            datagrams=self._accepted - self.bound.zeros,
            elapsed_s=now - self._started if self._started is not None else 0.0,
            rtt_s=self._link.rtt.smoothed_s,
            at_deadline=self.stop is not None and self.stop.at_deadline,
            fallback=self.reliable,
            **counters,
        )

    def _announced_regime(self) -> str | None:
        """What the announcement says, if it sets a tolerance."""
        if self.open is None or self.open.tolerance is None:
            return None
        return "critical" if self.open.critical else "normal"
