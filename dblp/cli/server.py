"""`dblp server`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

EPILOG = """
[bold]Examples[/bold]

[cyan]dblp server --listen 0.0.0.0:7000 --workers 3[/cyan]

[cyan]dblp server --listen 0.0.0.0:7000 --workers 8 --policy fixed --low 2.4%[/cyan]

[bold]A worker, on any machine[/bold]

[green]import dblp[/green]

[green]with dblp.Worker("server.example:7000", rank=0) as worker:[/green]

[green]    worker.all_reduce(gradient)  # array or tensor, in place[/green]
"""


class Policy(StrEnum):
    """Who decides how much may be lost."""

    GRADIENT_NORM = "gradient-norm"
    FIXED = "fixed"


class Downlink(StrEnum):
    """How averages come back to the workers."""

    EXACT = "exact"
    LOSSY = "lossy"


class Rule(StrEnum):
    """What a missing chunk counts as."""

    ZERO = "zero"
    CONTRIBUTORS = "contributors"


def run(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on, TCP and UDP.")
    ] = "127.0.0.1:7000",
    workers: Annotated[int, typer.Option(help="Workers to wait for.", min=1, max=254)] = 3,
    policy: Annotated[
        Policy,
        typer.Option(help="Follow the gradient norm (DBLP), or keep --low all the time."),
    ] = Policy.GRADIENT_NORM,
    low: Annotated[str, typer.Option(help="Tolerance in the critical regime.")] = "0.8%",
    high: Annotated[str, typer.Option(help="Tolerance outside of it.")] = "40.8%",
    eta: Annotated[
        float, typer.Option(help="Relative change of the norm that counts as critical (Eq. 1).")
    ] = 0.5,
    interval: Annotated[int, typer.Option(help="Steps between two looks at the norm.")] = 10,
    downlink: Annotated[
        Downlink, typer.Option(help="Whether averages come back whole or lose chunks too.")
    ] = Downlink.EXACT,
    rule: Annotated[
        Rule,
        typer.Option(help="Missing chunks count as zero, or only contributors are averaged."),
    ] = Rule.ZERO,
    timeout: Annotated[float, typer.Option(help="Longest a round may take, in seconds.")] = 30.0,
    connect_timeout: Annotated[
        float, typer.Option(help="Longest to wait for all workers, in seconds.")
    ] = 600.0,
    mtu: Annotated[int, typer.Option(help="Largest IP packet on the path, in bytes.")] = 1500,
) -> None:
    """Run a stand-alone parameter server: it averages the gradients of N workers.

    Serves until all workers have left or Ctrl-C.
    """
    from .. import FixedTolerance, GradientNormPolicy, TransportConfig

    chosen = (
        FixedTolerance(low)
        if policy is Policy.FIXED
        else GradientNormPolicy(low=low, high=high, eta=eta, interval=interval)
    )
    config = TransportConfig(mtu=mtu, timeout_s=timeout, connect_timeout_s=connect_timeout)
    from .. import ParameterServer

    console = Console(highlight=False)
    with ParameterServer.serve_in_thread(
        listen,
        workers=workers,
        policy=chosen,
        downlink=downlink.value,
        rule=rule.value,
        config=config,
    ) as running:
        console.print(f"listening on [bold]{running.address}[/bold] for {workers} workers")
        console.print(f"tolerance: {chosen.describe()}; downlink {downlink.value}")
        running.wait()
    console.print("all workers have left")
