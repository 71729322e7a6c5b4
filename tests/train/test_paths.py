"""Ranks whose paths take packets of different sizes (field problem 6)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import dblp
import dblp.torch
from bench.netlab import NetworkLab, lab_unavailable
from dblp import wire
from dblp.config import MTU_MIN
from dblp.io import handshake
from tests.train.models import batches, loss_of, perceptron, wrapped
from tests.train.ranks import Job, Ranks, free_port

NO_LAB = lab_unavailable()
LIMIT_S = 60.0


def trained(job: Job, **options: Any) -> tuple[set[int], bool]:
    """(payload bytes of a full datagram on all paths of this rank, whether gradients are right)."""
    model, plain = wrapped(perceptron(), job), wrapped(perceptron(), job)
    with dblp.torch.register(model, tolerance=0, **options) as state:
        mesh: Any = state.engine._pipeline.collective
        for batch in batches(job.rank, 2):
            for one in (model, plain):
                loss_of(one, batch).backward()
        same = all(
            torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True)
        )
        return mesh.chunk_sizes, same


def wants_more(job: Job) -> tuple[set[int], bool]:
    """One rank has a setting of its own."""
    return trained(job, config=dblp.TransportConfig(mtu=9000 if job.rank == 2 else 1500))


def test_field_06_settings_that_differ(ranks: Ranks) -> None:
    assert ranks.run(wants_more, 3) == [({wire.chunk_bytes_for_mtu(1500)}, True)] * 3


def hears_nothing_long(job: Job, port: int) -> tuple[set[int], bool]:
    """Nothing long gets through from rank 2, and nobody knows."""
    real = handshake._bind_datagrams

    async def bind(sock: Any, frames: Any, welcome: Any) -> Any:
        return await real(sock, frames, msgspec.structs.replace(welcome, mtu=MTU_MIN))

    os.environ["LOCAL_RANK"] = str(job.rank)
    if job.rank == 2:
        handshake._bind_datagrams = bind
    try:
        return trained(job, port=port)
    finally:
        handshake._bind_datagrams = real
        del os.environ["LOCAL_RANK"]


@pytest.mark.parametrize("one_port", [False, True])
def test_field_06_a_path_that_takes_less_than_it_says(ranks: Ranks, one_port: bool) -> None:
    """All ranks connect again with what every path takes, on the ports that they had."""
    results = ranks.run(hears_nothing_long, 3, port=free_port(3) if one_port else 0)
    assert results == [({wire.chunk_bytes_for_mtu(MTU_MIN)}, True)] * 3


RANK = """
import dblp
import dblp.torch
import torch
import torch.distributed as dist
from dblp.torch import rendezvous

torch.set_num_threads(1)
dist.init_process_group("gloo")
config = dblp.TransportConfig(mtu=9000)
for knows in (True, False):
    if not knows:
        rendezvous.path_mtu = lambda host: None  # as behind a router that says nothing
    weight = torch.zeros(20_000)
    with dblp.torch.GradientExchange([weight], tolerance=0, config=config) as exchange:
        weight.grad = torch.full_like(weight, dist.get_rank())
        exchange.step()
        sizes = exchange.state.engine._pipeline.collective.chunk_sizes
        print("sizes", *sizes, "mean", weight.grad.min().item(), weight.grad.max().item())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(NO_LAB is not None, reason=str(NO_LAB))
def test_field_06_one_host_with_a_smaller_mtu(tmp_path: Path) -> None:
    """Three hosts with an MTU of 9000, of which one has 1500.  The kernel of that one knows; where
    it does not, the handshake finds out."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    with NetworkLab(3, mtu=9000) as lab:
        lab.run(2, "ip", "link", "set", "e0", "mtu", "1500")
        processes = [
            lab.popen(
                rank,
                [sys.executable, str(script)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "RANK": str(rank),
                    "WORLD_SIZE": "3",
                    "MASTER_ADDR": lab.address(0),
                    "MASTER_PORT": "29500",
                    "GLOO_SOCKET_IFNAME": "e0",
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(3)
        ]
        outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    expected = [f"sizes {wire.chunk_bytes_for_mtu(mtu)} mean 1.0 1.0" for mtu in (1500, MTU_MIN)]
    for output in outputs:
        assert [line for line in output.splitlines() if line[:5] == "sizes"] == expected, output
