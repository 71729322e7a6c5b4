"""A worker without sockets or clock: Algorithm 4 for several streams (paper, Section IV-D)."""

from __future__ import annotations

import math

from ..config import TransportConfig
from ..errors import (
    ConfigError,
    DBLPError,
    PeerLostError,
    RemoteProtocolError,
    RoundTimeoutError,
)
from ..phase import Regime
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
from ..tolerance import EXACT, Tolerance
from ..wire import Frame, Open, next_round
from .round_layout import RoundLayout, check_buffer
from .worker_round import FinishedRound, OpenRound, StreamRounds

__all__ = ["FinishedRound", "OpenRound", "WorkerCore"]

TIMEOUT_GRACE_S = 1.0
"""A worker gives up this much later than the server, whose error says which rank is the cause."""


class WorkerCore:
    """One session to the server; gradients in, means out, in place.

    Theory of operation.  `all_reduce` arms the receiver of the mean (so that nothing of it can come
    too early) and sends the gradient *from and into the same buffer*.  That is safe: the
    server sends chunk i of the mean only when it has this worker's chunk i or has stopped this
    uplink, so a chunk that is overwritten here is never needed again.  Until the uplink has ended
    only verified chunks may touch the buffer (aim=False).

    The rounds of one stream are kept in order: round r+1 starts when round r has ended.  So the
    announcement of round r+1 tells the server that this worker has the mean of round r, even if
    the STOP was lost (hazard 4 of the design); likewise a mean that is here ends its uplink.
    Use several streams to have several rounds on the way.

    *Commands*: `all_reduce`, `fail`.
    *Inputs*: `on_events`, `on_timeout`.
    *Outputs*: `take_finished`, `take_notices`, `next_timeout`, and what the session has to send.
    *Getters*: `error`, `stall`, `idle`, `server_left`.

    After an error every round ends with it, and the contents of the gradient buffers that were on
    the way are unspecified: partly gradient, partly mean.
    """

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        session: Session,
        config: TransportConfig,
        tolerance: Tolerance = EXACT,
        common: bool = False,
        server: str = "the server",
        server_may_leave: bool = False,
        first_round: int = 0,
    ) -> None:
        """`tolerance`: uplink tolerance of the first rounds (`Welcome.tolerance`), for the choice
        of the send order; `common`: downlinks carry a set of chunks that is fixed by the server;
        `server`: its name in errors; `server_may_leave`: its goodbye is no error while no round is
        open; `first_round`: as for `ServerCore`."""
        self.rank = rank
        self.world = world
        self.error: DBLPError | None = None
        """Why no round can be started any more; None while rounds can be."""
        self._session = session
        self._config = config
        self._tolerance = tolerance
        self._common = common
        self._server = server
        self._may_leave = server_may_leave
        self._first_round = first_round
        self._chunk_bytes = session.channel.chunk_bytes
        self._streams: dict[int, StreamRounds] = {}
        self._finished: list[FinishedRound] = []
        self._notices: list[str] = []

    # --- commands ---------------------------------------------------------------------------

    def all_reduce(
        self,
        buffer: memoryview,
        dtype: str,
        *,
        stream: int = 0,
        squared_norm: float = math.nan,
        tolerance: Tolerance | None = None,
        critical: bool = False,
        whole_bytes: int = 0,
        now: float,
    ) -> OpenRound:
        """Starts (or queues) the all-reduce of `buffer`.

        Args:
            buffer: writable contiguous bytes of the gradient; becomes the mean.
            dtype: element type, one of `ITEM_BYTES`.
            stream: 0 … 65535; rounds of one stream follow each other.
            squared_norm: sum of the squared elements, for the policy; NaN when unknown.
            tolerance, critical: of this round, the same on all ranks; None: the server decides.
            whole_bytes: size of the buffer of which this is one shard; 0: this is all.
            now: seconds.

        Raises:
            LocalProtocolError: the buffer cannot be averaged.
            DBLPError: the error with which this worker has ended before.
        """
        if self._session.error is not None:  # on_events has not been told yet
            self.fail(self._session.error)
        if self.error is not None:
            raise self.error.with_traceback(None)
        check_buffer(buffer, dtype, stream)
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = StreamRounds(self._first_round, self._tolerance)
        round_ = OpenRound(
            buffer,
            dtype,
            stream=stream,
            squared_norm=squared_norm,
            tolerance=tolerance,
            critical=critical,
            whole_bytes=whole_bytes,
            submitted=now,
        )
        if state.active is None:
            self._start(state, round_, now)
        else:
            state.waiting.append(round_)
        return round_

    def fail(self, error: DBLPError) -> None:
        """Ends every round with `error` and refuses new ones.  Idempotent."""
        if self.error is not None:
            return
        self.error = error
        self._session.abort(error)
        for state in self._streams.values():
            for round_ in (state.active, *state.waiting):
                if round_ is not None:
                    self._finished.append(
                        FinishedRound(round_, error, round_.uplink, round_.downlink)
                    )
        self._streams.clear()

    # --- inputs -----------------------------------------------------------------------------

    def on_events(self, *, now: float) -> None:
        """Acts on what the session has to tell."""
        session = self._session
        while self.error is None and (events := session.take_events()):
            for event in events:
                if self.error is None:
                    self._on_event(event, now)
        for state in list(self._streams.values()):  # a STOP may have told what was missing
            if state.active is not None and state.active.downlink is not None:
                self._finish_if_done(state, state.active, now)
        if session.error is not None:  # the server said Abort, or what it must not say
            self.fail(session.error)
        elif session.peer_left and not (self._may_leave and self.idle):
            self.fail(PeerLostError(f"{self._server} has closed: start it again and connect anew"))

    def on_timeout(self, *, now: float) -> None:
        """Ends with RoundTimeoutError when a round is over its time."""
        for state in list(self._streams.values()):
            round_ = state.active
            if round_ is not None and now >= round_.deadline:
                assert round_.receiver is not None
                self.fail(
                    RoundTimeoutError(
                        f"stream {round_.stream} round {round_.round_id} is not complete after "
                        f"{self._config.longest_round_s:g} s: {_progress(round_)}; look at the "
                        f"server and the other ranks, or raise timeout_s",
                        round_.receiver.progress_report(now=now),
                    )
                )
                return

    # --- outputs ----------------------------------------------------------------------------

    def take_finished(self) -> list[FinishedRound]:
        """Rounds that ended since the last call, in the order in which they ended."""
        taken, self._finished = self._finished, []
        return taken

    def take_broadcast(self) -> list[Frame]:
        """Frames besides the session's, for the reliable channel: none, the server tells all."""
        return []

    def take_notices(self) -> list[str]:
        """One-sentence warnings for the user since the last call."""
        taken, self._notices = self._notices, []
        return taken

    def next_timeout(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds, or None.  The session has its own."""
        deadlines = [s.active.deadline for s in self._streams.values() if s.active is not None]
        return min(deadlines, default=None)

    @property
    def idle(self) -> bool:
        """Whether no round is open."""
        return all(state.active is None for state in self._streams.values())

    @property
    def server_left(self) -> bool:
        """Whether the server has said goodbye."""
        return self._session.peer_left

    def stall(self) -> str:
        """What every unfinished round waits for; '' when idle."""
        return "; ".join(
            f"rank {self.rank} stream {s.active.stream} round {s.active.round_id}: "
            f"{_progress(s.active)}"
            for s in self._streams.values()
            if s.active is not None
        )

    # --- inside -----------------------------------------------------------------------------

    def _start(self, state: StreamRounds, round_: OpenRound, now: float) -> None:
        """Arms the downlink, then sends the uplink: never the other way round."""
        round_.round_id = state.next_round_id
        state.next_round_id = next_round(state.next_round_id)
        state.active = round_
        layout = RoundLayout(
            round_.buffer.nbytes, self._chunk_bytes, round_.dtype, round_.whole_bytes
        )
        changed = layout != state.layout
        state.layout = layout
        told = round_.tolerance is not None
        round_.deadline = now + self._config.longest_round_s + TIMEOUT_GRACE_S
        round_.receiver = self._session.arm(
            stream=round_.stream,
            round_id=round_.round_id,
            buffer=round_.buffer,
            dtype=round_.dtype,
            tolerance=None,
            aim=False,
            timed=False,  # see `_on_uplink_finished`
            direction="downlink",
            rank=self.rank,
            now=now,
        )
        round_.sender = self._session.send(
            stream=round_.stream,
            round_id=round_.round_id,
            buffer=round_.buffer,
            dtype=round_.dtype,
            wait_ready=changed,
            squared_norm=round_.squared_norm,
            tolerance=round_.tolerance,
            critical=round_.critical,
            whole_bytes=round_.whole_bytes,
            expected_tolerance=state.tolerance,
            direction="uplink",
            rank=self.rank,
            regime=None if told or state.regime is None else state.regime.value,
            now=now,
        )

    def _on_event(self, event: SessionEvent, now: float) -> None:
        if isinstance(event, ReceiveFinished):
            self._on_downlink_finished(event.receiver, now)
        elif isinstance(event, SendFinished):
            self._on_uplink_finished(event.sender, now)
        elif isinstance(event, OpenMismatch):
            offered = RoundLayout.of(event.open)
            self.fail(
                RemoteProtocolError(
                    f"stream {event.open.stream} round {event.open.round}: {self._server} sends "
                    f"{offered}, and that is not what rank {self.rank} sent: use the same version "
                    f"of dblp everywhere"
                )
            )
        elif isinstance(event, FallbackToReliable):
            self._notices.append(
                f"datagrams to {self._server} do not get through: what is missing goes over TCP "
                f"(slower); check that UDP is not blocked between the hosts"
            )

    def _on_downlink_finished(self, receiver: Receiver, now: float) -> None:
        """The mean is here, so the server needs nothing more of this uplink."""
        state = self._streams[receiver.stream]
        round_ = state.active
        assert round_ is not None and round_.receiver is receiver
        offer = receiver.open
        assert offer is not None, "a downlink ended before it was announced"
        round_.regime = Regime.CRITICAL if offer.critical else Regime.NORMAL
        round_.downlink = receiver.report
        if self._common:
            round_.left_out = receiver.bitmap.missing()
        if round_.uplink is None:
            self._session.imply_stop(round_.stream, round_.round_id, now=now)
        self._finish_if_done(state, round_, now)

    def _on_uplink_finished(self, sender: Sender, now: float) -> None:
        state = self._streams[sender.stream]
        round_ = state.active
        assert round_ is not None and round_.sender is sender
        round_.uplink = sender.report
        receiver = round_.receiver
        if receiver is not None and not receiver.is_over:  # a wrong guess can do no harm now
            self._session.channel.set_aim(receiver.slot, True)
            # Nor can the end of the downlink: it zeroes what is missing, in the same buffer.
            if not self._common:  # whose sender sends a fixed set of chunks and no others
                receiver.allow_deadline()
        self._finish_if_done(state, round_, now)

    def _finish_if_done(self, state: StreamRounds, round_: OpenRound, now: float) -> None:
        if round_.uplink is None or round_.downlink is None or round_.awaits_missing:
            return
        assert round_.receiver is not None and round_.receiver.open is not None
        self._session.release(round_.stream, round_.round_id)
        state.active = None
        state.regime = round_.regime
        self._learn_tolerance(state, round_.receiver.open)
        self._finished.append(FinishedRound(round_, None, round_.uplink, round_.downlink))
        if state.waiting and self.error is None and self._session.error is None:
            self._start(state, state.waiting.popleft(), now)

    def _learn_tolerance(self, state: StreamRounds, offer: Open) -> None:
        """The downlink's announcement tells the tolerance of the next uplink."""
        told = offer.next_tolerance
        if told is None or told == state.told:
            return
        state.told = told
        try:
            state.tolerance = Tolerance.of(told)
        except ConfigError as error:
            self.fail(RemoteProtocolError(f"the server announced an illegal tolerance: {error}"))


def _progress(round_: OpenRound) -> str:
    """How far a round is, for people."""
    assert round_.sender is not None and round_.receiver is not None
    if round_.uplink is None:
        return "the server has not stopped the uplink"
    receiver = round_.receiver
    return f"the downlink has {receiver.accepted} of {receiver.layout.count} chunks"
