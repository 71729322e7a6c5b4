"""Control frames of the peer: which round each belongs to, and which of them are late."""

from __future__ import annotations

from functools import lru_cache

from ..errors import (
    ConfigError,
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    RemoteProtocolError,
    RoundAbortedError,
    RoundTimeoutError,
)
from ..tolerance import Tolerance
from ..wire import (
    ROUND_MODULUS,
    Abort,
    Bitmap,
    Bye,
    ChunkData,
    Frame,
    Heartbeat,
    Open,
    Outline,
    Probe,
    Ready,
    Stop,
    Zeros,
)
from .events import OpenMismatch, Path, RoundOffered
from .finished import WaitingOffer
from .link import Link
from .receiver import Receiver
from .rounds import OpenRounds

__all__ = ["Inbound"]

STREAM_MODULUS = 1 << 16

SEQUENCE_MODULUS = 1 << 62
"""Bound of the sequence numbers that a peer may name; far above what a session can send."""

_ERRORS: dict[str, type[DBLPError]] = {
    error.__name__: error
    for error in (
        ConfigError,
        LocalProtocolError,
        PeerLostError,
        RemoteProtocolError,
        RoundAbortedError,
        RoundTimeoutError,
    )
}


class Inbound:
    """Hands each frame to its round.

    *Inputs*: `on_frame`.  *Outputs*: frames and events on the link.
    *Getters*: `peer_left`, `late_frames`.
    """

    __slots__ = ("_link", "_rounds", "abort_reason", "late_frames", "peer_left")

    def __init__(self, link: Link, rounds: OpenRounds) -> None:
        self._link = link
        self._rounds = rounds
        self.abort_reason: DBLPError | None = None
        """What an Abort of the peer said, as the error to raise."""
        self.peer_left = False
        """A Bye came."""
        self.late_frames = 0
        """Frames for rounds that are long over (or never were), ignored."""

    def on_frame(self, frame: Frame, now: float) -> None:
        """Acts on one frame; RemoteProtocolError if the peer must not send it."""
        match frame:  # the frequent ones first
            case Open():
                self._on_announcement(frame, None, now)
            case Stop():
                self._on_stop(frame, now)
            case Probe():
                self._on_probe(frame, now)
            case Bitmap():
                self._on_bitmap(frame, now)
            case Outline():
                self._on_outline(frame)
            case ChunkData() | Zeros():
                self._on_chunks(frame, now)
            case Ready():
                self._on_ready(frame, now)
            case Heartbeat():
                pass  # whoever owns the connection notes that the peer is alive
            case Bye():
                self.peer_left = True
                self._rounds.imply_all_stops(now=now)
            case Abort():
                self.abort_reason = _ERRORS.get(frame.kind, RoundAbortedError)(frame.reason)
            case _:
                raise RemoteProtocolError(
                    f"the peer sent a {type(frame).__name__} frame in the middle of the session: "
                    "use the same version of dblp on both sides"
                )

    def announce(self, receiver: Receiver, offer: WaitingOffer, *, told: bool, now: float) -> None:
        """Gives an armed receiver its announcement, if it fits; `told`: the owner knows of it."""
        open_ = offer.open
        if not receiver.plan.fits(open_):
            self._note_mismatch(receiver, offer)
            return
        if receiver.open is None and not told:
            self._link.events.append(RoundOffered(open_))
        tolerance = None if open_.tolerance is None else _tolerance(open_.tolerance)
        receiver.on_announcement(open_, tolerance, wants_ready=offer.wants_ready, now=now)
        if offer.probe is not None:
            receiver.on_probe(offer.probe, now=now)
        if receiver.is_over:
            self._rounds.retire_receiver(receiver)

    # --- towards receivers ------------------------------------------------------------------

    def _on_probe(self, probe: Probe, now: float) -> None:
        if not 0 <= probe.sequence < SEQUENCE_MODULUS:
            raise RemoteProtocolError(f"the peer probed with the sequence {probe.sequence}")
        self._on_announcement(probe.open, probe, now)

    def _on_announcement(self, open_: Open, probe: Probe | None, now: float) -> None:
        """An Open, alone or in a probe: for an armed round, a finished one, or one to come."""
        _check_open(open_)
        key = (open_.stream, open_.round)
        wants_ready = open_.wants_ready and probe is None
        receiver = self._rounds.receivers.get(key)
        if receiver is not None:
            self.announce(receiver, WaitingOffer(open_, wants_ready, probe), told=False, now=now)
            return
        remembered = self._rounds.finished.recall(key)
        if remembered is not None:  # the STOP was lost, or is on its way
            asked = probe is not None or remembered.reliable  # hazard 3
            path = Path.BOTH if asked else Path.DATAGRAM
            remembered.reliable = True
            self._link.outbox.put(remembered.stop, path, None)
        elif self._rounds.finished.is_past(key):
            self.late_frames += 1
        elif self._rounds.offers.add(key, open_, wants_ready, probe):
            self._link.events.append(RoundOffered(open_))

    def _note_mismatch(self, receiver: Receiver, offer: WaitingOffer) -> None:
        """Hazard 7: the layout changed.  The announcement waits until the owner arms anew."""
        open_ = offer.open
        if receiver.open is not None:
            raise RemoteProtocolError(
                f"the peer announced round {open_.round} of stream {open_.stream} twice, with "
                "different layouts: use the same version of dblp on both sides"
            )
        key = (open_.stream, open_.round)
        self._rounds.offers.add(key, open_, offer.wants_ready, offer.probe)
        if not receiver.mismatch_told:
            receiver.mismatch_told = True
            self._link.events.append(OpenMismatch(open_, receiver))

    def _on_outline(self, frame: Outline) -> None:
        receiver = self._rounds.receivers.get((frame.stream, frame.round))
        if receiver is not None:
            receiver.on_outline(frame)

    def _on_chunks(self, frame: ChunkData | Zeros, now: float) -> None:
        """Chunks on the reliable channel, or the names of some that are zero."""
        receiver = self._rounds.receivers.get((frame.stream, frame.round))
        if receiver is None or receiver.mismatch_told:  # late, or meant for another layout
            self.late_frames += 1
            return
        if isinstance(frame, Zeros):
            receiver.on_zeros(frame, now=now)
        else:
            receiver.on_chunk_data(frame, now=now)
        if receiver.is_over:
            self._rounds.retire_receiver(receiver)

    # --- towards senders --------------------------------------------------------------------

    def _on_ready(self, ready: Ready, now: float) -> None:
        sender = self._rounds.senders.get((ready.stream, ready.round))
        if sender is None:
            self.late_frames += 1
        else:
            sender.begin(now=now, exact=ready.exact)

    def _on_bitmap(self, bitmap: Bitmap, now: float) -> None:
        if not 0 <= bitmap.sequence_seen <= bitmap.limit < SEQUENCE_MODULUS:
            raise RemoteProtocolError(
                f"the peer granted the sequences {bitmap.sequence_seen} to {bitmap.limit}"
            )
        self._link.channel.grant(bitmap.sequence_seen, bitmap.limit)
        sender = self._rounds.senders.get((bitmap.stream, bitmap.round))
        if sender is None:
            self.late_frames += 1
        else:
            sender.on_bitmap(bitmap, now=now)

    def _on_stop(self, stop: Stop, now: float) -> None:
        key = (stop.stream, stop.round)
        sender = self._rounds.senders.get(key)
        if sender is not None:
            sender.on_stop(stop, now=now)
            self._rounds.retire_sender(sender)
            return
        awaiting = self._rounds.awaiting_missing.get(key)
        if awaiting is None:
            self.late_frames += 1
            return
        awaiting.on_stop(stop, now=now)
        if awaiting.final_missing is not None:
            del self._rounds.awaiting_missing[key]


def _check_open(open_: Open) -> None:
    """RemoteProtocolError unless the numbers of the announcement can be meant."""
    if (
        not 0 <= open_.stream < STREAM_MODULUS
        or not 0 <= open_.round < ROUND_MODULUS
        or open_.nbytes < 0
        or open_.chunk_bytes <= 0
        or open_.whole_bytes < 0
    ):
        raise RemoteProtocolError(
            f"the peer announced round {open_.round} of stream {open_.stream} with "
            f"{open_.nbytes} bytes in chunks of {open_.chunk_bytes}"
        )


@lru_cache(maxsize=64)
def _tolerance(text: str) -> Tolerance:
    """The tolerance of an announcement; a run has only a few."""
    try:
        return Tolerance.of(text)
    except ConfigError as error:
        raise RemoteProtocolError(f"the peer announced an illegal tolerance: {error}") from error
