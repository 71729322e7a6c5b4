"""DBLP_SEND and DBLP_RECV (Algorithms 1, 2) with one peer, without sockets or clock."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

from ..config import TransportConfig
from ..errors import DBLPError, LocalProtocolError, PeerLostError, RoundTimeoutError
from ..proto import Event as SessionEvent
from ..proto import (
    FallbackToReliable,
    OpenMismatch,
    ReceiveFinished,
    Receiver,
    Sender,
    SendFinished,
    Session,
)
from ..stats import RoundReport
from ..tolerance import Tolerance
from ..wire import Abort, Frame, next_round
from .round_layout import MAX_ROUND_BYTES, STREAMS_MAX, RoundLayout

__all__ = ["Direction", "FinishedTransfer", "PointToPointCore", "Transfer"]


class Direction(Enum):
    """Which way the bytes of a transfer go, seen from here."""

    SEND = "send"
    RECEIVE = "receive"


class Transfer:
    """One `send` or `recv`, from the call to its end."""

    __slots__ = (
        "buffer", "deadline", "direction", "dtype", "endpoint", "round_id", "stream", "submitted",
        "tolerance",
    )  # fmt: skip

    def __init__(
        self,
        direction: Direction,
        buffer: memoryview,
        dtype: str,
        *,
        stream: int,
        tolerance: Tolerance | None,
        submitted: float,
    ) -> None:
        self.direction = direction
        self.buffer = buffer
        """Read (send) or written (receive) until the transfer ends."""
        self.dtype = dtype
        self.stream = stream
        self.tolerance = tolerance
        """What the receiver accepts as missing; None for a send: only the receiver knows."""
        self.submitted = submitted
        """When the call was made, in seconds."""
        self.round_id = -1
        """-1 while the transfer waits for the one before it."""
        self.deadline = math.inf
        self.endpoint: Sender | Receiver | None = None


@dataclass(frozen=True, slots=True)
class FinishedTransfer:
    """The end of one `Transfer`."""

    transfer: Transfer
    error: DBLPError | None
    """None: done.  Otherwise the contents of a receive buffer are unspecified."""
    report: RoundReport | None
    """None when the transfer failed."""

    @property
    def work(self) -> Transfer:
        """What the call that started it returned."""
        return self.transfer


class _Lane:
    """The transfers of one stream in one direction: one is going on, the others wait in order."""

    __slots__ = ("active", "next_round_id", "waiting")

    def __init__(self, first_round: int) -> None:
        self.active: Transfer | None = None
        self.waiting: deque[Transfer] = deque()
        self.next_round_id = first_round


class PointToPointCore:
    """Buffers to and from one peer.

    The n-th `send` of a stream here meets the n-th `recv` of that stream there, in whatever order
    the two calls are made: every round waits for `Ready`, which the receiver gives when `recv` was
    called.  The transfers of one stream and direction follow each other; streams and directions are
    independent.  The receiver alone sets the tolerance.

    *Commands*: `send`, `recv`, `fail`.
    *Inputs*: `on_events`, `on_timeout`.
    *Outputs*: `take_finished`, `take_broadcast`, `take_notices`, `next_timeout`, and what the
    session has to send.
    *Getters*: `error`, `stall`.
    """

    def __init__(
        self, *, session: Session, config: TransportConfig, peer: str, first_round: int = 0
    ) -> None:
        """`peer` names the other side in errors; `first_round` is the id of the first round of
        every stream, equal on both sides."""
        self.error: DBLPError | None = None
        """Why no transfer can be started any more; None while they can be."""
        self._session = session
        self._config = config
        self._peer = peer
        self._first_round = first_round
        self._lanes: dict[tuple[Direction, int], _Lane] = {}
        self._finished: list[FinishedTransfer] = []
        self._frames: list[Frame] = []
        self._stops: dict[int, Frame] = {}
        self._notices: list[str] = []

    # --- commands ---------------------------------------------------------------------------

    def send(
        self, buffer: memoryview, dtype: str = "uint8", *, stream: int = 0, now: float
    ) -> Transfer:
        """Starts (or queues) DBLP_SEND of `buffer`: contiguous bytes, left alone until the end.

        `dtype` lets float chunks be ranked by energy; it must equal the receiver's.
        Raises LocalProtocolError for a bad argument, or the error of this core.
        """
        return self._submit(
            Transfer(Direction.SEND, buffer, dtype, stream=stream, tolerance=None, submitted=now),
            now,
        )

    def recv(
        self,
        buffer: memoryview,
        tolerance: Tolerance,
        dtype: str = "uint8",
        *,
        stream: int = 0,
        now: float,
    ) -> Transfer:
        """Starts (or queues) DBLP_RECV into `buffer`: writable bytes, as many as the sender's.

        At the end at least `tolerance.needed(chunks)` chunks are the sender's; the others are zero.
        Raises LocalProtocolError for a bad argument, or the error of this core.
        """
        if buffer.readonly:
            raise LocalProtocolError("recv needs a writable buffer: pass one")
        return self._submit(
            Transfer(
                Direction.RECEIVE, buffer, dtype, stream=stream, tolerance=tolerance, submitted=now
            ),
            now,
        )

    def fail(self, error: DBLPError) -> None:
        """Ends every transfer with `error` and refuses new ones.  Idempotent."""
        if self.error is not None:
            return
        self.error = error
        # Closing is an error too.  The last STOP of a stream may have been lost, and nobody will be
        # here to repeat it: the peer must not take what has arrived for lost.
        self._frames.extend(self._stops.values())
        self._session.abort(error)
        for lane in self._lanes.values():
            for transfer in (lane.active, *lane.waiting):
                if transfer is not None:
                    self._finished.append(FinishedTransfer(transfer, error, None))
        self._lanes.clear()

    # --- inputs -----------------------------------------------------------------------------

    def on_events(self, *, now: float) -> None:
        """Acts on what the session has to tell."""
        session = self._session
        while self.error is None and (events := session.take_events()):
            for event in events:
                if self.error is None:
                    self._on_event(event, now)
        if session.error is not None:  # the peer said Abort, or what it must not say
            self.fail(session.error)
        elif session.peer_left:
            self.fail(PeerLostError(f"{self._peer} has closed the connection: connect anew"))

    def on_timeout(self, *, now: float) -> None:
        """Ends with RoundTimeoutError when a transfer is over its time."""
        for lane in list(self._lanes.values()):
            transfer = lane.active
            if transfer is not None and now >= transfer.deadline:
                self.fail(
                    RoundTimeoutError(
                        f"{_where(transfer)} is not complete after {self._config.timeout_s:g} s: "
                        f"look whether {self._peer} has called "
                        f"{'recv' if transfer.direction is Direction.SEND else 'send'}, or raise "
                        f"timeout_s"
                    )
                )
                return

    # --- outputs ----------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedTransfer]:
        """Transfers that ended since the last call, in the order in which they ended."""
        taken, self._finished = self._finished, []
        return taken

    def take_broadcast(self) -> list[Frame]:
        """Frames for the reliable channel besides those of the session; also after the end."""
        taken, self._frames = self._frames, []
        return taken

    def take_notices(self) -> list[str]:
        """One-sentence warnings for the user since the last call."""
        taken, self._notices = self._notices, []
        return taken

    def next_timeout(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds, or None.  The session has its own."""
        deadlines = [x.active.deadline for x in self._lanes.values() if x.active is not None]
        return min(deadlines, default=None)

    def stall(self) -> str:
        """What every unfinished transfer waits for; '' when idle."""
        return "; ".join(
            f"{_where(lane.active)} with {self._peer}"
            for lane in self._lanes.values()
            if lane.active is not None
        )

    # --- inside -----------------------------------------------------------------------------

    def _submit(self, transfer: Transfer, now: float) -> Transfer:
        if self._session.error is not None:  # on_events has not been told yet
            self.fail(self._session.error)
        if self.error is not None:
            raise self.error.with_traceback(None)
        if not 0 <= transfer.stream < STREAMS_MAX:
            raise LocalProtocolError(
                f"stream {transfer.stream} is out of range: use 0 … {STREAMS_MAX - 1}"
            )
        if transfer.buffer.nbytes > MAX_ROUND_BYTES:
            raise LocalProtocolError(
                f"a buffer of {transfer.buffer.nbytes:,} bytes is too long: pass at most "
                f"{MAX_ROUND_BYTES:,} bytes at a time"
            )
        key = (transfer.direction, transfer.stream)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self._first_round)
        if lane.active is None:
            self._start(lane, transfer, now)
        else:
            lane.waiting.append(transfer)
        return transfer

    def _start(self, lane: _Lane, transfer: Transfer, now: float) -> None:
        transfer.round_id = lane.next_round_id
        lane.next_round_id = next_round(lane.next_round_id)
        lane.active = transfer
        transfer.deadline = now + self._config.timeout_s
        if transfer.direction is Direction.SEND:
            self._start_send(transfer, now)
        else:
            transfer.endpoint = self._session.arm(
                stream=transfer.stream,
                round_id=transfer.round_id,
                buffer=transfer.buffer,
                dtype=transfer.dtype,
                tolerance=transfer.tolerance,
                direction=transfer.direction.value,
                now=now,
            )

    def _start_send(self, transfer: Transfer, now: float) -> None:
        transfer.endpoint = self._session.send(
            stream=transfer.stream,
            round_id=transfer.round_id,
            buffer=transfer.buffer,
            dtype=transfer.dtype,
            wait_ready=True,
            direction=transfer.direction.value,
            now=now,
        )

    def _on_event(self, event: SessionEvent, now: float) -> None:
        if isinstance(event, ReceiveFinished):
            receiver = event.receiver
            assert receiver.stop is not None
            self._stops[receiver.stream] = receiver.stop
            self._session.release(receiver.stream, receiver.round_id)
            self._finish((Direction.RECEIVE, receiver.stream), receiver.report, now)
        elif isinstance(event, SendFinished):
            sender = event.sender
            stopped = sender.final_missing is not None  # by a STOP, and not by the goodbye
            if stopped or sender.epoch or not self._session.peer_left:
                self._finish((Direction.SEND, sender.stream), sender.report, now)
            # else: the peer closed before it can have had all of it; on_events says so
        elif isinstance(event, OpenMismatch):
            self._on_mismatch(event)
        elif isinstance(event, FallbackToReliable):
            self._notices.append(
                f"datagrams to {self._peer} do not get through: what is missing goes over TCP "
                f"(slower); check that UDP is not blocked between the hosts"
            )

    def _on_mismatch(self, event: OpenMismatch) -> None:
        """The two buffers differ: both sides get an error that names both sizes."""
        offer = event.open
        lane = self._lanes[Direction.RECEIVE, offer.stream]
        assert lane.active is not None
        where = f"stream {offer.stream} round {offer.round}"
        chunk_bytes = self._session.channel.chunk_bytes
        here = RoundLayout(lane.active.buffer.nbytes, chunk_bytes, lane.active.dtype)
        there = RoundLayout.of(offer)
        self._frames.append(
            Abort(
                kind="RemoteProtocolError",
                reason=f"{where}: this side sends {there} and the peer receives {here}: pass "
                f"buffers of the same size and dtype to send and recv",
            )
        )
        self.fail(
            LocalProtocolError(
                f"{where}: {self._peer} sends {there} and recv was called with {here}: pass "
                f"buffers of the same size and dtype to send and recv"
            )
        )

    def _finish(self, key: tuple[Direction, int], report: RoundReport | None, now: float) -> None:
        lane = self._lanes[key]
        assert lane.active is not None
        self._finished.append(FinishedTransfer(lane.active, None, report))
        lane.active = None
        if lane.waiting and self._session.error is None:  # else on_events is about to say so
            self._start(lane, lane.waiting.popleft(), now)


def _where(transfer: Transfer) -> str:
    return f"{transfer.direction.value} of stream {transfer.stream} round {transfer.round_id}"
