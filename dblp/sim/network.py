"""Hosts, their turns, and the clock: the socket driver's order of things in virtual time.

A host does what `dblp.io.driver` and `fastpath.pump` do together.  Datagrams that arrive go into
the channels at once, and chunks leave, without a turn of Python: so a round may be complete, and
answered, before the core hears of it.  Python gets a turn (`dblp.proto.turn.feed`) when a channel
has an event, a control frame came, a timer is due, or the pump's budget is over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..errors import DBLPError
from ..faults import ImpairmentState
from ..proto import Session
from ..proto.turn import feed, flush
from ..wire import Frame, decode_frame, encode_frame
from .link import DatagramPath, ImpairedChannel, ReliablePath

__all__ = ["PUMP_BUDGET_S", "TURN_DATAGRAMS", "End", "Host", "Network", "Watcher"]

PUMP_BUDGET_S = 0.05
"""The driver's: longest time in the pump without a turn of Python."""

TURN_DATAGRAMS = 64
"""Data datagrams of one transmit turn of one channel: one GSO batch."""

EVENTS_MAX = 400_000
"""Events of one run; more means that it runs in circles."""

_CLOCK_STEP_S = 1e-9
"""Deadlines of channels are whole nanoseconds; this makes sure that they have passed."""


class Watcher(Protocol):
    """Sees what hosts do; changes nothing."""

    def datagrams_out(self, end: End, datagrams: list[bytes]) -> None:
        """`datagrams` leave `end`."""

    def turn_over(self, host: Host) -> None:
        """A turn of Python on `host` has ended."""


class End:
    """One side of one connection: a session, its channel, and the way to the other side."""

    __slots__ = (
        "channel", "datagrams", "failed", "frames", "host", "impairment", "inbox", "name",
        "nic_free_at", "on_events", "on_failed", "peer", "reliable", "session",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        session: Session,
        channel: ImpairedChannel,
        *,
        datagrams: DatagramPath,
        reliable: ReliablePath,
    ) -> None:
        self.name = name
        self.session = session
        self.channel = channel
        self.datagrams = datagrams
        """Towards the other side."""
        self.reliable = reliable
        self.impairment: ImpairmentState | None = None
        """Faults of what arrives here."""
        self.inbox: list[bytes] = []
        """In the socket's buffer."""
        self.frames: list[bytes] = []
        """Received on the reliable path, not yet read."""
        self.nic_free_at = 0.0
        self.failed = False
        """`on_failed` was called; the session is not fed any more."""
        self.on_events: Callable[[float], object] = lambda now: None
        """The owner of the session takes its events."""
        self.on_failed: Callable[[DBLPError], None] = lambda error: None
        """The session has ended with an error, or the connection is lost."""
        self.host: Host
        self.peer: End


