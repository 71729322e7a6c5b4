"""Results on disk: what a run is, and one file per finished cell, so that it can be resumed."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..demo.summary import machine
from ..errors import ConfigError
from .settings import Cell

__all__ = ["CellResult", "RunInfo", "Store", "commit", "find_runs"]

RUN_FILE = "experiment.json"
CELLS = "cells"
DIGITS = 5
"""Significant digits of what is measured per step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a run is."""

    experiment: str
    scale: str
    seeds: int
    command: str
    data: str = ""
    """What the data is, in words."""
    commit: str = "unknown"
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    cells: tuple[str, ...] = ()
    """Keys of all cells, finished or not."""
    network: str = "loopback"
    """One of `network.NETWORKS`."""

    @property
    def name(self) -> str:
        """Tells it from other runs: experiment, scale, and network where that is not loopback."""
        network = "" if self.network == "loopback" else f"-{self.network}"
        return f"{self.experiment}-{self.scale}{network}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """A finished cell."""

    cell: Cell
    steps: dict[str, list[Any]]
    """Per step; see `training.COLUMNS`."""
    scores: list[dict[str, float]]
    """Per epoch: step, value, train_s."""
    metric: str
    drift: float
    bursts: list[int]
    """Rounds that a burst hit."""
    wall_s: float
    commit: str
    finished: str
    """UTC time."""

    @property
    def rounds(self) -> int:
        """Number of steps."""
        return len(self.steps["step_s"])


class Store:
    """The directory of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, info: RunInfo) -> None:
        """Makes the directory, or takes up the run that is there.

        Raises:
            ConfigError: it belongs to something else, or cannot be written.
        """
        try:
            (self.folder / CELLS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--out {self.folder} cannot be written ({error.strerror}): choose another"
            ) from error
        if (self.folder / RUN_FILE).exists():
            found = self.info()
            if found.name != info.name:
                raise ConfigError(
                    f"--out {self.folder} has results of {found.experiment} --scale {found.scale} "
                    f"--network {found.network}: choose another directory"
                )
            info = dataclasses.replace(info, data=info.data or found.data)
        self.write(self.folder / RUN_FILE, dataclasses.asdict(info))

    def info(self) -> RunInfo:
        """What the run is; ConfigError when there is none."""
        path = self.folder / RUN_FILE
        try:
            fields = json.loads(path.read_text())
            return RunInfo(**{**fields, "cells": tuple(fields["cells"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path} is no experiment of this version ({error}): pass a directory that dblp "
                "experiment has written"
            ) from error

    def path_of(self, key: str) -> Path:
        """Of a cell's result."""
        return self.folder / CELLS / f"{key}.json"

    def is_finished(self, cell: Cell) -> bool:
        """Whether the result is there.

        Raises:
            ConfigError: there is one, of other settings under the same name.
        """
        path = self.path_of(cell.key)
        if not path.exists():
            return False
        if self.load(cell.key).cell.digest != cell.digest:
            raise ConfigError(
                f"{path} was made with other settings than this version's: choose another --out, "
                "or delete the file to make it again"
            )
        return True

    def save(self, result: CellResult) -> None:
        """Writes a finished cell, whole or not at all."""
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
        fields["cell"] = result.cell.to_dict()
        fields["steps"] = {name: _compact(values) for name, values in result.steps.items()}
        self.write(self.path_of(result.cell.key), fields)

    def load(self, key: str) -> CellResult:
        """A finished cell; ConfigError when it cannot be read."""
        path = self.path_of(key)
        try:
            fields = json.loads(path.read_text())
            cell = Cell.from_dict(fields["cell"])
            steps = {name: _expanded(values) for name, values in fields["steps"].items()}
            return CellResult(**{**fields, "cell": cell, "steps": steps})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error}): delete it to make it again"
            ) from error

    def results(self) -> list[CellResult]:
        """All finished cells of the run, in its order."""
        return [self.load(key) for key in self.info().cells if self.path_of(key).exists()]

    @staticmethod
    def write(path: Path, fields: dict[str, Any]) -> None:
        """JSON by way of a second file: a crash leaves the old one or the new one."""
        part = path.with_suffix(".part")
        part.write_text(json.dumps(fields, allow_nan=False) + "\n")
        os.replace(part, path)


def _compact(values: list[Any]) -> list[Any] | dict[str, Any]:
    """Fewer digits, None for what JSON cannot write, and one value where all are the same."""
    short = [_short(value) for value in values]
    if len(short) > 1 and all(value == short[0] for value in short):
        return {"value": short[0], "count": len(short)}
    return short


def _expanded(values: list[Any] | dict[str, Any]) -> list[Any]:
    """What `_compact` was given."""
    items = [values["value"]] * values["count"] if isinstance(values, dict) else values
    return [math.nan if value is None else value for value in items]


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def find_runs(folder: Path) -> list[Store]:
    """The runs in a directory and below it, by path; ConfigError when there are none."""
    found = sorted(path.parent for path in folder.rglob(RUN_FILE))
    if not found:
        raise ConfigError(
            f"{folder} has no results: pass the --out directory of dblp experiment, or one that "
            "holds several of them"
        )
    return [Store(path) for path in found]


def finished_cells(stores: list[Store]) -> Iterator[CellResult]:
    """Of several runs."""
    for store in stores:
        yield from store.results()


def commit() -> str:
    """Of the source this runs from, with "+" if it was changed since; "unknown" without git."""
    folder = Path(__file__).parent
    try:
        number = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return number + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def describe_machine() -> dict[str, Any]:
    """Processor, versions, and the network that loopback stands for."""
    return {**machine(), "network": _network()}


def _network() -> str:
    """Loopback, and what shapes it where `tc` was told to."""
    try:
        done = subprocess.run(
            ["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, timeout=5,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "loopback"
    words = done.stdout.strip()
    return "loopback" if not words or "noqueue" in words else f"loopback, {words}"


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
