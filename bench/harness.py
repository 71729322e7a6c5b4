"""What every bench case shares: honest statistics, the record of a run, tables and charts."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from bench.kernel import default_congestion

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "bench" / "results"

P99_SAMPLES_MIN = 1000
"""Below this many samples the 99th percentile is the opinion of a handful: it is not reported."""

# Where the output is not a terminal: wide enough for the widest table.
_PLAIN_COLUMNS = 200

T = TypeVar("T")
Scalar = int | float | str | bool | None


@dataclass(frozen=True)
class Distribution:
    """A sample of one quantity, without a bare mean. Same unit as the samples."""

    n: int
    min: float
    p50: float
    p95: float
    p99: float | None
    """None under 1,000 samples: use `max` then."""
    max: float
    mean: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution:
        """Raises ValueError when there is no sample."""
        if not samples:
            raise ValueError("a distribution needs at least one sample")
        ordered = sorted(samples)
        return cls(
            n=len(ordered),
            min=ordered[0],
            p50=percentile(ordered, 0.50),
            p95=percentile(ordered, 0.95),
            p99=percentile(ordered, 0.99) if len(ordered) >= P99_SAMPLES_MIN else None,
            max=ordered[-1],
            mean=statistics.fmean(ordered),
        )

    @property
    def tail(self) -> float:
        """p99 where there are samples enough for one, else the maximum."""
        return self.max if self.p99 is None else self.p99

    def columns(self, unit: str, *, scale: float = 1.0) -> dict[str, Scalar]:
        """As columns of a row: `n`, `p50_ms`, ... with `unit` "ms" and `scale` 1e3."""
        values: dict[str, Scalar] = {"n": self.n}
        for name in ("min", "p50", "p95", "p99", "max", "mean"):
            value = getattr(self, name)
            values[f"{name}_{unit}"] = None if value is None else _rounded(value * scale)
        return values


def percentile(ordered: Sequence[float], share: float) -> float:
    """Percentile of sorted samples, linear between neighbours (numpy's default)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """The quotient, or None where one of the two was not measured."""
    if numerator is None or denominator is None or denominator == 0:
        return None
    return _rounded(numerator / denominator)


@dataclass(frozen=True)
class Chart:
    """One picture of a result. `series` maps a label to its values."""

    name: str
    title: str
    y_label: str
    series: Mapping[str, Sequence[float]]
    kind: str = "bars"
    """"bars": one value for each of `x`; "cdf": distribution; "line": one value per round."""
    x: Sequence[str] = ()
    x_label: str = ""
    log: bool = False


@dataclass
class CaseResult:
    """What a case found. Mutable: a case fills it as it goes, so a failure keeps what there is."""

    summary: dict[str, float | None] = field(default_factory=dict)
    """Named ratios of this run; None where it could not be measured here, and a note says why."""
    rows: list[dict[str, Scalar]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What went wrong in it: a side that broke. The run then ends with a status of its own."""
    samples: int = 0
    """Measured rounds over all rows."""

    def add(
        self, samples: Sequence[float], unit: str, *, scale: float = 1.0, **labels: Scalar
    ) -> Distribution:
        """Record a sample as one row with `labels` first; returns its distribution."""
        distribution = Distribution.of(samples)
        self.rows.append({**labels, **distribution.columns(unit, scale=scale)})
        self.samples += distribution.n
        return distribution


@dataclass(frozen=True)
class Settings:
    """How a case shall run."""

    smoke: bool = False
    """Tiny sizes: shows that the case works, measures nothing."""

    def pick(self, full: T, smoke: T) -> T:
        return smoke if self.smoke else full


def commit() -> str:
    """The commit the tree is at, with "+changes" when tracked or new source differs from it."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if head is None:
        return "unknown"
    changed = git("status", "--porcelain", "--", ".", ":(exclude)bench/results")
    return f"{head}+changes" if changed else head


def machine() -> dict[str, Scalar]:
    """The machine and the settings that decide about transport speed."""
    facts: dict[str, Scalar] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "tcp_congestion_default": default_congestion(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }
    for name in ("torch", "numpy", "uvloop"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = None
    for name in ("rmem_max", "wmem_max", "rmem_default"):
        path = Path("/proc/sys/net/core") / name
        facts[name] = int(path.read_text()) if path.exists() else None
    return facts


def write_result(path: Path, case: str, result: CaseResult, settings: Settings) -> dict[str, Any]:
    """Write the JSON file of a run and its PNG charts beside it; returns the record."""
    record = {
        "case": case,
        "smoke": settings.smoke,
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"python -m bench run {case}{' --smoke' if settings.smoke else ''}",
        "commit": commit(),
        "machine": machine(),
        "n": result.samples,
        "summary": result.summary,
        "notes": result.notes,
        "failures": result.failures,
        "rows": result.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    for chart in result.charts:
        draw(chart, path.with_name(f"{path.stem}-{chart.name}.png"))
    return record


def print_result(case: str, result: CaseResult, goals: Mapping[str, tuple[str, float]]) -> None:
    """The rows, the summary with its goals, and the notes, as tables on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _PLAIN_COLUMNS)
    for columns, rows in _tables(result.rows):
        table = Table(title=case)
        for column in columns:
            table.add_column(column.replace("_", " "), justify="right")
        for row in rows:
            table.add_row(*(_shown(row.get(column)) for column in columns))
        console.print(table)
    table = Table(title=f"{case}: summary")
    for title in ("key", "value", "goal", ""):
        table.add_column(title, justify="left" if title == "key" else "right")
    for key, value in result.summary.items():
        sign, bound = goals.get(key, ("", math.nan))
        met = "" if not sign or value is None else "met" if holds(value, sign, bound) else "not met"
        table.add_row(key, _shown(value), f"{sign} {bound:g}" if sign else "", met)
    console.print(table)
    for word, lines in (("note", result.notes), ("failure", result.failures)):
        for line in lines:
            console.print(f"{word}: {line}", highlight=False, markup=False)


def holds(value: float, sign: str, bound: float) -> bool:
    """Whether `value` meets a goal such as (">=", 1.25)."""
    return value >= bound if sign == ">=" else value <= bound if sign == "<=" else value == bound


def draw(chart: Chart, path: Path) -> None:
    """Draw one chart as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    shown = {label: values for label, values in chart.series.items() if len(values)}
    for index, (label, values) in enumerate(shown.items()):
        if chart.kind == "bars":
            width = 0.8 / len(shown)
            places = [place + index * width for place in range(len(values))]
            axes.bar(places, [v if math.isfinite(v) else 0.0 for v in values], width, label=label)
        elif chart.kind == "cdf":
            ordered = sorted(values)
            axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=label)
        else:
            axes.plot(range(len(values)), values, label=label, linewidth=1)
    if chart.kind == "bars" and chart.x:
        axes.set_xticks([place + 0.4 for place in range(len(chart.x))], chart.x)
    if chart.log:
        (axes.set_xscale if chart.kind == "cdf" else axes.set_yscale)("log")
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(visible=True, alpha=0.3)
    if shown:
        figure.legend(loc="outside lower center", ncols=4, fontsize="small")  # hides nothing
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _tables(rows: Sequence[dict[str, Scalar]]) -> list[tuple[list[str], list[dict[str, Scalar]]]]:
    """Rows with the same columns, one table each."""
    groups: dict[tuple[str, ...], list[dict[str, Scalar]]] = {}
    for row in rows:
        groups.setdefault(tuple(row), []).append(row)
    return [(list(columns), members) for columns, members in groups.items()]


def _shown(value: Scalar) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rounded(value: float) -> float:
    """Five significant digits: more would pretend to be measured."""
    return float(f"{value:.5g}")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
