"""What arrives is reordered, duplicated, damaged, replayed and lost: no wrong byte gets through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.faults import GilbertElliott, Impairment
from tests.integration.cluster import (
    CHUNK_BYTES,
    Cluster,
    gradients,
    rank_order_mean,
    results,
    sent_or_zero,
)
from tests.integration.pairs import peers

STORM = {"reorder": 0.3, "duplicate": 0.1, "corrupt": 0.05, "stale": 0.2}


def storm(seed: int, **more: Any) -> Impairment:
    return Impairment(seed=seed, **STORM, **more)


def test_no_wrong_byte_in_a_thousand_rounds_of_a_cluster() -> None:
    """Half of them exact, half with tolerance and an exact downlink."""
    policy = dblp.Schedule([(0, 0), (500, "40.8%")])
    with Cluster(
        2, TransportConfig(), policy=policy, impairment=storm(1), worker_impairment=storm(2)
    ) as cluster:
        rng = np.random.default_rng(0)
        for step in range(1000):
            # Small integers: the mean tells exactly which ranks a chunk came from.
            arrays = [rng.integers(1, 100, 362 * 6 - 5).astype(np.float32) for _ in range(2)]
            parts = [array / 2 for array in arrays]
            wanted = rank_order_mean(arrays)
            cluster.all_reduce(arrays)
            assert arrays[0].tobytes() == arrays[1].tobytes()
            if step < 500:
                assert arrays[0].tobytes() == wanted.tobytes()
                continue
            for start in range(0, wanted.size, 362):
                chunk = slice(start, start + 362)
                allowed = [wanted[chunk], parts[0][chunk], parts[1][chunk], 0 * wanted[chunk]]
                assert any((arrays[0][chunk] == case).all() for case in allowed), (step, start)
        counters = cluster.counters()
    for kind in ("duplicate", "stale", "corrupt", "moved"):
        assert counters[kind] > 0, (kind, counters)


def test_no_wrong_byte_in_a_thousand_transfers(config: TransportConfig) -> None:
    """Point to point, where every chunk must be the sender's or zero."""
    rng = np.random.default_rng(1)
    duplicates = 0
    with peers(config, impairment=storm(3), listener_impairment=storm(4)) as (here, there):
        for step in range(500):
            size = int(rng.integers(1, 12 * CHUNK_BYTES))
            sent = [rng.integers(1, 256, size, np.uint8) for _ in range(2)]
            got = [np.full(size, 255, np.uint8) for _ in range(2)]
            p = ("0", "0.8%", "40.8%")[step % 3]
            reports = results(
                [
                    here.send_async(sent[0]),
                    there.send_async(sent[1]),
                    there.recv_async(got[0], p),
                    here.recv_async(got[1], p),
                ]
            )
            for mine, theirs, report in zip(sent, got, reports[2:], strict=True):
                assert sent_or_zero(theirs, mine) == report.missing
                duplicates += report.duplicate
        counters = [here.counters(), there.counters()]
    for kind in ("duplicate", "stale", "corrupt", "moved"):
        assert min(counter[kind] for counter in counters) > 0, (kind, counters)
    assert duplicates > 0


@pytest.mark.parametrize(
    "faults",
    [
        Impairment(seed=1, reorder=1.0),
        Impairment(seed=2, duplicate=1.0),
        Impairment(seed=3, corrupt=0.5),
        Impairment(seed=4, stale=1.0),
        Impairment(seed=5, delay=0.5, delay_s=0.003),
        Impairment(seed=6, gilbert_elliott=GilbertElliott(to_bad=0.05, to_good=0.2)),
        Impairment(seed=7, uniform=0.7),
        storm(8, uniform=0.2, delay=0.2, gilbert_elliott=GilbertElliott(0.02, 0.3, 0.8)),
    ],
    ids=["reorder", "duplicate", "corrupt", "stale", "delay", "gilbert-elliott", "loss", "all"],
)
def test_each_fault_alone_and_hard(faults: Impairment, config: TransportConfig) -> None:
    with Cluster(2, config, impairment=faults, worker_impairment=faults) as cluster:
        for _ in range(8):
            arrays = gradients(2, 362 * 40)
            wanted = rank_order_mean(arrays).tobytes()
            cluster.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)


