"""The pump's adapter: sessions on one side, sockets and the clock on the other.

Per turn, in this order: inputs (datagrams, control frames) → timers → transmit → control → events →
next timeout.  While rounds are in flight the loop thread spends its time inside `fastpath.pump`,
without the GIL; it comes back for control frames, finished rounds, timers and whatever else the
event loop has to do.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from .. import fastpath
from ..config import TransportConfig
from ..congestion import AdaptiveWindow, within_host
from ..errors import DBLPError, PeerLostError, RemoteProtocolError
from ..faults import ImpairmentState
from ..proto import Session, turn
from ..wire import Abort, AnyFrame, Bye, Heartbeat
from .control import ControlConnection
from .handshake import Connection
from .stay import BUDGET_S, stay
from .udp import same_host

UNSENT_LINGER_S = 0.001
"""... while the event loop has control bytes to write."""

WATCHED_STAY_S = 0.001
"""Longest stay in the pump while the event loop watches the sockets too: it is told of every single
datagram, at the sender's expense where both are on one host (a twentieth of its time at MTU 1500).
Shorter rounds are over before watching less has paid."""

TURNS_PER_CALL = 16
"""Pump calls before the event loop gets a turn of its own (the pump watches its connections)."""

log = logging.getLogger("dblp")


class Owner(Protocol):
    """Whoever decides: the server's, the worker's or the point-to-point endpoint."""

    def on_tick(self, now: float) -> None:
        """Called once per turn, after the inputs of all links."""

    def next_timeout(self) -> float | None:
        """When the owner wants a turn by time, in seconds of the driver's clock."""

    def on_link_failed(self, link: PeerLink, error: DBLPError) -> None:
        """The peer is lost, or one side broke the protocol; called once per link."""

    def stall(self) -> str:
        """What open rounds wait for; travels in heartbeats."""


@dataclass(eq=False, slots=True)
class PeerLink:
    """Everything that belongs to one peer."""

    name: str
    session: Session
    channel: fastpath.Channel
    control: ControlConnection
    sock: socket.socket
    on_events: Callable[[float], None]
    """Called (with the time in seconds) when the session may have events."""
    impairment: ImpairmentState | None = None
    failed: bool = field(default=False, init=False)
    left: bool = field(default=False, init=False)
    """The peer said goodbye; the end of its connection is no loss."""
    stall: str = field(default="", init=False)
    """What the peer's last heartbeat said it is waiting for."""
    watched: bool = field(default=False, init=False)

    @property
    def by_hand(self) -> bool:
        """Arrivals go through the injector, one by one."""
        return self.impairment is not None and not self.impairment.plan.loss_only


def make_link(
    name: str, connection: Connection, config: TransportConfig, on_events: Callable[[float], None]
) -> PeerLink:
    """The link on a connection that the handshake has made."""
    rng = random.Random(f"{config.seed}/{connection.rank}/{name}")
    near = same_host(connection.sock)
    queued = isinstance(config.congestion, AdaptiveWindow) and config.congestion.within_host
    if near:
        config = replace(config, congestion=within_host(config.congestion))
    session = Session(connection.channel, config, rng=rng, peer=name)
    if near and not queued and connection.impairment is None:
        session.trust_datagrams()
    if not connection.datagrams:
        session.block_datagrams()
        log.warning(
            "no datagram of the handshake with %s got through: everything goes over TCP (slower); "
            "check that UDP is not blocked between the hosts",
            name,
        )
    return PeerLink(
        name,
        session,
        connection.channel,
        connection.control,
        connection.sock,
        on_events,
        connection.impairment,
    )


