"""`dblp experiment`."""

from __future__ import annotations

import dataclasses
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..experiments.network import Network
    from ..experiments.settings import Cell, Scale
    from ..experiments.store import RunInfo

EPILOG = """
[bold]Experiments[/bold]

[cyan]phase-drop[/cyan]        Fig. 1: drops early in training against drops later

[cyan]efficientnet-b0[/cyan]   CIFAR-10   Tables II, IV, V, VI

[cyan]resnet50[/cyan]          CIFAR-100  Tables III, IV, V, VI

[cyan]alexnet[/cyan]           CIFAR-100  Tables V, VI

[cyan]gpt2[/cyan]              WikiText-2 Tables V, VI

[cyan]sensitivity[/cyan]       CIFAR-10   P_high, η, interval

[cyan]ablation[/cyan]          CIFAR-10   order, missing rule, error feedback, downlink, norm source

[cyan]high-loss[/cyan]         WikiText-2 ways to a tolerance of 80 %

[bold]Examples[/bold]

[cyan]dblp experiment phase-drop --scale smoke[/cyan]     does it run here? seconds, no data

[cyan]dblp experiment phase-drop --data ~/data[/cyan]     ~/data/cifar-10-batches-py

[cyan]dblp experiment resnet50 --data ~/data --network 1gbit[/cyan]

[cyan]dblp report runs/experiments[/cyan]                 all results as one page
"""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which experiment; see below.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Directory with cifar-10-batches-py, cifar-100-python or wikitext-2.",
            show_default="none; enough for --scale smoke",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Repetitions, with seeds 1, 2, …", show_default="3; 1 for smoke"),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: seconds. small: smaller models and fewer images, at most 40 minutes on 2 "
            "cores. paper: the paper's models and iterations."
        ),
    ] = "small",
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of the results.", show_default="runs/experiments/NAME-SCALE"),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            help="loopback, or 1gbit: a network of its own in which all processes share 1 Gb/s."
        ),
    ] = "loopback",
) -> None:
    """Repeat a part of the paper's evaluation over real UDP sockets, and more than the paper shows.

    Every training is a cell: one way to send gradients with one seed. A finished cell is a file,
    so after an interruption the same command goes on where it was. dblp report makes a page of it.
    """
    from ..experiments.catalogue import cells_of, experiment_of
    from ..experiments.network import enter
    from ..experiments.store import RunInfo

    experiment = experiment_of(name)
    repetitions = (1 if scale == "smoke" else 3) if seeds is None else seeds
    cells = cells_of(experiment, cast("Scale", scale), repetitions, cast("Network", network))
    _require("torch", "transformers")
    enter(network, sys.argv[1:])
    shaped = "" if network == "loopback" else f" --network {network}"
    info = RunInfo(
        experiment=name,
        scale=scale,
        seeds=repetitions,
        # Not as it was typed: results are shown to others, paths of a machine are nobody's.
        command=f"dblp experiment {name} --data DIR --scale {scale} --seeds {repetitions}{shaped}",
        cells=tuple(cell.key for cell in cells),
        network=network,
    )
    folder = out if out is not None else Path("runs/experiments") / info.name
    _run(info, cells, folder, None if data is None else str(data))


def _run(info: RunInfo, cells: list[Cell], folder: Path, data: str | None) -> None:
    from ..experiments.runner import run_cells
    from ..experiments.store import Store, commit, describe_machine
    from ..experiments.tasks import describe_data

    store = Store(folder)
    finished = sum(store.is_finished(cell) for cell in cells)
    store.open(
        dataclasses.replace(
            info,
            data=describe_data(cells, data) if finished < len(cells) else "",
            commit=commit(),
            machine=describe_machine(),
        )
    )
    console = Console()
    try:
        with _progress(console) as progress:
            whole = progress.add_task(info.name, total=len(cells), completed=finished, loss="cells")
            current: dict[str, TaskID] = {}
            begun = 0

            def on_step(cell: Cell, done: int, steps: int, loss: float | None) -> None:
                nonlocal begun
                if cell.key not in current:
                    while current:
                        progress.remove_task(current.popitem()[1])
                    progress.update(whole, completed=finished + begun)
                    begun += 1
                    current[cell.key] = progress.add_task(f"  {cell.key}", total=steps, loss="")
                text = "" if loss is None else f"loss {loss:.3f}"
                progress.update(current[cell.key], completed=done, loss=text)

            made = run_cells(cells, store, data, on_step)
            progress.update(whole, completed=len(cells))
    except KeyboardInterrupt:
        typer.echo(f"dblp experiment: stopped; the same command goes on in {folder}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    console.print(f"{len(made)} cells made, {finished} were there", highlight=False)
    console.print(f"wrote {folder}; see it with: dblp report {folder}", highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
        console=console,
    )


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ConfigError(
            f"experiments train with {' and '.join(missing)}, not installed here: run pip install "
            "'dblp[experiments]'"
        )
