"""The demo's pictures, after Figures 2, 3/4 and 6 of the paper, and the gradient norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .record import RoundRecord, SideRecord

COLOURS = {"dblp": "#0b6e99", "baseline": "#d1495b"}
NAMES = {"dblp": "DBLP", "baseline": "Baseline"}
BURST_COLOUR = "#f2a541"
CRITICAL_COLOUR = "#8e7cc3"
STYLE: Any = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}


def draw_all(out: Path, dblp: SideRecord, baseline: SideRecord) -> list[Path]:
    """Writes the four PNGs into directory `out` and returns their paths.

    Raises ImportError when matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")  # files only: no display needed
    from matplotlib import pyplot

    sides = (dblp, baseline)
    paths = []
    with pyplot.rc_context(STYLE):
        for name, draw in (
            ("send_latency", draw_send_latency),
            ("latency_cdf", draw_latency_cdf),
            ("accuracy", draw_accuracy),
            ("gradient_norm", draw_gradient_norm),
        ):
            figure = draw(pyplot, sides)
            path = out / f"{name}.png"
            figure.savefig(path)
            pyplot.close(figure)
            paths.append(path)
    return paths


def draw_send_latency(pyplot: Any, sides: Sequence[SideRecord]) -> Any:
    """Fig. 2: send latency of every iteration, one panel per side, bursts marked."""
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 3.8), sharey=True)
    for axes, side in zip(panels, sides, strict=True):
        steps = [record.step for record in side.rounds]
        axes.plot(steps, milliseconds(side.rounds), color=COLOURS[side.side], linewidth=1)
        bursts = side.burst_rounds
        for index, record in enumerate(bursts):
            label = "microburst" if index == 0 else None
            axes.axvline(record.step, color=BURST_COLOUR, alpha=0.35, linewidth=4, zorder=0)
            axes.plot(
                record.step,
                record.send_latency_s * 1e3,
                marker="v",
                color=BURST_COLOUR,
                markeredgecolor="black",
                linestyle="none",
                label=label,
            )
            axes.annotate(
                f"{record.send_latency_s * 1e3:,.{0 if record.send_latency_s >= 0.1 else 1}f} ms",
                (record.step, record.send_latency_s * 1e3),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
        axes.set_title(NAMES[side.side])
        axes.set_xlabel("Iteration")
        axes.margins(x=0.01)
        if bursts:
            axes.legend(loc="upper right", bbox_to_anchor=(1, 1.12), fontsize=8)
    panels[0].set_ylabel("Send latency, slowest worker (ms)")
    panels[0].set_yscale("log")
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high * 1.4)  # room for the annotations
    plain_log_ticks(panels[0])
    figure.suptitle("Send latency per iteration", fontweight="bold")
    return figure


def draw_latency_cdf(pyplot: Any, sides: Sequence[SideRecord]) -> Any:
    """Figs. 3 and 4: distribution of the send latency over the iterations."""
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for side in sides:
        latency = np.sort(milliseconds(side.rounds))
        share = np.arange(1, len(latency) + 1) / len(latency)
        axes.step(latency, share, where="post", color=COLOURS[side.side], label=NAMES[side.side])
        axes.plot(latency[-1], 1, marker="o", color=COLOURS[side.side], markersize=4)
    axes.set_xscale("log")
    plain_log_ticks(axes, which="x")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("Send latency, slowest worker (ms)")
    axes.set_ylabel("Share of iterations (CDF)")
    axes.set_title("Send latency, all iterations", fontweight="bold")
    axes.legend(loc="lower right")
    return figure


def draw_accuracy(pyplot: Any, sides: Sequence[SideRecord]) -> Any:
    """Fig. 6: test accuracy after each epoch."""
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for side, marker in zip(sides, "os", strict=True):
        epochs = range(1, len(side.accuracy) + 1)
        axes.plot(
            epochs,
            [100 * accuracy for accuracy in side.accuracy],
            color=COLOURS[side.side],
            marker=marker,
            markersize=4,
            label=f"{NAMES[side.side]}: {side.accuracy[-1]:.1%} at the end",
        )
    axes.set_xlabel("Epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("Test accuracy (%)")
    axes.set_title("Test accuracy per epoch", fontweight="bold")
    axes.legend(loc="lower right")
    return figure


def draw_gradient_norm(pyplot: Any, sides: Sequence[SideRecord]) -> Any:
    """What DBLP's policy saw: the gradient norm, with the critical regimes it found shaded."""
    dblp = sides[0]
    figure, axes = pyplot.subplots(figsize=(9, 3.8))
    for index, (first, last) in enumerate(critical_spans(dblp.rounds)):
        axes.axvspan(
            first - 0.5,
            last + 0.5,
            color=CRITICAL_COLOUR,
            alpha=0.25,
            linewidth=0,
            label="critical regime" if index == 0 else None,
        )
    steps = [record.step for record in dblp.rounds]
    norms = [record.gradient_norm for record in dblp.rounds]
    axes.plot(steps, norms, color=COLOURS["dblp"], linewidth=1, label="gradient norm")
    for index, record in enumerate(dblp.burst_rounds):
        axes.axvline(
            record.step,
            color=BURST_COLOUR,
            linestyle="--",
            linewidth=1.2,
            label="microburst" if index == 0 else None,
        )
    axes.set_xlabel("Iteration")
    axes.set_ylabel("Gradient norm (L2)")
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])  # room for the legend
    axes.margins(x=0.01)
    axes.set_title("Gradient norm and critical learning regimes, DBLP", fontweight="bold")
    axes.legend(loc="upper right", ncols=3, fontsize=9)
    return figure


def milliseconds(rounds: Sequence[RoundRecord]) -> np.ndarray:
    """Send latency of every round in ms, float64 (rounds,)."""
    return np.array([record.send_latency_s for record in rounds]) * 1e3


def critical_spans(rounds: Sequence[RoundRecord]) -> Iterator[tuple[int, int]]:
    """(first step, last step) of every uninterrupted run of critical rounds."""
    first: int | None = None
    previous = -1
    for record in rounds:
        if record.critical and first is None:
            first = record.step
        elif not record.critical and first is not None:
            yield first, previous
            first = None
        previous = record.step
    if first is not None:
        yield first, previous


def plain_log_ticks(axes: Any, which: str = "y") -> None:
    """Writes 1, 2, 5, 10 … instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
