"""The whole demo: both sides one after the other, then everything they leave on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import data, plots
from .orchestrate import OnRound, run_side
from .record import write_rounds
from .settings import SIDES, DemoSettings
from .summary import summarize


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """What a finished demo leaves."""

    summary: dict[str, Any]
    """The content of summary.json."""
    files: Sequence[Path]
    """Everything written, summary.json first."""
    critical_bursts: Sequence[int]
    """Burst rounds that DBLP met in a critical regime, holding on to the low tolerance."""
    plots_missing: bool
    """matplotlib is not installed, so there are no pictures."""


@dataclasses.dataclass(frozen=True)
class DemoPlan:
    """A demo that is known to be possible."""

    settings: DemoSettings
    steps: int
    """Rounds of each side."""
    burst_rounds: Sequence[int]
    """Rounds that a microburst hits, on both sides."""


def plan_demo(settings: DemoSettings) -> DemoPlan:
    """Looks at the data and the output directory, so that mistakes show before anything starts.

    Raises:
        ConfigError: the settings, the data or the output directory cannot be used.
    """
    training_images = len(data.load(settings.data).train_labels)
    steps = training_images // settings.recipe.batch * settings.recipe.epochs
    out = settings.out_dir
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "rounds.jsonl").touch()
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be written ({error.strerror}): choose another directory"
        ) from error
    return DemoPlan(settings, steps, settings.burst_rounds(steps))


def run_demo(plan: DemoPlan, on_round: OnRound) -> DemoResult:
    """Trains with DBLP and then with the baseline: same seeds, same batches, same bursts.

    Raises:
        DemoFailedError: a process failed.
    """
    settings, out = plan.settings, plan.settings.out_dir
    dblp, baseline = (run_side(side, settings, plan.burst_rounds, on_round) for side in SIDES)

    summary = summarize(settings, plan.burst_rounds, dblp, baseline)
    files = [out / "summary.json", out / "rounds.jsonl"]
    files[0].write_text(json.dumps(summary, indent=2) + "\n")
    write_rounds(files[1], (dblp, baseline))
    plots_missing = False
    try:
        files += plots.draw_all(out, dblp, baseline)
    except ImportError:
        plots_missing = True
    critical_bursts = [record.step for record in dblp.burst_rounds if record.critical]
    return DemoResult(summary, files, critical_bursts, plots_missing)
