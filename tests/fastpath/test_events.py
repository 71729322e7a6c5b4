"""Injected loss, events and control frames: what arrives without being placed."""

from __future__ import annotations

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
    opened,
    pair,
)
from tests.fastpath.implementations import both

# --- events ---


@both
def test_notify_fires_once_at_the_wanted_count(fastpath: ModuleType) -> None:
    channel, slot, _, _, datagrams = opened(fastpath)
    channel.set_notify(slot, 2)
    channel.ingest([datagrams.data(PAYLOAD, chunk=0)], 0)
    assert not channel.reached()
    channel.ingest([datagrams.data(PAYLOAD, chunk=0)], 0)
    assert not channel.reached()
    channel.ingest([datagrams.data(PAYLOAD, chunk=1)], 0)
    assert channel.reached()
    assert channel.reached()
    channel.take_events()
    assert not channel.reached()
    channel.ingest([datagrams.data(PAYLOAD, chunk=2)], 0)
    assert not channel.reached()
    channel.set_notify(slot, 4)
    assert channel.deliver(slot, 5, PAYLOAD)
    assert channel.reached()


@both
def test_notify_fires_at_once_if_already_there(fastpath: ModuleType) -> None:
    channel, slot, _, _, datagrams = opened(fastpath)
    channel.set_notify(slot, 3)
    channel.ingest([datagrams.data(PAYLOAD, chunk=0), datagrams.data(PAYLOAD, chunk=1)], 0)
    channel.set_notify(slot, 2)
    assert channel.reached()
    channel.take_events()
    # The new count took the place of the old one.
    channel.ingest([datagrams.data(PAYLOAD, chunk=2)], 0)
    assert not channel.reached()
    channel.set_notify(slot, 0)
    assert channel.reached()


@both
def test_control_frames_are_kept_in_order(fastpath: ModuleType) -> None:
    channel, slot, _, _, datagrams = opened(fastpath)
    channel.ingest(
        [datagrams.control(b"one"), datagrams.control(b""), datagrams.control(b"two")], 0
    )
    assert channel.reached()
    assert channel.take_control() == [b"one", b"", b"two"]
    assert channel.take_control() == []
    assert changed_counters(channel) == {"control_received": 3}
    assert channel.accepted(slot) == 0


@both
def test_control_frames_kept_are_bounded(fastpath: ModuleType) -> None:
    channel, _, _, _, datagrams = opened(fastpath)
    datagram = datagrams.control(bytes(60_000))
    for _ in range(80):
        channel.ingest([datagram], 0)
    kept = channel.counters()["control_received"]
    assert 60 < kept < 80
    assert channel.counters()["malformed"] == 80 - kept
    assert len(channel.take_control()) == kept


@both
def test_send_control(fastpath: ModuleType) -> None:
    a, b = pair(fastpath)
    assert a.send_control(b"hello", 3, 9)
    assert a.send_control(bytes(CHUNK_BYTES))
    with pytest.raises(ValueError):
        a.send_control(bytes(CHUNK_BYTES + 1))
    datagrams = a.collect(10, 0)
    kind, _, stream, sequence, round, _, _, payload = fastpath.parse_datagram(datagrams[0])
    assert (kind, stream, sequence, round, payload) == (wire.KIND_CONTROL, 3, 0, 9, b"hello")
    assert changed_counters(a) == {"control_sent": 2}
    assert a.collect(10, 0) == []
    b.ingest(datagrams, 0)
    assert b.take_control() == [b"hello", bytes(CHUNK_BYTES)]


# --- with a reducer ---


@both
def test_chunks_of_all_sources_are_reduced_as_they_arrive(fastpath: ModuleType) -> None:
    sources = [np.zeros(32, np.float32) for _ in range(2)]
    out = np.zeros(32, np.float32)
    reducer = fastpath.Reducer(out, sources, CHUNK_BYTES, "float32")
    channels = [pair(fastpath)[0] for _ in range(2)]
    datagrams = Datagrams(fastpath, TAG_A)
    for rank, channel in enumerate(channels):
        channel.open_receive(0, 7, sources[rank], bytearray(1), reducer=reducer, source=rank)
    payloads = [np.full(16, value, np.float32).tobytes() for value in (1, 3)]
    channels[0].ingest([datagrams.data(payloads[0], chunk=chunk) for chunk in (1, 0)], 0)
    assert reducer.ready == 0
    channels[1].ingest([datagrams.data(payloads[1], chunk=0)] * 2, 0)
    assert reducer.ready_indices()[: reducer.ready].tolist() == [0]
    assert channels[1].deliver(0, 1, payloads[1])
    assert reducer.ready_indices()[: reducer.ready].tolist() == [0, 1]
    assert (out == 2).all()


