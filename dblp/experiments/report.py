"""`dblp report`: the tables and figures of finished runs beside the paper's."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import convergence, latency, reasons
from .catalogue import experiment_of
from .measures import MEASURES, Column, burst_sends, columns_of
from .page import Block, Heading, Items, Table, Text, to_html, to_markdown
from .paper import PAPER
from .store import RunInfo, Store, find_runs

__all__ = ["blocks_of", "write_report"]


def write_report(folder: Path, out: Path | None = None) -> list[Path]:
    """Writes `report.html`, `report.md` with its figures, and `results.json`: the numbers of every
    cell without its single steps, small enough to keep and to pass on.

    Args:
        folder: of a run, or with several runs below it.
        out: where the files go; None: to `folder`.

    Returns:
        The page, the Markdown and the numbers.

    Raises:
        ConfigError: there are no results, or the files cannot be written.
    """
    stores = find_runs(folder)
    target = folder if out is None else out
    blocks: list[Block] = [
        Heading("DBLP: experiments beside the paper", 1),
        Text(
            "Every number is a mean over seeds ± the sample standard deviation, n the number of "
            "seeds. Ratios are baseline over DBLP, made seed by seed: above 1, DBLP needs less. "
            "All gradients travelled through real UDP sockets (gloo: TCP)."
        ),
    ]
    for store in stores:
        blocks += blocks_of(store)
    if len(stores) > 1:
        blocks += _comparison(stores)
    try:
        target.mkdir(parents=True, exist_ok=True)
        files = [target / name for name in ("report.html", "report.md", "results.json")]
        files[0].write_text(to_html("DBLP: experiments", blocks))
        files[1].write_text(to_markdown(blocks, target))
        files[2].write_text(json.dumps([_numbers(store) for store in stores], indent=1) + "\n")
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written ({error.strerror}): pass another --out"
        ) from error
    return files


def _numbers(store: Store) -> dict[str, Any]:
    """What a run is, and of every finished cell its configuration, scores and measures."""
    cells = []
    for result in store.results():
        measured = {name: measure(result) for name, measure in MEASURES.items()}
        cells.append(
            {
                **result.cell.to_dict(),
                "key": result.cell.key,
                "scores": result.scores,
                "metric": result.metric,
                # Names say the unit; what a cell does not have is left out.
                **{name: value for name, value in measured.items() if math.isfinite(value)},
                "bursts_send_s": burst_sends(result),
                "commit": result.commit,
                "finished": result.finished,
            }
        )
    info = dataclasses.asdict(store.info())
    return {**{key: value for key, value in info.items() if key != "cells"}, "cells": cells}


def blocks_of(store: Store) -> list[Block]:
    """One run."""
    info = store.info()
    columns = columns_of(store.results())
    experiment = experiment_of(info.experiment)
    blocks: list[Block] = [
        Heading(f"{experiment.title} ({info.name.removeprefix(f'{info.experiment}-')})"),
        Text(experiment.shows),
        *_origin(info, columns),
    ]
    if not columns:
        return [*blocks, Text("No cell of this run is finished yet.")]
    trained = [column for column in columns.values() if not column.is_traffic]
    sent = [column for column in columns.values() if column.is_traffic]
    figures = PAPER.get(info.experiment)
    blocks += convergence.blocks(info, trained, figures)
    blocks += latency.blocks(info, sent or trained, figures, traffic=bool(sent))
    blocks += [Heading("What differs from the paper, and why", 3), Items(reasons.of(info, columns))]
    blocks += _all_cells(list(columns.values()))
    return blocks


def _origin(info: RunInfo, columns: dict[str, Column]) -> list[Block]:
    """Where the numbers come from."""
    done = sum(len(column.cells) for column in columns.values())
    commits = sorted({cell.commit for column in columns.values() for cell in column.cells})
    machine = info.machine
    items = [
        f"Command: `{info.command}`",
        f"Cells: {done} of {len(info.cells)} finished, {info.seeds} seeds planned",
        f"Commit: {', '.join(commits) or info.commit}",
        f"Machine: {machine.get('processor', '?')}, {machine.get('cores', '?')} cores, "
        f"{machine.get('system', '?')}; network: {machine.get('network', '?')}; Python "
        f"{machine.get('python', '?')}, torch {machine.get('torch', '?')}, "
        f"{machine.get('fastpath', '?')} fast path",
    ]
    if info.data:
        items.append(f"Data: {info.data}")
    return [Items(items)]


def _all_cells(columns: Sequence[Column]) -> list[Block]:
    """Every column of the run, with everything that was measured."""
    rows = [
        [
            f"{column.setting.label}{_burst_words(column)}",
            "traffic" if column.is_traffic else "training",
            str(len(column.cells)),
            column.spread("train_s").text("{:.1f}"),
            column.spread("mean_send_s").times(1e3).text("{:.1f}"),
            column.spread("tail_send_s").times(1e3).text("{:.1f}"),
            column.spread("bytes").times(1e-6).text("{:.0f}"),
            column.spread("delivered").times(100).text("{:.1f}"),
            column.spread("critical").times(100).text("{:.0f}"),
            column.spread("drift").text("{:.2g}"),
        ]
        for column in columns
    ]
    names = ["", "kind", "n", "time s", "send ms", "tail ms", "MB", "delivered %", "critical %",
             "drift"]  # fmt: skip
    return [Heading("Everything that was measured", 3), Table("All settings", names, rows)]


def _burst_words(column: Column) -> str:
    return f", {column.bursts} bursts" if column.bursts else ""


def _comparison(stores: Sequence[Store]) -> list[Block]:
    """Table V over all runs, and its picture."""
    rows = latency.time_rows(stores)
    if not rows:
        return []
    return [Heading("All models"), *latency.time_blocks(rows)]