class Host:
    """One process with its loop thread, and all its connections."""

    def __init__(
        self,
        name: str,
        *,
        lag_s: float = 0.0,
        late_turns: bool = False,
        tick: Callable[[float], None] = lambda now: None,
        next_timeout: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.name = name
        self.ends: list[End] = []
        self.lag_s = lag_s
        """How long a turn of Python takes; nothing is pumped meanwhile."""
        self.late_turns = late_turns
        """The time passes before the turn (the thread had to wait), and not after it."""
        self.waited = False
        """It has passed."""
        self.tick = tick
        """Timers and outputs of the owner; once per turn, after all sessions."""
        self.next_timeout = next_timeout
        self.dead = False
        """Crashed or closed: neither receives nor sends."""
        self.busy_until = 0.0
        self.wake_at = math.inf
        self.kicked = False
        """A turn of Python is wanted at once."""
        self.settle_by = math.inf
        self.timer = math.inf
        """Earliest timer of sessions and owner, as of the last turn."""

    def add(self, end: End) -> None:
        """Starts to drive `end`."""
        end.host = self
        self.ends.append(end)


class Network:
    """The event queue: arrivals, wakes of hosts, and calls of the scenario."""

    def __init__(self, watcher: Watcher) -> None:
        self.now = 0.0
        """Virtual time in seconds."""
        self.events = 0
        """Events so far."""
        self.news = True
        """Whoever waits should look again."""
        self._watcher = watcher
        self._order = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._call_wake = self._on_wake  # one object, to know wakes by

    def call_at(self, at: float, call: Callable[..., None], *arguments: object) -> None:
        """Calls `call(*arguments)` at the time `at`, in seconds."""
        self._order += 1
        heapq.heappush(self._queue, (max(at, self.now), self._order, call, arguments))

    def kick(self, host: Host) -> None:
        """A turn of Python on `host`, at once."""
        host.kicked = self.news = True
        self._wake(host, max(self.now, host.busy_until))

    def run(self, done: Callable[[], bool], *, until: float) -> bool:
        """Handles events until `done()`, or until there is none before `until`; whether it is done.

        `done` may change by a turn of Python or a call of the scenario only.
        """
        queue = self._queue
        self.news = True
        while True:
            if self.news:
                self.news = False
                if done():
                    return True
            self._drop_stale()
            if not queue or queue[0][0] > until:
                self.now = until if queue else self.now
                return done()
            self.events += 1
            if self.events > EVENTS_MAX:
                raise AssertionError(f"the simulation runs in circles at {self.now:.6f} s")
            self.now, _, call, arguments = heapq.heappop(queue)
            call(*arguments)

    @property
    def idle(self) -> bool:
        """Nothing will ever happen any more."""
        self._drop_stale()
        return not self._queue

    def _drop_stale(self) -> None:
        """Forgets wakes that are not wanted any more."""
        queue = self._queue
        while queue and queue[0][2] is self._call_wake:
            host, at = queue[0][3]
            assert isinstance(host, Host)
            if at == host.wake_at and not host.dead:
                return
            heapq.heappop(queue)

    # --- sending ----------------------------------------------------------------------------

    def put_reliable(self, end: End, frame: Frame) -> None:
        """`frame` leaves `end` on the reliable path."""
        data = encode_frame(frame)
        due = end.reliable.send(len(data), self.now)
        self.call_at(due, self._frame_arrives, end.peer, data)

    def _send(self, end: End, datagrams: list[bytes]) -> None:
        self._watcher.datagrams_out(end, datagrams)
        nbytes = sum(map(len, datagrams))
        busy_s = nbytes / end.datagrams.model.bytes_per_s
        end.nic_free_at = max(end.nic_free_at, self.now) + busy_s
        for due, group in end.datagrams.send(datagrams, self.now):
            self.call_at(due, self._datagrams_arrive, end.peer, group)

    # --- arrivals ---------------------------------------------------------------------------

    def _datagrams_arrive(self, end: End, datagrams: list[bytes]) -> None:
        host = end.host
        if not host.dead:
            end.inbox += datagrams
            self._turn(host)

    def _frame_arrives(self, end: End, data: bytes) -> None:
        host = end.host
        if not host.dead:
            end.frames.append(data)
            host.kicked = True
            self._turn(host)

    # --- turns ------------------------------------------------------------------------------

    def _wake(self, host: Host, at: float) -> None:
        """The next wake of `host` is at `at`, in place of the one before."""
        if at != host.wake_at:
            host.wake_at = at
            if at < math.inf:
                self.call_at(at, self._call_wake, host, at)

    def _on_wake(self, host: Host, at: float) -> None:
        host.wake_at = math.inf
        self._turn(host)

    def _turn(self, host: Host) -> None:
        """Everything that `host` does at this time."""
        now = self.now
        if now < host.busy_until:
            self._wake(host, host.busy_until)
            return
        while True:
            if host.kicked or now >= host.timer or now >= host.settle_by:
                if host.lag_s and host.late_turns and not host.waited:
                    host.waited = True
                    host.busy_until = now + host.lag_s
                    self._wake(host, host.busy_until)
                    return
                host.waited = False
                self._settle(host)
                if host.dead:
                    return
                if host.lag_s and not host.late_turns:
                    host.busy_until = now + host.lag_s
                    self._transmit(host, 0)  # control frames are out, chunks leave later
                    self._wake(host, host.busy_until)
                    return
            moved = self._pump(host)
            for end in host.ends:
                if end.channel.reached() and not end.failed:
                    host.kicked = True
            if not moved and not host.kicked:
                break
        self._wake(host, max(self._next_wake(host), now))

    def _settle(self, host: Host) -> None:
        """A turn of Python: inputs, timers, events and control frames of all connections."""
        now = self.now
        self.news = True
        host.kicked = False
        host.settle_by = math.inf
        for end in host.ends:
            frames, end.frames = end.frames, []
            for data in frames:
                if not end.failed:
                    end.session.on_frame(decode_frame(data), now=now)
        for end in host.ends:
            if not end.failed:
                self._feed(end)
        host.tick(now)
        timer = host.next_timeout()
        earliest = math.inf if timer is None else timer
        for end in host.ends:
            flush(end.session, end.channel, partial(self.put_reliable, end))
            timer = end.session.next_timeout()
            if timer is not None and timer < earliest:
                earliest = timer
        host.timer = earliest
        self._watcher.turn_over(host)

    def _feed(self, end: End) -> None:
        session = end.session
        feed(
            session,
            end.channel,
            now=self.now,
            give=partial(session.on_frame, now=self.now),
            put_reliable=partial(self.put_reliable, end),
            on_events=end.on_events,
        )
        if session.error is not None:
            self.fail(end, session.error)

    def fail(self, end: End, error: DBLPError) -> None:
        """The connection of `end` is of no use any more."""
        if not end.failed:
            end.failed = True
            end.on_failed(error)

    def _pump(self, host: Host) -> bool:
        """One receive and one transmit turn per channel; whether anything moved."""
        now = self.now
        now_ns = int(now * 1e9)
        moved = False
        for end in host.ends:
            if end.failed:
                continue
            arrived, faults = end.inbox, end.impairment
            if faults is not None and not faults.plan.loss_only:
                arrived = faults.apply(arrived, now=now)
            if end.inbox:
                end.inbox = []
            if arrived:
                end.channel.ingest(arrived, now_ns)
                moved = True
        moved |= self._transmit(host, TURN_DATAGRAMS)
        if moved and host.settle_by == math.inf:
            steer_at = min(end.session.steer_at for end in host.ends)
            host.settle_by = min(max(now, steer_at), now + PUMP_BUDGET_S)
        return moved

    def _transmit(self, host: Host, most: int) -> bool:
        """One transmit turn, at most `most` chunks per channel; whether anything left."""
        now = self.now
        now_ns = int(now * 1e9)
        moved = False
        for end in host.ends:
            if end.failed:
                continue
            datagrams = end.channel.collect(most if now >= end.nic_free_at else 0, now_ns)
            if datagrams:
                self._send(end, datagrams)
                moved = True
        return moved

    def _next_wake(self, host: Host) -> float:
        """When `host` wants a turn though nothing arrives."""
        now_ns = int(self.now * 1e9)
        earliest = min(host.timer, host.settle_by)
        for end in host.ends:
            if end.failed:
                continue
            deadline = end.channel.next_deadline_ns(now_ns)
            if deadline >= 0:
                due = max(deadline * 1e-9, self.now) + _CLOCK_STEP_S
                earliest = min(earliest, max(due, end.nic_free_at))
            if end.impairment is not None:
                held = end.impairment.next_deadline()
                if held is not None:
                    earliest = min(earliest, held)
        return earliest
