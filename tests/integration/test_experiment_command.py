"""`dblp experiment` and `dblp report` end to end, and what the cells of a run really sent."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from dblp import ConfigError
from dblp.experiments.settings import Bursts, Cell, Setting, Workload
from dblp.experiments.store import CellResult, Store

pytest.importorskip("torch")
pytest.importorskip("sklearn")

LIMIT_S = 120


def dblp(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dblp", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_smoke_runs_resumes_and_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("transformers")  # the command wants it for all experiments
    out = tmp_path / "run"
    command = ("experiment", "phase-drop", "--scale", "smoke", "--out", str(out))
    first = dblp(*command)
    assert first.returncode == 0, first.stderr
    assert "2 cells made, 0 were there" in first.stdout
    info = json.loads((out / "experiment.json").read_text())
    assert info["cells"] == ["train-none-s1", "train-early-80-s1"]
    assert info["machine"]["cores"] and info["commit"] and info["command"]

    dropped = Store(out).load("train-early-80-s1")
    assert dropped.rounds == 12 and dropped.drift == 0.0
    assert dropped.steps["tolerance"] == ["80%"] * 4 + ["0%"] * 8
    # The transport dropped them: the share that arrived is that of the tolerance.
    assert max(dropped.steps["delivered"][:4]) < 0.9
    assert set(dropped.steps["delivered"][4:]) == {1.0}

    (out / "cells" / "train-none-s1.json").unlink()
    again = dblp(*command)
    assert "1 cells made, 1 were there" in again.stdout, again.stderr

    reported = dblp("report", str(out))
    assert reported.returncode == 0, reported.stderr
    assert "80% early" in (out / "report.html").read_text()
    assert "scale smoke" in (out / "report.md").read_text().lower()


def test_missing_data_ends_the_command_before_anything_starts(tmp_path: Path) -> None:
    done = dblp("experiment", "phase-drop", "--data", str(tmp_path), "--out", str(tmp_path / "o"))
    assert done.returncode == 1
    assert "lacks data_batch_1" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "o" / "logs").exists()


def cell_of(**changes: object) -> Cell:
    """AlexNet on digits, with two ranks."""
    workload = Workload(
        model="alexnet", data="digits", samples=192, test_samples=40, batch=24, interval=1
    )
    fields: dict[str, object] = {"low": "0.8%", **changes}
    setting = Setting(name="one", label="one", policy="norm", **fields)  # type: ignore[arg-type]
    return Cell(
        kind="train", workload=workload, setting=setting, seed=1, bursts=Bursts(count=1), workers=2
    )


def made(tmp_path: Path, *cells: Cell) -> list[CellResult]:
    """Their results, from the same processes."""
    from dblp.demo.orchestrate import ProcessGroup
    from dblp.experiments.runner import PROCESS, run_cell
    from dblp.experiments.tasks import steps_of

    store = Store(tmp_path)
    with ProcessGroup(PROCESS) as group:
        return [
            run_cell(group, cell, steps_of(cell, None), store, None, lambda *_: None)
            for cell in cells
        ]


def test_a_cell_does_not_depend_on_the_one_before_it(tmp_path: Path) -> None:
    exact, lossy = cell_of(low="0%", high="0%"), cell_of(transport="mesh", high="80%")
    first, _, again = made(tmp_path, exact, lossy, exact)
    assert first.steps["loss"] == again.steps["loss"]
    assert first.scores[0]["value"] == again.scores[0]["value"]
    assert len(list((tmp_path / "logs").glob("rank-*.log"))) == 2


def test_a_lossy_downlink_lets_replicas_drift(tmp_path: Path) -> None:
    # One tolerance throughout: after a burst the norm may rise, and then the burst's downlink has
    # the strict one already, and all ranks may get the same.
    cell = cell_of(downlink="lossy", order="sequential", low="40.8%", high="40.8%")
    (found,) = made(tmp_path, cell)
    assert found.drift > 0


def test_the_papers_setting_follows_the_phase_and_sends_a_burst_again(tmp_path: Path) -> None:
    (found,) = made(tmp_path, cell_of(downlink="lossy", order="sequential", norm="received"))
    assert found.steps["tolerance"][0] == "0.8%" and "40.8%" in found.steps["tolerance"]
    critical = found.steps["critical"]
    assert critical == [tolerance == "0.8%" for tolerance in found.steps["tolerance"]]
    (burst,) = found.bursts
    calm = [sent for step, sent in enumerate(found.steps["bytes_up"]) if step != burst]
    # 70 % of it was sent again; the median, as one calm round may be sent again for its own reason.
    assert found.steps["bytes_up"][burst] > 1.3 * statistics.median(calm)


def test_our_best_setting_keeps_replicas_equal_with_less_delivered(tmp_path: Path) -> None:
    (found,) = made(
        tmp_path, cell_of(transport="mesh", high="80%", order="magnitude", residual=True)
    )
    assert found.drift == 0.0
    assert min(found.steps["delivered"]) < 0.8
    assert found.metric == "accuracy" and 0 <= found.scores[-1]["value"] <= 1


def test_the_command_runs_in_a_shaped_network_of_its_own(tmp_path: Path) -> None:
    from dblp.experiments import network

    try:
        network._try(["unshare", "-Urn", "sh", "-c", network.SHAPE, "sh", "true"], "1gbit")
    except ConfigError as error:
        pytest.skip(str(error))
    out = tmp_path / "o"
    done = dblp(
        "experiment", "phase-drop", "--scale", "smoke", "--network", "1gbit", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    info = Store(out).info()
    assert info.network == "1gbit" and "rate 1Gbit" in info.machine["network"]
    assert info.command.endswith("--network 1gbit")