# --- injected loss ---


def reference_draws(seed: int, count: int) -> list[int]:
    """splitmix64, its upper 32 bits."""
    state, draws = seed, []
    mask = (1 << 64) - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 & mask
        z ^= z >> 27
        z = z * 0x94D049BB133111EB & mask
        z ^= z >> 31
        draws.append(z >> 32)
    return draws


def test_the_reference_is_splitmix64() -> None:
    # First output for seed 1234567 of the reference implementation: 6457827717110365317.
    assert reference_draws(1234567, 1) == [6457827717110365317 >> 32]


@both
@pytest.mark.parametrize("ppm", [1, 100_000, 500_000, 700_000, 1_000_000])
def test_injected_loss_is_reproducible(fastpath: ModuleType, ppm: int) -> None:
    count = 300
    channel, _, _, bitmap, datagrams = opened(fastpath, count * CHUNK_BYTES)
    channel.set_loss(ppm, 7, 7, 99)
    channel.ingest([datagrams.data(PAYLOAD, chunk=chunk) for chunk in range(count)], 0)
    expected = [
        chunk for chunk, draw in enumerate(reference_draws(99, count)) if draw * 10**6 >> 32 < ppm
    ]
    assert fastpath.bitmap_missing(bitmap, count).tolist() == expected
    assert channel.counters()["injected_loss"] == len(expected)


@both
def test_injected_loss_acts_on_its_rounds_only(fastpath: ModuleType) -> None:
    channel, _, _, _, datagrams = opened(fastpath)
    lost = channel.counters

    def loses(datagram: bytes) -> bool:
        before = lost()["injected_loss"]
        channel.ingest([datagram], 0)
        return lost()["injected_loss"] > before

    channel.set_loss(1_000_000, 8, 9, 1)
    assert not loses(datagrams.data(PAYLOAD, chunk=0, round=7))
    assert loses(datagrams.data(PAYLOAD, chunk=0, round=8))
    assert not loses(datagrams.control(b"x"))
    assert not loses(b"short")
    channel.open_transmit(3, 9, bytes(64))
    assert not loses(datagrams.data(PAYLOAD, chunk=1, round=7))
    for datagram in (
        datagrams.control(b"x"),
        datagrams.credit(1, 2),
        datagrams.of_kind(9),
        b"short",
    ):
        assert loses(datagram)
    channel.open_receive(0, 10, bytearray(64), bytearray(1))
    assert not loses(datagrams.control(b"x"))
    channel.set_loss(0, 0, 2**32 - 1, 1)
    assert not loses(datagrams.data(PAYLOAD, chunk=2, round=8))


@both
def test_injected_loss_needs_a_round(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    channel.set_loss(1_000_000, 0, 2**32 - 1, 1)
    datagrams = Datagrams(fastpath, TAG_A)
    channel.ingest([datagrams.control(b"x"), b"short"], 0)
    assert channel.counters()["injected_loss"] == 0
    channel.ingest([datagrams.data(PAYLOAD, chunk=0)], 0)
    assert channel.counters()["injected_loss"] == 1
    for ppm in (-1, 1_000_001):
        with pytest.raises(ValueError):
            channel.set_loss(ppm, 0, 1, 1)


@both
def test_lost_data_is_not_drained(fastpath: ModuleType) -> None:
    channel, _, _, _, datagrams = opened(fastpath)
    channel.set_loss(1_000_000, 7, 7, 1)
    channel.ingest([datagrams.data(PAYLOAD, chunk=0)], 0)
    assert channel.received_sequence == 0
    assert channel.collect(9, 0) == []
