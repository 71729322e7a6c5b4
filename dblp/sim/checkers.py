"""The invariants of docs/ARCHITECTURE.md, each checked from outside by a checker of its own.

A checker trusts nothing that it can count itself: it looks at buffers, bitmaps, frames, datagrams,
reports and channel counters, and recomputes bounds in integers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..deadline import Deadline
from ..fastpath import COUNTERS
from ..proto import Event, ReceiveFinished, Receiver, Sender, SendFinished
from ..tolerance import Tolerance
from ..wire import KIND_DATA, PROTOCOL_VERSION, Frame, Stop
from .network import End, Host
from .watch import Observer, Violation, WatchedSession

__all__ = [
    "AcceptedBytes", "BitmapAndCount", "CountedDatagrams", "OneStop", "OneTolerance",
    "QuietAfterEnd", "SilentAfterStop", "SourceUnchanged", "arrived_bits",
]  # fmt: skip

_DATA_BYTE = PROTOCOL_VERSION << 4 | KIND_DATA

_FATES = (
    "accepted", "duplicate", "stale", "future", "foreign", "corrupt", "malformed",
    "control_received", "credits_received", "credit_requests_received", "injected_loss",
)  # fmt: skip
"""A datagram that arrives shows in exactly one of these counters."""


def arrived_bits(receiver: Receiver) -> npt.NDArray[np.bool_]:
    """Which chunks a receiver has, one bool per chunk."""
    packed = np.frombuffer(receiver.bitmap.bits, np.uint8)
    return np.unpackbits(packed, count=receiver.layout.count, bitorder="little").view(np.bool_)


def _where(session: WatchedSession, round_: Sender | Receiver) -> str:
    return f"{session}: stream {round_.stream} round {round_.round_id}"


class QuietAfterEnd(Observer):
    """T1: a terminal state has no timer, nothing to transmit and no control frame pending."""

    def event(self, session: WatchedSession, event: Event) -> None:
        """A round that has ended wants no turn."""
        if isinstance(event, SendFinished):
            ended: Sender | Receiver = event.sender
        elif isinstance(event, ReceiveFinished):
            ended = event.receiver
        else:
            return
        if ended.timer is not None or not ended.is_over:
            raise Violation("T1", f"{_where(session, ended)} has ended and wants a timeout")

    def turn_over(self, host: Host) -> None:
        """A session that has ended wants nothing at all."""
        for end in host.ends:
            if end.session.error is not None:
                self._check(end, "is over")

    def run_over(self, ends: list[End]) -> None:
        """So does an idle one."""
        for end in ends:
            if not end.host.dead:
                self._check(end, "is idle")

    def _check(self, end: End, state: str) -> None:
        session, channel = end.session, end.channel
        if session.next_timeout() is not None:
            raise Violation("T1", f"{end.name} {state} and wants a timeout")
        if session.take_frames():
            raise Violation("T1", f"{end.name} {state} and has control frames pending")
        if channel.next_deadline_ns(0) >= 0 or channel.blocked():
            raise Violation("T1", f"{end.name} {state} and has chunks to transmit")


class SilentAfterStop(Observer):
    """S1: after a STOP is received no further chunk of that round leaves.

    Here nothing is with the kernel when the STOP is handled, so the bound is zero.
    """

    def __init__(self) -> None:
        self._stopped: dict[WatchedSession, set[bytes]] = {}

    def stopping(self, session: WatchedSession, sender: Sender) -> None:
        """From here on the round is silent."""
        key = sender.stream.to_bytes(2, "little") + sender.round_id.to_bytes(4, "little")
        self._stopped.setdefault(session, set()).add(key)

    def datagrams_out(self, end: End, datagrams: list[bytes]) -> None:
        """Looks at the headers of all that leaves."""
        assert isinstance(end.session, WatchedSession)
        stopped = self._stopped.get(end.session)
        if not stopped:
            return
        for datagram in datagrams:
            if datagram[0] == _DATA_BYTE and datagram[4:6] + datagram[8:12] in stopped:
                round_id = int.from_bytes(datagram[8:12], "little")
                raise Violation("S1", f"{end.name} sends a chunk of round {round_id} after STOP")


class SourceUnchanged(Observer):
    """S2: a sender's source bytes do not change between its start and its terminal state.

    A worker's gradient is replaced by the mean while its uplink may still be open: there a chunk
    may change once the server has it, or needs no more of the uplink: it is stopped, or will be at
    the server's next turn.  A source that follows a reducer grows by itself; what arrives of it is
    checked against the mean.
    """

    def __init__(self, *, eager: bool) -> None:
        """`eager`: a receiver stops as soon as its bound is met."""
        self._eager = eager
        self._snapshots: dict[int, bytes] = {}

    def sending(self, session: WatchedSession, sender: Sender) -> None:
        """Remembers the bytes."""
        if sender.plan.reducer is None:
            self._snapshots[id(sender)] = bytes(sender.plan.source)

    def stopping(self, session: WatchedSession, sender: Sender) -> None:
        """Compares."""
        before = self._snapshots.pop(id(sender), None)
        if before is None or before == sender.plan.source:
            return
        receiver = session.other.receivers_armed.get((sender.stream, sender.round_id))
        if session.role == "worker" and receiver is not None:
            arrived = arrived_bits(receiver)
            if receiver.is_over or (self._eager and arrived.sum() >= receiver.needed):
                return
            changed = _differing(before, sender.plan.source, sender.layout.chunk_bytes)
            if not (changed & ~arrived).any():
                return
        raise Violation("S2", f"the source of {_where(session, sender)} changed while it was sent")


def _differing(one: bytes, other: memoryview, chunk_bytes: int) -> npt.NDArray[np.bool_]:
    """Which chunks of two buffers differ."""
    differs = np.frombuffer(one, np.uint8) != np.frombuffer(other, np.uint8)
    return np.logical_or.reduceat(differs, np.arange(0, len(one), chunk_bytes))


class BitmapAndCount(Observer):
    """R1: popcount(bitmap) = accepted, accepted + missing = count, at both ends."""

    def event(self, session: WatchedSession, event: Event) -> None:
        """A round that was received."""
        if not isinstance(event, ReceiveFinished):
            return
        receiver = event.receiver
        report, count = receiver.report, receiver.layout.count
        popcount = int(arrived_bits(receiver).sum())
        if report is None or popcount != receiver.accepted or report.delivered != popcount:
            raise Violation("R1", f"{_where(session, receiver)}: bitmap and count disagree")
        if report.missing + popcount != count or report.chunks != count:
            raise Violation("R1", f"{_where(session, receiver)}: the report does not add up")

    def run_over(self, ends: list[End]) -> None:
        """The channel's count is that of all bitmaps, and senders know what was missing."""
        for end in ends:
            session = end.session
            assert isinstance(session, WatchedSession)
            bits = sum(int(arrived_bits(receiver).sum()) for receiver in session.all_receivers)
            if bits != end.channel.counters()["accepted"]:
                raise Violation("R1", f"{end.name}: more or fewer chunks accepted than bits set")
            for sender in session.all_senders:
                self._compare_missing(session, sender)

    def _compare_missing(self, session: WatchedSession, sender: Sender) -> None:
        receiver = session.other.receivers_armed.get((sender.stream, sender.round_id))
        if sender.final_missing is None or receiver is None:
            return
        missing = np.flatnonzero(~arrived_bits(receiver))
        if not np.array_equal(missing, sender.final_missing):
            raise Violation("R1", f"{_where(session, sender)}: STOP named the wrong missing chunks")


