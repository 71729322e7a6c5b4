"""Backward passes of all kinds: unused parameters, accumulation, passes inside passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dblp
import dblp.torch
from tests.train.models import batches, flat, loss_of, perceptron, sgd, wrapped
from tests.train.ranks import Job, Ranks


class Branches(nn.Module):
    """Each rank may use another branch, or one that nobody else uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.branches = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, batch: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](batch)


def unused(job: Job, over_dblp: bool) -> list[float | None]:
    """Sum of the gradient of every branch, None without one; branch 2 is used by nobody."""
    model = wrapped(Branches(), job, find_unused_parameters=True)
    state = dblp.torch.register(model, tolerance=0) if over_dblp else None
    for batch in batches(job.rank, 3):
        model.zero_grad()
        model(batch, job.rank % 2).square().mean().backward()
    if state is not None:
        state.close()
    return [
        None if item.weight.grad is None else item.weight.grad.abs().sum().item()
        for item in model.module.branches
    ]


def test_field_13_unused_parameters(ranks: Ranks) -> None:
    """Zeros are data: the gradients are those of plain DDP, also of branches that few used."""
    plain, seen = (ranks.run(unused, 3, over_dblp=over) for over in (False, True))
    for one, other in zip(seen, plain, strict=True):
        assert one[:2] == pytest.approx(other[:2], rel=1e-5)
        assert one[2] is other[2] is None


def accumulates(job: Job, over_dblp: bool) -> tuple[torch.Tensor, int]:
    """(parameters, steps counted) after 3 optimizer steps of 4 backward passes each."""
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    state = dblp.torch.register(model, tolerance=0) if over_dblp else None
    inputs = list(batches(job.rank, 12))
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            for batch in inputs[4 * step : 4 * step + 3]:
                (loss_of(model, batch) / 4).backward()
        (loss_of(model, inputs[4 * step + 3]) / 4).backward()
        optimizer.step()
    if state is None:
        return flat(model), 3
    state.close()
    return flat(model), state.step


def test_field_14_no_sync_and_accumulation(ranks: Ranks) -> None:
    """Steps are counted, not backward passes, and the accumulated gradient is what is averaged."""
    plain, seen = (ranks.run(accumulates, 2, over_dblp=over) for over in (False, True))
    for (one, steps), (other, _) in zip(seen, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert steps == 3


class Checkpointed(nn.Module):
    """Every layer is computed again in backward, in a backward pass inside the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        for layer in self.layers:
            batch = checkpoint(layer, batch, use_reentrant=True)
        return batch


def reentrant(job: Job, over_dblp: bool) -> tuple[torch.Tensor, list[int]]:
    """(parameters, number of the step that each backward pass has ended)."""
    model = wrapped(Checkpointed(), job)
    optimizer = sgd(model)
    state = dblp.torch.register(model, tolerance=0) if over_dblp else None
    ended = []
    for batch in batches(job.rank, 4):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        if state is not None:
            assert state.last_report is not None
            assert not state.engine.is_open
            ended.append(state.last_report.step)
    if state is not None:
        state.close()
    return flat(model), ended


def test_field_14_reentrant_checkpoints_do_not_split_steps(ranks: Ranks) -> None:
    plain, seen = (ranks.run(reentrant, 2, over_dblp=over) for over in (False, True))
    for (one, ended), (other, _) in zip(seen, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert ended == [0, 1, 2, 3]
