"""`dblp bench`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

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
from rich.table import Table

from ..config import MTU_MAX, TransportConfig
from ..errors import ConfigError
from ..tolerance import Tolerance
from .bench_cards import MAX_BYTES, MAX_ROUNDS
from .bench_report import Spread, Traffic, advice, both_ways, round_times, to_dict, used_mtu
from .bench_run import Measurement, Passage, Plan, run_bench
from .bench_server import BenchServer

EPILOG = """
[bold]Examples[/bold]

[cyan]dblp bench serve[/cyan]                               on one host

[cyan]dblp bench 10.0.0.1[/cyan]                            on the other

[cyan]dblp bench 10.0.0.1 --size 100MB --rounds 1000[/cyan]  enough rounds for a p99

[cyan]dblp bench 10.0.0.1 --json | jq .up[/cyan]            for scripts
"""

PORT = 7010
"""Where a bench server listens when nothing else is said."""

CLIENT = "On the measuring host"
SERVER = "On the serving host"

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def _option(panel: str, default: str, text: str, *, metavar: str | None = None) -> Any:
    """An option of one side; None when it was not given, so that the other side can refuse it."""
    return typer.Option(help=text, show_default=default, rich_help_panel=panel, metavar=metavar)


def run(
    target: Annotated[
        str, typer.Argument(metavar="serve | HOST[:PORT]", help="Serve, or the server to measure.")
    ],
    size: Annotated[str | None, _option(CLIENT, "20MB", "Gradient of a round.")] = None,
    rounds: Annotated[int | None, _option(CLIENT, "50", "Rounds to report.")] = None,
    tolerance: Annotated[
        str | None, _option(CLIENT, "0%", "Share of a gradient that may be missing.")
    ] = None,
    mtu: Annotated[int | None, _option(CLIENT, "1500", "Largest IP packet, in bytes.")] = None,
    connect_timeout: Annotated[
        float | None, _option(CLIENT, "10", "Longest to try to reach the server, in seconds.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=CLIENT),
    ] = False,
    listen: Annotated[
        str | None,
        _option(
            SERVER, f"0.0.0.0:{PORT}", "Address to listen on, TCP and UDP.", metavar="HOST:PORT"
        ),
    ] = None,
    clients: Annotated[int | None, _option(SERVER, "never", "End after this many clients.")] = None,
    timeout: Annotated[
        float, typer.Option(help="Longest a gradient may take one way, in seconds.")
    ] = 30.0,
) -> None:
    """Measure how gradients travel between two hosts: dblp bench serve on one, dblp bench HOST on
    the other.

    Each round sends a gradient to the server and back. Shows goodput each way, how long rounds
    take, what is lost and sent again, and what to change about buffers, MTU and firewalls. Serving
    ends with Ctrl-C; anybody who reaches the address can use it.
    """
    mine = {"--size": size, "--rounds": rounds, "--tolerance": tolerance, "--mtu": mtu,
            "--connect-timeout": connect_timeout, "--json": as_json or None}  # fmt: skip
    if target == "serve":
        _refuse(mine, "goes with dblp bench HOST:PORT, not with dblp bench serve")
        if clients is not None:
            _whole("--clients", clients, MAX_ROUNDS)
        _serve(listen or f"0.0.0.0:{PORT}", clients, timeout)
        return
    _refuse({"--listen": listen, "--clients": clients}, "goes with dblp bench serve")
    plan = Plan(
        nbytes=parse_size("20MB" if size is None else size),
        rounds=_whole("--rounds", 50 if rounds is None else rounds, MAX_ROUNDS),
        tolerance=Tolerance.of(tolerance or 0),
    )
    config = TransportConfig(
        mtu=1500 if mtu is None else mtu,
        timeout_s=timeout,
        connect_timeout_s=10.0 if connect_timeout is None else connect_timeout,
    )
    _measure(with_port(target), plan, config, as_json)


def _refuse(options: Mapping[str, object], reason: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} {reason}: leave it out")


def parse_size(text: str) -> int:
    """Bytes from "20MB", "64KiB" or "1448", rounded down to whole float32 elements."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMG]?I?)B?", text.strip().upper())
    nbytes = int(float(matched[1]) * UNITS.get(matched[2], 0)) & ~3 if matched else 0
    if not 4 <= nbytes <= MAX_BYTES:
        raise ConfigError(
            f"--size is {text!r}: choose 4B to {MAX_BYTES >> 30}GiB, such as 500KB, 20MB or 1GiB"
        )
    return nbytes


