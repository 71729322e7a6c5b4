"""Networks that are not as one would wish: small buffers, paths of different sizes, offloads that
fail, jumbo datagrams."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import dblp
import dblp.torch
from bench.netlab import NetworkLab, lab_unavailable
from dblp import fastpath, wire
from dblp.config import MTU_MAX, MTU_MIN
from dblp.io import handshake, udp
from dblp.io.driver import PeerLink
from tests.train.models import batches, loss_of, perceptron, wrapped
from tests.train.ranks import Job, Ranks, free_port

NO_LAB = lab_unavailable()
LIMIT_S = 60.0


SO_NO_CHECK = 11
"""Linux: send datagrams without a checksum."""


def links_of(mesh: Any) -> list[PeerLink]:
    """To and from the other ranks."""
    return [*mesh._owner._uplinks.values(), *mesh._owner._admission.links.values()]


def trained(
    job: Job, prepare: Callable[[Any], None] = lambda mesh: None, **options: Any
) -> tuple[set[int], bool, Counter[str]]:
    """(payload bytes of a full datagram on all paths of this rank, whether gradients are right,
    counters of all paths) after two steps."""
    model, plain = wrapped(perceptron(), job), wrapped(perceptron(), job)
    with dblp.torch.register(model, tolerance=0, **options) as state:
        mesh: Any = state.engine._pipeline.collective
        prepare(mesh)
        for batch in batches(job.rank, 2):
            for one in (model, plain):
                loss_of(one, batch).backward()
        same = all(
            torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True)
        )
        counts: Counter[str] = Counter()
        for link in links_of(mesh):
            counts.update(link.channel.counters())
        return mesh.chunk_sizes, same, counts


def wants_too_much(job: Job) -> tuple[bool, list[str]]:
    """(whether gradients are right, warnings) with a buffer that no kernel grants."""
    udp._warned_about_buffers = False
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("dblp").addHandler(handler)
    try:
        _, same, _ = trained(job, config=dblp.TransportConfig(socket_buffer_bytes=1 << 30))
    finally:
        logging.getLogger("dblp").removeHandler(handler)
    return same, [record.getMessage() for record in records]


def test_field_05_clipped_buffers_are_told_once_and_training_goes_on(ranks: Ranks) -> None:
    """However many sockets there are, with the command that changes it."""
    for same, warnings in ranks.run(wants_too_much, 3):
        assert same
        (warning,) = warnings
        assert "sysctl -w net.core.rmem_max=1073741824" in warning


def loses_offload(job: Job) -> tuple[bool, int, int]:
    """(whether gradients are right, times that segmentation offload failed, paths) where it works
    when it is tried, and fails from then on."""

    def prepare(mesh: Any) -> None:
        for link in links_of(mesh):
            link.sock.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)  # Linux segments no such ones

    _, same, counts = trained(job, prepare)
    return same, counts["gso_fallbacks"], 2 * (job.world - 1)


def test_field_07_segmentation_offload_that_fails_later(ranks: Ranks) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        if not fastpath.probe_offload(sock.fileno())[0]:
            pytest.skip("no segmentation offload here")
    for same, failed, paths in ranks.run(loses_offload, 2):
        assert same
        assert 0 < failed <= paths  # once on each, and then it stays off


def takes_jumbos(job: Job, mtu: int) -> tuple[bool, int]:
    """(whether gradients are right, datagrams that did not fit the buffers)."""
    _, same, counts = trained(job, config=dblp.TransportConfig(mtu=mtu))
    return same, counts["truncated"]


@pytest.mark.parametrize("mtu", [1500, MTU_MAX])
def test_field_08_nothing_is_truncated(ranks: Ranks, mtu: int) -> None:
    """The largest datagrams that there are, and small ones that the kernel merges."""
    assert ranks.run(takes_jumbos, 2, mtu=mtu) == [(True, 0)] * 2


def wants_more(job: Job) -> tuple[set[int], bool]:
    """One rank has a setting of its own."""
    return trained(job, config=dblp.TransportConfig(mtu=9000 if job.rank == 2 else 1500))[:2]


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
        return trained(job, port=port)[:2]
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
