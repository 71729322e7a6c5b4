"""`dblp report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = """
[bold]Examples[/bold]

[cyan]dblp report runs/experiments/phase-drop-small[/cyan]   one run

[cyan]dblp report runs/experiments[/cyan]                    all of them on one page
"""


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Results of dblp experiment, one run or several.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the page.", show_default="DIR itself"),
    ] = None,
) -> None:
    """Make a page of what experiments have found, beside the figures of the paper.

    Writes report.html, which needs nothing else and can be read on a phone, report.md with its
    figures as SVG, and results.json with the numbers. An unfinished run is shown as far as it is.
    """
    from ..experiments.report import write_report

    for path in write_report(folder, out):
        typer.echo(f"wrote {path}")
