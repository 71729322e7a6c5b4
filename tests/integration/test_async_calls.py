"""Futures: several streams and rounds in flight, callbacks, threads, cancellation."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.errors import LocalProtocolError
from dblp.faults import Impairment
from tests.integration.cluster import LIMIT_S, Cluster, gradients, rank_order_mean, results


def test_many_streams_side_by_side(config: TransportConfig) -> None:
    """Buckets of a model, started in another order on every rank."""
    streams = 24
    with Cluster(3, config) as cluster:
        buckets = [gradients(3, 1000 + 731 * stream) for stream in range(streams)]
        wanted = [rank_order_mean(arrays).tobytes() for arrays in buckets]
        futures: list[Future[Any]] = []
        for rank, worker in enumerate(cluster.workers):
            order = list(range(streams))
            random.Random(rank).shuffle(order)
            futures += [worker.all_reduce_async(buckets[s][rank], stream=s) for s in order]
        results(futures)
        for arrays, mean in zip(buckets, wanted, strict=True):
            assert all(array.tobytes() == mean for array in arrays)


def test_many_rounds_of_one_stream_in_flight(config: TransportConfig) -> None:
    """Submitted at once, done one after the other, in order."""
    with Cluster(2, config) as cluster:
        rounds = [gradients(2, 100 * number) for number in range(40)]
        wanted = [rank_order_mean(arrays).tobytes() for arrays in rounds]
        done: list[int] = []
        futures: list[Future[Any]] = []
        for number, arrays in enumerate(rounds):
            started = cluster.start(arrays)
            started[0].add_done_callback(lambda _, number=number: done.append(number))
            futures += started
        reports = results(futures)
        assert [report.uplink.round_id for report in reports[::2]] == list(range(40))
        assert done == list(range(40))
        for arrays, mean in zip(rounds, wanted, strict=True):
            assert all(array.tobytes() == mean for array in arrays)


def test_streams_and_rounds_over_a_bad_network() -> None:
    loss = Impairment(seed=4, uniform=0.1, reorder=0.1, duplicate=0.1)
    with Cluster(
        2, TransportConfig(), policy=dblp.FixedTolerance("2.4%"), impairment=loss,
        worker_impairment=loss,
    ) as cluster:  # fmt: skip
        futures: list[Future[Any]] = []
        buffers = []
        for number in range(60):
            arrays = [np.full(40_000, 1.0 + number, np.float32) for _ in range(2)]
            buffers.append(arrays)
            futures += cluster.start(arrays, stream=number % 6)
        results(futures)
        for number, arrays in enumerate(buffers):
            assert arrays[0].tobytes() == arrays[1].tobytes()
            whole = 1.0 + number
            assert set(np.unique(arrays[0]).tolist()) <= {0.0, whole / 2, whole}


def test_a_callback_may_submit_the_next_round(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        finished = threading.Semaphore(0)
        counts = [0, 0]
        arrays = [np.full(500, 1.0, np.float32) for _ in range(2)]

        def again(rank: int, future: Future[Any]) -> None:
            future.result()
            counts[rank] += 1
            if counts[rank] < 50:
                start(rank)
            else:
                finished.release()

        def start(rank: int) -> None:
            future = cluster.workers[rank].all_reduce_async(arrays[rank])
            future.add_done_callback(lambda future: again(rank, future))

        for rank in range(2):
            start(rank)
        for _ in range(2):
            assert finished.acquire(timeout=LIMIT_S)
        assert counts == [50, 50]


def test_waiting_in_a_callback_is_refused(config: TransportConfig) -> None:
    """It would wait for itself (field problem 17); the transport goes on."""
    with Cluster(1, config) as cluster:
        worker = cluster.workers[0]
        caught: list[BaseException] = []
        tried = threading.Event()

        def wait(_: object) -> None:
            try:
                worker.all_reduce(np.ones(3, np.float32))
            except LocalProtocolError as error:
                caught.append(error)
            tried.set()

        worker.all_reduce_async(np.ones(3, np.float32)).add_done_callback(wait)
        assert tried.wait(LIMIT_S)
        assert "callback" in str(caught[0])
        worker.all_reduce(np.ones(3, np.float32))


def test_a_callback_that_raises_harms_nobody(config: TransportConfig) -> None:
    def broken(_: object) -> None:
        raise ValueError("oops")

    with Cluster(1, config) as cluster:
        for _ in range(3):
            future = cluster.workers[0].all_reduce_async(np.ones(3, np.float32))
            future.add_done_callback(broken)
            future.result(LIMIT_S)


def test_a_round_on_its_way_cannot_be_cancelled(config: TransportConfig) -> None:
    """The buffer belongs to the transport; a `cancel` that would be believed is worse than none."""
    with Cluster(2, config) as cluster:
        arrays = gradients(2, 1000)
        wanted = rank_order_mean(arrays)
        future = cluster.workers[0].all_reduce_async(arrays[0])
        assert not future.cancel()
        cluster.workers[1].all_reduce(arrays[1])
        future.result(LIMIT_S)
        assert (arrays[0] == wanted).all()


def test_calls_from_many_threads(config: TransportConfig) -> None:
    threads_per_rank = 6
    with Cluster(2, config) as cluster:
        failures: list[BaseException] = []

        def train(rank: int, stream: int) -> None:
            try:
                for step in range(10):
                    array = np.full(3000, rank + stream + step, np.float32)
                    cluster.workers[rank].all_reduce(array, stream=stream)
                    assert (array == 0.5 + stream + step).all()
            except BaseException as error:
                failures.append(error)

        threads = [
            threading.Thread(target=train, args=(rank, stream))
            for rank in range(2)
            for stream in range(threads_per_rank)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert not failures


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_streams_of_different_dtypes(dtype: Any, config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        one, two = gradients(2, 3000, np.float16), gradients(2, 3000, dtype)
        wanted = rank_order_mean(one).tobytes(), rank_order_mean(two).tobytes()
        results(cluster.start(one, stream=0) + cluster.start(two, stream=9))
        assert (one[0].tobytes(), two[1].tobytes()) == wanted


def test_the_report_of_a_round(config: TransportConfig) -> None:
    policy = dblp.GradientNormPolicy(low="0.8%", high="40.8%")
    with Cluster(2, config, policy=policy) as cluster:
        for step in range(3):
            report = cluster.all_reduce(gradients(2, 50_000))[1]
            assert report.uplink.direction == "uplink"
            assert report.downlink.direction == "downlink"
            assert report.uplink.rank == report.downlink.rank == 1
            assert report.uplink.round_id == report.downlink.round_id == step
            assert report.regime in ("critical", "normal")
            assert report.uplink.nbytes == 200_000
            assert 0 < report.delivered_share <= 1
            assert report.elapsed_s > 0
            assert report.uplink.to_dict()["stream"] == 0
        cluster.server.wait(0)
        kinds = {(r.direction, r.rank) for r in list(cluster.server.reports)}
        assert {("uplink", 0), ("uplink", 1)} <= kinds
