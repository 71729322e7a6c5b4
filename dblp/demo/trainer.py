"""Data-parallel training with one `all_reduce` per step, meant to be read from top to bottom.

Every worker holds the whole model and computes the gradient of its shard of each batch.  The
gradients of all parameters are views into one flat float32 buffer; `worker.all_reduce(buffer)`
turns it, in place, into the mean over the workers, and plain SGD with momentum takes the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from .data import Dataset
from .model import parameter_count
from .settings import Recipe


class Reducer(Protocol):
    """What the trainer needs of a `dblp.Worker`."""

    def all_reduce(self, buffer: torch.Tensor) -> Any:
        """Replaces `buffer` by the mean over the workers and returns an AllReduceReport."""


Emit = Callable[[dict[str, Any]], None]
"""Takes one progress event, a dictionary that JSON can hold."""


def train(
    recipe: Recipe,
    dataset: Dataset,
    model: nn.Module,
    worker: Reducer,
    *,
    rank: int,
    world: int,
    seed: int,
    emit: Emit,
) -> None:
    """Trains one replica, `model`, to the end.  It must start identical on every rank.

    Emits a "round" event per step and an "epoch" event per epoch.
    """
    gradient = attach_flat_gradient(model)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
    )
    images, labels = dataset.train_images, dataset.train_labels
    steps_per_epoch = len(labels) // recipe.batch
    steps = steps_per_epoch * recipe.epochs
    order = torch.Generator().manual_seed(seed)  # the same batches on every rank …
    crops = torch.Generator().manual_seed(seed * 1000 + rank)  # … but crops of its own
    train_time_s = 0.0
    step = 0
    for epoch in range(recipe.epochs):
        model.train()
        started = time.perf_counter()
        shuffled = torch.randperm(len(labels), generator=order)
        for first in range(0, steps_per_epoch * recipe.batch, recipe.batch):
            shard = shuffled[first + rank : first + recipe.batch : world]
            inputs = dataset.normalised(images[shard])
            if dataset.augment:
                inputs = random_crops(inputs, crops)

            gradient.zero_()
            loss = functional.cross_entropy(
                model(inputs),
                labels[shard],
                reduction="sum",
                label_smoothing=recipe.label_smoothing,
            )
            # Shards may differ in size by one image; scaled like this, the mean over the workers
            # is the mean over the batch all the same.
            torch.autograd.backward(loss * (world / recipe.batch))

            squared_norm = float(gradient.square().sum())
            report = worker.all_reduce(gradient)
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * schedule(step, steps)
            optimizer.step()

            emit(round_event(step, epoch, loss.item() / len(shard), squared_norm, report))
            step += 1
        train_time_s += time.perf_counter() - started
        correct, seen = evaluate(model, dataset, rank=rank, world=world)
        emit(
            {
                "event": "epoch",
                "epoch": epoch,
                "correct": correct,
                "seen": seen,
                "train_time_s": train_time_s,
            }
        )


def attach_flat_gradient(model: nn.Module) -> torch.Tensor:
    """Makes every parameter's `.grad` a view into one float32 buffer (parameters,), which it
    returns: backward() then writes straight into what the network sends, without a copy."""
    buffer = torch.zeros(parameter_count(model), dtype=torch.float32)
    start = 0
    for parameter in model.parameters():
        stop = start + parameter.numel()
        parameter.grad = buffer[start:stop].view_as(parameter)
        start = stop
    return buffer


def schedule(step: int, steps: int) -> float:
    """Factor on the learning rate: linear warm-up over the first tenth, then a cosine to zero."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def random_crops(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shifts each image by up to 4 pixels and mirrors half of them; (n, c, h, w) as before."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    top = torch.randint(0, 9, (count, 1), generator=generator)
    left = torch.randint(0, 9, (count, 1), generator=generator)
    mirror = torch.rand(count, 1, generator=generator) < 0.5
    rows = top + torch.arange(height)
    columns = left + torch.where(mirror, torch.arange(width - 1, -1, -1), torch.arange(width))
    index = torch.arange(count)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


@torch.no_grad()
def evaluate(model: nn.Module, dataset: Dataset, *, rank: int, world: int) -> tuple[int, int]:
    """(correct, seen) on this worker's share of the test images; the sum over the workers is the
    test accuracy, and no worker waits for another."""
    model.eval()
    correct = 0
    images, labels = dataset.test_images[rank::world], dataset.test_labels[rank::world]
    for first in range(0, len(labels), 500):
        part = slice(first, first + 500)
        correct += int((model(dataset.normalised(images[part])).argmax(1) == labels[part]).sum())
    return correct, len(labels)


def round_event(
    step: int, epoch: int, loss: float, squared_norm: float, report: Any
) -> dict[str, Any]:
    """What the orchestrator learns about one step of one worker."""
    return {
        "event": "round",
        "step": step,
        "epoch": epoch,
        "loss": loss,
        "squared_norm": squared_norm,
        # The uplink was held to what the round before decided; the first to the policy's start.
        "critical": (report.uplink.regime or report.regime) == "critical",
        "tolerance": str(report.tolerance),
        "elapsed_s": report.elapsed_s,
        "uplink": report.uplink.to_dict(),
        "downlink": report.downlink.to_dict(),
    }
