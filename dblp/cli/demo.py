"""`dblp demo`."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..demo.settings import DemoSettings, Side

EPILOG = """
[bold]Examples[/bold]

[cyan]dblp demo[/cyan]                            digits, 3 workers, about a minute

[cyan]dblp demo --high 60% --bursts 6[/cyan]      more tolerance, more bursts

[cyan]dblp demo --downlink lossy[/cyan]           replicas may drift apart

[cyan]dblp demo --data cifar-10-batches-py[/cyan] a larger network; takes about an hour
"""


class Downlink(StrEnum):
    """How averages come back from the server."""

    EXACT = "exact"
    LOSSY = "lossy"


def run(
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 3,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the training images.", show_default="by data")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Decides the initial weights, the batches, the bursts and the loss.")
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory with CIFAR-10 in its python layout (data_batch_1 … test_batch).",
            show_default="scikit-learn's handwritten digits",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory for summary.json, rounds.jsonl, plots and logs.")
    ] = Path("runs/demo"),
    low: Annotated[
        str, typer.Option(help="Tolerance in the critical regime, and of the baseline.")
    ] = "0.8%",
    high: Annotated[
        str, typer.Option(help="DBLP's tolerance outside the critical regime.")
    ] = "40.8%",
    interval: Annotated[
        int | None,
        typer.Option(help="Steps between two looks at the gradient norm.", show_default="by data"),
    ] = None,
    bursts: Annotated[
        int, typer.Option(help="Random rounds that lose 70 % of their datagrams.")
    ] = 3,
    downlink: Annotated[
        Downlink, typer.Option(help="Whether averages come back whole or lose chunks too.")
    ] = Downlink.EXACT,
    timeout: Annotated[float, typer.Option(help="Longest a round may take, in seconds.")] = 30.0,
) -> None:
    """Train one model twice over real UDP sockets, with DBLP and with the fixed-tolerance baseline.

    Starts a parameter server and the workers as processes on loopback, injects the same microbursts
    on both sides (70 % datagram loss for one round), and ends with a table, summary.json,
    rounds.jsonl and four plots.
    """
    _require_torch()
    from ..demo.settings import RECIPES, DemoSettings

    recipe = RECIPES["digits" if data is None else "cifar10"]
    changes = {"epochs": epochs, "interval": interval}
    settings = DemoSettings(
        workers=workers,
        seed=seed,
        data=None if data is None else str(data.expanduser()),
        out=str(out),
        recipe=dataclasses.replace(
            recipe, **{name: value for name, value in changes.items() if value is not None}
        ),
        low=low,
        high=high,
        downlink=downlink.value,
        bursts=bursts,
        timeout_s=timeout,
    )
    _train(settings, Console())


def _train(settings: DemoSettings, console: Console) -> None:
    """Runs both sides with a progress bar each, then prints the table and what was written."""
    from ..demo.run import plan_demo, run_demo
    from ..demo.table import comparison

    plan = plan_demo(settings)
    with _progress(console) as progress:
        tasks = {
            "dblp": progress.add_task("DBLP", total=plan.steps, loss="starting"),
            "baseline": progress.add_task(
                "Baseline", total=plan.steps, start=False, loss="waiting"
            ),
        }

        def on_round(side: Side, step: int, loss: float) -> None:
            progress.start_task(tasks[side])
            progress.update(tasks[side], completed=step + 1, loss=f"loss {loss:.3f}")

        result = run_demo(plan, on_round)
    console.print()
    console.print(comparison(result.summary, result.critical_bursts))
    console.print()
    if result.plots_missing:
        console.print("No plots: matplotlib is not installed; pip install 'dblp\\[plots]'.")
    for path in result.files:
        console.print(f"wrote {path}", highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
        console=console,
    )


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise ConfigError(
            "the demo trains with PyTorch, which is not installed: run pip install 'dblp[demo]'"
        )