def with_port(target: str) -> str:
    """HOST:PORT from HOST or HOST:PORT; an IPv6 address is in brackets."""
    has_port = ":" in target.rpartition("]")[2]
    return target if has_port else f"{target}:{PORT}"


def _whole(name: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise ConfigError(f"{name} is {value}: choose 1 to {most:,}")
    return value


def _serve(listen: str, clients: int | None, timeout: float) -> None:
    console = Console(highlight=False)
    config = TransportConfig(mtu=MTU_MAX, timeout_s=timeout)  # each client says how large
    server = BenchServer(listen, config=config, tell=lambda line: console.print(line, markup=False))
    with server:
        console.print(f"listening on [bold]{server.address}[/bold]; end with Ctrl-C")
        try:
            server.serve(clients)
        except KeyboardInterrupt:
            console.print("stopped")


def _measure(address: str, plan: Plan, config: TransportConfig, as_json: bool) -> None:
    done = 0
    try:
        with _progress() as progress:
            task = progress.add_task("connecting", total=plan.rounds)

            def on_round(up_s: float, down_s: float) -> None:
                nonlocal done
                done += 1
                gbit_per_s = 16e-9 * plan.nbytes / (up_s + down_s)
                progress.update(task, completed=done, description=f"{gbit_per_s:.2f} Gb/s")

            found = run_bench(address, plan, config, on_round=on_round)
    except KeyboardInterrupt:
        typer.echo(f"dblp bench: stopped after {done:,} of {plan.rounds:,} rounds", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        typer.echo(json.dumps(to_dict(found), indent=2))
    else:
        _show(found)


def _progress() -> Progress:
    """On stderr, so that the result alone is on stdout; nothing where that is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


# --- the result -----------------------------------------------------------------------------------


def _show(found: Measurement) -> None:
    console = Console(highlight=False)
    plan = found.plan
    table = Table(
        title=f"{found.address}: {plan.rounds:,} rounds of {plan.nbytes:,} bytes, "
        f"tolerance {plan.tolerance}",
        title_style="bold",
    )
    for name in ("", "to the server", "from the server", "round"):
        table.add_column(name, justify="right" if name else "left")
    passages = (found.up, found.down)
    table.add_row("goodput", *(_rate(passage.goodput_bit_per_s) for passage in passages))
    samples = (found.up.elapsed_s, found.down.elapsed_s, round_times(found))
    spreads = [Spread.of(each) for each in samples]
    for field in ("min", "p50", "p95", "p99", "max"):
        table.add_row(field, *(_milliseconds(getattr(spread, field)) for spread in spreads))
    table.add_section()
    table.add_row("delivered", *(_delivered(passage) for passage in passages))
    for name, cells in _traffic_rows(both_ways(found)):
        table.add_row(name, *cells)
    console.print(table)
    if spreads[0].p99 is None:
        console.print("[dim]p99 takes 1,000 rounds; look at max.[/dim]")
    console.print(_path(found))
    for line in advice(found):
        console.print("[yellow]advice:[/yellow] ", end="")
        console.print(line, markup=False, soft_wrap=True)


def _traffic_rows(ways: tuple[Traffic, Traffic]) -> list[tuple[str, list[str]]]:
    return [
        ("datagrams", [f"{way.sent:,}" for way in ways]),
        ("lost on the way", [f"{way.lost:,} ({way.loss_share:.2%})" for way in ways]),
        ("dropped by the kernel", [f"{way.kernel_drops:,}" for way in ways]),
        ("corrupt", [f"{way.corrupt:,}" for way in ways]),
        ("sent again", [f"{way.retransmitted:,}" for way in ways]),
    ]


def _path(found: Measurement) -> str:
    rtt = "not measured" if found.rtt_s is None else f"{found.rtt_s * 1e3:.3f} ms"
    works = {True: "yes", False: "no"}
    offload = ", ".join(
        f"{where} GSO {works[host.gso]}, GRO {works[host.gro]}"
        for where, host in (("here", found.here), ("server", found.server))
    )
    path = "unknown" if found.path_mtu is None else f"{found.path_mtu:,}"
    return (
        f"round trip {rtt}; packets of {used_mtu(found):,} bytes (path: {path}); offload: {offload}"
    )


def _rate(bit_per_s: float) -> str:
    return f"{bit_per_s / 1e9:.2f} Gb/s" if bit_per_s >= 1e9 else f"{bit_per_s / 1e6:.1f} Mb/s"


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.2f} ms"


def _delivered(passage: Passage) -> str:
    return f"{1 - passage.missing / passage.chunks:.3%}"