def test_faults_show_in_the_reports_of_their_round(config: TransportConfig) -> None:
    with Cluster(1, config, impairment=Impairment(seed=2, corrupt=0.2)) as cluster:
        reports = [cluster.all_reduce(gradients(1, 362 * 100))[0] for _ in range(3)]
        uplinks = [r for r in cluster.server.reports if r.direction == "uplink"]
        assert sum(report.corrupt + report.malformed for report in uplinks) > 0
        assert all(report.uplink.retransmitted > 0 for report in reports)
        assert all(report.uplink.passes > 1 for report in reports)


def test_equal_seeds_lose_equal_datagrams() -> None:
    """Reproducible: the same seed and the same arrivals give the same loss."""
    losses = []
    for _ in range(2):
        loss = Impairment(seed=11, bursts={1: 0.7})
        with peers(TransportConfig(order="sequential"), listener_impairment=loss) as (a, b):
            sent = np.ones(50 * CHUNK_BYTES, np.uint8)
            masks = []
            for p in ("90%", "90%"):
                got = np.empty_like(sent)
                results([a.send_async(sent), b.recv_async(got, p)])
                masks.append(got[::CHUNK_BYTES].astype(bool))
            losses.append(masks)
    # An early stop may come sooner or later, but what arrived in both runs came in one order.
    first, second = (np.flatnonzero(masks[1]) for masks in losses)
    shared = min(first.size, second.size, 3)
    assert shared > 0
    assert first[:shared].tolist() == second[:shared].tolist()


@pytest.mark.parametrize("lossy", [False, True])
def test_a_burst_hits_one_round_only(lossy: bool, config: TransportConfig) -> None:
    """The experiment of Section V-B: 70 % of one iteration's datagrams are lost."""
    burst = 6
    loss = Impairment(seed=9, bursts={burst: 0.7})
    with Cluster(
        2, config, policy=dblp.FixedTolerance("40.8%" if lossy else 0),
        impairment=loss, worker_impairment=loss,
    ) as cluster:  # fmt: skip
        rounds = [cluster.all_reduce(gradients(2, 362 * 300)) for _ in range(12)]
    for round_id, reports in enumerate(rounds):
        for report in reports:
            assert report.uplink.round_id == round_id
            if round_id == burst:
                assert report.uplink.retransmitted > 0
            elif abs(round_id - burst) > 1:  # reports of neighbours overlap in time
                assert report.uplink.injected_loss == report.downlink.injected_loss == 0
    injected = sum(r.injected_loss for r in cluster.server.reports if r.round_id == burst)
    assert injected > 100


def test_dblp_rides_a_burst_that_the_baseline_must_repair() -> None:
    """With p = 40.8 % the burst round sends fewer datagrams again than with p = 0.8 %."""
    again = {}
    for p in ("0.8%", "40.8%"):
        loss = Impairment(seed=12, bursts={3: 0.7})
        with Cluster(2, TransportConfig(), policy=dblp.FixedTolerance(p), impairment=loss) as c:
            rounds = [c.all_reduce(gradients(2, 362 * 1000)) for _ in range(5)]
        again[p] = sum(report.uplink.retransmitted for report in rounds[3])
        assert all(report.uplink.injected_loss == 0 for report in rounds[1])
    assert 0 < again["40.8%"] < again["0.8%"]


def test_a_burst_over_a_lossy_link() -> None:
    """The burst takes the place of the uniform loss for its round, then that is back."""
    loss = Impairment(seed=13, uniform=0.05, bursts={2: 0.7})
    with Cluster(1, TransportConfig(), impairment=loss) as cluster:
        for _ in range(5):
            cluster.all_reduce(gradients(1, 362 * 400))
    # After the end: a worker has its mean before the server has made its reports.
    uplinks = [r for r in cluster.server.reports if r.direction == "uplink"]
    shares = [r.injected_loss / (r.injected_loss + r.datagrams) for r in uplinks]
    assert len(shares) == 5
    assert all(0 < share < 0.3 for share in shares[:2] + shares[3:]), shares
    assert shares[2] > 0.5, shares
