"""A finished cell is not made twice, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dblp import ConfigError
from dblp.cli import app
from dblp.experiments import runner
from dblp.experiments.catalogue import cells_of, experiment_of
from dblp.experiments.settings import Cell
from dblp.experiments.store import RunInfo, Store, find_runs
from tests.unit.experiments.made_up import info_of, result_of

pytest.importorskip("torch")

CELLS = cells_of(experiment_of("phase-drop"), "small", 2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "run")
    made.open(info_of("phase-drop", CELLS))
    return made


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the cells that were made; nothing is trained."""
    keys: list[str] = []

    def run_cell(group: object, cell: Cell, steps: int, *_: object) -> object:
        assert steps == 40
        keys.append(cell.key)
        return result_of(cell)

    monkeypatch.setattr(runner, "run_cell", run_cell)
    monkeypatch.setattr("dblp.experiments.tasks.steps_of", lambda cell, data: 40)
    return keys


def ignore(*_: object) -> None:
    """Of the progress."""


def test_finished_cells_are_skipped(store: Store, ran: list[str]) -> None:
    runner.run_cells(CELLS[:4], store, None, ignore)
    assert ran == [cell.key for cell in CELLS[:4]]
    made = runner.run_cells(CELLS, store, None, ignore)
    assert ran == [cell.key for cell in CELLS]
    assert [result.cell for result in made] == CELLS[4:]


def test_an_interruption_leaves_what_was_finished(
    store: Store, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = runner.run_cell

    def interrupted(group: object, cell: Cell, *rest: object) -> object:
        if cell is CELLS[2]:
            raise KeyboardInterrupt
        return fake(group, cell, *rest)

    monkeypatch.setattr(runner, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.run_cells(CELLS, store, None, ignore)
    assert [result.cell for result in store.results()] == CELLS[:2]
    monkeypatch.setattr(runner, "run_cell", fake)
    runner.run_cells(CELLS, store, None, ignore)
    assert ran == [cell.key for cell in CELLS]


def test_a_cell_of_other_settings_is_not_taken_for_finished(store: Store, ran: list[str]) -> None:
    runner.run_cells(CELLS[:1], store, None, ignore)
    other = dataclasses.replace(
        CELLS[0], workload=dataclasses.replace(CELLS[0].workload, epochs=99)
    )
    assert other.key == CELLS[0].key
    with pytest.raises(ConfigError, match="other settings"):
        runner.run_cells([other], store, None, ignore)


def test_a_broken_result_says_what_to_do(store: Store, ran: list[str]) -> None:
    runner.run_cells(CELLS[:1], store, None, ignore)
    store.path_of(CELLS[0].key).write_text('{"cell": ')
    with pytest.raises(ConfigError, match="delete it to make it again"):
        store.is_finished(CELLS[0])


def test_a_directory_belongs_to_one_experiment_and_scale(store: Store) -> None:
    store.open(dataclasses.replace(store.info(), seeds=5))  # more seeds are fine
    for change in ({"experiment": "gpt2"}, {"scale": "paper"}, {"network": "1gbit"}):
        with pytest.raises(ConfigError, match="of phase-drop --scale small --network loopback"):
            store.open(dataclasses.replace(store.info(), **change))


def test_the_command_follows_all_cells_and_goes_on(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = runner.run_cell

    def steps(
        group: object, cell: Cell, count: int, store: Store, data: str | None, on_step: Any
    ) -> object:
        for step in range(count):
            on_step(cell, step + 1, count, None if step == 0 else 1.0)
        return fake(group, cell, count)

    monkeypatch.setattr(runner, "run_cell", steps)
    monkeypatch.setattr("dblp.experiments.tasks.describe_data", lambda *_: "made up")
    monkeypatch.setattr("dblp.cli.experiment._require", lambda *_: None)
    command = ["experiment", "phase-drop", "--seeds", "2", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "10 cells made, 0 were there" in done.output and ran == [cell.key for cell in CELLS]
    again = CliRunner().invoke(app, command)
    assert "0 cells made, 10 were there" in again.output and len(ran) == 10
    info = Store(tmp_path / "o").info()
    assert info.data == "made up" and info.seeds == 2


def test_results_come_back_as_they_were(store: Store) -> None:
    result = result_of(CELLS[0])
    result.steps["loss"][3] = math.nan
    result.steps["norm"][1] = 1.23456789
    store.save(result)
    back = store.load(CELLS[0].key)
    assert back.cell == result.cell and back.scores == result.scores
    assert math.isnan(back.steps["loss"][3]) and back.steps["loss"][4] == 2.0
    assert back.steps["norm"][1] == 1.2346
    assert back.steps["tolerance"] == result.steps["tolerance"]
    assert back.steps["bytes_down"] == [1e6] * 40  # stored once
    text = json.loads(store.path_of(CELLS[0].key).read_text())
    assert text["steps"]["bytes_down"] == {"value": 1e6, "count": 40}


def test_runs_are_found_below_a_directory(tmp_path: Path, store: Store) -> None:
    assert [run.folder for run in find_runs(tmp_path)] == [store.folder]
    assert isinstance(find_runs(store.folder)[0].info(), RunInfo)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no results"):
        find_runs(tmp_path / "empty")
