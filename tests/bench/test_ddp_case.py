"""The case `ddp` runs at its smallest size, and its summary compares what it says."""

from __future__ import annotations

import pytest

from bench.goals import GOALS
from bench.harness import CaseResult, Distribution, Settings
from bench.interleave import Plan, Side
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.cases import ddp
from bench.transport.peers.dblp_mesh import DblpMesh
from bench.transport.peers.role import PeerError

needs_lab = pytest.mark.skipif(lab_unavailable() is not None, reason=str(lab_unavailable()))


def cell(samples: list[float], *, gave_up_s: float | None = None) -> tuple:
    """What a network's run leaves of one side."""
    side = Side("side", lambda count, limit_s: [], Plan(1, 1.0), gave_up_s=gave_up_s)
    return side, Distribution.of(samples) if samples else None


def summary(cells: dict) -> dict[str, float | None]:
    result = CaseResult()
    ddp._summarise(result, cells)
    return result.summary


def test_the_better_gloo_and_the_worse_number_of_ranks_count() -> None:
    cells = {
        ("loopback", 3, "dblp exact"): cell([0.08]),
        ("loopback", 3, "gloo cubic"): cell([0.2]),
        ("loopback", 3, "gloo bbr"): cell([0.1]),
        ("loopback", 4, "dblp exact"): cell([0.09]),
        ("loopback", 4, "gloo cubic"): cell([0.1]),
        ("loopback", 4, "gloo bbr"): cell([0.3]),
    }
    seen = summary(cells)
    assert seen["sharded_exact_over_gloo_3_ranks"] == 0.8
    assert seen["sharded_exact_over_gloo"] == seen["sharded_exact_over_gloo_4_ranks"] == 0.9
    del cells["loopback", 4, "dblp exact"]
    assert summary(cells)["sharded_exact_over_gloo"] is None
    assert summary(cells)["sharded_tolerant_over_gloo"] is None


def test_the_tail_is_on_the_safe_side_where_samples_are_few() -> None:
    few = [0.1] * 19 + [0.5]
    cells = {
        ("1 % loss", 3, "dblp exact"): cell(few),
        ("1 % loss", 3, "gloo cubic"): cell([2.0] * 100),
        ("1 % loss", 3, "gloo bbr"): cell([1.0] * 97 + [9.0] * 3),
    }
    assert summary(cells)["sharded_loss1_p99_over_gloo"] == 0.5  # their 9 s are above the 95th
    cells["1 % loss", 3, "gloo bbr"] = cell([], gave_up_s=4.0)
    assert summary(cells)["sharded_loss1_p99_over_gloo"] == 0.25


def test_every_key_of_the_case_has_a_goal() -> None:
    assert set(ddp._KEYS) <= set(GOALS)
    assert set(ddp._KEYS) <= set(summary({}))


@needs_lab
def test_a_mesh_checks_its_results() -> None:
    with NetworkLab(2) as lab, DblpMesh(lab, [0, 1], downlink="common") as mesh:
        exact = mesh.rounds(100_000, 2, warmup=1)
        assert len(exact.elapsed_s) == 2 and exact.missing == 0 and exact.chunks > 0
        lossy = mesh.rounds(100_000, 3, tolerance="40.8%")
        assert lossy.missing <= 0.408 * lossy.chunks
        with pytest.raises(PeerError):
            mesh.rounds(100_000, 1, tolerance="all")


@pytest.mark.slow
def test_the_case_runs() -> None:
    pytest.importorskip("torch")
    result = CaseResult()
    ddp.run(Settings(smoke=True), result)
    assert not result.failures
    networks = {(row["network"], row["ranks"]) for row in result.rows}
    assert {("loopback", 3), ("loopback", 4)} <= networks
    assert result.summary["sharded_exact_over_gloo"] is not None
    if lab_unavailable() is None:
        assert len(networks) == 4
        assert not [key for key, value in result.summary.items() if value is None]
