"""Firewalls: datagrams get through in one direction or in none.  Rounds end, with one warning."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.faults import Impairment
from dblp.io import acceptor
from tests.integration.cluster import Cluster, gradients, rank_order_mean, results, sent_or_zero
from tests.integration.pairs import peers

WALL = Impairment(uniform=1.0)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and "UDP is not blocked" in record.getMessage()
    ]


@pytest.mark.parametrize("blocked", ["both", "uplink", "downlink"])
def test_a_cluster_without_datagrams(
    blocked: str, config: TransportConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(
        2,
        config,
        impairment=WALL if blocked != "downlink" else None,
        worker_impairment=WALL if blocked != "uplink" else None,
    ) as cluster:
        for size in (1, 40_000, 40_000, 0, 700_000):
            arrays = gradients(2, size)
            wanted = rank_order_mean(arrays).tobytes()
            reports = cluster.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)
        assert any(r.uplink.fallback or r.downlink.fallback for r in reports)
    told = warnings_in(caplog)
    assert told
    # Both workers are in this process, so theirs may come twice.
    assert all(told.count(text) <= (2 if "server" in text else 1) for text in told), told


def test_a_lossy_round_without_datagrams(config: TransportConfig) -> None:
    with peers(config, impairment=WALL, listener_impairment=WALL) as (here, there):
        for p in ("0", "40.8%"):
            sent = np.full(200_000, 7, np.uint8)
            got = np.full(200_000, 9, np.uint8)
            _, report = results([here.send_async(sent), there.recv_async(got, p)])
            assert sent_or_zero(got, sent) == report.missing
            assert report.missing <= report.chunks * 0.408
            assert report.fallback


def test_a_server_that_never_sees_a_greeting(
    config: TransportConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing arrives even in the handshake: it goes on without datagrams."""

    def swallow(self: acceptor.Acceptor) -> None:
        self.udp.recvfrom(1 << 16)

    monkeypatch.setattr(acceptor.Acceptor, "_on_datagram", swallow)
    monkeypatch.setattr(acceptor, "HELLO_TRIES", 3)
    with Cluster(2, config) as cluster:
        for size in (10, 100_000):
            arrays = gradients(2, size)
            wanted = rank_order_mean(arrays).tobytes()
            reports = cluster.all_reduce(arrays)
            assert all(array.tobytes() == wanted for array in arrays)
            assert all(report.uplink.fallback for report in reports)
        assert cluster.counters()["datagrams_sent"] == 0
        told = warnings_in(caplog)
        assert len(told) == 4, "each end of both sessions warns once"
    with peers(config) as (here, there):
        got = bytearray(5000)
        results([here.send_async(bytes([5]) * 5000), there.recv_async(got)])
        assert got == bytes([5]) * 5000


def test_datagrams_that_come_back_are_used_again() -> None:
    """A wall that falls after some rounds: the transport tries again by itself."""
    wall = Impairment(bursts=dict.fromkeys(range(3), 1.0))
    with Cluster(1, TransportConfig(), impairment=wall) as cluster:
        fallback = [cluster.all_reduce(gradients(1, 5000))[0].uplink.fallback for _ in range(80)]
    assert fallback[0]
    assert not fallback[-1]


def test_the_warning_names_what_is_blocked(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(1, TransportConfig(), impairment=WALL) as cluster:
        cluster.all_reduce(gradients(1, 5000))
    assert any("to the server" in text for text in warnings_in(caplog))
    assert isinstance(cluster.server, dblp.ParameterServer)
