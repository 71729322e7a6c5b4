"""Endpoints joined by links in virtual time: loss, reordering and a reliable path, all seeded.

Each `Endpoint` does what the real driver does, in the same order: datagrams in, control frames,
progress, events, timers, frames out, datagrams out.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dblp.config import TransportConfig
from dblp.fastpath import Channel
from dblp.proto import Path, Session
from dblp.wire import Frame, decode_frame, encode_frame

CHUNK_BYTES = 1448
WINDOW = 512
TURN_DATAGRAMS = 16
DATAGRAM_S = 1.2e-6
"""10 Gb/s: a turn occupies the sender for so long per datagram."""


@dataclass(frozen=True)
class LinkModel:
    """How one direction behaves."""

    loss: float = 0.0
    reorder: float = 0.0
    """Share of datagrams that are late by up to `late_s`."""
    late_s: float = 300e-6
    delay_s: float = 50e-6
    reliable_delay_s: float = 80e-6


@dataclass
class Endpoint:
    """One end of one session, with what counts for the tests."""

    name: str
    session: Session
    channel: Channel
    link: LinkModel
    """Towards the other end."""
    on_events: Callable[[float], None]
    peer: Endpoint | None = None
    inbox: list[bytes] = field(default_factory=list)
    reliable_frames: list[Frame] = field(default_factory=list)
    dead: bool = False
    frozen: bool = False
    """Datagrams are handled by the fast path, but the Python side gets no turn."""
    busy_until: float = 0.0
    drop_frame: Callable[[Frame], bool] = lambda frame: False
    """Datagram copies of frames for which this is true are lost."""


def make_channel(tag: int, *, chunk_bytes: int = CHUNK_BYTES, window: int = WINDOW) -> Channel:
    channel = Channel(-1, send_tag=tag, recv_tag=tag, chunk_bytes=chunk_bytes)
    channel.window = window
    channel.grant(0, window)
    return channel


def make_session(channel: Channel, config: TransportConfig, peer: str, seed: int = 0) -> Session:
    return Session(channel, config, rng=random.Random(seed), peer=peer)


class VirtualNet:
    """The event queue and the clock."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.endpoints: list[Endpoint] = []
        self.next_timeouts: list[Callable[[], float | None]] = []
        self.on_timeouts: list[Callable[[float], None]] = []
        self._rng = random.Random(seed)
        self._queue: list[tuple[float, int, Endpoint, bytes | Frame]] = []
        self._order = 0
        self._reliable_due: dict[str, float] = {}

    def join(self, one: Endpoint, other: Endpoint) -> None:
        one.peer, other.peer = other, one
        self.endpoints += [one, other]

    def run(self, done: Callable[[], bool], *, limit_s: float = 100.0) -> None:
        """Until `done()`; fails when nothing can happen any more or virtual time is over."""
        deadline = self.now + limit_s
        for _ in range(2_000_000):
            while self._service():
                pass
            if done():
                return
            self._advance(deadline)
        raise AssertionError("the virtual net runs in circles")

    def settle(self, seconds: float) -> None:
        """Lets `seconds` pass."""
        end = self.now + seconds
        self.run(lambda: self.now >= end or not self._pending_until(end), limit_s=seconds + 1)
        self.now = max(self.now, end)

    def send_reliable(self, endpoint: Endpoint, frame: Frame) -> None:
        endpoint.reliable_frames.append(frame)
        due = self.now + endpoint.link.reliable_delay_s
        due = max(due, self._reliable_due.get(endpoint.name, 0.0))
        self._reliable_due[endpoint.name] = due
        self._push(due, endpoint, decode_frame(encode_frame(frame)))

    # --- inside -----------------------------------------------------------------------------

    def _pending_until(self, end: float) -> bool:
        due = self._next_due()
        return due is not None and due <= end

    def _push(self, due: float, source: Endpoint, item: bytes | Frame) -> None:
        assert source.peer is not None
        self._order += 1
        heapq.heappush(self._queue, (due, self._order, source.peer, item))

    def _next_due(self) -> float | None:
        times = [self._queue[0][0]] if self._queue else []
        for next_timeout in self.next_timeouts:
            if (due := next_timeout()) is not None:
                times.append(due)
        now_ns = int(self.now * 1e9)
        for endpoint in self.endpoints:
            if endpoint.dead:
                continue
            if (due := endpoint.session.next_timeout()) is not None:
                times.append(due)
            wanted = endpoint.channel.next_deadline_ns(now_ns)
            if endpoint.busy_until > self.now:
                times.append(endpoint.busy_until)
            elif wanted >= 0:
                times.append(wanted / 1e9)
        return min(times, default=None)

    def _advance(self, deadline: float) -> None:
        due = self._next_due()
        assert due is not None, "nothing can happen any more and the test is not done"
        assert due <= deadline, f"virtual time is over at {self.now:.3f} s"
        self.now = max(self.now, due) + 1e-9
        while self._queue and self._queue[0][0] <= self.now:
            _, _, target, item = heapq.heappop(self._queue)
            if target.dead:
                continue
            if isinstance(item, bytes):
                target.inbox.append(item)
            else:
                target.session.on_frame(item, now=self.now)
        for on_timeout in self.on_timeouts:
            on_timeout(self.now)
        for endpoint in self.endpoints:
            wanted = None if endpoint.dead else endpoint.session.next_timeout()
            if wanted is not None and wanted <= self.now:
                endpoint.session.on_timeout(now=self.now)

    def _service(self) -> bool:
        """One turn of every driver; whether anything moved."""
        moved = False
        now_ns = int(self.now * 1e9)
        living = [endpoint for endpoint in self.endpoints if not endpoint.dead]
        for endpoint in living:
            if endpoint.inbox:
                moved = True
                arrived, endpoint.inbox = endpoint.inbox, []
                endpoint.channel.ingest(arrived, now_ns)
        awake = [endpoint for endpoint in living if not endpoint.frozen]
        for endpoint in awake:
            for payload in endpoint.channel.take_control():
                endpoint.session.on_frame(decode_frame(payload), now=self.now)
            endpoint.session.on_progress(now=self.now)
            endpoint.channel.take_events()
        for endpoint in awake:
            self._send_frames(endpoint)  # a STOP leaves before missing chunks are zeroed
        for endpoint in awake:
            endpoint.on_events(self.now)
        for endpoint in living:
            if not endpoint.frozen:
                self._send_frames(endpoint)
            moved |= self._send_datagrams(endpoint, now_ns)
        return moved

    def _send_frames(self, endpoint: Endpoint) -> None:
        for frame, path in endpoint.session.take_frames():
            if path is not Path.RELIABLE and not endpoint.drop_frame(frame):
                endpoint.channel.send_control(encode_frame(frame))
            if path is not Path.DATAGRAM:
                self.send_reliable(endpoint, frame)

    def _send_datagrams(self, endpoint: Endpoint, now_ns: int) -> bool:
        if endpoint.busy_until > self.now:
            return False
        datagrams = endpoint.channel.collect(TURN_DATAGRAMS, now_ns)
        link = endpoint.link
        for datagram in datagrams:
            if self._rng.random() < link.loss:
                continue
            late = self._rng.random() * link.late_s if self._rng.random() < link.reorder else 0.0
            self._push(self.now + link.delay_s + late, endpoint, datagram)
        endpoint.busy_until = self.now + len(datagrams) * DATAGRAM_S
        return bool(datagrams)
