"""Small models and batches that the checks train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dblp
from tests.train.ranks import Job

WIDTH = 128
BUCKET_MB = 0.03
"""Several buckets once DDP has rebuilt them."""

SMALL_CHUNKS = dblp.TransportConfig(mtu=1500)
"""As between hosts.  Within one, models as small as these have a few chunks, and lose none."""


def perceptron() -> nn.Module:
    """35 thousand parameters: a hundred chunks; the same on every rank."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 64),
    )


def wrapped(model: nn.Module, job: Job, **settings: Any) -> DistributedDataParallel:
    settings = {"bucket_cap_mb": BUCKET_MB, **settings}
    return DistributedDataParallel(model, process_group=job.group, **settings)


def batches(rank: int, steps: int, rows: int = 8) -> Iterator[torch.Tensor]:
    """Inputs of this rank, (rows, 64); they double as targets."""
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        yield torch.randn(rows, 64, generator=generator)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.tanh()).square().mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters one after the other."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def gradients(model: nn.Module) -> torch.Tensor:
    """All gradients one after the other."""
    parts = [item.grad.reshape(-1) for item in model.parameters() if item.grad is not None]
    return torch.cat(parts)
