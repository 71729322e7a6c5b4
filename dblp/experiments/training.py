"""The loop of one rank: the same for every model and every way to average."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..demo.trainer import schedule
from .assignment import Assignment
from .links import Passage, connect
from .tasks import Task

__all__ = ["COLUMNS", "run_rank"]

Emit = Callable[[dict[str, Any]], None]

COLUMNS = (
    "loss", "norm", "mean_norm", "critical", "tolerance", "send_s", "exchange_s", "step_s",
    "delivered", "bytes_up", "bytes_down",
)  # fmt: skip
"""Of the steps: the loss of a sample, the root mean square of the ranks' gradient norms before the
network, the norm of the mean that came back, whether the step was critical and its tolerance, the
slowest rank's seconds (until the last STOP, until the mean, for the whole step), the share of the
gradients that is in the mean, and the bytes of all ranks."""


def run_rank(assignment: Assignment, task: Task, emit: Emit) -> dict[str, Any] | None:
    """Trains one replica.

    Returns:
        The results of all ranks on rank 0, None elsewhere.
    """
    named = task.parameters()
    flat = flat_gradient([parameter for _, parameter in named])
    optimizer = _optimizer(assignment, [parameter for _, parameter in named], task)
    peak = assignment.cell.workload.learning_rate
    link = connect(assignment, named, flat)
    rows: list[list[Any]] = []
    scores: list[dict[str, float]] = []
    train_s = 0.0
    try:
        for step in range(assignment.steps):
            dist.barrier()  # steps of all ranks start together: a late start is no network time
            began = time.perf_counter()
            flat.zero_()
            loss = task.backward(step)
            norm = float(torch.linalg.vector_norm(flat)) ** 2
            passage = link.exchange()
            mean_norm = float(torch.linalg.vector_norm(flat))
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = peak * schedule(step, assignment.steps)
                optimizer.step()
            step_s = time.perf_counter() - began
            train_s += step_s
            rows.append(_row(loss, norm, mean_norm, passage, step_s))
            if assignment.rank == 0:
                emit({"event": "step", "step": step, "loss": loss if loss == loss else None})
            if (step + 1) % task.steps_per_epoch == 0 and task.metric:
                scores.append({"step": step + 1, "value": _scored(task), "train_s": train_s})
        drift = _drift(named) if task.metric else 0.0
    finally:
        link.close()
    return _gathered(rows, scores, drift, task.metric)


def flat_gradient(parameters: list[torch.Tensor]) -> torch.Tensor:
    """Makes every `.grad` a view into one float32 buffer, which it returns."""
    size = sum(parameter.numel() for parameter in parameters)
    flat = torch.zeros(size, device=parameters[0].device)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.grad = flat[start:stop].view_as(parameter)
        start = stop
    return flat


def _optimizer(
    assignment: Assignment, parameters: list[torch.Tensor], task: Task
) -> torch.optim.Optimizer | None:
    workload = assignment.cell.workload
    if not task.metric:
        return None
    if workload.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters, lr=workload.learning_rate, weight_decay=workload.weight_decay
        )
    return torch.optim.SGD(
        parameters,
        lr=workload.learning_rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=workload.weight_decay,
    )


def _row(loss: float, norm: float, mean_norm: float, passage: Passage, step_s: float) -> list[Any]:
    """One step of one rank, in the order of `COLUMNS`."""
    return [
        loss, norm, mean_norm, passage.critical, passage.tolerance, passage.send_s,
        passage.exchange_s, step_s, passage.delivered, passage.bytes_up, passage.bytes_down,
    ]  # fmt: skip


def _scored(task: Task) -> float:
    """The metric over the whole test set: every rank evaluates a share of it with its replica."""
    total = torch.tensor(task.score(), dtype=torch.float64)
    dist.all_reduce(total)
    value = float(total[0] / total[1])
    return value if task.metric == "accuracy" else math.exp(min(value, 50.0))


def _drift(named: list[tuple[str, torch.Tensor]]) -> float:
    """Largest absolute difference of any parameter between two replicas."""
    largest = 0.0
    for _, parameter in named:
        high, low = parameter.detach().cpu().clone(), parameter.detach().cpu().clone()
        dist.all_reduce(high, dist.ReduceOp.MAX)
        dist.all_reduce(low, dist.ReduceOp.MIN)
        largest = max(largest, float((high - low).max()))
    return largest


def _gathered(
    rows: list[list[Any]], scores: list[dict[str, float]], drift: float, metric: str
) -> dict[str, Any] | None:
    """All ranks' steps in one table, on rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tables: list[Any] = [None] * world
    dist.gather_object(rows, tables if rank == 0 else None)
    if rank != 0:
        return None
    merge: dict[str, Callable[[list[Any]], Any]] = {
        "loss": lambda values: sum(values) / world,
        "norm": lambda values: math.sqrt(sum(values) / world),
        "mean_norm": lambda values: values[0],
        "critical": any,
        "tolerance": lambda values: values[0],
        "send_s": max,
        "exchange_s": max,
        "step_s": max,
        "delivered": lambda values: sum(values) / world,
        "bytes_up": sum,
        "bytes_down": sum,
    }
    return {
        "metric": metric,
        "scores": scores,
        "drift": drift,
        "steps": {
            name: [merge[name]([row[place] for row in same]) for same in zip(*tables, strict=True)]
            for place, name in enumerate(COLUMNS)
        },
    }
