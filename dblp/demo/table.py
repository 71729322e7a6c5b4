"""The table at the end of a demo."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rich.table import Table

BETTER_ABOVE = 1.05
WORSE_BELOW = 0.95
CRITICAL_NOTE = "\n* In a critical regime, where DBLP loses no more than the baseline."


def comparison(summary: Mapping[str, Any], critical_bursts: Collection[int] = ()) -> Table:
    """summary.json as a table: one row per number, DBLP beside the baseline and the ratio.

    `critical_bursts` are the burst rounds that DBLP met in a critical regime; they are marked.
    """
    config, ratios = summary["config"], summary["ratios"]
    dblp, baseline = summary["dblp"], summary["baseline"]
    table = Table(
        title=(
            f"{config['dataset']}, {config['workers']} workers, {config['steps']} rounds, "
            f"bursts of {config['burst_loss']:.0%} loss"
        ),
        caption="Send latency: worker to server, the slowest worker of each iteration.\n"
        "Ratio: baseline over DBLP; above 1, DBLP needs less."
        + (CRITICAL_NOTE if critical_bursts else ""),
        title_style="bold",
    )
    table.add_column("")
    table.add_column(f"DBLP\n{config['low']} … {config['high']}", justify="right", style="cyan")
    table.add_column(f"Baseline\nfixed {config['low']}", justify="right")
    table.add_column("Ratio", justify="right")

    names = {"mean": "mean", "p50": "p50", "p95": "p95", "max": "max (tail)"}
    for key, name in names.items():
        ours, theirs = dblp["send_latency_s"][key], baseline["send_latency_s"][key]
        table.add_row(
            f"Send latency, {name}", seconds(ours), seconds(theirs), quotient(theirs, ours)
        )
    bursts = zip(
        config["burst_rounds"], dblp["burst_latency_s"], baseline["burst_latency_s"], strict=True
    )
    for step, ours, theirs in bursts:
        mark = " *" if step in critical_bursts else ""
        table.add_row(
            f"Send latency, burst in round {step}{mark}",
            seconds(ours),
            seconds(theirs),
            quotient(theirs, ours),
        )
    table.add_section()
    table.add_row(
        "Bytes sent, up and down",
        *(f"{side['bytes_sent'] / 1e6:,.0f} MB" for side in (dblp, baseline)),
        quotient(baseline["bytes_sent"], dblp["bytes_sent"]),
    )
    table.add_row("Delivered share, uplink", *shares("delivered_share", dblp, baseline))
    # The baseline has no notion of a critical regime.
    table.add_row("Rounds in the critical regime", f"{dblp['critical_share']:.1%}", "–", "")
    table.add_section()
    table.add_row(
        "Training time",
        f"{dblp['train_time_s']:.1f} s",
        f"{baseline['train_time_s']:.1f} s",
        coloured(ratios["train_time"]),
    )
    table.add_row("Test accuracy", *shares("test_accuracy", dblp, baseline))
    table.add_row(
        "Replica drift", *(f"{side['replica_drift']:.3g}" for side in (dblp, baseline)), ""
    )
    return table


def seconds(value: float) -> str:
    """A duration with the unit that fits."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def shares(key: str, *sides: Mapping[str, Any]) -> list[str]:
    """The same share of both sides, in percent, and an empty ratio."""
    return [*(f"{side[key]:.1%}" for side in sides), ""]


def quotient(numerator: float, denominator: float) -> str:
    """numerator / denominator as a coloured factor."""
    return coloured(numerator / denominator if denominator else None)


def coloured(ratio: float | None) -> str:
    """A ratio as a factor: green where DBLP needs less, red where it needs more."""
    if ratio is None:
        return "–"
    colour = "green" if ratio > BETTER_ABOVE else "red" if ratio < WORSE_BELOW else "default"
    return f"[{colour}]{ratio:.2f}×[/{colour}]"
