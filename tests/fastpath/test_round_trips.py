"""Round-trip samples: which datagram a credit answers, and what of the time is the path's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.fastpath.channels import (
    MS,
    TAG_A,
    Datagrams,
    pair,
    sender,
)
from tests.fastpath.implementations import both


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
def test_a_sample_belongs_to_the_turn_that_sent_what_is_acknowledged(fastpath: ModuleType) -> None:
    """The end of the first turn is lost; a pass later a credit covers it and a part of the next."""
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(3, 0)
    channel.collect(3, 100 * MS)
    channel.ingest([Datagrams(fastpath, TAG_A).credit(5, 1000)], 101 * MS)
    assert channel.take_rtt_ns() == (MS, MS, 1)


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
    channel.ingest([peer.credit(6, 1000, held=48)], 200_000)
    assert channel.take_rtt_ns() == (200_000 - 48 * 4096, 200_000, 1)


def sending(fastpath: ModuleType, *turns: tuple[int, int]) -> tuple[Any, Datagrams]:
    """A channel with one turn for each of (datagrams, nanoseconds it took), all of them at 0."""
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    for datagrams, took in turns:
        assert len(channel.collect(datagrams, 0, took)) == datagrams
    return channel, Datagrams(fastpath, TAG_A)


@both
def test_the_smallest_sample_leaves_the_own_sending_out(fastpath: ModuleType) -> None:
    """Without offloads 176 datagrams of one call take the kernel 0.4 ms, as long as the queue that
    a window may fill: the last of them would show a full one on an empty path."""
    channel, peer = sending(fastpath, (4, 400), (4, 400))
    channel.ingest([peer.credit(4, 1000)], 2000)
    assert channel.take_rtt_ns() == (2000 - 300, 2000, 1)
    channel.ingest([peer.credit(6, 1000)], 2100)  # no turn is over
    assert channel.take_rtt_ns() == (0, 0, 0)
    channel.ingest([peer.credit(8, 1000)], 2200)
    assert channel.take_rtt_ns() == (2200 - 300, 2200, 1)


@both
def test_a_part_of_the_next_turn_left_within_it(fastpath: ModuleType) -> None:
    channel, peer = sending(fastpath, (4, 400), (4, 400))
    channel.ingest([peer.credit(6, 1000)], 2000)
    assert channel.take_rtt_ns() == (2000 - 100, 2000, 1)


@both
@pytest.mark.parametrize(
    ("turns", "left_ns"),
    [
        # 1,000 ns each is the first guess; a turn counts twice the usual at most, a 64th of it.
        ([(8, 3_000_000)], 1015.625 * 7),
        ([(4, 4000), (1, 10_000_000), (3, 3_000_000)], 1000 * (1 + 1 / 64) ** 2 * 2),
        ([(4, 400), (4, 3_000_000)], 775 * (1 + 1 / 64) * 3),
    ],
    ids=["the first", "after a short one", "after a quick one"],
)
def test_a_call_that_was_held_up_is_no_time_of_sending(
    fastpath: ModuleType, turns: list[tuple[int, int]], left_ns: float
) -> None:
    """The kernel went on with what others have sent: the datagrams had left long before, and a
    path without delay would be taken for the usual one for ten seconds."""
    channel, peer = sending(fastpath, *turns)
    channel.ingest([peer.credit(8, 1000)], 1_000_000)
    smallest, last, number = channel.take_rtt_ns()
    assert (last, number) == (1_000_000, 1)
    assert abs(1_000_000 - smallest - left_ns) <= 2


@both
def test_a_credit_from_before_the_turn_is_no_sample(fastpath: ModuleType) -> None:
    """Arrivals are dated by the wall clock, which somebody has set here, or at the peer."""
    channel, slot, _ = sender(fastpath)
    channel.queue(slot, np.arange(10, dtype=np.uint32))
    channel.collect(4, MS)
    channel.ingest([Datagrams(fastpath, TAG_A).credit(4, 1000)], MS // 2)
    channel.collect(4, MS)
    channel.ingest([Datagrams(fastpath, TAG_A).credit(8, 1000, held=65535)], 2 * MS)
    assert channel.take_rtt_ns() == (0, 0, 0)
    assert channel.take_path_ns() == (0, 0)


@both
def test_the_oldest_turns_give_way_when_no_credit_comes(fastpath: ModuleType) -> None:
    channel, slot, _ = sender(fastpath, 300)
    channel.queue(slot, np.arange(300, dtype=np.uint32))
    for turn in range(300):
        channel.collect(1, turn, 1)
    peer = Datagrams(fastpath, TAG_A)
    channel.ingest([peer.credit(44, 1000)], 1000)  # of these no turn is left
    assert channel.take_rtt_ns() == (0, 0, 0)
    channel.ingest([peer.credit(45, 1000)], 1000)
    assert channel.take_rtt_ns() == (1000 - 44, 1000 - 44, 1)


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
