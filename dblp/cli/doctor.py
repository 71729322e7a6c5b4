"""`dblp doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

EPILOG = """
[bold]Examples[/bold]

[cyan]dblp doctor[/cyan]                    a table; exit status 1 on errors

[cyan]dblp doctor --json | jq .ok[/cyan]    for scripts
"""

COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    buffer_mib: Annotated[
        int, typer.Option("--buffer", help="Wanted socket buffer, in MiB.", min=1, max=1024)
    ] = 8,
    mtu: Annotated[int, typer.Option(help="MTU that you mean to use, in bytes.")] = 1500,
) -> None:
    """Check this machine: socket buffers, offloads, MTU, checksum hardware, fast path, loop.

    Warnings cost speed and come with the command that removes them; an error means that the
    transport cannot work here, and the exit status is 1.
    """
    from .checks import run_checks

    checks = run_checks(buffer_bytes=buffer_mib << 20, mtu=mtu)
    healthy = all(check.status != "error" for check in checks)
    if as_json:
        content = {"ok": healthy, "checks": [check.to_dict() for check in checks]}
        typer.echo(json.dumps(content, indent=2))
    else:
        console = Console(highlight=False)
        table = Table(title="dblp doctor", title_style="bold")
        for name in ("", "Check", "Found", "Wanted"):
            table.add_column(name)
        for check in checks:
            colour = COLOURS[check.status]
            table.add_row(f"[{colour}]{check.status}", check.name, check.found, check.wanted)
        console.print(table)
        for check in checks:
            if check.advice:
                console.print(f"[{COLOURS[check.status]}]{check.name}:[/] ", end="")
                console.print(check.advice, markup=False, soft_wrap=True)
    if not healthy:
        raise typer.Exit(1)
