"""Credit, requests, congestion window and pacing; all without a socket."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.channels import (
    CONTROL,
    CREDIT,
    DATA,
    MS,
    REQUEST,
    TAG_A,
    TAG_B,
    UNTIMED_CREDIT,
    Datagrams,
    changed_counters,
    chunks_of,
    indices,
    kinds_of,
    pair,
    sender,
)
from tests.fastpath.implementations import both

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
    assert (parsed[:2], parsed[3], parsed[4]) == (REQUEST, 0, 2)
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
    channel.pacing_rate = 1e9  # a burst of 64 KiB, more than the window
    channel.collect(100, 0)
    assert channel.take_window_limited()
    channel.grant(12, 1000)
    channel.collect(100, 0)
    assert not channel.take_window_limited()


@both
def test_credits_tell_how_many_datagrams_were_lost(fastpath: ModuleType) -> None:
    channel, peer = pair(fastpath)
    slot = channel.open_transmit(0, 7, bytes(100 * channel.chunk_bytes))
    channel.grant(0, 1000)
    channel.queue(slot, np.arange(100, dtype=np.uint32))
    sent = channel.collect(100, 0)

    def credits_of(*datagrams: bytes) -> list[bytes]:
        peer.ingest(list(datagrams), 0)
        return list(peer.collect(100, 0))

    first = credits_of(*sent[0:10])
    channel.ingest(first, 0)
    assert channel.take_lost() == 0
    channel.ingest(credits_of(*sent[13:20]), 0)  # three are missing
    assert channel.take_lost() == 3 and channel.take_lost() == 0
    channel.ingest(first, 0)  # a credit that comes again says nothing
    assert channel.take_lost() == 0
    channel.ingest(credits_of(sent[11], *sent[20:22]), 0)  # one of them was late
    assert channel.take_lost() == 0
    channel.ingest(credits_of(*sent[22:50], *sent[60:100]), 0)
    assert channel.take_lost() == 10
    channel.ingest(credits_of(sent[99], sent[99]), 0)  # twice is no loss
    assert channel.take_lost() == 0


@both
def test_lost_datagrams_are_counted_beyond_16_bits(fastpath: ModuleType) -> None:
    channel, peer = pair(fastpath)
    channel.grant(0, 1 << 20)
    slot = channel.open_transmit(0, 7, bytes(1000 * channel.chunk_bytes))
    lost = 0
    for turn in range(70):
        channel.queue(slot, np.arange(1000, dtype=np.uint32))
        sent = channel.collect(1000, turn)
        peer.ingest(sent[: 900 + turn] + sent[901 + turn :] if turn % 2 else sent, turn)
        channel.ingest(peer.collect(100, turn), turn)
        lost += channel.take_lost()
    assert channel.sent_sequence == channel.acknowledged == 70_000
    assert lost == 35


@both
def test_a_lost_tail_is_known_from_the_answer_to_a_request(fastpath: ModuleType) -> None:
    channel, peer = pair(fastpath)
    slot = channel.open_transmit(0, 7, bytes(20 * channel.chunk_bytes))
    channel.grant(0, 1000)
    channel.cwnd = 4
    channel.queue(slot, np.arange(20, dtype=np.uint32))

    def ask(now: int) -> None:
        request = channel.collect(100, now)
        assert kinds_of(fastpath, request) == [REQUEST]
        peer.ingest(request, now)
        channel.ingest(peer.collect(100, now), now)

    peer.ingest(channel.collect(100, 0)[:3], 0)
    channel.ingest(
        peer.collect(100, 0), 0
    )  # news of the third: no sign yet that the fourth is lost
    assert channel.acknowledged == 3 and not channel.take_tail_lost()
    assert len(channel.collect(100, 0)) == 3
    ask(2 * MS)
    assert channel.acknowledged == 7
    assert channel.take_tail_lost() and not channel.take_tail_lost()
    peer.ingest(channel.collect(100, 2 * MS), 2 * MS)
    peer.collect(100, 2 * MS)  # only the credit is lost: the path has taken what was sent
    ask(4 * MS)
    assert channel.acknowledged == 11 and not channel.take_tail_lost()


@both
def test_requests_come_sooner_while_they_find_losses(fastpath: ModuleType) -> None:
    channel, peer = pair(fastpath)
    slot = channel.open_transmit(0, 7, bytes(20 * channel.chunk_bytes))
    channel.grant(0, 1000)
    channel.cwnd = 2
    channel.queue(slot, np.arange(20, dtype=np.uint32))
    now = 0

    def lose(data: bool) -> int:
        """Sends a window; loses it, or its credit; returns how long it takes until the request."""
        nonlocal now
        sent = channel.collect(100, now)
        assert len(sent) == 2
        if not data:
            peer.ingest(sent, now)
            peer.collect(100, now)
        began, now = now, channel.next_deadline_ns(now)
        assert channel.collect(100, now - 1) == []
        request = channel.collect(100, now)
        assert kinds_of(fastpath, request) == [REQUEST]
        peer.ingest(request, now)
        channel.ingest(peer.collect(100, now), now)
        return now - began

    assert [lose(data) for data in (True, True, False, False, True)] == [
        2 * MS, MS // 2, MS // 2, 2 * MS, 2 * MS,
    ]  # fmt: skip


@both
@pytest.mark.parametrize("round_trip_ms", [0, 1, 7])
def test_hasty_requests_leave_time_for_an_answer(fastpath: ModuleType, round_trip_ms: int) -> None:
    """Not sooner than a round trip, and a peer that stays silent is asked as seldom as ever."""
    channel, peer = pair(fastpath)
    slot = channel.open_transmit(0, 7, bytes(20 * channel.chunk_bytes))
    channel.grant(0, 1000)
    channel.cwnd = 2
    channel.queue(slot, np.arange(20, dtype=np.uint32))
    peer.ingest(channel.collect(100, 0), 0)
    now = round_trip_ms * MS
    channel.ingest(peer.collect(100, 0), now)
    waits = []
    for tries in range(12):
        if tries == 0:
            assert len(channel.collect(100, now)) == 2  # and they are lost
        due = channel.next_deadline_ns(now)
        waits.append(due - now)
        now = due
        request = channel.collect(100, now)
        assert kinds_of(fastpath, request) == [REQUEST]
        if tries == 0:
            peer.ingest(request, now)
            channel.ingest(peer.collect(100, now), now)
            assert len(channel.collect(100, now)) == 2
    soon = min(max(MS // 2, round_trip_ms * MS), 2 * MS)
    assert waits == [2 * MS] + 8 * [soon] + 3 * [2 * MS]


@both
def test_next_deadline_is_now_while_something_can_leave(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath)
    assert channel.next_deadline_ns(5) == -1
    channel.queue(slot, indices(1))
    assert channel.next_deadline_ns(5) == 5
