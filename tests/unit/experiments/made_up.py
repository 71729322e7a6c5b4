"""Results of cells that nobody ran, with numbers that tests can foresee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dblp.experiments.catalogue import cells_of, experiment_of
from dblp.experiments.settings import Cell
from dblp.experiments.store import CellResult, RunInfo, Store

STEPS = 40

SEND_S = {"baseline": 0.030, "paper": 0.020}
"""By setting; 0.025 for the others.  A burst makes it ten times as long for the baseline, twice for
the others."""


def result_of(cell: Cell, scores: list[float] | None = None, **changes: Any) -> CellResult:
    """A finished cell of STEPS steps in two epochs."""
    bursts = [25, 31, 37][: cell.bursts.count]
    usual = SEND_S.get(cell.setting.name, 0.025)
    slow = usual * (10 if cell.setting.name == "baseline" else 2)
    send = [slow if step in bursts else usual for step in range(STEPS)]
    learned = cell.kind == "train"
    values = scores if scores is not None else [0.4, 0.5 + 0.01 * cell.seed]
    steps: dict[str, list[Any]] = {
        "loss": [2.0] * STEPS,
        "norm": [1.0 + 0.01 * step for step in range(STEPS)],
        "mean_norm": [1.0 if step % 20 < 10 else 0.4 for step in range(STEPS)],
        "critical": [step < 10 for step in range(STEPS)],
        "tolerance": ["0.8%" if step < 10 else "40.8%" for step in range(STEPS)],
        "send_s": send,
        "exchange_s": [2 * value for value in send],
        "step_s": [3 * value for value in send],
        "delivered": [0.992 if step < 10 else 0.6 for step in range(STEPS)],
        "bytes_up": [1e6 if step < 10 else 0.6e6 for step in range(STEPS)],
        "bytes_down": [1e6] * STEPS,
    }
    fields: dict[str, Any] = {
        "cell": cell,
        "steps": steps,
        "scores": [
            {"step": 20 * (epoch + 1), "value": value, "train_s": 10.0 * (epoch + 1)}
            for epoch, value in enumerate(values)
        ]
        if learned
        else [],
        "metric": "accuracy" if learned else "",
        "drift": 0.0,
        "bursts": bursts,
        "wall_s": 12.0,
        "commit": "abc1234",
        "finished": "2026-01-01 00:00:00",
    }
    return CellResult(**{**fields, **changes})


def info_of(name: str, cells: list[Cell], scale: str = "small") -> RunInfo:
    """A run of an experiment."""
    return RunInfo(
        experiment=name,
        scale=scale,
        seeds=2,
        command=f"dblp experiment {name}",
        commit="abc1234",
        machine={"processor": "a processor", "cores": 2, "network": "loopback"},
        cells=tuple(cell.key for cell in cells),
    )


def stored(
    folder: Path, name: str, scores: dict[str, list[float]] | None = None, seeds: int = 2
) -> Store:
    """A run with all cells finished.

    Args:
        scores: final accuracy by setting, one per seed.
    """
    cells = cells_of(experiment_of(name), "small", seeds)
    store = Store(folder)
    store.open(info_of(name, cells))
    for cell in cells:
        wanted = (scores or {}).get(cell.setting.name)
        values = None if wanted is None else [0.2, wanted[cell.seed - 1]]
        store.save(result_of(cell, values))
    return store
