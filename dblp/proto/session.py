"""One peer: all rounds in both directions, and the control frames between them."""

from __future__ import annotations

import random
from functools import partial

from ..config import TransportConfig
from ..errors import DBLPError, LocalProtocolError, RemoteProtocolError, RoundAbortedError
from ..fastpath import Channel, Reducer
from ..tolerance import Tolerance
from ..wire import Frame, Open
from .bitmap import Indices
from .events import Event, Path, ReceiveFinished
from .finished import RoundKey
from .inbound import Inbound
from .layout import Bytes, ChunkLayout, byte_view
from .link import Link, RoundLabel
from .order import as_given, send_order, subset_mask
from .plans import ReceivePlan, SendPlan
from .receiver import Receiver
from .rounds import OpenRounds
from .sender import Sender
from .states import ReceiverState, SenderState
from .steering import StallWatch, Steering

__all__ = ["Session"]

_STREAM_SEED = 0x9E3779B97F4A7C15
"""Sets the send orders of different streams apart."""


class Session:
    """The protocol towards one peer, without sockets or clock.

    Theory of operation.  The owner feeds what happens (control frames, "the channel moved", "time
    passed"), in the order inputs → timers, then takes frames, then events.  The session never
    calls the channel's socket methods: whoever pumps the channel decides when bytes move.  `now`
    is in seconds, of any monotonic clock.  Events may make the owner open the next round, which
    makes new frames: take frames until there are none.

    *Commands*: `arm`, `send`, `imply_stop`, `release`, `abort`, `block_datagrams`,
    `trust_datagrams`.
    *Inputs*: `on_frame`, `on_progress`, `steer`, `on_timeout`.
    *Outputs*: `take_frames`, `take_events`, `next_timeout`.
    *Getters*: `channel`, `peer`, `error`, `peer_left`, `busy`, `rtt_s`, `receiver`, `sender`,
    `stall`, `late_frames`.

    Inputs never raise.  A frame that the peer must not send, or its Abort, ends the session: look
    at `error` after the events.  After an abort inputs do nothing, `arm` and `send` raise `error`,
    and there is no timer and no frame to take (T1).
    """

    def __init__(
        self, channel: Channel, config: TransportConfig, *, rng: random.Random, peer: str
    ) -> None:
        self.channel = channel
        self.peer = peer
        """Names the peer in errors, such as "rank 1" or "the server"."""
        self.error: DBLPError | None = None
        """Why the session is over; None while it is not."""
        self._config = config
        self._link = Link(channel, config, rng)
        self._rounds = OpenRounds()
        self._inbound = Inbound(self._link, self._rounds)
        self._steering = Steering(channel, config, self._link.rtt)
        self._stall = StallWatch(channel, self._link.policy)

    # --- commands ---------------------------------------------------------------------------

    def arm(
        self,
        *,
        stream: int,
        round_id: int,
        buffer: Bytes,
        dtype: str,
        tolerance: Tolerance | None,
        now: float,
        reducer: Reducer | None = None,
        source: int = 0,
        aim: bool = True,
        yields: bool = False,
        timed: bool = True,
        direction: str = "receive",
        rank: int | None = None,
        regime: str | None = None,
    ) -> Receiver:
        """Makes ready to receive a round, before or after the peer announced it.

        Args:
            stream, round_id: which round; the rounds of a stream are armed in their order.
            buffer: contiguous and writable; not touched by the owner until `ReceiveFinished`.
            dtype: element type, which must be the announced one; any name.
            tolerance: fixed for the round (C1); None: the one that comes with the announcement.
            reducer, source: feed this reducer as its source number `source`; missing chunks are
                then not zeroed.
            aim: chunks may be received straight into `buffer` (`Channel.open_receive`).
            yields: an announced tolerance replaces `tolerance`.
            timed: the round may end at the deadline of the settings, from the beginning; else from
                `Receiver.allow_deadline` on.
            direction, rank, regime: for the report.

        Raises LocalProtocolError when the round is armed already or over.
        """
        self._check_alive()
        key = (stream, round_id)
        if key in self._rounds.receivers or self._rounds.finished.recall(key) is not None:
            raise LocalProtocolError(
                f"round {round_id} of stream {stream} is armed already or over: arm the next round"
            )
        view = byte_view(buffer)
        layout = ChunkLayout(view.nbytes, self.channel.chunk_bytes)
        plan = ReceivePlan(
            stream=stream, round_id=round_id, layout=layout, buffer=view, dtype=dtype,
            tolerance=tolerance, reducer=reducer, source=source, aim=aim,
            label=RoundLabel(direction, rank, regime), yields=yields, timed=timed,
        )  # fmt: skip
        try:
            receiver = self._rounds.receivers[key] = Receiver(self._link, plan)
        except ValueError as error:  # read-only, or no slot is free
            raise LocalProtocolError(
                f"cannot arm round {round_id} of stream {stream}: {error}"
            ) from error
        offer = self._rounds.offers.take(key)
        if offer is not None:
            self._inbound.announce(receiver, offer, told=True, now=now)
        return receiver

    def send(
        self,
        *,
        stream: int,
        round_id: int,
        buffer: Bytes,
        dtype: str,
        now: float,
        order: Indices | None = None,
        reducer: Reducer | None = None,
        wait_ready: bool,
        squared_norm: float = float("nan"),
        tolerance: Tolerance | None = None,
        critical: bool = False,
        next_tolerance: Tolerance | None = None,
        expected_tolerance: Tolerance | None = None,
        direction: str = "send",
        rank: int | None = None,
        regime: str | None = None,
        whole_bytes: int = 0,
    ) -> Sender:
        """Announces a round and starts to send it (DBLP_SEND, Algorithm 1).

        Args:
            stream, round_id: which round.
            buffer: contiguous; must not change until `SendFinished` (S2).
            dtype: element type, any name; a float type for the order "magnitude".
            order: uint32 permutation of the chunks, or of those that may be sent: the tolerance
                must not need the others, or they are named (`Sender.tell_zeros`).  None: by
                `TransportConfig.order`.
            reducer: send its chunks as they become ready, in place of an order.
            wait_ready: send nothing before the peer is armed.
            squared_norm, tolerance, critical, next_tolerance, whole_bytes: see `wire.Open`.
            expected_tolerance: where `tolerance` is None, what the receiver is expected to use: for
                the choice of the order and for the report; does not travel.
            direction, rank, regime: for the report.

        Raises LocalProtocolError when the round is being sent already.
        """
        self._check_alive()
        key = (stream, round_id)
        if key in self._rounds.senders:
            raise LocalProtocolError(
                f"round {round_id} of stream {stream} is being sent already: send the next round"
            )
        view = byte_view(buffer)
        layout = ChunkLayout(view.nbytes, self.channel.chunk_bytes)
        known = tolerance if tolerance is not None else expected_tolerance
        chosen = only = None
        if order is not None:
            chosen, only = partial(as_given, order), subset_mask(order, layout.count)
        elif reducer is None:
            chosen = partial(self._order, layout, view, dtype, key, known)
        if regime is None and tolerance is not None:
            regime = "critical" if critical else "normal"
        announcement = Open(
            stream, round_id, layout.nbytes, layout.chunk_bytes, dtype, wait_ready,
            squared_norm, _wire(tolerance), critical, _wire(next_tolerance), whole_bytes,
        )  # fmt: skip
        label = RoundLabel(direction, rank, regime)
        plan = SendPlan(announcement, layout, view, chosen, reducer, known, label, only)
        try:
            sender = self._rounds.senders[key] = Sender(self._link, plan, now=now)
        except ValueError as error:  # no slot is free, or the order is none
            raise LocalProtocolError(
                f"cannot send round {round_id} of stream {stream}: {error}"
            ) from error
        if self.peer_left:
            self.imply_stop(stream, round_id, now=now)
        return sender

    def imply_stop(self, stream: int, round_id: int, *, now: float) -> None:
        """A later exchange shows that the peer is done with this round (hazard 4).

        Nothing happens if the round is not being sent.
        """
        sender = self._rounds.senders.get((stream, round_id))
        if sender is not None:
            sender.imply_stop(now=now)
            self._rounds.retire_sender(sender)

    def release(self, stream: int, round_id: int) -> None:
        """The owner is done with a receiver.

        A finished one: late probes still get its STOP.  An unfinished one is given up (FAILED,
        without an event) and its round may be armed anew; an announcement that did not fit waits
        for that.
        """
        receiver = self._rounds.receivers.pop((stream, round_id), None)
        if receiver is not None:
            receiver.fail(RoundAbortedError(f"round {round_id} of stream {stream} was released"))

    def abort(self, error: DBLPError) -> None:
        """Ends the session: every open round is FAILED, without events; nothing is pending (T1)."""
        if self.error is not None:
            return
        self.error = error
        self._rounds.fail(error)
        self._link.outbox.clear()
        self._stall.due = None

    def block_datagrams(self) -> None:
        """The handshake found that datagrams do not get through: all goes over TCP (hazard 9)."""
        self._link.datagrams.forced = True
        self._link.outbox.reliable_only = True

    def trust_datagrams(self) -> None:
        """They are as good as never lost, as within a host: no frame takes both ways until
        something is."""
        self._link.datagrams.trusted = True

    # --- inputs -----------------------------------------------------------------------------

    def on_frame(self, frame: Frame, *, now: float) -> None:
        """A decoded control frame, whichever way it came; duplicates are harmless.

        A frame that the peer must not send aborts the session; `error` says why, and the owner
        tells the peer (Abort).
        """
        if self.error is not None:
            return
        try:
            self._inbound.on_frame(frame, now)
        except RemoteProtocolError as error:
            self.abort(RemoteProtocolError(f"{self.peer}: {error}"))
        if self._inbound.abort_reason is not None:
            self.abort(self._inbound.abort_reason)

    def on_progress(self, *, now: float) -> None:
        """The channel moved: look at what arrived and what was sent.  Cheap: O(open rounds)."""
        if self.error is not None:
            return
        self._steering.on_progress(now=now)
        for receiver in tuple(self._rounds.receivers.values()):
            receiver.on_progress(now=now)
            if receiver.is_over:
                self._rounds.retire_receiver(receiver)
        for sender in self._rounds.senders.values():
            sender.on_progress(now=now)
        self._stall.look(sending=bool(self._rounds.senders), now=now)

    def steer(self, *, now: float) -> None:
        """The part of `on_progress` that is for congestion control, due at `steer_at`."""
        if self.error is None and self._rounds.senders:
            self._steering.on_progress(now=now)

    def on_timeout(self, *, now: float) -> None:
        """Acts on every timer that is due; harmless when none is."""
        if self.error is not None:
            return
        for receiver in tuple(self._rounds.receivers.values()):
            receiver.on_timeout(now=now)
            if receiver.is_over:
                self._rounds.retire_receiver(receiver)
        for sender in self._rounds.senders.values():
            sender.on_timeout(now=now)
        if self._stall.is_stalled(now=now):
            for sender in self._rounds.senders.values():
                sender.on_stall(now=now)

    # --- outputs ----------------------------------------------------------------------------

    def take_frames(self) -> list[tuple[Frame, Path]]:
        """Control frames to send, in order, with the path each of them takes."""
        return self._link.outbox.take()

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order.

        Missing chunks are zeroed here: take frames first, so that the STOP is on its way.
        """
        link = self._link
        if not link.events:
            return []
        events, link.events = link.events, []
        for event in events:
            if isinstance(event, ReceiveFinished):
                event.receiver.complete()
        return events

    def next_timeout(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds; None: not by time."""
        earliest = self._stall.due
        for receiver in self._rounds.receivers.values():
            if receiver.timer is not None and (earliest is None or receiver.timer < earliest):
                earliest = receiver.timer
        for sender in self._rounds.senders.values():
            if sender.timer is not None and (earliest is None or sender.timer < earliest):
                earliest = sender.timer
        return earliest

    # --- getters ----------------------------------------------------------------------------

    @property
    def peer_left(self) -> bool:
        """The peer said goodbye: every round towards it counts as stopped."""
        return self._inbound.peer_left

    @property
    def late_frames(self) -> int:
        """Control frames for rounds that are long over (or never were), ignored."""
        return self._inbound.late_frames

    @property
    def busy(self) -> bool:
        """Whether chunks are on their way: worth staying at the sockets for."""
        for receiver in self._rounds.receivers.values():
            if receiver.state is ReceiverState.RECEIVING:
                return True
        return any(s.state is not SenderState.IDLE for s in self._rounds.senders.values())

    @property
    def steer_at(self) -> float:
        """When `steer` wants to be called, in seconds; infinite while nothing is being sent."""
        return self._steering.due if self._rounds.senders else float("inf")

    @property
    def rtt_s(self) -> float | None:
        """Smoothed round-trip time in seconds; None until it was measured."""
        return self._link.rtt.smoothed_s

    def receiver(self, stream: int, round_id: int) -> Receiver | None:
        """The open receiver of a round."""
        return self._rounds.receivers.get((stream, round_id))

    def sender(self, stream: int, round_id: int) -> Sender | None:
        """The open sender of a round."""
        return self._rounds.senders.get((stream, round_id))

    def stall(self) -> str:
        """What every open round waits for, for stall reports and heartbeats; "" when idle."""
        parts = [
            f"stream {r.stream} round {r.round_id}: "
            f"received {r.accepted} of {r.bound.awaited} needed"
            for r in self._rounds.receivers.values()
            if r.state is ReceiverState.RECEIVING
        ]
        for s in self._rounds.senders.values():
            waits = "for Ready" if s.state is SenderState.IDLE else f"for STOP, {s.state.value}"
            parts.append(f"stream {s.stream} round {s.round_id}: waits {waits} in pass {s.passes}")
        return "; ".join(parts)

    # --- inside -----------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)

    def _order(
        self,
        layout: ChunkLayout,
        view: memoryview,
        dtype: str,
        key: RoundKey,
        known: Tolerance | None,
        exact: bool,
    ) -> Indices:
        if exact or known is not None:
            exact = exact or (known is not None and known.is_exact)
            kind = self._config.order_for(exact=exact, dtype=dtype)
        else:  # nothing says that all will be wanted: spread what an early stop drops
            kind = "rotate" if self._config.order == "auto" else self._config.order
        seed = self._config.seed + key[0] * _STREAM_SEED
        return send_order(
            kind, layout, round_id=key[1], seed=seed, buffer=view, dtype=dtype, expected=known
        )


def _wire(tolerance: Tolerance | None) -> str | None:
    return None if tolerance is None else tolerance.wire()