class OneStop(Observer):
    """R2: exactly one STOP decision per round, and only within the exact bound, or at a deadline
    with its floor."""

    def __init__(self, deadline: Deadline | None = None) -> None:
        self._deadline = deadline
        self._finished: set[int] = set()
        self._decided: dict[tuple[WatchedSession, int, int], tuple[int, bytes | None]] = {}

    def event(self, session: WatchedSession, event: Event) -> None:
        """The end of a receiver: once, and with enough chunks."""
        if not isinstance(event, ReceiveFinished):
            return
        receiver = event.receiver
        if id(receiver) in self._finished:
            raise Violation("R2", f"{_where(session, receiver)} ended twice")
        self._finished.add(id(receiver))
        assert receiver.tolerance is not None
        count = receiver.layout.count
        fraction = self._most_missing(receiver)
        missing = count - int(arrived_bits(receiver).sum())
        if missing * fraction.denominator > fraction.numerator * count:
            raise Violation(
                "R2",
                f"{_where(session, receiver)} ended with {missing} of {count} chunks missing at a "
                f"tolerance of {receiver.tolerance}",
            )

    def _most_missing(self, receiver: Receiver) -> Fraction:
        """The share that may be missing.  Rounds that must be exact, or are critical, have no
        deadline."""
        assert receiver.tolerance is not None and receiver.stop is not None
        fraction = Fraction(receiver.tolerance.fraction)
        if not receiver.stop.at_deadline:
            return fraction
        open_ = receiver.open
        critical = receiver.plan.label.regime == "critical"
        if open_ is not None and open_.tolerance is not None:
            critical = open_.critical
        if self._deadline is None or receiver.tolerance.is_exact or critical:
            where = f"stream {receiver.stream} round {receiver.round_id}"
            raise Violation("R2", f"{where} has ended at a deadline that it must not have")
        assert isinstance(self._deadline.floor, Tolerance)
        return Fraction(self._deadline.floor.fraction)

    def frame_out(self, session: WatchedSession, frame: Frame) -> None:
        """All copies of a STOP say the same."""
        if not isinstance(frame, Stop):
            return
        key = (session, frame.stream, frame.round)
        accepted, missing = self._decided.setdefault(key, (frame.accepted, frame.missing))
        named = missing is not None and frame.missing is not None and missing != frame.missing
        if accepted != frame.accepted or named:
            raise Violation(
                "R2", f"{session}: stream {frame.stream} round {frame.round}: two different STOPs"
            )


