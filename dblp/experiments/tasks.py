"""What the ranks of a cell compute: gradients of a model, or gradients that nobody computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from ..demo.data import Dataset
from ..demo.trainer import random_crops
from .images import describe_images, images
from .models import build
from .settings import Cell
from .text import text

__all__ = ["Task", "describe_data", "steps_of", "task_of"]

EVALUATION_BATCH = 250
EVALUATION_SEQUENCES = 16

CPU = torch.device("cpu")


class Task(Protocol):
    """One rank's side of a workload."""

    steps_per_epoch: int
    metric: str
    """"accuracy" (0 … 1), "perplexity", or "" where nothing is learned."""

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Names and parameters; equal on all ranks at the start."""

    def backward(self, step: int) -> float:
        """Adds the gradient of this rank's share of the batch to `.grad`; the loss of a sample."""

    def score(self) -> tuple[float, float]:
        """(sum, count) over this rank's share of the test set: of hits, or of nats."""


class ImageTask:
    """Classification; every rank takes every N-th image of the same shuffled batches."""

    metric = "accuracy"

    def __init__(self, cell: Cell, dataset: Dataset, rank: int, device: torch.device = CPU) -> None:
        self._cell, self._dataset, self._rank, self._device = cell, dataset, rank, device
        workload = cell.workload
        classes = int(dataset.train_labels.max()) + 1
        self._model = build(workload.model, classes, workload.size, cell.seed).to(device)
        self.steps_per_epoch = len(dataset.train_labels) // workload.batch
        self._order = torch.Generator().manual_seed(cell.seed)  # the same on all ranks …
        self._crops = torch.Generator().manual_seed(cell.seed * 1000 + rank)  # … and its own
        torch.manual_seed(cell.seed * 1000 + rank)  # dropout
        self._shuffled = torch.empty(0, dtype=torch.int64)

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Of the model."""
        return list(self._model.named_parameters())

    def backward(self, step: int) -> float:
        """Cross-entropy."""
        workload, world = self._cell.workload, self._cell.workers
        place = step % self.steps_per_epoch
        if place == 0:
            self._shuffled = torch.randperm(len(self._dataset.train_labels), generator=self._order)
        first = place * workload.batch
        shard = self._shuffled[first + self._rank : first + workload.batch : world]
        inputs = self._dataset.normalised(self._dataset.train_images[shard])
        if self._dataset.augment:
            inputs = random_crops(inputs, self._crops)
        self._model.train()
        loss = functional.cross_entropy(
            self._model(inputs.to(self._device)),
            self._dataset.train_labels[shard].to(self._device),
            reduction="sum",
            label_smoothing=workload.label_smoothing,
        )
        # Shards may differ in size by one image: like this the mean over ranks is the batch's.
        torch.autograd.backward(loss * (world / workload.batch))
        return loss.item() / len(shard)

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Hits, with this rank's own replica."""
        self._model.eval()
        world, dataset = self._cell.workers, self._dataset
        pixels, labels = (
            part[self._rank :: world] for part in (dataset.test_images, dataset.test_labels)
        )
        hits = 0
        for first in range(0, len(labels), EVALUATION_BATCH):
            part = slice(first, first + EVALUATION_BATCH)
            inputs = dataset.normalised(pixels[part]).to(self._device)
            hits += int((self._model(inputs).argmax(1).cpu() == labels[part]).sum())
        return float(hits), float(len(labels))


