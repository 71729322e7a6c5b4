"""The tolerance is exact: at least ceil((1 − p) · chunks) arrive, in every round."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.faults import Impairment
from dblp.stats import RoundReport
from dblp.tolerance import Tolerance
from tests.integration.cluster import CHUNK_BYTES, Cluster, gradients, results, sent_or_zero
from tests.integration.pairs import peers

TABLE_I = ["0.8%", "2.4%", "40.8%", "42.4%"]

CHUNKS = [1, 2, 3, 4, 5, 9, 10, 41, 42, 59, 60, 124, 125, 126, 250, 625, 1000, 1999, 2000]
"""Around the counts at which p · count is an integer (125 and 250 for 0.8 %), and both ends."""


def needed(p: str, chunks: int) -> int:
    """ceil((1 − p) · chunks), by another way than the code under test."""
    percent, _ = p.split("%")
    return math.ceil((1 - Fraction(percent) / 100) * chunks)


def assert_bound(report: RoundReport) -> None:
    assert report.delivered >= needed(report.tolerance, report.chunks), report


@pytest.mark.parametrize("p", TABLE_I)
@pytest.mark.parametrize("stop", ["eager", "patient"])
def test_enough_chunks_arrive_and_the_others_are_zero(p: str, stop: str) -> None:
    config = TransportConfig(stop=stop)
    loss = Impairment(seed=3, uniform=0.25)
    rng = np.random.default_rng(5)
    with peers(config, impairment=loss, listener_impairment=loss) as (sender, receiver):
        for chunks in CHUNKS:
            for tail in (CHUNK_BYTES, 1):
                size = (chunks - 1) * CHUNK_BYTES + tail
                sent = rng.integers(1, 256, size, np.uint8)
                got = np.full(size, 255, np.uint8)
                here, there = results([sender.send_async(sent), receiver.recv_async(got, p)])
                assert there.chunks == chunks
                assert there.tolerance == p
                assert there.missing == here.missing == sent_or_zero(got, sent)
                assert_bound(there)


@pytest.mark.parametrize("p", TABLE_I)
def test_a_perfect_network_stops_early_at_the_very_bound(p: str) -> None:
    """The early stop of the paper: nothing is lost, and still not everything is waited for."""
    with peers(TransportConfig(stop="eager")) as (sender, receiver):
        sent = np.ones(2000 * CHUNK_BYTES, np.uint8)
        got = np.empty_like(sent)
        _, there = results([sender.send_async(sent), receiver.recv_async(got, p)])
        assert_bound(there)
        assert sent_or_zero(got, sent) == there.missing


def test_patience_waits_for_all_of_a_perfect_network() -> None:
    with peers(TransportConfig(stop="patient")) as (sender, receiver):
        sent = np.ones(300 * CHUNK_BYTES, np.uint8)
        got = np.empty_like(sent)
        _, there = results([sender.send_async(sent), receiver.recv_async(got, "42.4%")])
        assert there.missing == 0


@pytest.mark.parametrize("downlink", ["exact", "lossy"])
@pytest.mark.parametrize("rule", ["zero", "contributors"])
def test_every_report_of_a_cluster_keeps_the_bound(
    downlink: str, rule: str, config: TransportConfig
) -> None:
    loss = Impairment(seed=8, uniform=0.2)
    policy = dblp.Schedule(list(enumerate(["0.8%", "2.4%", "40.8%", "42.4%", 0, "40.8%"])))
    with Cluster(
        3, config, policy=policy, downlink=downlink, rule=rule,
        impairment=loss, worker_impairment=loss,
    ) as cluster:  # fmt: skip
        for step in range(8):
            seen = cluster.all_reduce(gradients(3, 362 * 125))
            assert len({report.tolerance for report in seen}) == 1, "C1: one p for all ranks"
            for report in seen:
                assert report.uplink.chunks == 125
                assert_bound(report.uplink)
                assert_bound(report.downlink)
                if downlink == "exact":
                    assert report.downlink.missing == 0
                if step == 0:
                    assert report.tolerance == "0.8%"
        for report in list(cluster.server.reports):
            assert_bound(report)


def test_the_zero_rule_and_the_contributors_rule_on_what_is_missing() -> None:
    """Every chunk of the mean is a sum over a subset of the ranks, divided as the rule says."""
    chunks, ranks = 200, 2
    for rule in ("zero", "contributors"):
        loss = Impairment(seed=1, uniform=0.3)
        with Cluster(
            ranks, TransportConfig(), policy=dblp.FixedTolerance("40.8%"), rule=rule,
            impairment=loss,
        ) as cluster:  # fmt: skip
            arrays = [np.full(chunks * 362, 1 + 2 * r, np.float32) for r in range(ranks)]
            seen = cluster.all_reduce(arrays)
            assert (arrays[0] == arrays[1]).all(), "an exact downlink keeps replicas equal"
            by_chunk = arrays[0].reshape(chunks, 362)
            assert (by_chunk == by_chunk[:, :1]).all()
            found = set(by_chunk[:, 0].tolist())
            allowed = {0, 0.5, 1.5, 2} if rule == "zero" else {0, 1, 3, 2}
            assert found <= allowed
            assert len(found) > 1
            assert sum(report.uplink.missing for report in seen) > 0


def test_the_bound_is_computed_in_integers() -> None:
    """40.8 % of 625 chunks in binary floating point is off by one (hazard 8)."""
    assert Tolerance.of("40.8%").needed(625) == needed("40.8%", 625) == 370
