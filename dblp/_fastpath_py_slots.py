"""Parts of the readable channel: rounds received, rounds sent, pacing, RTT, injected loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ._fastpath_py_bytes import Bytes, bitmap_set, chunk_count
from ._fastpath_py_reducer import Reducer
from .wire import round_is_newer

MAX_SLOTS = 256

BURST_BYTES = 64 * 1024
"""Most bytes that a paced channel may send at once: one GSO batch."""

AHEAD_BYTES = 64 * 1024
"""Lead of a sender over the slowest from which on it is told."""

PACED_BURST_NS = 250_000
"""A paced burst is what the rate sends in this time."""

PACING_DEBT_NS = 1_000_000
"""A turn that comes late is made up for, by at most this much."""

_MAX_RTT_MARKS = 256

SENDING_FALL, SENDING_RISE, SENDING_MOST = 1 / 4, 1 / 64, 2.0
"""What sending takes per datagram: weights of a turn that took less, or more, than usual, and how
often the usual it counts at most."""

SENDING_FIRST_NS = 1000.0
"""... and the first guess."""
_MASK_64 = (1 << 64) - 1


def extend_serially(current: int, low: int, bits: int) -> int:
    """`low` (a counter's low `bits`) extended against `current`; `current` when it is not newer."""
    ahead = (low - current) % (1 << bits)
    return current + ahead if ahead < 1 << (bits - 1) else current


class Outcome(Enum):
    """What became of one chunk that arrived for an open round."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"


class ReceiveSlot:
    """One round that is being received: where its chunks go and which are there."""

    def __init__(
        self,
        stream: int,
        round: int,
        buffer: Bytes,
        bitmap: Bytes,
        chunk_bytes: int,
        reducer: Reducer | None,
        source: int,
    ) -> None:
        self.stream = stream
        self.round = round
        self.count = chunk_count(buffer.size, chunk_bytes)
        self.accepted = 0
        self.duplicates = 0
        self.notify: int | None = None
        self._buffer = buffer
        self._bitmap = bitmap
        self._chunk_bytes = chunk_bytes
        self._reducer = reducer
        self._source = source

    def is_ahead(self) -> bool:
        """This sender is ahead of others whose chunks go into the same mean."""
        by = AHEAD_BYTES // self._chunk_bytes
        return self._reducer is not None and self._reducer.is_ahead(self._source, by)

    def place(self, index: int, payload: memoryview) -> Outcome:
        """Copies a verified chunk into its place, once."""
        if not 0 <= index < self.count:
            return Outcome.MALFORMED
        place = self._buffer[index * self._chunk_bytes : (index + 1) * self._chunk_bytes]
        if payload.nbytes != place.size:
            return Outcome.MALFORMED
        if not bitmap_set(self._bitmap, index):
            return Outcome.DUPLICATE
        place[:] = np.frombuffer(payload, np.uint8)
        self.accepted += 1
        if self._reducer is not None:
            self._reducer.arrive_from(self._source, index)
        return Outcome.ACCEPTED

    def size_of(self, index: int) -> int:
        """Bytes of a chunk."""
        return min(self._chunk_bytes, self._buffer.size - index * self._chunk_bytes)

    def take_notify(self) -> bool:
        """Whether the wanted count is reached; true once."""
        if self.notify is None or self.accepted < self.notify:
            return False
        self.notify = None
        return True


class ReceiveTable:
    """The open rounds by slot number, and the newest round ever opened per stream."""

    def __init__(self) -> None:
        self._slots: dict[int, ReceiveSlot] = {}
        self._by_round: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}
        self._last: ReceiveSlot | None = None

    def __getitem__(self, slot: int) -> ReceiveSlot:
        if slot not in self._slots:
            raise ValueError(f"receive slot {slot} is not open")
        return self._slots[slot]

    def check_free(self, slot: ReceiveSlot) -> None:
        """ValueError when there is no room for `slot`."""
        if (slot.stream, slot.round) in self._by_round:
            raise ValueError(f"round {slot.round} of stream {slot.stream} is open already")
        lowest_free(self._slots)

    def open(self, slot: ReceiveSlot) -> int:
        self.check_free(slot)
        key = slot.stream, slot.round
        number = lowest_free(self._slots)
        self._slots[number] = slot
        self._by_round[key] = number
        newest = self._newest.get(slot.stream)
        if newest is None or round_is_newer(slot.round, newest):
            self._newest[slot.stream] = slot.round
        return number

    def close(self, slot: int) -> None:
        closed = self[slot]
        if closed is self._last:
            self._last = None
        del self._slots[slot], self._by_round[closed.stream, closed.round]

    def find(self, stream: int, round: int) -> ReceiveSlot | None:
        number = self._by_round.get((stream, round))
        if number is None:
            return None
        self._last = self._slots[number]
        return self._last

    def sender_is_ahead(self) -> bool:
        """In the round that was found last."""
        return self._last is not None and self._last.is_ahead()

    def is_stale(self, stream: int, round: int) -> bool:
        """Of a round without a slot: whether it is over (True) or yet to come (False)."""
        newest = self._newest.get(stream)
        return newest is not None and not round_is_newer(round, newest)


class TransmitSlot:
    """One round that is being sent: chunk indices, peeked at first and committed when sent."""

    def __init__(self, stream: int, round: int, buffer: Bytes, chunk_bytes: int) -> None:
        self.stream = stream
        self.round = round
        self.count = chunk_count(buffer.size, chunk_bytes)
        self.sent = 0
        self._buffer = buffer
        self._chunk_bytes = chunk_bytes
        self._queue: deque[int] = deque()
        self._reducer: Reducer | None = None
        self._followed = 0

    def queue(self, indices: Sequence[int] | np.ndarray[Any, Any]) -> None:
        chunks = np.asarray(indices, np.int64)
        if chunks.size and not 0 <= int(chunks.min()) <= int(chunks.max()) < self.count:
            raise ValueError(f"a chunk index is out of range: there are {self.count} chunks")
        self._queue.extend(chunks.tolist())

    def follow(self, reducer: Reducer) -> None:
        if reducer.nbytes != self._buffer.size or reducer.chunk_bytes != self._chunk_bytes:
            raise ValueError("the reducer's chunks are not those of this slot's buffer")
        if self._reducer is not None:
            raise ValueError("this slot follows a reducer already")
        self._reducer = reducer
        self._followed = 0

    @property
    def pending(self) -> int:
        to_follow = 0 if self._reducer is None else self._reducer.limit - self._followed
        return len(self._queue) + to_follow

    @property
    def ready(self) -> int:
        """Pending chunks that could be sent now."""
        to_follow = 0 if self._reducer is None else self._reducer.ready - self._followed
        return len(self._queue) + to_follow

    def peek(self, most: int) -> list[int]:
        """Up to `most` chunks to send next: first what the reducer has ready, then the queue."""
        following: list[int] = []
        if self._reducer is not None:
            end = min(self._reducer.ready, self._followed + most)
            following = self._reducer.ready_indices()[self._followed : end].tolist()
        return following + list(islice(self._queue, most - len(following)))

    def commit(self, sent: int) -> bool:
        """The first `sent` chunks peeked at are with the kernel; True if the slot ran dry."""
        self.sent += sent
        if self._reducer is not None:
            following = min(sent, self._reducer.ready - self._followed)
            self._followed += following
            sent -= following
        for _ in range(sent):
            self._queue.popleft()
        return self.pending == 0

    def cancel(self) -> int:
        dropped = self.pending
        self._queue.clear()
        self._reducer = None
        return dropped

    def payload(self, index: int) -> memoryview:
        return self._buffer[index * self._chunk_bytes : (index + 1) * self._chunk_bytes].data


class TransmitTable:
    """The rounds being sent by slot number, in the order of their opening."""

    def __init__(self) -> None:
        self._slots: dict[int, TransmitSlot] = {}

    def __getitem__(self, slot: int) -> TransmitSlot:
        if slot not in self._slots:
            raise ValueError(f"transmit slot {slot} is not open")
        return self._slots[slot]

    def __iter__(self) -> Iterator[TransmitSlot]:
        return iter(self._slots.values())

    def open(self, slot: TransmitSlot) -> int:
        number = lowest_free(self._slots)
        self._slots[number] = slot
        return number

    def close(self, slot: int) -> None:
        self[slot].cancel()
        del self._slots[slot]

    def sendable(self) -> TransmitSlot | None:
        """The first slot that has a chunk ready; one whose reducer waits is passed over."""
        return next((slot for slot in self if slot.ready), None)


def lowest_free(slots: dict[int, ReceiveSlot] | dict[int, TransmitSlot]) -> int:
    number = next((each for each in range(MAX_SLOTS) if each not in slots), None)
    if number is None:
        raise ValueError(f"all {MAX_SLOTS} slots are in use: close some first")
    return number


class Pacer:
    """Spreads bytes over time: each burst pushes back the time at which the next may leave."""

    def __init__(self) -> None:
        self.next_send_ns = 0

    def allowance(self, now_ns: int, rate: float, datagram_bytes: int) -> int:
        """Full datagrams that may leave now: none, or a burst."""
        if rate <= 0:
            return 1 << 30
        if now_ns < self.next_send_ns:
            return 0
        nbytes = min(max(rate * PACED_BURST_NS * 1e-9, 2.0 * datagram_bytes), BURST_BYTES)
        return max(1, int(nbytes) // datagram_bytes)

    def charge(self, now_ns: int, rate: float, nbytes: int) -> None:
        if rate > 0:
            due_ns = max(self.next_send_ns, now_ns - PACING_DEBT_NS)
            self.next_send_ns = due_ns + int(nbytes * 1e9 / rate)


class _SendTurn(NamedTuple):
    last: int
    """Sequence of its last datagram."""
    at_ns: int
    took_ns: int
    datagrams: int

    def left_ns(self, sequence: int) -> int:
        """How long after the turn began this datagram left: they leave one after the other."""
        after = self.last - sequence
        return self.took_ns * (self.datagrams - 1 - after) // self.datagrams


class RoundTrips:
    """Round-trip samples: one mark per send turn, a sample when a credit covers it."""

    def __init__(self) -> None:
        self._turns: deque[_SendTurn] = deque(maxlen=_MAX_RTT_MARKS)
        self._smallest = self._last = self._number = 0
        self._path_sum = self._path_number = 0
        self._datagram_ns = SENDING_FIRST_NS
        self.shortest_ns = 0
        """Smallest of all, without the hosts' time; 0 before the first."""

    def mark(self, last: int, now_ns: int, took_ns: int, datagrams: int) -> None:
        """A turn that began at `now_ns` and took `took_ns` has sent so many, up to `last`."""
        took_ns = self._undisturbed(datagrams, took_ns)
        self._turns.append(_SendTurn(last, now_ns, took_ns, datagrams))

    def _undisturbed(self, datagrams: int, took_ns: int) -> int:
        """`took_ns`, but no more than is usual per datagram: a system call may go on after the last
        has left, with what others have sent.  The usual rises slowly, from a first guess."""
        usual = self._datagram_ns
        each = min(took_ns / datagrams, SENDING_MOST * usual)
        share = SENDING_FALL if each < usual else SENDING_RISE
        self._datagram_ns = usual + (each - usual) * share
        return min(took_ns, int(self._datagram_ns * datagrams))

    def forget(self, acknowledged: int) -> _SendTurn | None:
        """Takes away the turns up to `acknowledged`; the newest of them."""
        newest = None
        while self._turns and self._turns[0].last <= acknowledged:
            newest = self._turns.popleft()
        return newest

    def covered(self, acknowledged: int, now_ns: int, host_delay_ns: int) -> None:
        """A credit datagram covers all up to `acknowledged`: one sample, of the newest turn.  The
        smallest leaves out the time that either host held the datagram."""
        turn = self.forget(acknowledged)
        if turn is None:
            return
        if turn.last < acknowledged and self._turns:
            # It left with the next turn.  The end of the turn before may be lost, and then that is
            # long ago.
            turn = self._turns[0]
        if now_ns - turn.at_ns < host_delay_ns:
            # Arrivals are dated by the wall clock, of either host: where it was set, no sample.
            return
        self._last = now_ns - turn.at_ns
        path = max(self._last - host_delay_ns - turn.left_ns(acknowledged), 0)
        self._smallest = min(self._smallest, path) if self._number else path
        self._number += 1
        if self.shortest_ns == 0 or path < self.shortest_ns:
            self.shortest_ns = max(path, 1)
        self._path_sum += path
        self._path_number += 1

    def take_path(self) -> tuple[int, int]:
        number = self._path_number
        taken = (self._path_sum // number if number else 0, number)
        self._path_sum = self._path_number = 0
        return taken

    def take(self) -> tuple[int, int, int]:
        taken = self._smallest, self._last, self._number
        self._smallest = self._last = self._number = 0
        return taken


class LossInjector:
    """Seeded loss where datagrams arrive: the bytes have really crossed the wire."""

    def __init__(self) -> None:
        self._ppm = self._first = self._last = self._state = 0

    def set(self, ppm: int, first_round: int, last_round: int, seed: int) -> None:
        if not 0 <= ppm <= 1_000_000:
            raise ValueError(f"a loss of {ppm} ppm is not between 0 and 1,000,000")
        self._ppm, self._first, self._last = ppm, first_round, last_round
        self._state = seed & _MASK_64

    def drops(self, round: int | None) -> bool:
        """Decides about one datagram of this round; draws only while loss is active for it."""
        if self._ppm == 0 or round is None or not self._first <= round <= self._last:
            return False
        return (self._draw() >> 32) * 1_000_000 >> 32 < self._ppm

    def _draw(self) -> int:
        """splitmix64."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK_64
        z = self._state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK_64
        return z ^ z >> 31
