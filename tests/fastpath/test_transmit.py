"""What leaves: passes, credit, congestion window, pacing, requests, RTT; all without a socket."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.channels import (
    CHUNK_BYTES,
    MS,
    TAG_A,
    TAG_B,
    Datagrams,
    bitmap_for,
    changed_counters,
    indices,
    pair,
)
from tests.fastpath.implementations import both

DATAGRAM_BYTES = CHUNK_BYTES + 24


def sender(fastpath: ModuleType, count: int = 10, limit: int = 1000) -> tuple[Any, int, bytes]:
    channel, _ = pair(fastpath)
    source = random.Random(count).randbytes(count * CHUNK_BYTES)
    slot = channel.open_transmit(0, 7, source)
    channel.grant(0, limit)
    return channel, slot, source


def chunks_of(fastpath: ModuleType, datagrams: list[bytes]) -> list[int]:
    parsed = [fastpath.parse_datagram(datagram) for datagram in datagrams]
    return [fields[5] for fields in parsed if fields[0] == wire.KIND_DATA]


def kinds_of(fastpath: ModuleType, datagrams: list[bytes]) -> list[tuple[int, int]]:
    return [fastpath.parse_datagram(datagram)[:2] for datagram in datagrams]


DATA = (wire.KIND_DATA, 0)
CONTROL = (wire.KIND_CONTROL, 0)
CREDIT = (wire.KIND_CREDIT, 0)
UNTIMED_CREDIT = (wire.KIND_CREDIT, wire.FLAG_CREDIT_UNTIMED)
REQUEST = (wire.KIND_CREDIT, wire.FLAG_CREDIT_REQUEST)


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
    fitting = fastpath.Reducer(bytearray(128), [bytes(128)], CHUNK_BYTES, "float32")
    channel.follow(slot, fitting)
    with pytest.raises(ValueError):
        channel.follow(slot, fitting)


# --- credit ---


@both
def test_nothing_leaves_without_credit(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, limit=0)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    assert not channel.collect(100, 0)
    assert channel.blocked()
    channel.grant(0, 3)
    assert not channel.blocked()
    assert chunks_of(fastpath, channel.collect(100, 0)) == [0, 1, 2]
    assert channel.blocked()
    channel.grant(2, 2)
    assert (channel.acknowledged, channel.limit) == (2, 3)
    channel.grant(1, 5)
    assert (channel.acknowledged, channel.limit) == (2, 5)
    assert chunks_of(fastpath, channel.collect(100, 0)) == [3, 4]


@both
def test_credit_datagrams_raise_and_never_lower(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, limit=0)
    peer = Datagrams(fastpath, TAG_A)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.ingest([peer.credit(0, 8)], 0)
    channel.collect(100, 0)
    for seen, limit in [(4, 9), (3, 8), (2**32 - 1, 2**32 - 1), (4, 7)]:
        channel.ingest([peer.credit(seen, limit)], 0)
        assert (channel.acknowledged, channel.limit) == (4, 9)
    # More than was sent cannot have been seen.
    channel.ingest([peer.credit(100, 9)], 0)
    assert channel.acknowledged == 8
    assert channel.counters()["credits_received"] == 6
    with_payload = fastpath.pack_datagram(wire.KIND_CREDIT, 0, 0, 0, 8, 20, TAG_A, b"x")
    channel.ingest([with_payload], 0)
    assert channel.limit == 9
    assert channel.counters()["malformed"] == 1


@both
def test_credit_is_extended_beyond_32_bits(fastpath: ModuleType) -> None:
    channel, _, _ = sender(fastpath, limit=2**32 - 2)
    peer = Datagrams(fastpath, TAG_A)
    channel.ingest([peer.credit(0, 2**32 + 5)], 0)
    assert channel.limit == 2**32 + 5
    channel.ingest([peer.credit(0, 2**32 - 1)], 0)
    assert channel.limit == 2**32 + 5


@both
@pytest.mark.parametrize(("window", "threshold"), [(1, 1), (8, 1), (16, 2), (64, 8), (100, 12)])
def test_credit_is_sent_after_an_eighth_of_the_window(
    fastpath: ModuleType, window: int, threshold: int
) -> None:
    """Without a socket a turn ends with the call: one credit answers any batch with data."""
    a, b = pair(fastpath)
    b.window = window
    slot = a.open_transmit(0, 7, bytes(64 * 64))
    a.grant(0, 64)
    a.queue(slot, np.arange(64, dtype=np.uint32))
    b.ingest(a.collect(threshold, 0), 0)
    (credit,) = b.collect(100, 0)
    kind, flags, _, _, seen, limit, _, payload = fastpath.parse_datagram(credit)
    assert (kind, flags, payload) == (*CREDIT, b"")
    assert (seen, limit) == (threshold, threshold + window)
    assert b.collect(100, 0) == []
    assert b.counters()["credits_sent"] == 1
    a.ingest([credit], 0)
    assert (a.acknowledged, a.limit) == (threshold, max(64, threshold + window))


@both
def test_any_valid_data_is_drained(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    channel.open_receive(0, 7, bytearray(64), bytearray(1))
    peer = Datagrams(fastpath, TAG_A)
    payload = bytes(64)
    steps = [
        (peer.data(payload, chunk=0, sequence=5), 5),
        (peer.data(payload, chunk=0, sequence=6), 6),
        (peer.data(payload, chunk=0, round=6, sequence=7), 7),
        (peer.data(payload, chunk=0, round=8, sequence=8), 8),
        (peer.data(payload, chunk=9, sequence=9), 9),
        (peer.data(payload, chunk=0, sequence=4), 9),
        (peer.data(payload, chunk=0, sequence=9 + 32767), 9 + 32767),
        (peer.data(payload, chunk=0, sequence=9 + 32767 + 32768), 9 + 32767),
        (peer.data(payload, chunk=0, sequence=65536 + 1), 65537),
    ]
    for datagram, expected in steps:
        channel.ingest([datagram], 0)
        assert channel.received_sequence == expected
        assert kinds_of(fastpath, channel.collect(9, 0)) == [CREDIT]
    for useless in (
        Datagrams(fastpath, TAG_B).data(payload, chunk=0, sequence=65540),
        peer.data(payload, chunk=0, sequence=65541)[:-1] + b"\1",
        peer.control(b"x"),
    ):
        channel.ingest([useless], 0)
        assert channel.received_sequence == 65537
        assert channel.collect(9, 0) == []


@both
def test_sync_received_only_raises(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    channel.sync_received(2**40)
    channel.sync_received(5)
    assert channel.received_sequence == 2**40
    peer = Datagrams(fastpath, TAG_A)
    channel.ingest([peer.data(bytes(64), chunk=0, sequence=2**40 + 3)], 0)
    assert channel.received_sequence == 2**40 + 3
    (credit,) = channel.collect(9, 0)
    assert fastpath.parse_datagram(credit)[4:6] == (3, 3 + 64)


@both
def test_a_request_is_answered_and_syncs(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    peer = Datagrams(fastpath, TAG_A)
    channel.sync_received(2**32 - 2)
    channel.ingest([peer.request(2**32 + 9)], 0)
    assert channel.received_sequence == 2**32 + 9
    (credit,) = channel.collect(9, 0)
    assert fastpath.parse_datagram(credit)[4:6] == (9, 9 + 64)
    channel.ingest([peer.request(2**32 + 8)], 0)
    assert channel.received_sequence == 2**32 + 9
    assert kinds_of(fastpath, channel.collect(9, 0)) == [UNTIMED_CREDIT]
    assert changed_counters(channel) == {"credit_requests_received": 2, "credits_sent": 2}


@both
def test_a_blocked_sender_asks_again_and_again(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, limit=2)
    channel.request_interval_ns = 5 * MS
    start = 1000 * MS
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    assert kinds_of(fastpath, channel.collect(100, start)) == [DATA, DATA]
    assert channel.next_deadline_ns(start) == start + 5 * MS
    assert channel.collect(100, start + 5 * MS - 1) == []
    (request,) = channel.collect(100, start + 5 * MS)
    parsed = fastpath.parse_datagram(request)
    assert (parsed[:2], parsed[3], parsed[4]) == (REQUEST, 2, 2)
    assert channel.collect(100, start + 10 * MS - 1) == []
    assert kinds_of(fastpath, channel.collect(100, start + 10 * MS)) == [REQUEST]
    peer = Datagrams(fastpath, TAG_A)
    channel.ingest([peer.credit(2, 2)], start + 12 * MS)
    assert channel.next_deadline_ns(start + 12 * MS) == start + 17 * MS
    channel.ingest([peer.credit(2, 3)], start + 13 * MS)
    assert kinds_of(fastpath, channel.collect(100, start + 30 * MS)) == [DATA]
    channel.cancel(slot)
    assert channel.collect(100, start + 99 * MS) == []
    assert channel.next_deadline_ns(start) == -1
    assert channel.counters()["credit_requests_sent"] == 2


@both
def test_a_lost_tail_is_healed_by_a_request(fastpath: ModuleType) -> None:
    """All credits and the newest data are lost: one request and its answer bring the flow back."""
    a, b = pair(fastpath)
    slot = a.open_transmit(0, 7, bytes(64 * 40))
    a.grant(0, 10)
    a.queue(slot, np.arange(40, dtype=np.uint32))
    assert len(a.collect(100, 0)) == 10
    (request,) = a.collect(100, 2 * MS)
    b.window = 16
    b.ingest([request], 3 * MS)
    a.ingest(b.collect(100, 3 * MS), 4 * MS)
    assert (a.acknowledged, a.limit) == (10, 26)
    assert len(a.collect(100, 4 * MS)) == 16


@both
def test_control_and_credit_leave_before_data(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, indices(1, 2))
    channel.send_control(b"x")
    channel.ingest([Datagrams(fastpath, TAG_A).request(1)], 0)
    assert kinds_of(fastpath, channel.collect(100, 0)) == [CONTROL, UNTIMED_CREDIT, DATA, DATA]


# --- congestion window and pacing ---


@both
def test_cwnd_bounds_what_is_unacknowledged(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.cwnd = 4
    peer = Datagrams(fastpath, TAG_A)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    assert len(channel.collect(100, 0)) == 4
    assert channel.blocked()
    channel.ingest([peer.credit(3, 1000)], 0)
    assert len(channel.collect(100, 0)) == 3
    # Acknowledgements travel with credits, so a full window asks as well.
    assert kinds_of(fastpath, channel.collect(100, 2 * MS)) == [REQUEST]
    channel.cwnd = 1
    channel.ingest([peer.credit(6, 1000)], 0)
    assert channel.blocked()
    channel.ingest([peer.credit(7, 1000)], 0)
    assert len(channel.collect(100, 0)) == 1


@both
def test_window_limited_means_that_cwnd_alone_held_chunks_back(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, limit=8)
    assert not channel.take_window_limited()
    channel.cwnd = 4
    channel.queue(slot, np.arange(4, dtype=np.uint32))
    channel.collect(100, 0)
    assert not channel.take_window_limited()
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(100, 0)
    assert channel.take_window_limited()
    assert not channel.take_window_limited()
    channel.grant(4, 8)
    channel.collect(100, 0)
    # Four more used the credit up: now that is what holds the rest back.
    assert not channel.take_window_limited()
    channel.grant(8, 1000)
    channel.pacing_rate = 1.0
    channel.collect(100, 0)
    assert channel.take_window_limited()
    channel.grant(12, 1000)
    channel.collect(100, 0)
    assert not channel.take_window_limited()


@both
def test_pacing_lets_bursts_of_64_kib_go(fastpath: ModuleType) -> None:
    burst = 65536 // DATAGRAM_BYTES
    channel, slot, _ = sender(fastpath, 3 * burst, limit=10**6)
    channel.pacing_rate = 10e6
    channel.queue(slot, np.arange(3 * burst, dtype=np.uint32))
    start = 1000 * MS
    assert len(channel.collect(10**6, start)) == burst
    assert channel.blocked()
    due = channel.next_deadline_ns(start)
    assert due == start + int(burst * DATAGRAM_BYTES * 1e9 / 10e6)
    assert channel.collect(10**6, due - 1) == []
    assert len(channel.collect(10, due)) == 10
    assert channel.next_deadline_ns(due) == due + int(10 * DATAGRAM_BYTES * 1e9 / 10e6)
    # Being late earns nothing: the rate is never exceeded afterwards.
    assert len(channel.collect(10**6, due + 5000 * MS)) == burst
    assert channel.collect(10**6, due + 5000 * MS) == []
    channel.pacing_rate = 0.0
    assert len(channel.collect(10**6, due + 5000 * MS)) == 3 * burst - 2 * burst - 10


@both
def test_pacing_keeps_the_rate(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, 1000, limit=10**6)
    rate = 1e6
    channel.pacing_rate = rate
    for _ in range(10):
        channel.queue(slot, np.arange(1000, dtype=np.uint32))
    now, start = 7 * MS, 7 * MS
    while channel.pending(slot):
        now = max(now, channel.next_deadline_ns(now))
        channel.collect(10**6, now)
    sent = channel.counters()["bytes_sent"]
    assert (sent - 65536) / rate <= (now - start) / 1e9 <= sent / rate


@both
def test_next_deadline_is_now_while_something_can_leave(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    assert channel.next_deadline_ns(5) == -1
    channel.queue(slot, indices(1))
    assert channel.next_deadline_ns(5) == 5


# --- RTT ---


@both
def test_a_credit_that_covers_a_turn_is_a_round_trip_sample(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    peer = Datagrams(fastpath, TAG_A)
    assert channel.take_rtt_ns() == (0, 0, 0)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(3, 100)
    channel.collect(3, 200)
    channel.collect(3, 300)
    channel.ingest([peer.credit(2, 1000)], 1000)
    assert channel.take_rtt_ns() == (0, 0, 0)
    channel.ingest([peer.credit(3, 1000)], 1100)
    channel.ingest([peer.credit(3, 1000)], 1200)
    channel.ingest([peer.credit(9, 1000)], 1400)
    assert channel.take_rtt_ns() == (1000, 1100, 2)
    assert channel.take_rtt_ns() == (0, 0, 0)


@both
def test_a_grant_has_no_time_and_gives_no_sample(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(3, 5 * MS)
    channel.grant(3, 1000)
    assert channel.take_rtt_ns() == (0, 0, 0)
    channel.ingest([Datagrams(fastpath, TAG_A).credit(3, 1000)], 9 * MS)
    assert channel.take_rtt_ns() == (0, 0, 0)


@both
def test_the_smallest_sample_leaves_the_peers_host_out(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    peer = Datagrams(fastpath, TAG_A)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(3, 0)
    channel.collect(3, 0)
    channel.ingest([peer.credit(3, 1000, held=10)], 100_000)
    assert channel.take_rtt_ns() == (100_000 - 40_960, 100_000, 1)
    channel.ingest([peer.credit(6, 1000, held=65535)], 200_000)
    assert channel.take_rtt_ns() == (0, 200_000, 1)


@both
def test_a_credit_says_how_long_the_newest_data_was_held(fastpath: ModuleType) -> None:
    channel, _ = pair(fastpath)
    peer = Datagrams(fastpath, TAG_A)

    def held(now: int) -> int:
        (credit,) = channel.collect(9, now)
        return fastpath.parse_datagram(credit)[2]

    channel.ingest([peer.data(bytes(64), chunk=0)], MS)
    assert held(MS) == 0
    channel.ingest([peer.data(bytes(64), chunk=0)], 2 * MS)
    assert held(2 * MS + 4096 * 7 + 4095) == 7
    channel.ingest([peer.data(bytes(64), chunk=0)], 3 * MS)
    assert held(3 * MS + 4096 * 70_000) == 65535
    # An older one does not count: the credit speaks of the newest.
    channel.ingest([peer.data(bytes(64), chunk=0, sequence=2)], 900 * MS)
    assert held(3 * MS + 4096 * 100) == 100


@both
def test_a_sequence_that_never_arrived_was_not_held(fastpath: ModuleType) -> None:
    """Neither a request nor a probe says when its newest datagram would have come."""
    channel, _ = pair(fastpath)
    peer = Datagrams(fastpath, TAG_A)

    def held(now: int) -> int:
        (credit,) = channel.collect(9, now)
        return fastpath.parse_datagram(credit)[2]

    channel.ingest([peer.request(0)], 500 * MS)
    assert held(500 * MS) == 0
    channel.ingest([peer.data(bytes(64), chunk=0)], 600 * MS)
    channel.ingest([peer.request(9)], 700 * MS)
    assert held(700 * MS) == 0
    channel.ingest([peer.data(bytes(64), chunk=0, sequence=10)], 800 * MS)
    channel.sync_received(12)
    channel.ingest([peer.request(12)], 900 * MS)
    assert held(900 * MS) == 0


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
