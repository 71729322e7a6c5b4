"""A mesh over real sockets: exact means, bounded loss, several rounds at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dblp
from dblp import wire
from dblp.config import TransportConfig
from dblp.io.interfaces import is_within_host
from tests.integration.cluster import CHUNK_BYTES, LIMIT_S, gradients, rank_order_mean, results
from tests.integration.meshes import MeshGroup

SIZES = [0, 1, 361, 363, 1500, 50_001]
"""Elements: nothing, less than one chunk, fewer chunks than ranks, many."""


def masked_mean(
    arrays: list[np.ndarray[Any, Any]], reports: list[dblp.ExchangeReport]
) -> np.ndarray[Any, Any]:
    """The rank-order mean under the rule "zero", of what the reports say was delivered."""
    kept = []
    for array, report in zip(arrays, reports, strict=True):
        kept.append(array.copy())
        for start, stop in report.lost:
            kept[-1][start:stop] = 0
    return rank_order_mean(kept)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_exact_mean_of_every_size(world: int, config: TransportConfig) -> None:
    with MeshGroup(world, config) as group:
        for size in SIZES:
            arrays = gradients(world, size)
            wanted = rank_order_mean(arrays).tobytes()
            for report in group.all_reduce(arrays):
                assert (report.tolerance, report.lost) == ("0%", ())
                assert report.delivered_share == 1.0
            assert all(array.tobytes() == wanted for array in arrays)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_some_ranks_serve(servers: int, config: TransportConfig) -> None:
    with MeshGroup(3, config, servers=servers) as group:
        for size in SIZES:
            arrays = gradients(3, size)
            wanted = rank_order_mean(arrays).tobytes()
            group.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)


@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64"])
def test_every_dtype(dtype: str, config: TransportConfig) -> None:
    with MeshGroup(3, config) as group:
        arrays = gradients(3, 5003, np.dtype(dtype))
        wanted = rank_order_mean(arrays).tobytes()
        group.all_reduce(arrays)
        assert all(array.tobytes() == wanted for array in arrays)


def test_bfloat16(config: TransportConfig) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(array).to(torch.bfloat16) for array in gradients(3, 5003)]
    wide = [tensor.to(torch.float32).numpy() for tensor in tensors]
    wanted = torch.from_numpy(rank_order_mean(wide)).to(torch.bfloat16)
    with MeshGroup(3, config) as group:
        group.all_reduce(tensors)
    for tensor in tensors:
        assert tensor.view(torch.int16).equal(wanted.view(torch.int16))


def test_a_million_elements(config: TransportConfig) -> None:
    with MeshGroup(3, config) as group:
        for _ in range(2):
            arrays = gradients(3, 1_000_003)
            wanted = rank_order_mean(arrays).tobytes()
            group.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)


def test_sixteen_ranks() -> None:
    """More ranks than chunks in one round, and a few chunks per rank in the other."""
    with MeshGroup(16, TransportConfig(timeout_s=30)) as group:
        for size in (2000, 20_011):
            arrays = gradients(16, size)
            wanted = rank_order_mean(arrays).tobytes()
            group.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)


@pytest.mark.parametrize("downlink", ["exact", "common"])
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_replicas_stay_identical(loss: float, downlink: str, config: TransportConfig) -> None:
    """With a tolerance, several rounds in a row: all ranks have the same bits, and the reports say
    what is in the mean."""
    faults = dblp.Impairment(uniform=loss, seed=5)
    with MeshGroup(3, config, downlink=downlink, impairment=faults) as group:
        for step in range(4):
            arrays = [array * (step + 1) for array in gradients(3, 90_001)]
            originals = [array.copy() for array in arrays]
            reports = group.all_reduce(arrays, tolerance="40.8%")
            assert len({array.tobytes() for array in arrays}) == 1
            mean = masked_mean(originals, reports)
            assert arrays[0].tobytes() == mean.tobytes()
            assert (arrays[0] != 0).mean() > 0.58
            least = 0.592 if downlink == "exact" else 2 * 0.592 - 1  # not up, or not down
            assert all(least <= report.delivered_share <= 1 for report in reports)


def same_or_zero(result: np.ndarray[Any, Any], mean: np.ndarray[Any, Any]) -> None:
    """Every element is that of the mean or zero, and the zero ones are no more than tolerated."""
    kept = result != 0
    assert (result[kept] == mean[kept]).all()
    assert kept.mean() > 0.58


def test_common_keeps_the_chunks_of_most_energy(config: TransportConfig) -> None:
    width = CHUNK_BYTES // 4
    chunks = 30
    scale = np.repeat(np.arange(1, chunks + 1, dtype=np.float32), width)
    arrays = [array * scale for array in gradients(2, chunks * width)]
    with MeshGroup(2, config, downlink="common") as group:
        group.all_reduce(arrays, tolerance="20%")
    energy = np.abs(arrays[0]).reshape(chunks, width).sum(axis=1)
    zero = np.flatnonzero(energy == 0).tolist()
    assert zero == [0, 1, 2, 15, 16, 17]  # of each server's 15 chunks the 3 of least energy


def test_common_keeps_the_chunks_that_are_complete_first(config: TransportConfig) -> None:
    """With an order other than magnitude the downlinks need not wait for the whole mean."""
    ordered = replace(config, order="rotate")
    with MeshGroup(3, ordered, downlink="common") as group:
        for _ in range(5):
            arrays = gradients(3, 90_001)
            originals = [array.copy() for array in arrays]
            reports = group.all_reduce(arrays, tolerance="40.8%")
            assert len({array.tobytes() for array in arrays}) == 1
            assert arrays[0].tobytes() == masked_mean(originals, reports).tobytes()
            assert (arrays[0] != 0).mean() > 0.58


def test_lossy_replicas_lack_chunks_of_the_same_mean(config: TransportConfig) -> None:
    faults = dblp.Impairment(uniform=0.3, seed=5)
    with MeshGroup(3, config, downlink="lossy", impairment=faults) as group:
        arrays = gradients(3, 90_001)
        originals = [array.copy() for array in arrays]
        reports = group.all_reduce(arrays, tolerance="40.8%")
        mean = masked_mean(originals, reports)
        for array in arrays:
            same_or_zero(array, mean)


def test_contributors(config: TransportConfig) -> None:
    faults = dblp.Impairment(uniform=0.3, seed=5)
    with MeshGroup(2, config, rule="contributors", impairment=faults) as group:
        arrays = [np.full(90_000, rank + 1, np.float32) for rank in range(2)]
        group.all_reduce(arrays, tolerance="40.8%")
        assert arrays[0].tobytes() == arrays[1].tobytes()
        assert set(np.unique(arrays[0]).tolist()) == {1.0, 1.5, 2.0}


def test_mean_squared_norm(config: TransportConfig) -> None:
    with MeshGroup(3, config) as group:
        arrays = gradients(3, 30_011)
        norms = [dblp.fastpath.squared_norm(array, "float32") for array in arrays]
        mean = (norms[0] + norms[1] + norms[2]) / 3
        assert {report.mean_squared_norm for report in group.all_reduce(arrays)} == {mean}
        told = [
            mesh.all_reduce_async(array, squared_norm=float(rank))
            for rank, (mesh, array) in enumerate(zip(group.meshes, arrays, strict=True))
        ]
        assert {report.mean_squared_norm for report in results(told)} == {1.0}
        unknown = group.all_reduce(arrays, squared_norm=math.nan)
        assert all(math.isnan(report.mean_squared_norm) for report in unknown)


def test_streams_and_queued_rounds(config: TransportConfig) -> None:
    """Many rounds in flight: several streams, several rounds each, sizes that change."""
    with MeshGroup(3, config) as group:
        started, wanted, every = [], [], []
        for step, size in enumerate([4001, 4001, 300, 9001]):
            for stream in range(5):
                arrays = [array + step for array in gradients(3, size + stream)]
                wanted.append(rank_order_mean(arrays).tobytes())
                every.append(arrays)
                started += group.start(arrays, stream)
        results(started)
        for arrays, mean in zip(every, wanted, strict=True):
            assert all(array.tobytes() == mean for array in arrays)


def test_tolerance_may_change_from_round_to_round(config: TransportConfig) -> None:
    with MeshGroup(2, config) as group:
        for tolerance in ("0%", "40.8%", None, "0.8%", "40.8%", "0%"):
            arrays = gradients(2, 60_001)
            wanted = rank_order_mean(arrays).tobytes()
            reports = group.all_reduce(arrays, tolerance=tolerance, critical=tolerance == "0.8%")
            assert {report.tolerance for report in reports} == {tolerance or "0%"}
            regime = "critical" if tolerance == "0.8%" else "normal"
            assert {report.regime for report in reports} == {regime}
            if tolerance in ("0%", None):
                assert all(array.tobytes() == wanted for array in arrays)


def test_lost_names_what_is_missing(config: TransportConfig) -> None:
    """Ones everywhere: an element of the mean is the share of the ranks that delivered it."""
    with MeshGroup(3, config, impairment=dblp.Impairment(uniform=0.3, seed=5)) as group:
        arrays = [np.ones(90_001, np.float32) for _ in range(3)]
        reports = group.all_reduce(arrays, tolerance="40.8%")
        lost = np.zeros(90_001, np.float32)
        for report in reports:
            for start, stop in report.lost:
                lost[start:stop] += 1
        assert lost.any()
        assert arrays[0].tobytes() == ((3 - lost) / np.float32(3)).astype(np.float32).tobytes()


def test_blocked_datagrams(config: TransportConfig) -> None:
    """Everything is lost: the rest goes over TCP, also of a common set of chunks."""
    faults = dblp.Impairment(uniform=1.0)
    with MeshGroup(2, config, downlink="common", impairment=faults) as group:
        arrays = gradients(2, 3001)
        wanted = rank_order_mean(arrays).tobytes()
        group.all_reduce(arrays)
        assert all(array.tobytes() == wanted for array in arrays)
        group.all_reduce(arrays, tolerance="40.8%")
        assert arrays[0].tobytes() == arrays[1].tobytes()


@pytest.mark.parametrize(
    ("mtu", "servers", "used"), [(None, None, 9000), (1500, None, 1500), (None, 1, 1500)]
)
def test_large_chunks_only_where_all_ranks_know_that_they_are_on_one_host(
    mtu: int | None, servers: int | None, used: int
) -> None:
    with MeshGroup(3, TransportConfig(mtu=mtu, timeout_s=LIMIT_S), servers=servers) as group:
        for mesh in group.meshes:
            assert mesh.chunk_sizes == {wire.chunk_bytes_for_mtu(used)}


def test_an_address_of_another_host_or_a_small_path_means_usual_chunks() -> None:
    assert is_within_host("127.0.0.1", packet_bytes=9000)
    assert is_within_host("localhost", packet_bytes=9000)
    assert is_within_host("127.0.1.1", packet_bytes=9000)  # what Debian calls its own host
    assert not is_within_host("127.0.0.1", packet_bytes=1 << 17)
    assert not is_within_host("192.0.2.1", packet_bytes=1280)  # documentation's: nobody's own
    assert not is_within_host("no.such.host.invalid", packet_bytes=1280)