class AcceptedBytes(Observer):
    """R3: every accepted chunk equals the sender's bytes; every missing chunk is zero.

    `sources` are the bytes as they were put in, by (role of the sender, rank, stream, round).
    Means are not among them: `checkers_mean` recomputes those.  Nor are chunks that arrive for a
    reducer looked at here, which lie anywhere in its buffers and only until they are reduced: the
    mean shows whether they were right.
    """

    def __init__(self, sources: dict[tuple[str, int, int, int], bytes]) -> None:
        self.sources = sources

    def event(self, session: WatchedSession, event: Event) -> None:
        """A round that was received."""
        if not isinstance(event, ReceiveFinished):
            return
        receiver = event.receiver
        key = (session.other.role, session.rank, receiver.stream, receiver.round_id)
        source = self.sources.get(key)
        if source is None or receiver.plan.reducer is not None:
            return
        arrived = arrived_bits(receiver)
        if receiver.plan.buffer == source and arrived.all():
            return
        got = np.frombuffer(receiver.plan.buffer, np.uint8)
        here = np.repeat(arrived, receiver.layout.chunk_bytes)[: got.size]
        if (got[here] != np.frombuffer(source, np.uint8)[here]).any():
            raise Violation("R3", f"{_where(session, receiver)} accepted bytes that were not sent")
        if got[~here].any():
            raise Violation("R3", f"{_where(session, receiver)}: a missing chunk is not zero")


