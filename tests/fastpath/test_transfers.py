"""Whole transfers between two channels without a socket."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.channels import (
    CHUNK_BYTES,
    MS,
    bitmap_for,
    pair,
)
from tests.fastpath.implementations import both

# --- whole transfers ---


@both
def test_sequences_wrap_on_the_wire(fastpath: ModuleType) -> None:
    """More than 65,536 datagrams, with loss, through a window of 1,000."""
    a, b = pair(fastpath, 8)
    b.window = 1000
    count = 5000
    source = random.Random(3).randbytes(count * 8)
    slot = a.open_transmit(0, 0, source)
    a.grant(0, 1000)
    rounds = 14
    for round in range(rounds):
        buffer, bitmap = bytearray(count * 8), bitmap_for(count * 8, 8)
        b.set_loss(200_000, round, round, round)
        receiving = b.open_receive(0, round, buffer, bitmap)
        sending = a.open_transmit(0, round, source)
        a.queue(sending, np.arange(count, dtype=np.uint32))
        now = round * 1000 * MS
        while a.pending(sending):
            b.ingest(a.collect(10**6, now), now)
            a.ingest(b.collect(10**6, now), now)
            now += MS
        assert bytes(buffer[-8:]) in (bytes(8), source[-8:])
        assert b.accepted(receiving) == fastpath.bitmap_count(bitmap, count) < count
        b.close_receive(receiving)
        a.close_transmit(sending)
    assert a.sent(slot) == 0
    assert a.sent_sequence == rounds * count > 65536
    assert a.sent_sequence - 1000 < b.received_sequence <= a.sent_sequence
    assert a.limit <= b.received_sequence + 1000
    assert b.counters()["stale"] == b.counters()["malformed"] == b.counters()["corrupt"] == 0


@both
@pytest.mark.parametrize("seed", range(5))
def test_a_bad_network_delivers_the_right_bytes(fastpath: ModuleType, seed: int) -> None:
    """Loss, reorder, duplicates, corruption, truncation and replays both ways, until complete."""
    rng = random.Random(seed)
    a, b = pair(fastpath)
    b.window = 50
    a.cwnd = 40
    nbytes = 150 * CHUNK_BYTES + 24
    count = 151
    source = rng.randbytes(nbytes)
    buffer, bitmap = bytearray(nbytes), bitmap_for(nbytes)
    slot = a.open_transmit(0, 7, source)
    b.open_receive(0, 7, buffer, bitmap)
    a.grant(0, 50)
    old: list[bytes] = []

    def network(datagrams: list[bytes]) -> list[bytes]:
        out = []
        for datagram in datagrams:
            old.append(datagram)
            if rng.random() < 0.1:
                out.append(rng.choice(old))
            if rng.random() < 0.1:
                flipped = bytearray(datagram)
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
                out.append(bytes(flipped))
            if rng.random() < 0.1:
                out.append(datagram[: rng.randrange(len(datagram))])
            out += [datagram] * rng.choice([0, 1, 1, 1, 2])
        rng.shuffle(out)
        return out

    now = 0
    for _ in range(2000):
        missing = fastpath.bitmap_missing(bitmap, count)
        if not missing.size:
            break
        if not a.pending(slot):
            a.queue(slot, missing)
        b.ingest(network(a.collect(100, now)), now)
        a.ingest(network(b.collect(100, now)), now)
        now += MS
    assert bytes(buffer) == source
    assert b.counters()["accepted"] == count
