"""Rounds over real sockets on loopback, from this process to another, p = 0, CRC on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dblp
from bench.micro.sink import TIMEOUT_S
from bench.transport.peers.role import Role, python_command

START_TIMEOUT_S = 60.0
ROUNDS = {1_000_000: 300, 20_000_000: 60, 100_000_000: 20}


@pytest.fixture(scope="module")
def sink() -> Iterator[tuple[Role, str]]:
    """The receiving process and its address."""
    with Role(None, 0, python_command("bench.micro.sink")) as role:
        yield role, role.hear(START_TIMEOUT_S)["address"]


@pytest.mark.sizes(full=tuple(ROUNDS), smoke=(1_000, 300_000))
def test_loopback_round(
    benchmark: Any, moves: Any, full: bool, sink: tuple[Role, str], nbytes: int
) -> None:
    """From the call of `send` until the receiver has said that it has everything."""
    role, address = sink
    buffer = np.arange(nbytes, dtype=np.uint8)
    config = dblp.TransportConfig(timeout_s=TIMEOUT_S)
    role.tell({"nbytes": nbytes})
    moves(nbytes)
    with dblp.Peer.connect(address, config=config) as peer:
        rounds, warmup = (ROUNDS[nbytes], 3) if full else (1, 0)
        report = benchmark.pedantic(peer.send, (buffer,), rounds=rounds, warmup_rounds=warmup)
        benchmark.extra_info["kernel_drops"] = peer.counters()["kernel_drops"]
    assert report.missing == 0
    answer = role.hear(TIMEOUT_S)
    assert answer["rounds"] >= 1
    assert answer["sum"] == int(buffer.sum())