class CountedDatagrams(Observer):
    """R4: every datagram that arrives shows in exactly one counter; trouble changes no other."""

    def run_over(self, ends: list[End]) -> None:
        """The counters add up."""
        for end in ends:
            counters = end.channel.counters()
            fates = sum(counters[name] for name in _FATES) - end.channel.delivered
            if fates != counters["datagrams_received"]:
                raise Violation(
                    "R4",
                    f"{end.name}: {counters['datagrams_received']} datagrams arrived and {fates} "
                    f"show in the counters",
                )

    def intrude(self, end: End, datagram: bytes, expected: str, now: float) -> None:
        """Gives `end` a datagram that it must not take, and looks at everything that may change.

        Args:
            end: where it arrives.
            datagram: one that belongs to no open round, or is broken.
            expected: the counter that it shows in; "injected_loss" is always possible too.
            now: seconds.
        """
        session, channel = end.session, end.channel
        assert isinstance(session, WatchedSession)
        before = self._state(session, channel.counters())
        sequence = channel.received_sequence
        channel.ingest([datagram], int(now * 1e9))
        counters = channel.counters()
        after = self._state(session, counters)
        changed = {name for name in COUNTERS if counters[name] != before[0][name]}
        changed -= {"datagrams_received", "bytes_received"}
        if changed not in ({expected}, {"injected_loss"}):
            raise Violation(
                "R4", f"{end.name}: a datagram that is {expected} changed {sorted(changed)}"
            )
        if before[1:] != after[1:] or channel.received_sequence != sequence:
            raise Violation("R4", f"{end.name}: a datagram that is {expected} changed a round")

    def _state(
        self, session: WatchedSession, counters: dict[str, int]
    ) -> tuple[dict[str, int], list[tuple[bytes, bytes]]]:
        open_rounds = [r for r in session.receivers_armed.values() if not r.is_over]
        return counters, [(bytes(r.bitmap.bits), bytes(r.plan.buffer)) for r in open_rounds]


class OneTolerance(Observer):
    """C1: the tolerance is fixed for the life of a round, and all ranks use the same one."""

    def __init__(self) -> None:
        self._uplink: dict[tuple[int, int], Fraction] = {}
        self._downlink: dict[tuple[int, int], str | None] = {}
        self._announced: dict[tuple[int, int], str | None] = {}
        self._told: dict[tuple[int, int], Fraction] = {}

    def armed(self, session: WatchedSession, receiver: Receiver) -> None:
        """All uplinks of a round, also those armed anew after a changed layout."""
        if session.role != "server":
            return
        assert receiver.plan.tolerance is not None
        key = (receiver.stream, receiver.round_id)
        fraction = receiver.plan.tolerance.fraction
        if self._uplink.setdefault(key, fraction) != fraction:
            raise Violation("C1", f"{_where(session, receiver)}: ranks differ in their tolerance")
        told = self._announced.get((receiver.stream, (receiver.round_id - 1) % (1 << 32)))
        if told is not None and Fraction(told) != fraction:
            raise Violation("C1", f"{_where(session, receiver)}: workers were told {told}")

    def sending(self, session: WatchedSession, sender: Sender) -> None:
        """All downlinks of a round."""
        if session.role != "server":
            return
        key = (sender.stream, sender.round_id)
        open_ = sender.plan.open
        if self._downlink.setdefault(key, open_.tolerance) != open_.tolerance:
            raise Violation("C1", f"{_where(session, sender)}: ranks differ in their tolerance")
        if self._announced.setdefault(key, open_.next_tolerance) != open_.next_tolerance:
            raise Violation("C1", f"{_where(session, sender)}: ranks differ in the next tolerance")

    def event(self, session: WatchedSession, event: Event) -> None:
        """The tolerance with which a round ended is the one it began with."""
        if not isinstance(event, ReceiveFinished) or session.role not in ("server", "worker"):
            return
        receiver = event.receiver
        assert receiver.tolerance is not None
        key = (receiver.stream, receiver.round_id)
        if session.role == "server":
            assert receiver.open is not None
            told = receiver.open.tolerance  # of the ranks, in place of the policy's
            expected = self._uplink[key] if told is None else Fraction(told)
            if told is not None and self._told.setdefault(key, expected) != expected:
                raise Violation("C1", f"{_where(session, receiver)}: ranks announce differently")
        else:
            expected = Fraction(self._downlink[key] or 0)
        if receiver.tolerance.fraction != expected:
            raise Violation("C1", f"{_where(session, receiver)}: the tolerance changed")
