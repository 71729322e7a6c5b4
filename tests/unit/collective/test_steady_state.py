"""What a fault-free job costs when it runs: no allocation, no TCP, no repeated datagram."""

from __future__ import annotations

import pytest

from dblp.collective.server_round import MEANS_HELD
from dblp.phase import FixedTolerance
from dblp.wire import Open, Ready, Stop

from .cluster import Cluster, gradient, rank_order_mean
from .virtual_net import DATAGRAM_S, LinkModel


@pytest.mark.parametrize("downlink", ["exact", "lossy"])
@pytest.mark.parametrize("percent", ["0%", "40.8%"])
def test_no_reliable_frame_is_sent_after_the_first_round(percent: str, downlink: str) -> None:
    cluster = Cluster(3, policy=FixedTolerance(percent), downlink=downlink)
    cluster.all_reduce([gradient(rank, 1000) for rank in range(3)])
    first = cluster.reliable_frames()
    assert {type(frame) for frame in first} == {Open, Ready}
    assert len(first) == 6  # one Open and one Ready per rank
    for _ in range(20):
        cluster.all_reduce([gradient(rank, 1000) for rank in range(3)])
    assert len(cluster.reliable_frames()) == 6


def test_a_new_layout_asks_once() -> None:
    cluster = Cluster(2)
    for count in (1000, 1000, 2000, 2000, 2000):
        cluster.all_reduce([gradient(rank, count) for rank in range(2)])
    frames = cluster.reliable_frames()
    assert sum(isinstance(frame, Open) for frame in frames) == 4
    assert sum(isinstance(frame, Ready) for frame in frames) == 4


@pytest.mark.parametrize("percent", ["0%", "40.8%"])
def test_buffers_are_made_once_per_layout(percent: str) -> None:
    bad = LinkModel(loss=0.1, reorder=0.2)
    cluster = Cluster(3, policy=FixedTolerance(percent), uplink=bad, downlink_link=bad)
    per_stream = 3 + 2  # a receive buffer per rank, two results
    for step in range(12):
        cluster.all_reduce([gradient(rank, 5000) for rank in range(3)])
        assert cluster.server.pool.allocations <= per_stream
        if step > 0:
            assert cluster.server.pool.allocations == per_stream
    for _ in range(12):
        for stream in (0, 1):
            cluster.all_reduce([gradient(rank, 5000) for rank in range(3)], stream=stream)
    assert cluster.server.pool.allocations <= 2 * per_stream


@pytest.mark.parametrize("count", [0, 5000])
def test_reserved_buffers_are_all_that_rounds_take(count: int) -> None:
    cluster = Cluster(3)
    cluster.server.pool.reserve([4 * count, 4 * count], copies=3 + MEANS_HELD)
    made = cluster.server.pool.allocations
    assert made == 2 * (3 + 2) and cluster.server.pool.in_use == 0
    for _ in range(4):
        for stream in (0, 1):
            cluster.all_reduce([gradient(rank, count) for rank in range(3)], stream=stream)
    assert cluster.server.pool.allocations == made


def test_every_chunk_travels_once() -> None:
    cluster = Cluster(3)
    for _ in range(10):
        cluster.all_reduce([gradient(rank, 10_000) for rank in range(3)])
    assert all(report.passes == 1 for report in cluster.reports)
    assert all(report.retransmitted == 0 for report in cluster.reports)
    for end in (*cluster.server_ends, *cluster.worker_ends):
        counters = end.channel.counters()
        assert counters["duplicate"] == counters["stale"] == counters["future"] == 0


def test_chunks_go_down_before_all_are_up() -> None:
    """Pipelining: a round trip of two transfers takes little more than one."""
    cluster = Cluster(2)
    cluster.all_reduce([gradient(rank, 100_000) for rank in range(2)])
    started = cluster.net.now
    ended_before = len(cluster.finished)
    for rank in range(2):
        cluster.start(rank, gradient(rank, 100_000))

    def some_down_while_some_are_to_go_up() -> bool:
        down = cluster.server_ends[0].channel.sent_sequence
        up = cluster.worker_ends[0].channel.sent_sequence
        return len(cluster.finished) > ended_before or (down > 277 + 50 and up < 2 * 277 - 50)

    cluster.net.run(some_down_while_some_are_to_go_up)
    assert len(cluster.finished) == ended_before
    cluster.finish(2)
    one_way = 277 * DATAGRAM_S
    assert cluster.net.now - started < 1.3 * one_way + 4 * LinkModel().delay_s


def test_a_lost_stop_of_the_downlink_is_implied_by_the_next_round() -> None:
    """Hazard 4."""
    cluster = Cluster(3)
    cluster.worker_ends[1].drop_frame = lambda frame: isinstance(frame, Stop)
    for step in range(10):
        gradients = [gradient(rank, 3000, seed=step) for rank in range(3)]
        expected = rank_order_mean(gradients)
        cluster.all_reduce(gradients)
        assert all(array.tobytes() == expected.tobytes() for array in gradients)
    # Rank 1 never said STOP; all its downlinks but the last have ended, and nothing went twice.
    downlinks = [r for r in cluster.reports if r.direction == "downlink" and r.rank == 1]
    assert [report.round_id for report in downlinks] == list(range(9))
    assert all(report.retransmitted == 0 for report in downlinks)


def test_a_lost_stop_of_the_uplink_is_implied_by_the_mean() -> None:
    cluster = Cluster(3)
    cluster.server_ends[2].drop_frame = lambda frame: isinstance(frame, Stop)
    for step in range(5):
        gradients = [gradient(rank, 3000, seed=step) for rank in range(3)]
        expected = rank_order_mean(gradients)
        ended = cluster.all_reduce(gradients)
        assert all(array.tobytes() == expected.tobytes() for array in gradients)
        assert ended[2].uplink.retransmitted == 0


def test_an_announcement_may_come_before_the_round_before_it_is_complete() -> None:
    """The fast path can complete a mean, and a worker can answer, before the core looks."""
    cluster = Cluster(2)
    steps = [[gradient(rank, 20_000, seed=step) for rank in range(2)] for step in range(3)]
    expected = [rank_order_mean(step) for step in steps]
    cluster.all_reduce(steps[0])
    for rank in range(2):
        cluster.start(rank, steps[1][rank])
    cluster.net.settle(100e-6)  # announced, not complete
    assert len(cluster.finished) == 2
    cluster.server_ends[1].frozen = True
    cluster.finish(2)
    cluster.start(0, steps[2][0])
    cluster.net.settle(1e-3)
    assert cluster.server.error is None
    assert cluster.server.stall().startswith("stream 0 round 1 (receiving and sending)")
    assert cluster.workers[0].stall().startswith("rank 0 stream 0 round 2")
    cluster.server_ends[1].frozen = False
    cluster.start(1, steps[2][1])
    cluster.finish(2)
    for step, mean in zip(steps, expected, strict=True):
        assert all(array.tobytes() == mean.tobytes() for array in step)


def test_nothing_is_left_over() -> None:
    cluster = Cluster(2)
    cluster.all_reduce([gradient(rank, 3000) for rank in range(2)])
    cluster.net.settle(1.0)
    assert cluster.server.next_timeout() is None and cluster.server.stall() == ""
    assert all(worker.next_timeout() is None and worker.stall() == "" for worker in cluster.workers)
    assert all(end.session.next_timeout() is None for end in cluster.net.endpoints)
    assert cluster.server.pool.in_use == 3  # the next round is armed
