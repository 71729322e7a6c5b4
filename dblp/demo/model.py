"""The two networks.  No batch normalisation: its running statistics are state that no gradient
carries, so replicas would differ in what the drift measurement is not about."""

from __future__ import annotations

import torch
from torch import nn


def build(dataset: str, seed: int) -> nn.Module:
    """The network for data set `dataset` ("digits" or "cifar10"); equal seeds give equal replicas.
    Seeds torch's global generator."""
    torch.manual_seed(seed)
    return _digits() if dataset == "digits" else _cifar10()


def _digits() -> nn.Module:
    """(n, 1, 8, 8) → (n, 10), 0.7 million parameters: 1,900 chunks at an MTU of 1500."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 288),
        nn.ReLU(),
        nn.Linear(288, 10),
    )


def _cifar10() -> nn.Module:
    """(n, 3, 32, 32) → (n, 10), 1.3 million parameters: 3,700 chunks at an MTU of 1500."""

    def stage(inside: int, outside: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.GroupNorm(8, outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.GroupNorm(8, outside),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return nn.Sequential(
        *stage(3, 32),
        *stage(32, 64),
        *stage(64, 128),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def parameter_count(model: nn.Module) -> int:
    """Number of float32 parameters, which is also the length of the gradient buffer."""
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def flat_parameters(model: nn.Module) -> torch.Tensor:
    """All parameters one after the other, float32 (parameter_count,)."""
    return torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
