"""Runs an experiment cell by cell: processes on loopback, real sockets, results on disk."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..demo.orchestrate import ProcessGroup
from .assignment import START_UP_S, Assignment
from .settings import Cell, burst_rounds
from .store import CellResult, Store, commit, now

__all__ = ["PROCESS", "run_cell", "run_cells"]

PROCESS = (sys.executable, "-m", "dblp.experiments.process")
SERVER = "server"
SILENCE_S = 300.0
"""Longest that all processes may say nothing: a step of a large model, or an evaluation."""

OnStep = Callable[[Cell, int, int, float | None], None]
"""Called with the cell, the steps that are done, all of them, and rank 0's loss."""


def run_cells(
    cells: Sequence[Cell], store: Store, data: str | None, on_step: OnStep
) -> list[CellResult]:
    """Makes the cells that are not finished yet.

    Raises:
        ConfigError: data is missing, or a finished cell has other settings.
        DemoFailedError: a process failed; what is finished stays.
    """
    from .tasks import steps_of

    known: dict[Any, int] = {}
    todo = [cell for cell in cells if not store.is_finished(cell)]
    for cell in todo:  # what is missing shows before anything starts
        if cell.workload not in known:
            known[cell.workload] = steps_of(cell, data)
        burst_rounds(cell, known[cell.workload])
    made = []
    with ProcessGroup(PROCESS) as group:
        for cell in todo:
            result = run_cell(group, cell, known[cell.workload], store, data, on_step)
            store.save(result)
            made.append(result)
    return made


def run_cell(
    group: ProcessGroup, cell: Cell, steps: int, store: Store, data: str | None, on_step: OnStep
) -> CellResult:
    """One training, or one stretch of traffic.

    Args:
        group: of `PROCESS`; the processes of its ranks stay for the next cell.
    """
    logs = store.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dblp-experiment-") as scratch:
        order = Assignment(cell, steps, data, str(Path(scratch) / "store"))
        if cell.setting.transport == "server":
            group.start(SERVER, order, logs / f"{cell.key}-server.log")
            address = group.next_event(START_UP_S)[1]["address"]
            order = dataclasses.replace(order, address=address)
        for rank in range(cell.workers):
            log = logs / f"rank-{rank}.log"
            group.start(f"rank {rank}", dataclasses.replace(order, rank=rank), log)
        result = _follow(group, cell, steps, on_step)
        if cell.setting.transport == "server":
            group.finish(SERVER)
    return CellResult(
        cell=cell,
        **result,
        bursts=burst_rounds(cell, steps),
        wall_s=round(time.monotonic() - began, 3),
        commit=commit(),
        finished=now(),
    )


def _follow(group: ProcessGroup, cell: Cell, steps: int, on_step: OnStep) -> dict[str, Any]:
    """Waits for all ranks; what rank 0 found."""
    trained = 0
    result: dict[str, Any] = {}
    on_step(cell, 0, steps, None)
    while trained < cell.workers:
        _, event = group.next_event(SILENCE_S + cell.timeout_s)
        if event["event"] == "step":
            on_step(cell, event["step"] + 1, steps, event["loss"])
        elif event["event"] == "trained":
            trained += 1
            result = event["result"] or result
    return result
