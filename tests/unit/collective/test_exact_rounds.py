"""At tolerance 0 the result is the rank-order mean, byte for byte, whatever the network does."""

from __future__ import annotations

import numpy as np
import pytest

from dblp.config import TransportConfig
from dblp.phase import FixedTolerance

from .cluster import CHUNK_BYTES, Cluster, gradient, rank_order_mean
from .virtual_net import LinkModel

DTYPES = ("float16", "bfloat16", "float32", "float64")
BAD = LinkModel(loss=0.1, reorder=0.3)


def check_round(cluster: Cluster, count: int, dtype: str = "float32", *, stream: int = 0) -> None:
    gradients = [gradient(rank, count, dtype) for rank in range(cluster.world)]
    expected = rank_order_mean(gradients, dtype)
    cluster.all_reduce(gradients, dtype, stream=stream)
    for result in gradients:  # in place
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("world", range(1, 9))
def test_every_world_size(world: int) -> None:
    cluster = Cluster(world)
    for count in (0, 1, 1000, 3001):
        check_round(cluster, count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    cluster = Cluster(3)
    for count in (0, 1, 3, 361, 362, 363, 5000):
        check_round(cluster, count, dtype)


@pytest.mark.parametrize("count", [0, 1, 2, 361, 362, 363, 724, 725, 1023, 9999, 100_001])
def test_many_sizes(count: int) -> None:
    check_round(Cluster(2), count)


@pytest.mark.parametrize("chunk_bytes", [1256, 1448, 8944])
def test_other_chunk_sizes(chunk_bytes: int) -> None:
    check_round(Cluster(3, chunk_bytes=chunk_bytes), 20_000)


@pytest.mark.parametrize("seed", range(6))
def test_loss_and_reordering_change_nothing(seed: int) -> None:
    cluster = Cluster(3, uplink=BAD, downlink_link=BAD, seed=seed)
    for _ in range(4):
        check_round(cluster, 20_000)
    check_round(cluster, 1)
    check_round(cluster, 0)


@pytest.mark.parametrize("control", ["datagram", "tcp"])
@pytest.mark.parametrize("norm", ["sent", "received"])
@pytest.mark.parametrize("stop", ["eager", "patient"])
def test_every_mode(control: str, norm: str, stop: str) -> None:
    config = TransportConfig(control=control, stop=stop)
    cluster = Cluster(3, config=config, norm=norm, uplink=BAD, downlink_link=BAD)
    for count in (5000, 5000, 77, 0, 5000):
        check_round(cluster, count)


@pytest.mark.parametrize("order", ["sequential", "rotate", "random", "magnitude"])
def test_every_send_order(order: str) -> None:
    cluster = Cluster(2, config=TransportConfig(order=order))
    for _ in range(3):
        check_round(cluster, 10_000)


def test_an_exact_round_reports_nothing_missing() -> None:
    cluster = Cluster(3, policy=FixedTolerance("0%"))
    ended = cluster.all_reduce([gradient(rank, 10_000) for rank in range(3)])
    chunks = -(-40_000 // CHUNK_BYTES)
    for rank, one in enumerate(ended):
        for report, direction in ((one.uplink, "uplink"), (one.downlink, "downlink")):
            assert (report.rank, report.direction, report.chunks) == (rank, direction, chunks)
            assert report.missing == 0 and report.passes == 1 and report.tolerance == "0%"
    cluster.net.settle(0.01)
    assert sorted((r.direction, r.rank) for r in cluster.reports) == [
        (direction, rank) for direction in ("downlink", "uplink") for rank in range(3)
    ]


def test_a_slow_rank_does_not_change_the_result() -> None:
    cluster = Cluster(3)
    gradients = [gradient(rank, 5000) for rank in range(3)]
    expected = rank_order_mean(gradients)
    for rank in (2, 0):
        cluster.start(rank, gradients[rank])
    cluster.net.settle(2.0)
    assert not cluster.finished
    cluster.start(1, gradients[1])
    cluster.finish(3)
    assert all(np.array_equal(result, expected) for result in gradients)


def test_the_layout_may_change_between_rounds() -> None:
    cluster = Cluster(3, uplink=BAD, downlink_link=BAD)
    for count, dtype in ((5000, "float32"), (7000, "float32"), (7000, "float16"), (0, "float64"),
                         (1, "bfloat16"), (5000, "float32"), (5000, "float32")):  # fmt: skip
        check_round(cluster, count, dtype)


def test_streams_are_independent() -> None:
    cluster = Cluster(3, uplink=BAD, downlink_link=BAD)
    arrays = {
        (stream, rank): gradient(rank, 1000 * (stream + 1), seed=stream)
        for stream in range(5)
        for rank in range(3)
    }
    expected = {
        stream: rank_order_mean([arrays[stream, rank] for rank in range(3)]) for stream in range(5)
    }
    for stream in range(5):
        for rank in range(3):
            # Ranks submit their streams in different orders.
            cluster.start(rank, arrays[(stream + rank) % 5, rank], stream=(stream + rank) % 5)
    cluster.finish(15)
    for (stream, _), array in arrays.items():
        assert array.tobytes() == expected[stream].tobytes()


def test_rounds_of_one_stream_queue_up() -> None:
    cluster = Cluster(2, uplink=BAD, downlink_link=BAD)
    arrays = [[gradient(rank, 3000, seed=step) for rank in range(2)] for step in range(6)]
    expected = [rank_order_mean(step) for step in arrays]
    for step in arrays:
        for rank in range(2):
            cluster.start(rank, step[rank])
    ended = cluster.finish(12)
    for rank in range(2):
        order = [one.round.round_id for one in ended if one.uplink.rank == rank]
        assert order == list(range(6))
    for step, mean in zip(arrays, expected, strict=True):
        assert all(array.tobytes() == mean.tobytes() for array in step)


def test_round_ids_wrap() -> None:
    cluster = Cluster(2, first_round=(1 << 32) - 2, uplink=BAD, downlink_link=BAD)
    for _ in range(5):
        check_round(cluster, 3000)
    assert [one.round.round_id for one in cluster.finished[::2]] == [
        (1 << 32) - 2, (1 << 32) - 1, 0, 1, 2,
    ]  # fmt: skip


def test_one_worker_may_be_far_ahead_in_another_stream() -> None:
    cluster = Cluster(2)
    for step in range(3):
        cluster.start(0, gradient(0, 2000, seed=step), stream=0)
    for step in range(3):
        cluster.start(1, gradient(1, 2000, seed=step), stream=1)
    cluster.net.settle(1.0)
    assert not cluster.finished
    for step in range(3):
        cluster.start(1, gradient(1, 2000, seed=step), stream=0)
        cluster.start(0, gradient(0, 2000, seed=step), stream=1)
    cluster.finish(12)