class TextTask:
    """Next tokens; sequences are cut from the text and shuffled, the same on all ranks."""

    metric = "perplexity"

    def __init__(self, cell: Cell, data: str | None, rank: int, device: torch.device = CPU) -> None:
        self._cell, self._rank, self._device = cell, rank, device
        workload = cell.workload
        found = text(workload, data)
        self._model = build(workload.model, found.vocabulary, workload.size, cell.seed).to(device)
        self._train, self._test = (
            part[: len(part) // workload.sequence * workload.sequence].view(-1, workload.sequence)
            for part in (found.train, found.test)
        )
        self.steps_per_epoch = len(self._train) // workload.batch
        self._order = torch.Generator().manual_seed(cell.seed)
        torch.manual_seed(cell.seed * 1000 + rank)
        self._shuffled = torch.empty(0, dtype=torch.int64)

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Of the model."""
        return list(self._model.named_parameters())

    def backward(self, step: int) -> float:
        """Mean over the tokens of this rank's sequences; batches divide evenly among ranks."""
        batch, world = self._cell.workload.batch, self._cell.workers
        place = step % self.steps_per_epoch
        if place == 0:
            self._shuffled = torch.randperm(len(self._train), generator=self._order)
        first = place * batch
        rows = self._train[self._shuffled[first + self._rank : first + batch : world]]
        rows = rows.to(self._device)
        self._model.train()
        loss: torch.Tensor = self._model(input_ids=rows, labels=rows).loss
        torch.autograd.backward(loss)
        return loss.item()

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Nats of the predicted tokens."""
        self._model.eval()
        nats, count = 0.0, 0
        shard = self._test[self._rank :: self._cell.workers]
        for first in range(0, len(shard), EVALUATION_SEQUENCES):
            rows = shard[first : first + EVALUATION_SEQUENCES].to(self._device)
            tokens = rows.numel() - len(rows)  # the first of a sequence is not predicted
            nats += self._model(input_ids=rows, labels=rows).loss.item() * tokens
            count += tokens
        return nats, float(count)


class TrafficTask:
    """Gradients of a model's real size, sent without computing them: for times, not for learning.

    Their elements are those of one random draw, larger in some parts than in others as between the
    layers of a network, scaled a little differently in every round.  The norm never jumps.
    """

    metric = ""

    def __init__(self, cell: Cell, rank: int) -> None:
        generator = torch.Generator().manual_seed(cell.seed * 1000 + rank)
        size = cell.workload.elements
        self.steps_per_epoch = cell.workload.rounds
        self._draw = torch.randn(size, generator=generator)
        for part in self._draw.chunk(64):
            part *= math.exp(float(torch.randn((), generator=generator)))
        self._scale = torch.Generator().manual_seed(cell.seed)
        self._parameter = nn.Parameter(torch.zeros(size), requires_grad=False)

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """One of them, as large as the model."""
        return [("gradient", self._parameter)]

    def backward(self, step: int) -> float:
        """No loss: NaN."""
        assert self._parameter.grad is not None
        factor = 1 + 0.1 * float(torch.rand((), generator=self._scale))
        torch.mul(self._draw, factor, out=self._parameter.grad)
        return math.nan

    def score(self) -> tuple[float, float]:
        """Nothing was learned."""
        return math.nan, 1.0


def task_of(cell: Cell, data: str | None, rank: int) -> Task:
    """The task of a rank; ConfigError where data is missing.

    Models of the paper's size use a GPU where there is one; ranks share those there are.
    """
    device = CPU
    if cell.workload.size == "paper" and torch.cuda.is_available():
        device = torch.device("cuda", rank % torch.cuda.device_count())
    if cell.kind == "traffic":
        return TrafficTask(cell, rank)
    if cell.workload.data in ("wikitext2", "source"):
        return TextTask(cell, data, rank, device)
    return ImageTask(cell, images(cell.workload, data), rank, device)


def steps_of(cell: Cell, data: str | None) -> int:
    """Rounds of a cell.  Loads its data, so that what is missing shows before anything starts."""
    workload = cell.workload
    if cell.kind == "traffic":
        return workload.rounds
    if workload.data in ("wikitext2", "source"):
        count = len(text(workload, data).train) // workload.sequence
    else:
        count = len(images(workload, data).train_labels)
    return count // workload.batch * workload.epochs


def describe_data(cells: Sequence[Cell], data: str | None) -> str:
    """What the cells train on, in words; ConfigError where it is missing."""
    workload = next((cell.workload for cell in cells if cell.kind == "train"), None)
    if workload is None:
        return ""
    if workload.data in ("wikitext2", "source"):
        found = text(workload, data)
        return f"{workload.data}, {found.vocabulary:,} different tokens"
    return describe_images(workload, data)
