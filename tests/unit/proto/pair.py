"""Two sessions joined by two real channels over a tiny deterministic link in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

import numpy as np

from dblp.config import TransportConfig
from dblp.proto import Event, Path, ReceiveFinished, Receiver, Sender, SendFinished, Session
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import KIND_DATA, Frame, decode_frame, encode_frame

CHUNK_BYTES = 256
WINDOW = 64
BATCH = 8
DATAGRAM_S = 2e-6


@dataclass
class Model:
    """How both directions of the link behave."""

    loss: float = 0.0
    reorder: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 50e-6
    late_s: float = 400e-6
    reliable_delay_s: float = 100e-6
    drop: Callable[[Side, bytes], bool] = lambda side, datagram: False
    """Datagrams (by the side they come from) that are lost for sure."""


@dataclass
class Side:
    """One end."""

    name: str
    session: Session
    channel: object
    inbox: list[bytes] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    sent_frames: list[tuple[Frame, Path]] = field(default_factory=list)
    busy_until: float = 0.0

    def finished(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def frames(self, kind: type) -> list[Frame]:
        return [frame for frame, _ in self.sent_frames if isinstance(frame, kind)]


class Pair:
    """`a` and `b`, joined."""

    def __init__(
        self,
        fastpath: ModuleType,
        *,
        model: Model | None = None,
        config: TransportConfig | None = None,
        seed: int = 0,
        window: int = WINDOW,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.now = 1.0
        self.fastpath = fastpath
        self.model = model or Model()
        self.config = config or TransportConfig()
        self.rng = random.Random(seed)
        self._queue: list[tuple[float, int, Side, bytes | Frame]] = []
        self._number = 0
        self._reliable_due = {"a": 0.0, "b": 0.0}
        self.a, self.b = (self._side(name, window, chunk_bytes) for name in "ab")

    def _side(self, name: str, window: int, chunk_bytes: int) -> Side:
        channel = self.fastpath.Channel(-1, send_tag=7, recv_tag=7, chunk_bytes=chunk_bytes)
        channel.window = window
        channel.grant(0, window)
        session = Session(channel, self.config, rng=random.Random(name), peer=f"peer of {name}")
        return Side(name, session, channel)

    # --- shortcuts --------------------------------------------------------------------------

    def send(
        self, data: np.ndarray, *, stream: int = 0, round_id: int = 1, **more: object
    ) -> Sender:
        more = {"wait_ready": False, "dtype": "float32"} | more
        return self.a.session.send(
            stream=stream, round_id=round_id, buffer=data, now=self.now, **more
        )

    def arm(
        self, out: np.ndarray, *, stream: int = 0, round_id: int = 1, **more: object
    ) -> Receiver:
        more = {"tolerance": EXACT, "dtype": "float32"} | more
        return self.b.session.arm(
            stream=stream, round_id=round_id, buffer=out, now=self.now, **more
        )

    def exchange(
        self, data: np.ndarray, *, tolerance: Tolerance = EXACT, round_id: int = 1, **more: object
    ) -> tuple[Sender, Receiver, np.ndarray]:
        """One round from a to b, to its end on both sides."""
        out = np.full_like(data, 77)
        receiver = self.arm(out, tolerance=tolerance, round_id=round_id)
        sender = self.send(data, round_id=round_id, **more)
        self.run(lambda: sender.is_over and receiver.report is not None)
        check_result(data, out, sender, receiver, tolerance, self.a.channel.chunk_bytes)
        return sender, receiver, out

    # --- time -------------------------------------------------------------------------------

    def run(self, done: Callable[[], bool], *, limit_s: float = 60.0) -> None:
        """Until `done()` holds."""
        deadline = self.now + limit_s
        while True:
            self.turn()
            if done():
                return
            due = self._next_due()
            assert due is not None, "nothing can happen any more"
            assert due <= deadline, "virtual time is over"
            self._advance(due)

    def settle(self, seconds: float = 0.05) -> None:
        """Lets time pass, whatever happens."""
        end = self.now + seconds
        self.turn()
        while (due := self._next_due()) is not None and due <= end:
            self._advance(due)
            self.turn()
        self.now = max(self.now, end)

    def turn(self) -> None:
        """Both drivers, until nothing moves at this instant."""
        moved = True
        while moved:
            moved = self._serve(self.a)
            moved |= self._serve(self.b)

    def _serve(self, side: Side) -> bool:
        channel, session = side.channel, side.session
        now_ns = int(self.now * 1e9)
        arrived, side.inbox = side.inbox, []
        if arrived:
            channel.ingest(arrived, now_ns)
        for payload in channel.take_control():
            session.on_frame(decode_frame(payload), now=self.now)
        session.on_progress(now=self.now)
        timeout = session.next_timeout()
        if timeout is not None and timeout <= self.now:
            session.on_timeout(now=self.now)
        channel.take_events()
        frames = session.take_frames()
        for frame, path in frames:
            side.sent_frames.append((frame, path))
            if path is not Path.RELIABLE:
                assert channel.send_control(encode_frame(frame))
            if path is not Path.DATAGRAM:
                self._send_reliably(side, frame)
        side.events += session.take_events()
        sent = 0
        if side.busy_until <= self.now:
            datagrams = channel.collect(BATCH, now_ns)
            sent = len(datagrams)
            side.busy_until = self.now + sent * DATAGRAM_S
            for datagram in datagrams:
                self._send(side, datagram)
        return bool(arrived or frames or sent)

    def _send(self, side: Side, datagram: bytes) -> None:
        model, rng = self.model, self.rng
        if model.drop(side, datagram) or rng.random() < model.loss:
            return
        for _ in range(2 if rng.random() < model.duplicate else 1):
            late = rng.random() * model.late_s if rng.random() < model.reorder else 0.0
            self.push(side, datagram, self.now + model.delay_s + late)

    def _send_reliably(self, side: Side, frame: Frame) -> None:
        due = max(self.now + self.model.reliable_delay_s, self._reliable_due[side.name])
        self._reliable_due[side.name] = due
        self.push(side, decode_frame(encode_frame(frame)), due)

    def push(self, source: Side, item: bytes | Frame, due: float) -> None:
        """`item` of `source` arrives at the other side at `due`."""
        self._number += 1
        target = self.b if source is self.a else self.a
        heapq.heappush(self._queue, (due, self._number, target, item))

    def _next_due(self) -> float | None:
        times = [self._queue[0][0]] if self._queue else []
        for side in (self.a, self.b):
            timeout = side.session.next_timeout()
            if timeout is not None:
                times.append(timeout)
            wanted = side.channel.next_deadline_ns(int(self.now * 1e9))
            if wanted >= 0:
                times.append(max(wanted * 1e-9, side.busy_until))
        return min(times, default=None)

    def _advance(self, due: float) -> None:
        self.now = max(self.now, due) + 1e-9
        while self._queue and self._queue[0][0] <= self.now:
            _, _, target, item = heapq.heappop(self._queue)
            if isinstance(item, bytes):
                target.inbox.append(item)
            else:
                target.session.on_frame(item, now=self.now)


def check_result(
    data: np.ndarray,
    out: np.ndarray,
    sender: Sender,
    receiver: Receiver,
    tolerance: Tolerance,
    chunk_bytes: int,
) -> None:
    """R1, R2 and R3, and what both reports say about them."""
    count = receiver.layout.count
    missing = receiver.bitmap.missing()
    assert receiver.accepted + missing.size == count
    assert receiver.accepted >= tolerance.needed(count)
    assert receiver.report is not None and receiver.report.missing == missing.size
    source, result = data.view(np.uint8).ravel(), out.view(np.uint8).ravel()
    lost = np.zeros(count, bool)
    lost[missing] = True
    for index in range(count):
        span = slice(index * chunk_bytes, (index + 1) * chunk_bytes)
        assert np.array_equal(result[span], 0 * source[span] if lost[index] else source[span])
    assert sender.timer is None and receiver.timer is None  # T1
    if sender.final_missing is not None:
        assert np.array_equal(sender.final_missing, missing)
    assert sender.report is not None


def is_data(datagram: bytes) -> bool:
    return datagram[0] & 15 == KIND_DATA


def numbers(nbytes: int, seed: int = 0) -> np.ndarray:
    """float32, no chunk of which is zero."""
    return np.random.default_rng(seed).uniform(1, 2, nbytes // 4).astype(np.float32)


__all__ = [
    "BATCH", "CHUNK_BYTES", "WINDOW", "Model", "Pair", "ReceiveFinished", "SendFinished", "Side",
    "check_result", "is_data", "numbers",
]  # fmt: skip