class Driver:
    """Drives all links of one endpoint on one event loop.  Call everything on the loop's thread."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wake_fd: int, config: TransportConfig, owner: Owner
    ) -> None:
        self._loop = loop
        self._wake_fd = wake_fd
        self._config = config
        self._owner = owner
        self._links: list[PeerLink] = []
        self._scheduled = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_beat = self.now()
        self._beat = loop.call_later(config.heartbeat_s, self._heartbeat)
        self.extra_fds: list[int] = []
        """Descriptors of the loop that must interrupt the pump (listening sockets)."""

    def now(self) -> float:
        """Seconds of the monotonic clock, the fast path's too (a loop's own `time()` may be cached
        for milliseconds)."""
        return time.monotonic()

    # --- links

    def add(self, link: PeerLink) -> None:
        """Starts driving `link`."""
        self._links.append(link)
        link.control.on_lost = lambda error: self._lost(link, error)
        link.control.listen(lambda frame: self._control_frame(link, frame))
        if link.control.lost is not None:
            self._lost(link, link.control.lost)
        self.kick()

    def remove(self, link: PeerLink) -> None:
        """Stops driving `link` and closes its sockets."""
        if link in self._links:
            self._links.remove(link)
            self._unwatch(link)
            self._flush(link)
            link.control.close()
            link.sock.close()

    def _control_frame(self, link: PeerLink, frame: AnyFrame) -> None:
        if isinstance(frame, Heartbeat):
            link.stall = frame.stall
        elif not link.failed:
            now = self.now()
            self._give(link, frame, now)
            if link.session.error is not None:  # the owner knows before any command, or other link
                self._guard(lambda: self._feed(link, now))
            self.kick()

    def _give(self, link: PeerLink, frame: AnyFrame, now: float) -> None:
        """Hands a frame to the session; what must not come ends the session, see `_feed`."""
        link.left = link.left or isinstance(frame, Bye)
        link.session.on_frame(frame, now=now)

    def _lost(self, link: PeerLink, error: DBLPError) -> None:
        if link.left:  # what came before the goodbye counts: one more turn
            self.kick()
            self._loop.call_soon(self._retire, link)
            return
        if isinstance(error, PeerLostError):
            error = PeerLostError(f"{link.name} is lost: {error}")
        self._guard(lambda: self._fail(link, error))

    def _retire(self, link: PeerLink) -> None:
        link.failed = True

    def _fail(self, link: PeerLink, error: DBLPError) -> None:
        if not link.failed:
            link.failed = True
            if isinstance(error, RemoteProtocolError):  # the peer learns what it did
                link.control.send(Abort(kind=type(error).__name__, reason=str(error)))
            self._owner.on_link_failed(link, error)
            self.kick()

    def _heartbeat(self) -> None:
        """Tells the peers that we live, and looks for peers that do not."""
        now = self.now()
        late = now - self._last_beat > 2 * self._config.heartbeat_s + 1.0
        self._last_beat = now
        frame = Heartbeat(stall=self._owner.stall())
        for link in list(self._links):
            if link.failed:
                continue
            link.control.send(frame)
            silence = now - link.control.last_heard_s
            # After a pause of this very process everybody looks silent: wait for one more beat.
            if silence > self._config.peer_silence_s and not late and not link.left:
                self._lost(link, PeerLostError(f"nothing was heard from it for {silence:.1f} s"))
        if not self._closed:
            self._beat = self._loop.call_later(self._config.heartbeat_s, self._heartbeat)

    # --- turns

    def kick(self) -> None:
        """Asks for a turn soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closed:
            self._guard(self._run_turn)

    def _guard(self, act: Callable[[], None]) -> None:
        """Runs `act`.  Because of a bug of ours nobody may wait for ever, or blame a peer."""
        try:
            act()
        except Exception as error:
            log.exception("internal error in the transport")
            broken = DBLPError(
                f"internal error in the transport ({type(error).__name__}: {error}): please report "
                "it with the log"
            )
            for link in list(self._links):
                self._fail(link, broken)
            self._owner.on_tick(self.now())

    def _run_turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until = self.now() + BUDGET_S
        for call in range(TURNS_PER_CALL):
            if call == 1:  # the pump is going to stay
                for link in self._links:
                    self._unwatch(link)
            self.settle()
            if self._scheduled:
                return
            if all(link.failed for link in self._links):
                return self._sleep()
            flags = self._pump()
            if flags & fastpath.QUIET:
                self.settle()
                return self._sleep()
            if flags & fastpath.WAKE or self.now() >= until:
                break
        self.settle()
        if any(link.session.busy for link in self._links):
            self.kick()
        else:  # what woke us may be the first step of a longer task: do not stand in its way
            self._sleep()

    def settle(self) -> None:
        """Inputs, timers, events and control frames of all links."""
        now = self.now()
        for link in list(self._links):
            if not link.failed:
                self._feed(link, now)
        self._owner.on_tick(now)
        for link in list(self._links):
            self._flush(link)

    def _feed(self, link: PeerLink, now: float) -> None:
        turn.feed(
            link.session,
            link.channel,
            now=now,
            give=lambda frame: self._give(link, frame, now),
            put_reliable=link.control.send,
            on_events=link.on_events,
        )
        if link.session.error is not None:
            self._fail(link, link.session.error)

    def _flush(self, link: PeerLink) -> None:
        turn.flush(link.session, link.channel, link.control.send)

    def transmit(self) -> None:
        """Sends at once what the sessions and channels have, in the middle of a turn."""
        now_ns = int(self.now() * 1e9)
        for link in self._links:
            self._flush(link)
            if not link.by_hand:
                link.channel.send_pending(now_ns)

    def _pump(self) -> int:
        now = self.now()
        alive = [link for link in self._links if not link.failed]  # a failed one has no turns
        by_hand = [link for link in alive if link.by_hand]
        channels = [link.channel for link in alive if not link.by_hand]
        wake = [self._wake_fd, *self.extra_fds]
        wake += [link.control.fd for link in self._links if link.control.fd >= 0]
        timer = self._next_timer(now)
        if any(link.watched for link in alive):
            timer = min(timer, now + WATCHED_STAY_S)
        if by_hand:
            if self._impaired_turn(by_hand):
                timer = now
            wake += [link.sock.fileno() for link in by_hand]
        sessions = [link.session for link in alive]
        flags = stay(channels, wake, sessions, timer=timer, once=bool(by_hand))
        if by_hand and flags & fastpath.WAKE:
            self._impaired_turn(by_hand)
        return flags

    def _next_timer(self, now: float) -> float:
        """When the next timer of a session is due, in seconds; infinite if there is none."""
        owner_due = self._owner.next_timeout()
        timer = math.inf if owner_due is None else owner_due
        for link in self._links:
            if link.failed:
                continue
            if link.control.unsent_bytes:
                timer = min(timer, now + UNSENT_LINGER_S)
            due = link.session.next_timeout()
            if due is not None:
                timer = min(timer, due)
            if link.by_hand:
                deadline = link.channel.next_deadline_ns(int(now * 1e9))
                if deadline >= 0:
                    timer = min(timer, deadline * 1e-9)
                assert link.impairment is not None
                held = link.impairment.next_deadline()
                if held is not None:
                    timer = min(timer, held)
        return timer

    def _impaired_turn(self, links: list[PeerLink]) -> int:
        """One receive and one transmit turn for links with an injector; how much happened."""
        progress = 0
        now = self.now()
        now_ns = int(now * 1e9)
        for link in links:
            assert link.impairment is not None
            arrived = link.channel.receive_raw(4)
            passed = link.impairment.apply(arrived, now=now)
            if passed:
                link.channel.ingest(passed, now_ns)
            progress += len(arrived) + len(passed) + link.channel.send_pending(now_ns)
            link.channel.take_events()
        return progress

    # --- idle: the event loop watches the sockets

    def _sleep(self) -> None:
        now = self.now()
        due: list[float] = []
        owner_due = self._owner.next_timeout()
        if owner_due is not None:
            due.append(owner_due)
        for link in self._links:
            if link.failed:
                continue
            self._watch(link)
            timeout = link.session.next_timeout()
            if timeout is not None:
                due.append(timeout)
            deadline = link.channel.next_deadline_ns(int(now * 1e9))
            if deadline >= 0:
                due.append(deadline * 1e-9)
            held = link.impairment.next_deadline() if link.impairment is not None else None
            if held is not None:
                due.append(held)
        if due:
            self._timer = self._loop.call_later(max(min(due) - now, 0.0), self.kick)

    def _watch(self, link: PeerLink) -> None:
        if not link.watched and link.sock.fileno() >= 0:
            self._loop.add_reader(link.sock.fileno(), self.kick)
            link.watched = True

    def _unwatch(self, link: PeerLink) -> None:
        if link.watched:
            self._loop.remove_reader(link.sock.fileno())
            link.watched = False

    def close(self) -> None:
        """Closes all links; what they still have to say goes out first."""
        self._closed = True
        self._beat.cancel()
        for link in list(self._links):
            self.remove(link)
        if self._timer is not None:
            self._timer.cancel()
