"""Hazards of receiving straight into place: whatever a batch holds, the final bytes must be right.

The twin copies every chunk and passes trivially; the tests hold the compiled one to it.
"""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from tests.fastpath.channels import TAG_A, TAG_B, Datagrams, bitmap_for, sender
from tests.fastpath.implementations import both
from tests.fastpath.sockets import Sockets, channels_on, send_batch, settle, udp_pair

CHUNK_BYTES = 256
COUNT, NBYTES = 201, 200 * CHUNK_BYTES + 40


def batches(rng: random.Random, datagrams: list[bytes]) -> list[list[bytes]]:
    """Cut where GSO must be cut: at most 40 of one size, a shorter one ends a batch."""
    out: list[list[bytes]] = [[]]
    for datagram in datagrams:
        last = out[-1]
        full = len(last) >= 40 or rng.random() < 0.02
        if last and (full or len(datagram) > len(last[-1]) or len(last[-1]) < len(last[0])):
            out.append([])
        out[-1].append(datagram)
    return [batch for batch in out if batch]


class Transfer:
    """One receiving channel with a round of random content, and the peer's raw socket."""

    def __init__(
        self,
        fastpath: ModuleType,
        sockets: Sockets,
        seed: int,
        aim: bool = True,
        source: bytes | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.fastpath = fastpath
        self.peer = sockets[0]
        self.channel = channels_on(fastpath, sockets, CHUNK_BYTES)[1]
        self.datagrams = Datagrams(fastpath, TAG_B)
        self.count, self.nbytes = COUNT, NBYTES
        self.source = self.rng.randbytes(self.nbytes) if source is None else source
        self.buffer, self.bitmap = bytearray(self.nbytes), bitmap_for(self.nbytes, CHUNK_BYTES)
        self.sent = 0
        self.slot = -1
        if source is None:
            self.slot = self.channel.open_receive(0, 7, self.buffer, self.bitmap, aim=aim)

    def chunk(self, index: int) -> bytes:
        payload = self.source[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        return self.datagrams.data(payload, chunk=index)

    def send(self, datagrams: list[bytes]) -> None:
        for batch in batches(self.rng, datagrams):
            send_batch(self.peer, batch)
            self.sent += len(batch)
            if self.sent % 120 > 80:
                settle(self.fastpath, self.channel, self.sent)
        settle(self.fastpath, self.channel, self.sent)

    def with_noise(
        self, foreign: Datagrams, disorder: float
    ) -> tuple[list[bytes], set[int], list[bytes]]:
        """All chunks but some, among all else that may come: the datagrams, the chunks, and the
        control frames."""
        rng, datagrams = self.rng, self.datagrams
        order = sorted(range(self.count), key=lambda index: index + rng.random() * disorder)
        sequence: list[bytes] = []
        expected, controls = set(), []
        for index in order:
            draw = rng.random()
            noise = rng.randbytes(CHUNK_BYTES)
            if draw < 0.05:
                continue
            if draw < 0.10:
                sequence.append(datagrams.data(noise, chunk=index, round=6))
            elif draw < 0.15:
                flipped = bytearray(self.chunk(index))
                flipped[rng.randrange(24, len(flipped))] ^= 1
                sequence.append(bytes(flipped))
            elif draw < 0.20:
                sequence.append(foreign.data(noise, chunk=index))
            elif draw < 0.25:
                controls.append(rng.randbytes(rng.randrange(CHUNK_BYTES + 1)))
                sequence.append(datagrams.control(controls[-1]))
            elif draw < 0.30:
                sequence += [datagrams.credit(0, 1)] * rng.randrange(1, 4)
            sequence.append(self.chunk(index))
            expected.add(index)
            if draw > 0.9:
                sequence.append(self.chunk(rng.choice(sorted(expected))))
        return sequence, expected, controls

    def check(self, expected: set[int]) -> None:
        missing = self.fastpath.bitmap_missing(self.bitmap, self.count).tolist()
        assert missing == sorted(set(range(self.count)) - expected)
        assert self.channel.accepted(self.slot) == len(expected)
        self.channel.close_receive(self.slot)
        self.fastpath.zero_missing(self.buffer, self.bitmap, self.count, CHUNK_BYTES)
        for index in range(self.count):
            span = slice(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)
            content = self.source[span] if index in expected else bytes(len(self.source[span]))
            assert self.buffer[span] == content, index


@both
@pytest.mark.parametrize(
    "order",
    [
        list(range(201)),
        list(reversed(range(201))),
        [*range(0, 201, 2), *range(1, 201, 2)],
        [*range(100, 201), *range(100)],
        [index ^ 1 for index in range(200)] + [200],
        [200, *range(200)],
    ],
    ids=["in order", "reversed", "even then odd", "rotated", "swapped", "last first"],
)
def test_orders(fastpath: ModuleType, order: list[int]) -> None:
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, 1)
        transfer.send([transfer.chunk(index) for index in order])
        transfer.check(set(order))


@both
@pytest.mark.parametrize("aim", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_anything_inside_a_batch(fastpath: ModuleType, seed: int, aim: bool) -> None:
    """Disorder, gaps, duplicates, corruption, replays, foreign datagrams, control and credit."""
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, seed, aim)
        sequence, expected, controls = transfer.with_noise(Datagrams(fastpath, TAG_A), 3 * seed)
        transfer.send(sequence)
        assert transfer.channel.take_control() == controls
        counters = transfer.channel.counters()
        assert counters["malformed"] == counters["truncated"] == counters["future"] == 0
        assert counters["datagrams_received"] == len(sequence)
        transfer.check(expected)


@both
@pytest.mark.parametrize("segment", [24, 30, 100, 279])
def test_batches_of_small_datagrams(fastpath: ModuleType, segment: int) -> None:
    """Segments shorter than a chunk do not line up with the places aimed at."""
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, 3)
        transfer.send([transfer.chunk(index) for index in range(30)])
        frames = [bytes([number]) * (segment - 24) for number in range(280 // segment)]
        make = (
            transfer.datagrams.control if segment > 24 else lambda _: transfer.datagrams.request(0)
        )
        long = bytes(CHUNK_BYTES)
        for _ in range(3):
            # Full-size control frames first: their headers must not be read again.
            send_batch(transfer.peer, [transfer.datagrams.control(long)] * 10)
            settle(fastpath, transfer.channel, transfer.sent + 10)
            assert transfer.channel.take_control() == [long] * 10
            send_batch(transfer.peer, [make(frame) for frame in frames])
            settle(fastpath, transfer.channel, transfer.sent + 10 + len(frames))
            assert transfer.channel.counters()["malformed"] == 0
            assert transfer.channel.take_control() == (frames if segment > 24 else [])
            transfer.sent += 10 + len(frames)
        requests = transfer.channel.counters()["credit_requests_received"]
        assert requests == (0 if segment > 24 else 3 * len(frames))
        transfer.send([transfer.chunk(index) for index in range(30, 201)])
        transfer.check(set(range(201)))


@both
def test_two_rounds_interleaved_in_a_batch(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, 4)
        other_source = transfer.rng.randbytes(transfer.nbytes)
        other = bytearray(transfer.nbytes)
        other_bits = bitmap_for(transfer.nbytes, CHUNK_BYTES)
        other_slot = transfer.channel.open_receive(0, 8, other, other_bits)
        sequence = []
        for index in range(200):
            span = slice(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)
            sequence.append(transfer.chunk(index))
            ahead = transfer.datagrams.data(other_source[span], chunk=index, round=8)
            sequence.insert(transfer.rng.randrange(len(sequence) + 1), ahead)
        transfer.send(sequence)
        assert transfer.channel.accepted(other_slot) == 200
        assert other[: 200 * CHUNK_BYTES] == other_source[: 200 * CHUNK_BYTES]
        transfer.check(set(range(200)))


@both
def test_a_later_pass_fills_the_gaps(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, 5)
        first = [index for index in range(201) if index % 3]
        transfer.send([transfer.chunk(index) for index in first])
        transfer.send([transfer.chunk(index) for index in range(0, 201, 3)])
        transfer.check(set(range(201)))


@both
def test_an_expected_order_is_aimed_for_and_any_other_is_taken(fastpath: ModuleType) -> None:
    for seed, honest in ((7, True), (8, False)):
        with udp_pair() as sockets:
            transfer = Transfer(fastpath, sockets, seed)
            told = [*range(0, 201, 2), *range(1, 201, 2)]
            transfer.channel.expect(transfer.slot, told)
            order = told if honest else transfer.rng.sample(told, len(told))
            for start in range(0, 201, 40):
                transfer.send([transfer.chunk(index) for index in order[start : start + 40]])
            transfer.check(set(range(201)))


@both
def test_an_order_must_name_chunks_of_the_round(fastpath: ModuleType) -> None:
    channel, _, _ = sender(fastpath)
    count = 5
    slot = channel.open_receive(3, 1, bytearray(count * channel.chunk_bytes), bytearray(1))
    channel.expect(slot, [])
    channel.expect(slot, [count - 1])
    with pytest.raises(ValueError, match="names others"):
        channel.expect(slot, [count])
    with pytest.raises(ValueError):
        channel.expect(slot + 1, [0])


@both
def test_without_aim_only_verified_chunks_touch_the_buffer(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        transfer = Transfer(fastpath, sockets, 6)
        transfer.channel.set_aim(transfer.slot, False)
        transfer.buffer[:] = b"\xaa" * transfer.nbytes
        noise = bytes(CHUNK_BYTES)
        wrong = [transfer.datagrams.data(noise, chunk=index, round=6) for index in range(20)]
        corrupt = [transfer.chunk(index)[:-1] + b"?" for index in range(20, 40)]
        transfer.send(wrong + corrupt + [transfer.chunk(50)])
        for index in set(range(200)) - {50}:
            span = slice(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)
            assert transfer.buffer[span] == b"\xaa" * CHUNK_BYTES
        assert transfer.channel.counters()["stale"] == 20
        assert transfer.channel.counters()["corrupt"] >= 19
        transfer.channel.set_aim(transfer.slot, True)
        transfer.send([transfer.chunk(index) for index in range(200) if index != 50])
        transfer.check(set(range(200)))


@both
def test_a_short_last_chunk_among_full_ones_never_spills(fastpath: ModuleType) -> None:
    """What lies behind the buffer in memory must stay as it is."""
    with udp_pair() as sockets:
        channel = channels_on(fastpath, sockets, CHUNK_BYTES)[1]
        memory = bytearray(b"\xee" * (3 * CHUNK_BYTES))
        view = memoryview(memory)[: CHUNK_BYTES + 8]
        channel.open_receive(0, 7, view, bytearray(1))
        datagrams = Datagrams(fastpath, TAG_B)
        full = bytes(CHUNK_BYTES)
        send_batch(sockets[0], [datagrams.data(full, chunk=chunk) for chunk in (0, 1, 1, 5)])
        send_batch(sockets[0], [datagrams.data(full, chunk=1, round=9)] * 3)
        sockets[0].send(datagrams.data(bytes(8), chunk=1))
        settle(fastpath, channel, 8)
        assert memory[: CHUNK_BYTES + 8] == bytes(CHUNK_BYTES + 8)
        assert memory[CHUNK_BYTES + 8 :] == b"\xee" * (2 * CHUNK_BYTES - 8)
        assert channel.counters()["malformed"] == 3
        assert channel.counters()["future"] == 3


@both
@pytest.mark.parametrize("lands", [False, True])
def test_a_datagram_longer_than_a_chunk_is_read_where_it_is(
    fastpath: ModuleType, lands: bool
) -> None:
    """Its bytes lie across several places: what is behind the first must not be taken for it."""
    with udp_pair() as sockets:
        channel = channels_on(fastpath, sockets, CHUNK_BYTES)[1]
        datagrams = Datagrams(fastpath, TAG_B)
        buffer = bytearray(3 * CHUNK_BYTES)
        mean = bytearray(3 * CHUNK_BYTES)
        reducer = fastpath.Reducer(mean, [buffer], CHUNK_BYTES, "float32") if lands else None
        channel.open_receive(0, 7, buffer, bytearray(1), reducer=reducer)
        long = random.Random(1).randbytes(30_000)
        sockets[0].send(datagrams.control(long))
        sockets[0].send(datagrams.data(long, chunk=0))
        sent = [random.Random(chunk).randbytes(CHUNK_BYTES) for chunk in range(3)]
        for chunk, payload in enumerate(sent):
            sockets[0].send(datagrams.data(payload, chunk=chunk))
        settle(fastpath, channel, 5)
        assert channel.take_control() == [long]
        counters = channel.counters()
        assert (counters["malformed"], counters["corrupt"], counters["accepted"]) == (1, 0, 3)
        assert (mean if lands else buffer) == b"".join(sent)
