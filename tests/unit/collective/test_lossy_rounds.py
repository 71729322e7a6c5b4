"""Bounded loss: what is delivered counts under the rule; all ranks have the same bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dblp.collective.server_round import ServerRound
from dblp.config import TransportConfig
from dblp.phase import Decision, FixedTolerance, Regime, Schedule, TolerancePolicy
from dblp.proto import Receiver
from dblp.tolerance import EXACT, Tolerance

from .cluster import CHUNK_BYTES, Cluster, gradient, masked_mean, rank_order_mean
from .virtual_net import LinkModel

LOSSY = LinkModel(loss=0.2, reorder=0.2)
COUNT = 24_001
CHUNKS = -(-COUNT * 4 // CHUNK_BYTES)


def delivered(receiver: Receiver) -> np.ndarray:
    bits = np.frombuffer(bytes(receiver.bitmap.bits), np.uint8)
    return np.unpackbits(bits, bitorder="little")[: receiver.bitmap.count].astype(bool)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[np.ndarray]]:
    """Round id → what each rank had delivered when the mean was completed."""
    seen: dict[int, list[np.ndarray]] = {}
    reduce = ServerRound.reduce

    def reduce_and_look(self: ServerRound, *arguments: object, ranked: bool) -> None:
        seen[self.round_id] = [delivered(receiver) for receiver in self.receivers]
        reduce(self, *arguments, ranked=ranked)

    monkeypatch.setattr(ServerRound, "reduce", reduce_and_look)
    return seen


@pytest.mark.parametrize("rule", ["zero", "contributors"])
@pytest.mark.parametrize("order", ["sequential", "rotate", "random", "magnitude"])
@pytest.mark.parametrize("stop", ["eager", "patient"])
def test_the_result_follows_the_rule(
    rule: str, order: str, stop: str, masks: dict[int, list[np.ndarray]]
) -> None:
    config = TransportConfig(order=order, stop=stop)
    cluster = Cluster(
        3, policy=FixedTolerance("40.8%"), config=config, rule=rule, uplink=LOSSY,
        downlink_link=LOSSY,
    )  # fmt: skip
    for step in range(4):
        originals = [gradient(rank, COUNT, seed=step) for rank in range(3)]
        arrays = [array.copy() for array in originals]
        cluster.all_reduce(arrays)
        expected = masked_mean(originals, masks[step], contributors=rule == "contributors")
        for array in arrays:
            assert array.tobytes() == expected.tobytes()
        needed = Tolerance.of("40.8%").needed(CHUNKS)
        assert all(mask.sum() >= needed for mask in masks[step])
    if stop == "eager":
        assert not all(mask.all() for mask in masks[3])


@pytest.mark.parametrize("norm", ["sent", "received"])  # downlinks beside the uplinks, and after
@pytest.mark.parametrize("downlink", ["exact", "lossy"])
def test_what_no_rank_has_delivered_does_not_go_down(
    norm: str, downlink: str, masks: dict[int, list[np.ndarray]]
) -> None:
    """All ranks leave out the same chunks: those of least energy."""
    config = TransportConfig(order="magnitude")
    cluster = Cluster(
        3, policy=FixedTolerance("40.8%"), config=config, downlink=downlink, norm=norm
    )
    base = gradient(0, COUNT) * np.repeat(np.arange(1.0, COUNT + 1, 64), 64)[:COUNT]
    base = base.astype(np.float32)
    for step in range(3):
        arrays = [base * np.float32(rank + 1) for rank in range(3)]
        expected = [array.copy() for array in arrays]
        cluster.all_reduce(arrays)
        if downlink == "exact":
            mean = masked_mean(expected, masks[step], contributors=False)
            assert all(array.tobytes() == mean.tobytes() for array in arrays)
    down = [report for report in cluster.reports if report.direction == "downlink"]
    assert len(down) >= 6  # those of the last round may be on their way
    for report in down:
        carried = int(np.logical_or.reduce(masks[report.round_id]).sum())
        assert report.datagrams <= carried < 0.7 * CHUNKS
        assert report.missing == 0 or downlink == "lossy"


@pytest.mark.parametrize("norm", ["sent", "received"])
@pytest.mark.parametrize("rule", ["zero", "contributors"])
@pytest.mark.parametrize(("low", "high"), [("40.8%", "40.8%"), ("0.8%", "40.8%"), ("60%", "2.4%")])
def test_a_lossy_downlink_zeroes_what_is_missing(
    norm: str, rule: str, low: str, high: str, masks: dict[int, list[np.ndarray]]
) -> None:
    """Also when the uplink may lose less than the downlink: no zero may come back as gradient."""
    policy = Schedule([(0, low), (1, high), (2, low), (3, high)])
    cluster = Cluster(
        3, policy=policy, downlink="lossy", rule=rule, norm=norm, uplink=LOSSY,
        downlink_link=LOSSY,
    )  # fmt: skip
    for step in range(6):
        originals = [gradient(rank, COUNT, seed=step) for rank in range(3)]
        arrays = [array.copy() for array in originals]
        ended = cluster.all_reduce(arrays)
        mean = masked_mean(originals, masks[step], contributors=rule == "contributors")
        for array, one in zip(arrays, ended, strict=True):
            assert one.round.receiver is not None
            got = delivered(one.round.receiver)
            expected = np.where(got[np.arange(COUNT) * 4 // CHUNK_BYTES], mean, np.float32(0))
            assert array.tobytes() == expected.tobytes()
            assert one.downlink.missing == (~got).sum()
            assert one.downlink.missing <= Tolerance.of(one.downlink.tolerance).missing_max(CHUNKS)


@pytest.mark.parametrize("percent", ["0%", "0.8%", "2.4%", "40.8%", "42.4%", "80%", "99.9%"])
@pytest.mark.parametrize("chunks", [1, 2, 3, 5, 50, 125])
def test_the_tolerance_is_exact(
    percent: str, chunks: int, masks: dict[int, list[np.ndarray]]
) -> None:
    cluster = Cluster(2, policy=FixedTolerance(percent), uplink=LOSSY, downlink="lossy")
    count = chunks * CHUNK_BYTES // 4
    for _ in range(2):
        cluster.all_reduce([gradient(rank, count) for rank in range(2)])
    needed = math.ceil((1 - Tolerance.of(percent).fraction) * chunks)
    for step in range(2):
        assert all(mask.sum() >= needed for mask in masks[step])
    for report in cluster.reports:
        assert report.tolerance == percent and report.chunks == chunks
        assert report.delivered >= needed


class Recorder(TolerancePolicy):
    """Alternates, and remembers every question."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, float]] = []

    def initial(self) -> Decision:
        return Decision(EXACT, Regime.CRITICAL)

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        self.asked.append((stream, step, norm))
        if step % 2 == 0:
            return Decision(Tolerance.of("40.8%"), Regime.NORMAL)
        return Decision(Tolerance.of("0.8%"), Regime.CRITICAL)


