"""Tolerance 0 and no faults: the result is the rank-order mean, byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dblp
from dblp import wire
from dblp.config import TransportConfig
from tests.integration.cluster import CHUNK_BYTES, Cluster, gradients, rank_order_mean

SIZES = [0, 1, 2, 3, 361, 362, 363, 4097, 50_001]
"""Elements; 362 float32 fill one datagram."""

DTYPES = ["float16", "float32", "float64", "complex64", "complex128"]


def assert_exact(cluster: Cluster, arrays: list[np.ndarray[Any, Any]], stream: int = 0) -> None:
    """One round gives the same bytes on every rank: those of the rank-order mean."""
    wanted = rank_order_mean(arrays).tobytes()
    for report in cluster.all_reduce(arrays, stream):
        assert report.tolerance == "0%"
        assert report.uplink.missing == report.downlink.missing == 0
    assert all(array.tobytes() == wanted for array in arrays)


@pytest.mark.parametrize("workers", range(1, 9))
def test_every_number_of_workers(workers: int, config: TransportConfig) -> None:
    with Cluster(workers, config) as cluster:
        for size in (0, 1, 4097, 20_011):
            assert_exact(cluster, gradients(workers, size))


def test_every_size_and_dtype(config: TransportConfig) -> None:
    with Cluster(3, config) as cluster:
        for dtype in DTYPES:
            for size in SIZES:
                assert_exact(cluster, gradients(3, size, dtype))


def test_the_layout_of_a_stream_may_change_every_round(config: TransportConfig) -> None:
    """Hazard 7: buckets are rebuilt."""
    with Cluster(2, config) as cluster:
        for size in (10, 10, 5000, 5000, 1, 0, 0, 5000):
            for dtype in ("float32", "float64"):
                assert_exact(cluster, gradients(2, size, dtype))


def test_shapes_and_one_number(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        flat = gradients(2, 60)
        wanted = rank_order_mean(flat)
        shaped = [array.reshape(3, 4, 5).copy() for array in flat]
        cluster.all_reduce(shaped)
        assert shaped[0].shape == (3, 4, 5)
        assert shaped[1].tobytes() == wanted.tobytes()
        numbers = [np.array(1.0), np.array(4.0)]
        cluster.all_reduce(numbers)
        assert numbers[0] == numbers[1] == 2.5


def test_unusual_numbers_survive(config: TransportConfig) -> None:
    values = [np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-45, 3e38, 1.0]
    arrays = [np.array(values, np.float32) for _ in range(2)]
    with Cluster(2, config) as cluster:
        cluster.all_reduce(arrays)
    with np.errstate(over="ignore"):
        wanted = rank_order_mean([np.array(values, np.float32)] * 2)
    assert arrays[0].tobytes() == arrays[1].tobytes() == wanted.tobytes()


def test_exactness_holds_with_a_lossy_policy_and_one_worker_sized_loss(
    config: TransportConfig,
) -> None:
    """A policy that allows loss does not make any where the buffer is one chunk."""
    with Cluster(2, config, policy=dblp.FixedTolerance("42.4%"), downlink="lossy") as cluster:
        arrays = gradients(2, CHUNK_BYTES // 4)
        wanted = rank_order_mean(arrays).tobytes()
        cluster.all_reduce(arrays)
        assert [array.tobytes() for array in arrays] == [wanted, wanted]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_tensors(dtype: str, config: TransportConfig) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    wide = torch.float64 if dtype == "float64" else torch.float32
    generator = torch.Generator().manual_seed(7)
    with Cluster(3, config) as cluster:
        for size in (0, 1, 725, 10_001):
            tensors = [
                torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(3)
            ]
            tensors = [tensor.to(kind) for tensor in tensors]
            flat = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
            total = flat[0].to(wide)
            for tensor in flat[1:]:
                total = total + tensor.to(wide)
            wanted = (total / 3).to(flat[0].dtype)
            cluster.all_reduce(tensors)
            for tensor in flat:
                assert torch.equal(tensor, wanted)


def test_parameters_and_shaped_tensors(config: TransportConfig) -> None:
    """What a training script holds: tensors with a shape that want a gradient."""
    torch = pytest.importorskip("torch")
    with Cluster(2, config) as cluster:
        tensors = [torch.nn.Parameter(torch.full((17, 3), float(rank))) for rank in range(2)]
        cluster.all_reduce(tensors)
        assert all(torch.equal(tensor.detach(), torch.full((17, 3), 0.5)) for tensor in tensors)


def test_arrays_and_tensors_meet(config: TransportConfig) -> None:
    torch = pytest.importorskip("torch")
    with Cluster(2, config) as cluster:
        array, tensor = np.full(1000, 1, np.float32), torch.full((10, 100), 2.0)
        cluster.all_reduce([array, tensor])
        assert (array == 1.5).all() and bool((tensor == 1.5).all())


@pytest.mark.parametrize("order", ["sequential", "rotate", "random", "magnitude"])
@pytest.mark.parametrize("stop", ["eager", "patient"])
@pytest.mark.parametrize("control", ["datagram", "tcp"])
def test_every_setting_gives_the_same_mean(order: str, stop: str, control: str) -> None:
    config = TransportConfig(order=order, stop=stop, control=control)
    with Cluster(2, config) as cluster:
        for _ in range(3):
            assert_exact(cluster, gradients(2, 9001))


@pytest.mark.parametrize("mtus", [(1280, 1280), (9000, 9000), (65_535, 65_535), (1500, 9000)])
def test_every_mtu(mtus: tuple[int, int]) -> None:
    """Jumbo and loopback sizes work, and two ends agree on the smaller MTU (field problem 6)."""
    server_config, worker_config = (TransportConfig(mtu=mtu) for mtu in mtus)
    with (
        dblp.ParameterServer.serve_in_thread(workers=1, config=server_config) as server,
        dblp.Worker(server.address, rank=0, config=worker_config) as worker,
    ):
        array = gradients(1, 100_003)[0]
        wanted = array.tobytes()
        for _ in range(2):
            worker.all_reduce(array)
        assert array.tobytes() == wanted
        chunk_bytes = worker._endpoint.link.channel.chunk_bytes
        assert chunk_bytes == wire.chunk_bytes_for_mtu(min(mtus))


@pytest.mark.parametrize("offload", [True, False])
def test_with_and_without_offload(offload: bool) -> None:
    with Cluster(2, TransportConfig(offload=offload)) as cluster:
        assert_exact(cluster, gradients(2, 200_001))


@pytest.mark.parametrize("norm", ["sent", "received"])
@pytest.mark.parametrize("rule", ["zero", "contributors"])
def test_every_rule_and_norm(norm: str, rule: str, config: TransportConfig) -> None:
    with Cluster(2, config, norm=norm, rule=rule) as cluster:
        for _ in range(2):
            assert_exact(cluster, gradients(2, 5001))


def test_twenty_five_million_elements() -> None:
    with Cluster(2, TransportConfig()) as cluster:
        arrays = gradients(2, 25_000_000)
        wanted = rank_order_mean(arrays)
        cluster.all_reduce(arrays)
        assert all(np.array_equal(array.view(np.uint8), wanted.view(np.uint8)) for array in arrays)
