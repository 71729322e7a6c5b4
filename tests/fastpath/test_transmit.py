"""What leaves and in which order: passes, slots, following a reducer; all without a socket."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.channels import (
    CHUNK_BYTES,
    MS,
    TAG_B,
    chunks_of,
    indices,
    pair,
    sender,
)
from tests.fastpath.implementations import both

# --- passes ---


@both
def test_datagrams_leave_in_queue_order_with_their_bytes(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    source = random.Random(1).randbytes(5 * CHUNK_BYTES + 8)
    slot = channel.open_transmit(3, 7, source)
    channel.grant(0, 1000)
    channel.queue(slot, indices(5, 0, 3))
    channel.queue(slot, indices(3))
    datagrams = channel.collect(100, 0)
    assert [fastpath.parse_datagram(datagram) for datagram in datagrams] == [
        (0, 0, 3, sequence, 7, chunk, TAG_B, source[chunk * 64 : chunk * 64 + 64])
        for sequence, chunk in enumerate([5, 0, 3, 3], start=1)
    ]
    assert channel.sent_sequence == channel.sent(slot) == 4
    assert channel.counters()["datagrams_sent"] == 4
    assert channel.counters()["bytes_sent"] == sum(map(len, datagrams))


@both
def test_what_is_not_taken_stays_pending(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    assert channel.pending(slot) == 10
    assert channel.collect(0, 0) == []
    assert chunks_of(fastpath, channel.collect(4, 0)) == [0, 1, 2, 3]
    assert (channel.pending(slot), channel.sent(slot)) == (6, 4)
    channel.queue(slot, indices(0))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [4, 5, 6, 7, 8, 9, 0]
    assert (channel.pending(slot), channel.sent(slot)) == (0, 11)


@both
def test_cancel_drops_what_is_pending_and_only_that(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(4, 0)
    channel.take_events()
    assert channel.cancel(slot) == 6
    assert channel.pending(slot) == 0
    assert not channel.reached()
    assert channel.collect(100, 0) == []
    assert channel.cancel(slot) == 0
    channel.queue(slot, indices(9))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [9]


@both
def test_a_slot_that_runs_dry_is_an_event(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, indices())
    assert not channel.reached()
    channel.queue(slot, indices(1, 2))
    channel.collect(1, 0)
    assert not channel.reached()
    channel.collect(1, 0)
    assert channel.reached()
    channel.take_events()
    channel.collect(1, 0)
    assert not channel.reached()


@both
def test_slots_take_turns_in_the_order_of_opening(fastpath: ModuleType) -> None:
    channel, first, source = sender(fastpath)
    second = channel.open_transmit(1, 7, source)
    channel.queue(second, indices(8))
    channel.queue(first, indices(1, 2))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [1, 2, 8]
    channel.close_transmit(first)
    third = channel.open_transmit(2, 7, source)
    assert third == first
    channel.queue(third, indices(5))
    channel.queue(second, indices(6))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [6, 5]


@both
def test_closing_forgets_what_is_pending(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, indices(1))
    channel.close_transmit(slot)
    assert channel.collect(100, 0) == []
    slot = channel.open_transmit(0, 8, bytes(64))
    assert (channel.pending(slot), channel.sent(slot)) == (0, 0)


@both
def test_transmit_refuses_misuse(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    for wrong in (indices(10), indices(0, 2**32 - 1)):
        with pytest.raises(ValueError):
            channel.queue(slot, wrong)
    assert channel.pending(slot) == 0
    for stream, round in [(-1, 0), (65536, 0), (0, -1), (0, 2**32)]:
        with pytest.raises(ValueError):
            channel.open_transmit(stream, round, bytes(8))
    with pytest.raises(ValueError):
        channel.open_transmit(0, 9, np.zeros(16, np.uint8)[::2])
    for call in (channel.pending, channel.sent, channel.cancel, channel.close_transmit):
        for number in (-1, 5, 1000):
            with pytest.raises(ValueError):
                call(number)
    for _ in range(fastpath.MAX_SLOTS - 1):
        channel.open_transmit(0, 9, b"")
    with pytest.raises(ValueError):
        channel.open_transmit(0, 9, b"")


@both
@pytest.mark.parametrize("chunk_bytes", [0, -8, 7, 12, 65456, 1 << 20])
def test_chunk_bytes_are_checked(fastpath: ModuleType, chunk_bytes: int) -> None:
    with pytest.raises(ValueError):
        fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=chunk_bytes)


@both
def test_limits_are_checked(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    for name, value in [
        ("window", 0), ("window", 1 << 15), ("cwnd", 0), ("pacing_rate", -1.0),
        ("pacing_rate", float("nan")), ("request_interval_ns", 0),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            setattr(channel, name, value)
    assert (channel.window, channel.cwnd, channel.pacing_rate) == (64, 1 << 30, 0.0)
    assert channel.request_interval_ns == 2 * MS
    assert (channel.fd, channel.chunk_bytes) == (-1, CHUNK_BYTES)


# --- following a reducer ---


@both
def test_follow_sends_chunks_as_they_become_ready(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    sources = [np.full(4 * 16, rank, np.float32) for rank in (1, 3)]
    out = np.zeros(4 * 16, np.float32)
    reducer = fastpath.Reducer(out, sources, CHUNK_BYTES, "float32")
    slot = channel.open_transmit(0, 7, out)
    channel.grant(0, 1000)
    channel.follow(slot, reducer)
    assert channel.pending(slot) == 4
    assert channel.collect(100, 0) == []
    assert not channel.blocked()
    assert channel.next_deadline_ns(10 * MS) == -1
    reducer.arrive(0, indices(0, 1, 2, 3))
    reducer.arrive(1, indices(2, 0))
    datagrams = channel.collect(100, 0)
    assert chunks_of(fastpath, datagrams) == [2, 0]
    assert datagrams[0][24:] == np.full(16, 2, np.float32).tobytes()
    assert (channel.pending(slot), channel.reached()) == (2, False)
    reducer.finish([b"\x0f", b"\x0f"])
    assert chunks_of(fastpath, channel.collect(1, 0)) == [1]
    assert chunks_of(fastpath, channel.collect(1, 0)) == [3]
    assert (channel.pending(slot), channel.reached()) == (0, True)
    channel.queue(slot, indices(2))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [2]


@both
def test_a_slot_whose_reducer_waits_is_passed_over(fastpath: ModuleType) -> None:
    channel, _, _ = sender(fastpath, 1)
    out = bytearray(64)
    reducer = fastpath.Reducer(out, [bytes(64)], CHUNK_BYTES, "float32")
    waiting = channel.open_transmit(1, 7, out)
    channel.follow(waiting, reducer)
    behind = channel.open_transmit(2, 7, bytes(64 * 9))
    channel.queue(behind, indices(8))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [8]
    channel.queue(waiting, indices(0))
    assert chunks_of(fastpath, channel.collect(100, 0)) == [0]
    assert channel.pending(waiting) == 1
    assert channel.cancel(waiting) == 1
    reducer.arrive(0, indices(0))
    assert channel.collect(100, 0) == []


@both
def test_follow_refuses_another_layout(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, 2)
    with pytest.raises(ValueError):
        channel.follow(slot, fastpath.Reducer(bytearray(64), [bytes(64)], CHUNK_BYTES, "float32"))
    with pytest.raises(ValueError):
        channel.follow(slot, fastpath.Reducer(bytearray(64), [bytes(64)], 32, "float32"))
    with pytest.raises(ValueError):
        channel.follow(slot, fastpath.Reducer(bytearray(72), [bytes(72)], CHUNK_BYTES, "float32"))
    fitting = fastpath.Reducer(bytearray(128), [bytes(128)], CHUNK_BYTES, "float32")
    channel.follow(slot, fitting)
    with pytest.raises(ValueError):
        channel.follow(slot, fitting)