@pytest.mark.parametrize("norm", ["sent", "received"])
def test_the_policy_decides_once_and_all_ranks_see_the_same(norm: str) -> None:
    policy = Recorder()
    cluster = Cluster(
        3, policy=policy, norm=norm, downlink="lossy", uplink=LOSSY, downlink_link=LOSSY
    )
    steps = 5
    for step in range(steps):
        for stream in (0, 7):
            ended = cluster.all_reduce(
                [gradient(rank, 9000, seed=step) for rank in range(3)], stream=stream
            )
            uplinks = {(one.uplink.tolerance, one.uplink.regime) for one in ended}
            downlinks = {(one.downlink.tolerance, one.downlink.regime) for one in ended}
            high, low = ("40.8%", "normal"), ("0.8%", "critical")
            first = ("0%", None)  # the worker has not been told the first regime
            assert uplinks == {first if step == 0 else (high if step % 2 else low)}
            assert downlinks == {low if step % 2 else high}
            assert {one.round.regime for one in ended} == {
                Regime.CRITICAL if step % 2 else Regime.NORMAL
            }
    assert [(stream, step) for stream, step, _ in policy.asked] == [
        (stream, step) for step in range(steps) for stream in (0, 7)
    ]
    by_round: dict[tuple[int, int, str], set[str]] = {}
    for report in cluster.reports:
        key = (report.stream, report.round_id, report.direction)
        by_round.setdefault(key, set()).add(report.tolerance)
    assert all(len(tolerances) == 1 for tolerances in by_round.values())


def test_the_norm_is_the_root_of_the_mean_square_before_transmission() -> None:
    policy = Recorder()
    cluster = Cluster(3, policy=policy, uplink=LOSSY)
    gradients = [gradient(rank, 5000) for rank in range(3)]
    expected = math.sqrt(sum(float(np.sum(g.astype(np.float64) ** 2)) for g in gradients) / 3)
    cluster.all_reduce(gradients)
    assert policy.asked[0][2] == pytest.approx(expected, rel=1e-12)


def test_the_received_norm_is_that_of_the_mean() -> None:
    policy = Recorder()
    cluster = Cluster(3, policy=policy, norm="received")
    gradients = [gradient(rank, 5000) for rank in range(3)]
    mean = rank_order_mean(gradients).astype(np.float64)
    cluster.all_reduce(gradients)
    assert policy.asked[0][2] == pytest.approx(float(np.linalg.norm(mean)), rel=1e-9)


def test_a_gradient_that_is_not_finite_asks_the_policy_with_nan_or_inf() -> None:
    policy = Recorder()
    cluster = Cluster(2, policy=policy)
    for value in (np.nan, np.inf):
        arrays = [np.ones(10, np.float32), np.full(10, value, np.float32)]
        cluster.all_reduce(arrays)
    assert math.isnan(policy.asked[0][2]) and math.isinf(policy.asked[1][2])


def test_a_sequential_exact_uplink_does_not_make_a_lossy_downlink_drop_its_tail() -> None:
    """Hazard 1 on the downlink: chunks become ready in the order in which they came up."""
    policy = Schedule([(0, "0%"), (1, "40.8%"), (2, "0%"), (3, "40.8%")])
    cluster = Cluster(1, policy=policy, downlink="lossy", config=TransportConfig(order="rotate"))
    lost = np.zeros(CHUNKS, int)
    for step in range(4):
        (one,) = cluster.all_reduce([gradient(0, COUNT, seed=step)])
        assert one.round.receiver is not None
        lost += ~delivered(one.round.receiver)
    assert lost.sum() > 0
    assert lost[: CHUNKS // 2].sum() > 0
