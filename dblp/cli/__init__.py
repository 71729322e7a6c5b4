"""The command line `dblp`.  Commands import what they need when they run, so `--help` is quick."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from .. import FASTPATH, __version__
from ..errors import DBLPError
from . import bench, demo, doctor, experiment, report, server

__all__ = ["app", "main"]

EPILOG = """
[bold]Start here[/bold]

[cyan]dblp demo[/cyan]      train with DBLP and with the baseline, and compare

[cyan]dblp doctor[/cyan]    is this machine set up for it?

[cyan]dblp server[/cyan]    a parameter server for workers on other machines

[cyan]dblp bench[/cyan]     how fast do gradients travel between two hosts?

[cyan]dblp experiment[/cyan]  repeat a part of the paper's evaluation

[cyan]dblp report[/cyan]    make a page of what experiments have found

Each command explains itself: [cyan]dblp demo --help[/cyan].
"""


def _unwrapped(text: str) -> str:
    """A docstring with one line per paragraph, so that the terminal decides where lines break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


app = typer.Typer(
    name="dblp",
    help="Gradient transport over UDP that may lose a bounded share of each gradient, and follows "
    "the training phase: little loss while training is sensitive, more when it is not.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, server, bench, doctor, experiment, report):
    app.command(
        name=module.__name__.rpartition(".")[2],
        help=_unwrapped(module.run.__doc__ or ""),
        epilog=module.EPILOG,
    )(module.run)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"dblp {__version__} ({FASTPATH} fast path)")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """What comes before the command."""


def main() -> NoReturn:
    """Entry point.  Exit status 1 for an error, said in one sentence; 2 for wrong usage."""
    try:
        app()
    except DBLPError as error:
        typer.echo(f"dblp: error: {error}", err=True)
        sys.exit(1)
    sys.exit(0)
