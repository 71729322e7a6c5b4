"""Runs random scripts of channel operations on one implementation of the fast path."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np

from tests.fastpath.channels import CHUNK_BYTES, TAG_A, TAG_B, bitmap_for


def outcome(call: Any, *arguments: Any, **options: Any) -> Any:
    """What a call returns, or the kind of error it raises."""
    try:
        result = call(*arguments, **options)
    except ValueError:
        return ValueError
    return (result.tolist(), result.dtype) if isinstance(result, np.ndarray) else result


class Machine:
    """Two channels of one implementation and the network between them, driven by numbers."""

    ROUNDS = (0, 1, 2, 2**31, 2**32 - 1)
    SIZES = (0, 8, 64, 200, 640, 2000)

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.channels = [
            module.Channel(-1, send_tag=TAG_B, recv_tag=TAG_A, chunk_bytes=CHUNK_BYTES),
            module.Channel(-1, send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=CHUNK_BYTES),
        ]
        self.wires: list[list[bytes]] = [[], []]
        self.seen: list[bytes] = []
        self.receiving: list[tuple[int, int, bytearray | None, bytearray]] = []
        """Side, slot, buffer (None: a reducer's, whose chunks may lie anywhere in it), bits."""
        self.sending: list[tuple[int, int, int]] = []
        self.reducers: list[tuple[Any, bytearray, bytearray]] = []
        """Each with its mean and the bits of its only source."""
        self.now = 0

    def run(self, step: tuple[str, int, int, int]) -> Any:
        name, *numbers = step
        return outcome(getattr(self, f"do_{name}"), *numbers)

    def state(self) -> Any:
        """All that can be seen from outside."""
        channels = [
            (
                channel.counters(),
                channel.sent_sequence,
                channel.acknowledged,
                channel.limit,
                channel.received_sequence,
                channel.blocked(),
                channel.reached(),
                channel.told_ahead,
                channel.next_deadline_ns(self.now),
            )
            for channel in self.channels
        ]
        receiving = [
            (
                self.channels[side].accepted(slot),
                self.channels[side].duplicates(slot),
                buffer and bytes(buffer),
                bytes(bits),
            )
            for side, slot, buffer, bits in self.receiving
        ]
        sending = [
            (self.channels[side].pending(slot), self.channels[side].sent(slot))
            for side, slot, _ in self.sending
        ]
        reducers = [
            (reducer.ready_indices()[: reducer.ready].tolist(), bytes(mean))
            for reducer, mean, _ in self.reducers
        ]
        return channels, receiving, sending, reducers

    def do_open_receive(self, a: int, b: int, c: int) -> int:
        side, nbytes = a % 2, self.SIZES[b % len(self.SIZES)]
        buffer, bits = bytearray(nbytes), bitmap_for(nbytes)
        reducer, mean = None, bytearray(nbytes)
        if c % 3 == 0:
            reducer = self.module.Reducer(mean, [buffer], CHUNK_BYTES, "float16")
        slot = self.channels[side].open_receive(
            a % 3, self.ROUNDS[c % len(self.ROUNDS)], buffer, bits, aim=bool(b % 5), reducer=reducer
        )
        self.receiving.append((side, slot, buffer if reducer is None else None, bits))
        if reducer is not None:
            self.reducers.append((reducer, mean, bits))
        return slot

    def do_close_receive(self, a: int, b: int, c: int) -> None:
        if self.receiving:
            side, slot, _, _ = self.receiving.pop(a % len(self.receiving))
            self.channels[side].close_receive(slot)

    def do_open_transmit(self, a: int, b: int, c: int) -> int:
        side, nbytes = a % 2, self.SIZES[b % len(self.SIZES)]
        source = random.Random(b).randbytes(nbytes)
        slot = self.channels[side].open_transmit(a % 3, self.ROUNDS[c % len(self.ROUNDS)], source)
        self.sending.append((side, slot, -(-nbytes // CHUNK_BYTES)))
        return slot

    def do_close_transmit(self, a: int, b: int, c: int) -> None:
        if self.sending:
            side, slot, _ = self.sending.pop(a % len(self.sending))
            self.channels[side].close_transmit(slot)

    def do_queue(self, a: int, b: int, c: int) -> None:
        if self.sending:
            side, slot, count = self.sending[a % len(self.sending)]
            chunks = (
                [random.Random(b + i).randrange(count + (c % 9 == 0)) for i in range(c % 40)]
                if count
                else [c]
            )
            self.channels[side].queue(slot, np.array(chunks, np.uint32))

    def do_follow(self, a: int, b: int, c: int) -> None:
        if self.sending and self.reducers:
            side, slot, _ = self.sending[a % len(self.sending)]
            self.channels[side].follow(slot, self.reducers[b % len(self.reducers)][0])

    def do_finish(self, a: int, b: int, c: int) -> list[int]:
        if not self.reducers:
            return []
        reducer, _, bits = self.reducers[a % len(self.reducers)]
        kept = random.Random(b).randbytes(len(bits))  # of what has come, not all may count
        return reducer.finish([bytes(x & y for x, y in zip(bits, kept, strict=True))]).tolist()

    def do_cancel(self, a: int, b: int, c: int) -> int:
        if not self.sending:
            return 0
        side, slot, _ = self.sending[a % len(self.sending)]
        return self.channels[side].cancel(slot)

    def do_grant(self, a: int, b: int, c: int) -> None:
        channel = self.channels[a % 2]
        channel.grant(b % 100, channel.sent_sequence + c % 100)

    def do_sync(self, a: int, b: int, c: int) -> None:
        self.channels[a % 2].sync_received(b if c % 4 else b * 65521)

    def do_limits(self, a: int, b: int, c: int) -> None:
        channel = self.channels[a % 2]
        channel.window = 1 + b % 100
        channel.cwnd = 1 + c % 50 if c % 3 else 1 << 30
        channel.pacing_rate = 1e5 * (b % 7)
        channel.request_interval_ns = 1 + (c % 5) * 1_000_000

    def do_loss(self, a: int, b: int, c: int) -> None:
        first, last = sorted((self.ROUNDS[b % 5], self.ROUNDS[c % 5]))
        self.channels[a % 2].set_loss(b % 4 * 300_000, first, last, c)

    def do_notify(self, a: int, b: int, c: int) -> None:
        if self.receiving:
            side, slot, _, _ = self.receiving[a % len(self.receiving)]
            self.channels[side].set_notify(slot, b % 20)

    def do_deliver(self, a: int, b: int, c: int) -> bool:
        if not self.receiving:
            return False
        side, slot, _, _ = self.receiving[a % len(self.receiving)]
        length = CHUNK_BYTES if c % 4 else c % 70
        return self.channels[side].deliver(slot, b % 35 - 1, random.Random(c).randbytes(length))

    def do_deliver_zeros(self, a: int, b: int, c: int) -> int:
        if not self.receiving:
            return 0
        side, slot, _, _ = self.receiving[a % len(self.receiving)]
        chunks = random.Random(c).choices(range(1 + b % 35), k=c % 12)
        return self.channels[side].deliver_zeros(slot, np.array(chunks, np.uint32))

    def do_control(self, a: int, b: int, c: int) -> bool:
        return self.channels[a % 2].send_control(bytes(b % 70), c, b)

    def do_take(self, a: int, b: int, c: int) -> Any:
        channel = self.channels[a % 2]
        if b % 2:
            channel.take_events()
        limits = channel.take_window_limited(), channel.take_lost(), channel.take_tail_lost()
        return channel.take_control(), channel.take_rtt_ns(), limits

    def do_collect(self, a: int, b: int, c: int) -> list[bytes]:
        self.now += b * 100
        collected = self.channels[a % 2].collect(c % 64, self.now, b % 5000)
        self.wires[a % 2] += collected
        self.seen = (self.seen + collected)[-200:]
        return collected

    def do_ingest(self, a: int, b: int, c: int) -> None:
        """Hands over what is on the wire: as it is, or reordered, lost, repeated, damaged, cut."""
        self.now += b * 10
        rng = random.Random(c)
        arriving, self.wires[a % 2] = self.wires[a % 2], []
        if b % 3:
            bad = []
            for datagram in arriving:
                damaged = bytearray(datagram)
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                kinds = [[datagram]] * 8 + [
                    [],
                    [datagram] * 2,
                    [bytes(damaged)],
                    [datagram[: rng.randrange(99)]],
                ]
                bad += rng.choice(kinds)
            bad += [rng.choice(self.seen) for _ in range(b % 4) if self.seen]
            rng.shuffle(bad)
            arriving = bad
        self.channels[1 - a % 2].ingest(arriving, self.now)

    def do_forge(self, a: int, b: int, c: int) -> None:
        """A valid datagram that no honest peer would send."""
        rng = random.Random(c)
        tag = (TAG_A, TAG_B)[a % 2] ^ (b % 10 == 0)
        datagram = self.module.pack_datagram(
            b % 5, c % 2, rng.randrange(3), rng.getrandbits(16), rng.choice([b, *self.ROUNDS]),
            rng.choice([c % 40, rng.getrandbits(32)]), tag, rng.randbytes(rng.choice([0, 8, 64])),
        )  # fmt: skip
        self.channels[a % 2].ingest([datagram], self.now)


OPERATIONS = sorted(name[3:] for name in vars(Machine) if name.startswith("do_"))
