"""What is read off the finished cells: numbers of one cell, and columns of cells over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .settings import Setting, Workload
from .statistics import Spread, quantile, spread_of
from .store import CellResult

__all__ = ["MEASURES", "Column", "Measure", "best_value", "columns_of", "detections", "reaches"]

ETA = 0.5
"""Eq. 1's threshold in the paper, for the question what would have been detected."""


def burst_sends(result: CellResult) -> list[float]:
    """Send latency of the rounds that a burst hit, in seconds."""
    return [result.steps["send_s"][step] for step in result.bursts]


def total_bytes(result: CellResult, steps: int | None = None) -> float:
    """Bytes of all ranks up and down in the first `steps` steps, or in all of them."""
    up, down = result.steps["bytes_up"], result.steps["bytes_down"]
    return float(sum(up[:steps]) + sum(down[:steps]))


Measure = str | Callable[[CellResult], float]
"""A number of a cell: a key of `MEASURES`, or a function."""


def dropped(result: CellResult) -> float:
    """Share that did not arrive in the steps that may lose something; NaN without such steps."""
    lost = [
        1 - delivered
        for delivered, tolerance in zip(
            result.steps["delivered"], result.steps["tolerance"], strict=True
        )
        if tolerance != "0%"
    ]
    return math.fsum(lost) / len(lost) if lost else math.nan


MEASURES: dict[str, Callable[[CellResult], float]] = {
    "score": lambda result: result.scores[-1]["value"] if result.scores else math.nan,
    "train_s": lambda result: math.fsum(result.steps["step_s"]),
    "mean_send_s": lambda result: math.fsum(result.steps["send_s"]) / result.rounds,
    "p50_send_s": lambda result: quantile(result.steps["send_s"], 0.5),
    "tail_send_s": lambda result: max(result.steps["send_s"]),
    "mean_exchange_s": lambda result: math.fsum(result.steps["exchange_s"]) / result.rounds,
    "exchange_s": lambda result: math.fsum(result.steps["exchange_s"]),
    "bytes": total_bytes,
    "mean_bytes_up": lambda result: math.fsum(result.steps["bytes_up"]) / result.rounds,
    "delivered": lambda result: math.fsum(result.steps["delivered"]) / result.rounds,
    "dropped": dropped,
    "critical": lambda result: sum(map(bool, result.steps["critical"])) / result.rounds,
    "drift": lambda result: result.drift,
}
"""One number of a cell, by name; seconds, bytes, shares."""


@dataclass(frozen=True)
class Column:
    """The finished cells of one setting, one per seed."""

    key: str
    cells: Sequence[CellResult]

    @property
    def setting(self) -> Setting:
        """What they have in common."""
        return self.cells[0].cell.setting

    @property
    def workload(self) -> Workload:
        """What they trained or sent."""
        return self.cells[0].cell.workload

    @property
    def metric(self) -> str:
        """ "accuracy", "perplexity" or ""."""
        return self.cells[0].metric

    @property
    def bursts(self) -> int:
        """Microbursts per cell."""
        return self.cells[0].cell.bursts.count

    @property
    def is_traffic(self) -> bool:
        """Whether nothing was learned."""
        return self.cells[0].cell.kind == "traffic"

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """One number per seed."""
        function = MEASURES[measure] if isinstance(measure, str) else measure
        return {result.cell.seed: function(result) for result in self.cells}

    def spread(self, measure: Measure) -> Spread:
        """Over the seeds."""
        return spread_of(self.by_seed(measure).values())


def columns_of(results: Iterable[CellResult]) -> dict[str, Column]:
    """Cells by what they have in common but for the seed, in their order."""
    found: dict[str, list[CellResult]] = {}
    for result in results:
        found.setdefault(result.cell.column, []).append(result)
    return {key: Column(key, cells) for key, cells in found.items()}


def best_value(column: Column) -> float:
    """The best mean score of any epoch."""
    last = min(len(result.scores) for result in column.cells)
    means = [
        spread_of(result.scores[epoch]["value"] for result in column.cells).mean
        for epoch in range(last)
    ]
    if not means:
        return math.nan
    return max(means) if column.metric == "accuracy" else min(means)


def reaches(result: CellResult, target: float) -> tuple[float, float] | None:
    """(seconds, bytes) until the first epoch whose score is as good as `target`; None: never."""
    for score in result.scores:
        value = score["value"]
        if value >= target if result.metric == "accuracy" else value <= target:
            return score["train_s"], total_bytes(result, int(score["step"]))
    return None


def detections(result: CellResult, norms: str, interval: int) -> list[int]:
    """Steps at which Eq. 1 would fire on "norm" (as sent) or "mean_norm" (as received)."""
    values = result.steps[norms]
    return [
        step
        for step in range(interval, len(values), interval)
        if values[step - 1] > 0 and abs(values[step - 1] - values[step]) >= ETA * values[step - 1]
    ]
