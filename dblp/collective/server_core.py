"""The parameter server without sockets or clock: Algorithm 3 (paper, Section IV-D)."""

from __future__ import annotations

import random
from collections import deque
from typing import Literal

from .. import fastpath
from ..config import TransportConfig
from ..errors import DBLPError, RemoteProtocolError, RoundAbortedError
from ..phase import TolerancePolicy
from ..proto import Event as SessionEvent
from ..proto import (
    FallbackToReliable,
    OpenMismatch,
    ReceiveFinished,
    RoundOffered,
    SendFinished,
    Session,
)
from ..stats import RoundReport
from ..tolerance import EXACT
from ..wire import Abort, Frame, Open, next_round, round_is_newer
from .buffers import BufferPool
from .local_rank import FinishedLocal, LocalRank, LocalRound
from .naming import error_of
from .round_layout import RoundLayout, disagreement, objection, told_by
from .server_decisions import Decisions, Downlink, NormSource
from .server_round import ServerRound, Stage
from .server_streams import StreamState, StreamTable

__all__ = ["Downlink", "MissingRule", "NormSource", "ServerCore"]

MissingRule = Literal["zero", "contributors"]


class ServerCore:
    """N sessions, one mean per round and stream, one tolerance for all ranks.

    Theory of operation.  A round of a stream starts when a rank announces it (`Open`).  The layout
    of the first round is not known, so receive buffers are armed only when every rank has
    announced it; from then on the next round is armed as soon as the uplinks of the one before are
    in (*pre-arming*), and workers with an unchanged layout send without asking.  When all
    announcements of a round are there, so are the norms of the workers' gradients; the policy
    decides once for the downlink of this round and the uplink of the next (C1), and the downlinks
    start: each chunk goes down when all ranks have delivered it.  When the last uplink stops, the
    rest of the mean is computed under the missing-chunk rule and follows.

    An announcement of round r+1 from a rank implies that the rank has round r (hazard 4 of the
    design): `WorkerCore` keeps the rounds of a stream in order.  That is why two result buffers
    and one set of receive buffers per stream are enough.

    One of the ranks may be *local* (a mesh): it has no session, its chunks are all there at once,
    and the mean is written over its gradient (`LocalRank`).

    *Commands*: `attach`, `all_reduce_local`, `fail`.
    *Inputs*: `on_events`, `on_timeout`, `peer_lost`.
    *Outputs*: `take_broadcast`, `take_reports`, `take_notices`, `take_local`, `next_timeout`, and
    what the sessions have to send: an input for one rank may put work in those of the others.
    *Getters*: `error`, `stall`, `pool`.

    After an error every session is aborted and the core accepts no further round.
    """

    def __init__(
        self,
        *,
        world: int,
        policy: TolerancePolicy,
        config: TransportConfig,
        downlink: Downlink = "exact",
        rule: MissingRule = "zero",
        norm: NormSource = "sent",
        rng: random.Random,
        first_round: int = 0,
        local: int | None = None,
    ) -> None:
        """`first_round`: id of the first round of every stream, as for `WorkerCore`; `local`: the
        rank that lives here."""
        self.world = world
        self.remotes = [rank for rank in range(world) if rank != local]
        """Ranks that have a session."""
        self.pool = BufferPool()
        self.error: DBLPError | None = None
        """Why the job cannot go on; None while it can."""
        self._config = config
        self._decisions = Decisions(policy, downlink=downlink, norm=norm)
        self._local = None if local is None else LocalRank(local)
        self._contributors = rule == "contributors"
        self._order_seed = rng.getrandbits(32)
        self._attached: dict[int, Session] = {}
        self._sessions: list[Session] = []
        self._left: set[int] = set()
        self._streams = StreamTable(
            world=world,
            ranks=self.remotes,
            first_round=first_round,
            decision=self._decisions.initial,
        )
        self._touched: set[int] = set()
        self._backlog: deque[tuple[int, SessionEvent]] = deque()
        self._started_downlinks = False
        self._broadcast: list[tuple[int, Frame]] = []
        self._reports: list[RoundReport] = []
        self._notices: list[str] = []

    # --- commands ---------------------------------------------------------------------------

    def attach(self, rank: int, session: Session, *, now: float) -> None:
        """Adds the session to `rank`; rounds start when all ranks are there."""
        assert rank in self.remotes and rank not in self._attached, rank
        self._attached[rank] = session
        if len(self._attached) == len(self.remotes):
            self._sessions = [self._attached[r] for r in self.remotes]
            self._announce_local(now)
            for r in self.remotes:
                self.on_events(r, now=now)

    def all_reduce_local(self, round_: LocalRound, *, now: float) -> None:
        """Starts (or queues) a round of the local rank; `check_buffer` holds for its buffer.

        Raises the error with which the job has ended before.
        """
        assert self._local is not None, "no rank is local"
        if self.error is not None:
            raise self.error.with_traceback(None)
        self._local.add(round_)
        if self._sessions:
            self._announce_local(now)

    def fail(self, error: DBLPError, *, lost: int | None = None) -> None:
        """Ends the job: every rank but `lost` is told, every session is aborted.  Idempotent."""
        if self.error is not None:
            return
        self.error = error
        frame = Abort(kind=type(error).__name__, reason=str(error))
        for rank, session in self._attached.items():
            session.abort(error)
            if rank != lost and rank not in self._left:
                self._broadcast.append((rank, frame))
        self._streams.clear()
        self._touched.clear()
        self._backlog.clear()
        self.pool.clear()
        if self._local is not None:
            self._local.fail(error)

    # --- inputs -----------------------------------------------------------------------------

    def on_events(self, rank: int, *, now: float, pause: bool = False) -> bool:
        """Acts on what the session to `rank` has to tell.  With `pause` it returns True once
        downlinks have started: send their first chunks, then call again for the bookkeeping."""
        if self.error is not None or not self._sessions:
            return False  # events wait in the session until all ranks are there
        touched, backlog = self._touched, self._backlog
        touched.add(rank)
        while self.error is None and (touched or backlog):
            if backlog:
                owner, event = backlog.popleft()
                self._on_event(owner, event, now)
                self._announce_local(now)
                started, self._started_downlinks = self._started_downlinks, False
                if started and pause:
                    return self.error is None
                continue
            session = self._attached[rank := touched.pop()]
            if session.error is not None:  # it said Abort, or what it must not say
                self.peer_lost(rank, session.error, now=now)
            elif events := session.take_events():
                backlog.extend((rank, event) for event in events)
                touched.add(rank)
            elif session.peer_left and rank not in self._left:  # its events came before its Bye
                self._left.add(rank)
                self._refuse_rounds_without_the_left()
        return False

    def on_timeout(self, *, now: float) -> None:
        """Ends the job when a round is over its time (`TransportConfig.timeout_s`)."""
        error = self._streams.overdue(now, self._config)
        if error is not None:
            self.fail(error)

    def peer_lost(self, rank: int, error: DBLPError, *, now: float) -> None:
        """The connection to `rank` is gone or broken: every other rank learns which one it was."""
        self.fail(error_of(rank, error), lost=rank)

    # --- outputs ----------------------------------------------------------------------------

    def take_broadcast(self) -> list[tuple[int, Frame]]:
        """(rank, frame) pairs for the reliable channel."""
        taken, self._broadcast = self._broadcast, []
        return taken

    def take_reports(self) -> list[RoundReport]:
        """Reports of the uplinks and downlinks that ended since the last call."""
        taken, self._reports = self._reports, []
        return taken

    def take_notices(self) -> list[str]:
        """One-sentence warnings for the operator since the last call."""
        taken, self._notices = self._notices, []
        return taken

    def take_local(self) -> list[FinishedLocal]:
        """Rounds of the local rank that ended since the last call."""
        return [] if self._local is None else self._local.take_finished()

    def next_timeout(self) -> float | None:
        """When `on_timeout` wants to be called, in seconds, or None.  Sessions have their own."""
        return self._streams.next_timeout()

    def stall(self) -> str:
        """What every unfinished round waits for, by stream, phase and rank; '' when idle."""
        return self._streams.stall()

    # --- events of the sessions -------------------------------------------------------------

    def _on_event(self, rank: int, event: SessionEvent, now: float) -> None:
        if isinstance(event, ReceiveFinished):
            self._on_uplink_finished(event, now)
        elif isinstance(event, SendFinished):
            self._on_downlink_finished(rank, event)
        elif isinstance(event, RoundOffered | OpenMismatch):
            self._on_open(rank, event.open, now)
        elif isinstance(event, FallbackToReliable):
            self._notices.append(
                f"datagrams to rank {rank} do not get through: what is missing goes over TCP "
                f"(slower); check that UDP is not blocked between the hosts"
            )

    def _on_open(self, rank: int, offer: Open, now: float) -> None:
        """`rank` announces a round."""
        session = self._attached.get(rank, self._sessions[0])
        reason = objection(rank, offer, session.channel.chunk_bytes)
        if reason is not None:
            self.fail(RemoteProtocolError(reason))
            return
        stream = self._streams.take(offer.stream)
        current = stream.current
        if offer.round == current.round_id:
            self._on_offer(stream, rank, offer, now)
        elif offer.round == next_round(current.round_id) and current.senders:
            self._imply_stop(stream, current, rank, now)
            stream.early.append((rank, offer))
        elif round_is_newer(offer.round, current.round_id):
            self.fail(
                RemoteProtocolError(
                    f"rank {rank} announces round {offer.round} of stream {offer.stream} and "
                    f"round {current.round_id} is going on: all ranks must run the same rounds"
                )
            )
        # else: an old round, which the session answers from its memory

    def _on_offer(self, stream: StreamState, rank: int, offer: Open, now: float) -> None:
        """`rank` announces the current round of `stream`."""
        round_ = stream.current
        if round_.offers[rank] is not None:
            return
        round_.offers[rank] = offer
        round_.offered += 1
        round_.set_deadline(self._config, now=now)
        if stream.previous is not None:  # hazard 4: the worker has that result
            self._imply_stop(stream, stream.previous, rank, now)
        if self._left:
            self._refuse_rounds_without_the_left()
            if self.error is not None:
                return
        layout, told = RoundLayout.of(offer), told_by(offer)
        if round_.announced is None:
            round_.announced, round_.told = layout, told
        if layout != round_.announced or told != round_.told:
            self.fail(RemoteProtocolError(disagreement(round_.offers)))
            return
        round_.provide()
        if round_.offered == self.world:
            if round_.layout != layout:
                if round_.stage is Stage.ARMED:
                    round_.disarm(self._sessions, self.pool)
                self._arm(round_, layout, now)
            if self.error is None:
                self._on_all_offers(stream, now)

    def _on_all_offers(self, stream: StreamState, now: float) -> None:
        """Every rank has announced the current round: the policy can decide, chunks can go down."""
        round_ = stream.current
        if not self._decisions.norm_received:
            self._decide(stream, round_, round_.announced_mean_square())
            round_.stage = Stage.FLOWING
            if self._decisions.may_pipeline(round_, self._config):
                self._start_downlinks(round_, now)
        if round_.uplinks_left == 0:  # the local rank comes last
            self._complete(stream, now)

    def _on_uplink_finished(self, event: ReceiveFinished, now: float) -> None:
        receiver = event.receiver
        assert receiver.report is not None
        stream = self._streams.take(receiver.stream)
        round_ = stream.current
        assert round_.round_id == receiver.round_id, "an uplink ended twice"
        self._reports.append(receiver.report)
        round_.uplinks_left -= 1
        if round_.uplinks_left == 0 and round_.offered == self.world:
            self._complete(stream, now)

    def _complete(self, stream: StreamState, now: float) -> None:
        """Every uplink of the current round has stopped: complete the mean, arm the next round."""
        round_ = stream.current
        ranked = self._decisions.ranks_chunks(round_, self._config)
        round_.reduce(self._sessions, self.pool, ranked=ranked)
        for session in self._sessions:  # a downlink on TCP waits for the whole mean
            session.on_progress(now=now)
        if round_.decision is None:
            assert round_.result is not None and round_.layout is not None
            norm = fastpath.squared_norm(round_.result, round_.layout.dtype)
            self._decide(stream, round_, norm)
        round_.stage = Stage.REDUCED
        if not round_.senders:
            self._start_downlinks(round_, now)
        self._close_if_done(stream, round_)
        following = stream.advance()
        if len(self._left) < len(self.remotes):
            assert round_.layout is not None
            self._arm(following, round_.layout, now)
        early, stream.early = stream.early, []
        for rank, offer in early:
            if self.error is None:
                self._on_offer(stream, rank, offer, now)

    def _on_downlink_finished(self, rank: int, event: SendFinished) -> None:
        sender = event.sender
        assert sender.report is not None
        self._reports.append(sender.report)
        stream = self._streams.take(sender.stream)
        round_ = stream.find(sender.round_id)
        if round_ is not None:  # else the stop was implied, and that was the last downlink
            self._downlink_over(stream, round_, rank)

    def _imply_stop(self, stream: StreamState, round_: ServerRound, rank: int, now: float) -> None:
        """`rank` has the mean of `round_`, though its STOP may be lost."""
        self._attached[rank].imply_stop(round_.stream, round_.round_id, now=now)
        self._touched.add(rank)
        self._downlink_over(stream, round_, rank)

    def _downlink_over(self, stream: StreamState, round_: ServerRound, rank: int) -> None:
        round_.downlinks_open.discard(rank)
        self._close_if_done(stream, round_)

    # --- inside -----------------------------------------------------------------------------

    def _close_if_done(self, stream: StreamState, round_: ServerRound) -> None:
        if not round_.downlinks_open and round_.stage is Stage.REDUCED:
            round_.give_back_result(self.pool)
            round_.stage = Stage.DONE
            if self._local is not None:
                self._local.finish(round_)
            round_.deadline = None
            if stream.previous is round_:
                stream.previous = None

    def _decide(self, stream: StreamState, round_: ServerRound, mean_square: float) -> None:
        """Fixes the tolerance of this downlink and of the next uplink."""
        self._decisions.decide(round_, mean_square)
        stream.decision = self._decisions.following(round_, stream.decision)

    def _start_downlinks(self, round_: ServerRound, now: float) -> None:
        tolerance = self._decisions.downlink_tolerance(round_)
        order = None
        common = self._decisions.common and not tolerance.is_exact
        if round_.stage is Stage.FLOWING:
            round_.limit(tolerance if common else EXACT)
        else:
            order = round_.send_order(self._config, self._order_seed, tolerance, best=common)
        round_.start_downlinks(self._sessions, tolerance, order, now=now)
        self._touched.update(self.remotes)
        self._started_downlinks = True

    def _arm(self, round_: ServerRound, layout: RoundLayout, now: float) -> None:
        try:
            round_.arm(layout, self._sessions, self.pool, contributors=self._contributors, now=now)
        except MemoryError:
            reason = (
                f"{round_.where}: the server has no memory for {self.world} receive buffers and a "
                f"result of {layout.nbytes:,} bytes: use a larger host or smaller buckets"
            )
            self.fail(RoundAbortedError(reason))
        self._touched.update(self.remotes)

    def _announce_local(self, now: float) -> None:
        """The local rank's next rounds, where it has the ones before."""
        if self._local is None:
            return
        chunk_bytes = self._sessions[0].channel.chunk_bytes
        for offer in self._local.announcements(self._streams, chunk_bytes):
            self._on_open(self._local.rank, offer, now)

    def _refuse_rounds_without_the_left(self) -> None:
        """A rank that is gone will never announce a round that others wait in."""
        if reason := self._streams.left_alone(self._left):
            self.fail(RoundAbortedError(reason))
