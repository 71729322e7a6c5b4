"""Chunks for a reducer may land anywhere in its source's buffer; the mean must be right all the
same.

The twin lays every chunk at its own place and passes trivially; the tests hold the compiled one to
it.
"""

from __future__ import annotations

import contextlib
import random
from types import ModuleType

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.channels import TAG_A, TAG_B, Datagrams, bitmap_for
from tests.fastpath.implementations import AVAILABLE, both, twins
from tests.fastpath.sockets import settle, udp_pair
from tests.fastpath.test_aim import CHUNK_BYTES, COUNT, NBYTES, Transfer
from tests.fastpath.test_reducer import rank_order_mean

WORLD = 3
UNTOUCHED = b"\xaa"


class Uplinks:
    """A reducer whose sources are received on sockets of their own."""

    def __init__(self, fastpath: ModuleType, stack: contextlib.ExitStack, seed: int, world: int):
        rng = np.random.default_rng(seed)
        self.fastpath = fastpath
        self.gradients = [rng.standard_normal(NBYTES // 4, np.float32) for _ in range(world)]
        self.transfers = [
            Transfer(fastpath, stack.enter_context(udp_pair()), seed, source=gradient.tobytes())
            for gradient in self.gradients
        ]
        self.mean = bytearray(NBYTES)
        buffers = [transfer.buffer for transfer in self.transfers]
        for buffer in buffers:
            buffer[:] = UNTOUCHED * NBYTES
        self.reducer = fastpath.Reducer(self.mean, buffers, CHUNK_BYTES, "float32")
        for source, transfer in enumerate(self.transfers):
            transfer.slot = transfer.channel.open_receive(
                0, 7, transfer.buffer, transfer.bitmap, reducer=self.reducer, source=source
            )

    def finish(self, delivered: list[set[int]]) -> None:
        """Every chunk is the mean of those that have been delivered, in the order of ranks."""
        for transfer, chunks in zip(self.transfers, delivered, strict=True):
            missing = self.fastpath.bitmap_missing(transfer.bitmap, COUNT).tolist()
            assert missing == sorted(set(range(COUNT)) - chunks)
        self.reducer.finish([transfer.bitmap for transfer in self.transfers])
        for chunk in range(COUNT):
            span = slice(chunk * CHUNK_BYTES // 4, (chunk + 1) * CHUNK_BYTES // 4)
            present = [
                gradient[span]
                for gradient, chunks in zip(self.gradients, delivered, strict=True)
                if chunk in chunks
            ]
            length = len(self.gradients[0][span]) * 4
            expected = rank_order_mean(present, "float32", WORLD) if present else bytes(length)
            start = chunk * CHUNK_BYTES
            assert self.mean[start : start + length] == expected, chunk


def exchange(uplinks: Uplinks, sequences: list[list[bytes]], rng: random.Random) -> None:
    """Sends from all sources in turns of random length."""
    at = [0] * len(sequences)
    while any(start < len(sequence) for start, sequence in zip(at, sequences, strict=True)):
        rank = rng.randrange(len(sequences))
        turn = sequences[rank][at[rank] : at[rank] + rng.randrange(1, 90)]
        if turn:
            uplinks.transfers[rank].send(turn)
            at[rank] += len(turn)


@both
@pytest.mark.parametrize("seed", range(12))
def test_anything_inside_a_batch(fastpath: ModuleType, seed: int) -> None:
    """Disorder, gaps, duplicates, corruption, replays, foreign datagrams, control and credit."""
    with contextlib.ExitStack() as stack:
        uplinks = Uplinks(fastpath, stack, seed, WORLD)
        foreign = Datagrams(fastpath, TAG_A)
        noisy = [transfer.with_noise(foreign, 9 * seed) for transfer in uplinks.transfers]
        exchange(uplinks, [sequence for sequence, _, _ in noisy], random.Random(seed))
        for transfer, (_, _, controls) in zip(uplinks.transfers, noisy, strict=True):
            assert transfer.channel.take_control() == controls
        uplinks.finish([expected for _, expected, _ in noisy])


@both
def test_one_source_far_ahead_of_the_others(fastpath: ModuleType) -> None:
    with contextlib.ExitStack() as stack:
        uplinks = Uplinks(fastpath, stack, 1, WORLD)
        for transfer in uplinks.transfers:
            transfer.send([transfer.chunk(chunk) for chunk in range(COUNT)])
        assert uplinks.reducer.ready == COUNT
        uplinks.finish([set(range(COUNT))] * WORLD)


@both
def test_two_rounds_of_one_channel(fastpath: ModuleType) -> None:
    """Whichever of them a batch was aimed at, each chunk goes to its own."""
    with contextlib.ExitStack() as stack:
        uplinks = Uplinks(fastpath, stack, 2, 1)
        (transfer,) = uplinks.transfers
        other = np.random.default_rng(3).standard_normal(NBYTES // 4, np.float32)
        buffer, mean = bytearray(NBYTES), bytearray(NBYTES)
        reducer = fastpath.Reducer(mean, [buffer], CHUNK_BYTES, "float32")
        bits = bitmap_for(NBYTES, CHUNK_BYTES)
        transfer.channel.open_receive(0, 8, buffer, bits, reducer=reducer)
        sequence = []
        for chunk in range(COUNT - 1):
            part = other.tobytes()[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
            sequence.append(transfer.chunk(chunk))
            ahead = transfer.datagrams.data(part, chunk=chunk, round=8)
            sequence.insert(transfer.rng.randrange(len(sequence) + 1), ahead)
        transfer.send(sequence)
        whole = (COUNT - 1) * CHUNK_BYTES
        assert mean[:whole] == other.tobytes()[:whole]
        assert uplinks.mean[:whole] == transfer.source[:whole]


@both
def test_chunks_by_tcp_and_zeros_among_the_others(fastpath: ModuleType) -> None:
    with contextlib.ExitStack() as stack:
        uplinks = Uplinks(fastpath, stack, 4, WORLD)
        first, second, third = uplinks.transfers
        first.send([first.chunk(chunk) for chunk in range(0, COUNT, 2)])
        zeros = list(range(1, COUNT, 2))
        assert first.channel.deliver_zeros(first.slot, zeros) == len(zeros)
        for chunk in zeros:
            start = chunk * CHUNK_BYTES // 4
            uplinks.gradients[0][start : start + CHUNK_BYTES // 4] = 0
        for transfer in (second, third):
            for chunk in range(COUNT - 1, 99, -1):
                part = transfer.source[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
                assert transfer.channel.deliver(transfer.slot, chunk, part)
                assert not transfer.channel.deliver(transfer.slot, chunk, part)
            transfer.send([transfer.chunk(chunk) for chunk in range(COUNT)])
        assert uplinks.reducer.ready == COUNT
        uplinks.finish([set(range(COUNT))] * WORLD)


@both
def test_a_sender_that_is_ahead_of_the_slowest_is_told(fastpath: ModuleType) -> None:
    """By more than 64 KiB, of those whose chunks go into the same mean."""
    count, lead = 600, 65536 // CHUNK_BYTES
    payload = bytes(CHUNK_BYTES)
    gradients = [bytearray(count * CHUNK_BYTES) for _ in range(WORLD)]
    # The last source comes as a whole (`Reducer.provide`): nobody has to wait for it.
    reducer = fastpath.Reducer(
        bytearray(count * CHUNK_BYTES), [*gradients[:2], None], CHUNK_BYTES, "float32"
    )
    channels = []
    for source in range(2):
        channel = fastpath.Channel(-1, send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=CHUNK_BYTES)
        bits = bitmap_for(count * CHUNK_BYTES, CHUNK_BYTES)
        channel.open_receive(0, 7, gradients[source], bits, reducer=reducer, source=source)
        channels.append(channel)
    senders = [Datagrams(fastpath, TAG_B) for _ in channels]

    def flags_after(source: int, chunks: range) -> int:
        data = [senders[source].data(payload, chunk=chunk) for chunk in chunks]
        channels[source].ingest(data, 0)
        (credit,) = channels[source].collect(0, 0)
        return int(fastpath.parse_datagram(credit)[1])

    assert flags_after(0, range(lead)) == 0
    assert flags_after(0, range(lead, lead + 1)) == wire.FLAG_CREDIT_AHEAD
    assert flags_after(1, range(1)) == 0
    assert flags_after(0, range(lead, lead + 1)) == 0  # again: nothing new
    assert flags_after(1, range(1, 2 * lead + 1)) == 0
    assert flags_after(1, range(2 * lead + 1, 2 * lead + 2)) == wire.FLAG_CREDIT_AHEAD
    channels[1].close_receive(0)
    channels[1].ingest([senders[1].request(99999)], 0)
    (credit,) = channels[1].collect(0, 0)
    assert fastpath.parse_datagram(credit)[1] & wire.FLAG_CREDIT_AHEAD == 0
    reducer.provide(2, bytes(count * CHUNK_BYTES))


@both
def test_a_credit_tells_a_sender_that_it_is_ahead(fastpath: ModuleType) -> None:
    channel = fastpath.Channel(-1, send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=CHUNK_BYTES)
    seen = []
    for flags in (0, wire.FLAG_CREDIT_AHEAD, 0):
        seen.append(channel.told_ahead)
        credit = fastpath.pack_datagram(wire.KIND_CREDIT, flags, 0, 0, 0, 10, TAG_B, b"")
        channel.ingest([credit], 0)
    assert [*seen, channel.told_ahead] == [False, False, True, False]


@both
def test_a_source_is_received_once_and_in_its_own_buffer(fastpath: ModuleType) -> None:
    buffers = [bytearray(NBYTES), bytearray(NBYTES)]
    reducer = fastpath.Reducer(bytearray(NBYTES), buffers, CHUNK_BYTES, "float32")
    channel = fastpath.Channel(-1, send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=CHUNK_BYTES)
    bits = bitmap_for(NBYTES, CHUNK_BYTES)
    with pytest.raises(ValueError, match="source 1"):
        channel.open_receive(0, 7, buffers[0], bits, reducer=reducer, source=1)
    slot = channel.open_receive(0, 7, buffers[1], bits, reducer=reducer, source=1)
    with pytest.raises(ValueError, match="already"):
        channel.open_receive(0, 8, buffers[1], bits, reducer=reducer, source=1)
    channel.close_receive(slot)
    with pytest.raises(ValueError, match="already"):
        channel.open_receive(0, 9, buffers[1], bits, reducer=reducer, source=1)
    channel.open_receive(0, 7, buffers[0], bits, reducer=reducer, source=0)


@twins
def test_places_are_used_again() -> None:
    """Where sources keep up with each other, little of their buffers is ever touched."""
    compiled = AVAILABLE["compiled"]
    with contextlib.ExitStack() as stack:
        uplinks = Uplinks(compiled, stack, 5, WORLD)
        step = 8
        for start in range(0, COUNT - 1, step):
            for transfer in uplinks.transfers:
                transfer.send([transfer.chunk(chunk) for chunk in range(start, start + step)])
        for transfer in uplinks.transfers:
            assert transfer.channel.counters()["moved"] == 0
            places = [
                transfer.buffer[start : start + CHUNK_BYTES]
                for start in range(0, NBYTES, CHUNK_BYTES)
            ]
            touched = [place.count(UNTOUCHED) < len(place) for place in places]
            assert step <= sum(touched) <= 3 * step
        last = COUNT - 1
        for transfer in uplinks.transfers:
            transfer.send([transfer.chunk(last)])
            settle(compiled, transfer.channel, COUNT)
        uplinks.finish([set(range(COUNT))] * WORLD)
