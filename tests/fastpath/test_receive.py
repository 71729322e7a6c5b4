"""What happens to datagrams that arrive: checks, placement, counters."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.channels import (
    CHUNK_BYTES,
    PAYLOAD,
    TAG_A,
    Datagrams,
    changed_counters,
    indices,
    opened,
    pair,
)
from tests.fastpath.implementations import both


@both
def test_chunks_go_to_their_places_in_any_order(fastpath: ModuleType) -> None:
    rng = random.Random(1)
    for nbytes in (1, 63, 64, 65, 640, 1000):
        channel, slot, buffer, bitmap, datagrams = opened(fastpath, nbytes)
        source = rng.randbytes(nbytes)
        chunks = list(range(-(-nbytes // CHUNK_BYTES)))
        rng.shuffle(chunks)
        for done, chunk in enumerate(chunks):
            assert channel.accepted(slot) == done
            payload = source[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
            channel.ingest([datagrams.data(payload, chunk=chunk)], 0)
        assert bytes(buffer) == source
        assert fastpath.bitmap_count(bitmap, len(chunks)) == len(chunks)
        assert changed_counters(channel) == {"accepted": len(chunks)}


@both
def test_each_trouble_has_its_counter_and_changes_nothing(fastpath: ModuleType) -> None:
    channel, slot, buffer, bitmap, datagrams = opened(fastpath, 9 * CHUNK_BYTES + 8)
    good = datagrams.data(PAYLOAD, chunk=3)
    channel.ingest([good], 0)
    content, bits = bytes(buffer), bytes(bitmap)
    other_version = bytes([0x10]) + good[1:]
    corrupt = good[:-1] + bytes([good[-1] ^ 1])
    foreign = Datagrams(fastpath, TAG_A ^ 1)
    cases = [
        (good, {"duplicate": 1}),
        (b"", {"malformed": 1}),
        (good[:23], {"malformed": 1}),
        (good[:-1], {"malformed": 1}),
        (good + b"x", {"malformed": 1}),
        (other_version, {"malformed": 1}),
        (corrupt, {"corrupt": 1}),
        (foreign.data(PAYLOAD, chunk=4), {"foreign": 1}),
        (foreign.data(PAYLOAD, chunk=4)[:-1] + b"?", {"foreign": 1}),
        (datagrams.data(PAYLOAD, chunk=10), {"malformed": 1}),
        (datagrams.data(PAYLOAD, chunk=2**32 - 1), {"malformed": 1}),
        (datagrams.data(PAYLOAD[:-8], chunk=4), {"malformed": 1}),
        (datagrams.data(PAYLOAD, chunk=9), {"malformed": 1}),
        (datagrams.data(b"", chunk=4), {"malformed": 1}),
        (datagrams.data(PAYLOAD, chunk=4, round=6), {"stale": 1}),
        (datagrams.data(PAYLOAD, chunk=4, round=8), {"future": 1}),
        (datagrams.data(PAYLOAD, chunk=4, stream=1), {"future": 1}),
        (datagrams.of_kind(4), {"malformed": 1}),
        (datagrams.of_kind(15), {"malformed": 1}),
        (datagrams.of_kind(wire.KIND_HELLO), {}),
    ]
    for datagram, expected in cases:
        before = channel.counters()
        channel.ingest([datagram], 0)
        assert changed_counters(channel, before) == expected
        assert channel.counters()["datagrams_received"] == before["datagrams_received"] + 1
        assert channel.counters()["bytes_received"] == before["bytes_received"] + len(datagram)
    assert (bytes(buffer), bytes(bitmap)) == (content, bits)
    assert channel.accepted(slot) == 1
    assert channel.duplicates(slot) == 1


@both
def test_stale_and_future_follow_serial_arithmetic(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    datagrams = Datagrams(fastpath, TAG_A)

    def kind_of(round: int, stream: int = 0) -> str:
        before = channel.counters()
        channel.ingest([datagrams.data(PAYLOAD, chunk=0, round=round, stream=stream)], 0)
        (name,) = changed_counters(channel, before)
        return name

    assert kind_of(5) == "future"
    slot = channel.open_receive(0, 2**32 - 1, bytearray(64), bytearray(1))
    assert kind_of(2**32 - 2) == "stale"
    assert kind_of(0) == "future"
    assert kind_of(2**31 - 2) == "future"
    assert kind_of(2**31) == "stale"
    assert kind_of(0, stream=1) == "future"
    channel.close_receive(slot)
    assert kind_of(2**32 - 1) == "stale"
    channel.open_receive(0, 1, bytearray(64), bytearray(1))
    assert kind_of(0) == "stale"
    assert kind_of(2**32 - 1) == "stale"
    assert kind_of(2) == "future"
    assert kind_of(1) == "accepted"


@both
def test_two_rounds_of_a_stream_and_several_streams_at_once(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    datagrams = Datagrams(fastpath, TAG_A)
    buffers = {}
    for stream, round in [(0, 1), (0, 2), (65535, 1)]:
        buffers[stream, round] = bytearray(128)
        channel.open_receive(stream, round, buffers[stream, round], bytearray(1))
    for number, (stream, round) in enumerate(buffers, start=1):
        payload = bytes([number]) * CHUNK_BYTES
        channel.ingest([datagrams.data(payload, chunk=1, stream=stream, round=round)], 0)
    for number, buffer in enumerate(buffers.values(), start=1):
        assert bytes(buffer) == bytes(64) + bytes([number]) * 64


@both
def test_slots_are_reused_and_bounded(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    slots = [
        channel.open_receive(0, round, bytearray(8), bytearray(1))
        for round in range(fastpath.MAX_SLOTS)
    ]
    assert len(set(slots)) == fastpath.MAX_SLOTS
    with pytest.raises(ValueError):
        channel.open_receive(0, 1000, bytearray(8), bytearray(1))
    channel.close_receive(slots[17])
    assert channel.open_receive(0, 1000, bytearray(8), bytearray(1)) == slots[17]


@both
def test_open_receive_refuses_misuse(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    channel.open_receive(0, 7, bytearray(64), bytearray(1))
    sources = [bytes(64)]
    reducer = fastpath.Reducer(bytearray(64), sources, 64, "float32")
    for arguments, options in [
        ((0, 7, bytearray(64), bytearray(1)), {}),
        ((0, 8, bytes(64), bytearray(1)), {}),
        ((0, 8, bytearray(64), bytes(1)), {}),
        ((0, 8, bytearray(64 * 9), bytearray(1)), {}),
        ((-1, 8, bytearray(64), bytearray(1)), {}),
        ((65536, 8, bytearray(64), bytearray(1)), {}),
        ((0, -1, bytearray(64), bytearray(1)), {}),
        ((0, 2**32, bytearray(64), bytearray(1)), {}),
        ((0, 8, np.zeros(128, np.uint8)[::2], bytearray(1)), {}),
        ((0, 8, bytearray(64 * 2), bytearray(1)), {"reducer": reducer}),
        ((0, 8, bytearray(64), bytearray(1)), {"reducer": reducer, "source": 1}),
        ((0, 8, bytearray(64), bytearray(1)), {"reducer": reducer, "source": -1}),
    ]:
        with pytest.raises(ValueError):
            channel.open_receive(*arguments, **options)
    for slot in (-1, 5, 1000):
        for call in (channel.accepted, channel.duplicates, channel.close_receive):
            with pytest.raises(ValueError):
                call(slot)


@both
def test_buffers_stay_pinned_while_a_slot_is_open(fastpath: ModuleType) -> None:
    channel, slot, buffer, bitmap, _ = opened(fastpath)
    for pinned in (buffer, bitmap):
        with pytest.raises(BufferError):
            pinned.append(1)
    channel.close_receive(slot)
    buffer.append(1)
    bitmap.append(1)


@both
def test_an_empty_round_accepts_nothing(fastpath: ModuleType) -> None:
    channel, slot, _, _, datagrams = opened(fastpath, 0)
    channel.ingest([datagrams.data(b"", chunk=0)], 0)
    assert changed_counters(channel) == {"malformed": 1}
    assert channel.accepted(slot) == 0


@both
def test_numpy_buffers_of_any_dtype(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    target = np.zeros((4, 8), np.float64)
    channel.open_receive(0, 1, target, np.zeros(1, np.uint8))
    source = np.arange(32, dtype=np.float64).reshape(4, 8)
    datagrams = Datagrams(fastpath, TAG_A)
    channel.ingest(
        [
            datagrams.data(source.tobytes()[at * 64 : at * 64 + 64], chunk=at, round=1)
            for at in range(4)
        ],
        0,
    )
    assert (target == source).all()


# --- reliable delivery ---


@both
def test_deliver(fastpath: ModuleType) -> None:
    channel, slot, buffer, bitmap, datagrams = opened(fastpath, 9 * CHUNK_BYTES + 8)
    assert channel.deliver(slot, 2, PAYLOAD)
    assert not channel.deliver(slot, 2, PAYLOAD)
    assert not channel.deliver(slot, 10, PAYLOAD)
    assert not channel.deliver(slot, -1, PAYLOAD)
    assert not channel.deliver(slot, 3, PAYLOAD[:-1])
    assert not channel.deliver(slot, 9, PAYLOAD)
    assert channel.deliver(slot, 9, memoryview(PAYLOAD)[:8])
    assert buffer[2 * 64 : 3 * 64] == PAYLOAD
    assert buffer[9 * 64 :] == PAYLOAD[:8]
    assert channel.accepted(slot) == channel.counters()["accepted"] == 2
    assert fastpath.bitmap_missing(bitmap, 10).tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    channel.ingest([datagrams.data(PAYLOAD, chunk=2)], 0)
    assert channel.duplicates(slot) == 1


# --- many datagrams in disorder ---


@both
def test_disorder_accepts_no_wrong_byte(fastpath: ModuleType) -> None:
    rng = random.Random(11)
    nbytes = 200 * CHUNK_BYTES + 16
    channel, slot, buffer, bitmap, datagrams = opened(fastpath, nbytes)
    source = rng.randbytes(nbytes)
    arriving = []
    for chunk in range(201):
        payload = source[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]
        if rng.random() < 0.8:
            arriving += [datagrams.data(payload, chunk=chunk)] * rng.choice([1, 1, 2])
        old = datagrams.data(rng.randbytes(len(payload)), chunk=chunk, round=6)
        bad = bytearray(datagrams.data(payload, chunk=chunk))
        bad[rng.randrange(24, len(bad))] ^= 1 << rng.randrange(8)
        arriving += [old, bytes(bad)]
    rng.shuffle(arriving)
    while arriving:
        batch, arriving = arriving[:17], arriving[17:]
        channel.ingest(batch, 0)
    counters = channel.counters()
    assert counters["stale"] == counters["corrupt"] == 201
    assert counters["duplicate"] == channel.duplicates(slot) > 0
    missing = fastpath.bitmap_missing(bitmap, 201)
    assert counters["accepted"] == channel.accepted(slot) == 201 - len(missing)
    channel.close_receive(slot)
    assert fastpath.zero_missing(buffer, bitmap, 201, CHUNK_BYTES) == len(missing)
    for chunk in range(201):
        span = slice(chunk * CHUNK_BYTES, (chunk + 1) * CHUNK_BYTES)
        expected = bytes(len(source[span])) if chunk in missing else source[span]
        assert buffer[span] == expected
    assert indices(*missing).dtype == missing.dtype


@both
def test_chunks_may_be_delivered_as_zeros(fastpath: ModuleType) -> None:
    channel, slot, buffer, bitmap, datagrams = opened(fastpath, 9 * CHUNK_BYTES + 8)
    buffer[:] = b"\x55" * len(buffer)
    channel.ingest([datagrams.data(PAYLOAD, chunk=3)], 0)
    channel.set_notify(slot, 4)
    channel.take_events()
    assert channel.deliver_zeros(slot, indices(9, 3, 0, 9)) == 2  # 3 is there, 9 named twice
    assert channel.accepted(slot) == 3 and not channel.reached()
    assert buffer[9 * CHUNK_BYTES :] == bytes(8) and buffer[:CHUNK_BYTES] == bytes(CHUNK_BYTES)
    assert buffer[3 * CHUNK_BYTES : 4 * CHUNK_BYTES] == PAYLOAD
    assert buffer[CHUNK_BYTES] == 0x55
    assert channel.deliver_zeros(slot, indices(1)) == 1 and channel.reached()
    assert changed_counters(channel)["accepted"] == 4
    assert fastpath.bitmap_missing(bitmap, 10).tolist() == [2, 4, 5, 6, 7, 8]
    assert channel.deliver_zeros(slot, indices()) == 0
    for wrong in (10, 2**32 - 1):
        with pytest.raises(ValueError, match="is not one of 10"):
            channel.deliver_zeros(slot, indices(2, wrong))
    assert channel.accepted(slot) == 4  # nothing of a call that is refused
    channel.ingest([datagrams.data(PAYLOAD, chunk=0)], 0)
    assert changed_counters(channel)["duplicate"] == 1
    channel.close_receive(slot)
    with pytest.raises(ValueError):
        channel.deliver_zeros(slot, indices(2))
