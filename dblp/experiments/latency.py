"""How long it took: Tables II, III and V, Figs. 2 to 5."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .charts import Series, bar_chart, line_chart
from .measures import Column, Measure, burst_sends, columns_of
from .page import Block, Figure, Heading, Table, Text
from .paper import PAPER, PaperFigures
from .statistics import Spread, ratios, spread_of
from .store import RunInfo, Store

__all__ = ["blocks", "time_blocks", "time_rows"]

BASELINE = "baseline"
SIDES = ("paper", "ours", "common")
"""What the baseline is compared with."""


def blocks(
    info: RunInfo, columns: Sequence[Column], figures: PaperFigures | None, *, traffic: bool
) -> list[Block]:
    """Everything about time; nothing where there is no baseline.

    Args:
        columns: traffic of the real model's size, or trainings where there is none.
        traffic: which of the two.
    """
    by_name = {(column.setting.name, bool(column.bursts)): column for column in columns}
    if (BASELINE, False) not in by_name:
        return []
    size = columns[0].workload.elements
    found: list[Block] = [
        Heading("How long it took", 3),
        Text(
            f"Rounds of {4e-6 * size:,.0f} MB, the real model's gradient, sent without computing "
            "it. Send latency is the slowest worker's, until its last STOP."
            if traffic
            else "Of the trainings themselves. Send latency is the slowest worker's."
        ),
    ]
    if (BASELINE, True) in by_name:
        found += [_burst_table(by_name, figures), *_pictures(info, by_name)]
    return [*found, *_rounds(columns), *time_blocks(_time_rows(info.experiment, columns))]


def _burst_table(by_name: dict[tuple[str, bool], Column], figures: PaperFigures | None) -> Table:
    """Tables II and III: each burst, the tail and the mean, baseline over DBLP."""
    baseline = by_name[BASELINE, True]
    sides = [by_name[name, True] for name in SIDES if (name, True) in by_name]
    rows = []
    for place in range(baseline.bursts):
        paper = figures.bursts[place] if figures and place < len(figures.bursts) else None
        rows.append(
            _ratio_row(f"Microburst {place + 1}", baseline, sides, _nth_burst(place), paper)
        )
    tail, mean = (figures.tail, figures.mean) if figures else (None, None)
    for label, measure, paper in (
        ("Tail (slowest round)", "tail_send_s", tail),
        ("Average", "mean_send_s", mean),
        ("Average of the whole exchange", "mean_exchange_s", None),
    ):
        rows.append(_ratio_row(label, baseline, sides, measure, paper))
    names = ["send latency", f"{baseline.setting.label}, ms"]
    for side in sides:
        names += [f"{side.setting.label}, ms", "ratio"]
    return Table("Tables II and III of this run, and the paper's", [*names, "paper"], rows)


def _ratio_row(
    label: str, baseline: Column, sides: Sequence[Column], measure: Measure, paper: float | None
) -> list[str]:
    base = baseline.by_seed(measure)
    row = [label, _milliseconds(spread_of(base.values()))]
    for side in sides:
        ours = side.by_seed(measure)
        row += [_milliseconds(spread_of(ours.values())), ratios(base, ours).text() + "×"]
    return [*row, "–" if paper is None else f"{paper:.2f}×"]


def _nth_burst(place: int) -> Measure:
    return lambda cell: burst_sends(cell)[place]


def _milliseconds(spread: Spread) -> str:
    return spread.times(1e3).text("{:.1f}" if spread.mean < 0.1 else "{:.0f}")


def _pictures(info: RunInfo, by_name: dict[tuple[str, bool], Column]) -> list[Block]:
    """Figs. 2 to 4: the first seed's latency per iteration, and the distribution of all."""
    shown = [by_name[name, True] for name in (BASELINE, *SIDES) if (name, True) in by_name]
    first = shown[0].cells[0]
    lines = [
        Series(
            name=column.setting.label,
            xs=range(column.cells[0].rounds),
            ys=[1e3 * value for value in column.cells[0].steps["send_s"]],
        )
        for column in shown
    ]
    distributions = []
    for column in shown:
        ordered = sorted(1e3 * v for cell in column.cells for v in cell.steps["send_s"])
        count = len(ordered)
        distributions.append(
            Series(
                name=column.setting.label,
                xs=ordered,
                ys=[(place + 1) / count for place in range(count)],
            )
        )
    stem = info.name
    return [
        Figure(
            f"{stem}-latency",
            f"Fig. 2 of this run (seed {first.cell.seed}): send latency; dashed: microbursts.",
            line_chart(lines, title="Send latency", x_label="iteration", y_label="ms", log=True,
                       marks=first.bursts),
        ),
        Figure(
            f"{stem}-cdf",
            "Figs. 3 and 4 of this run: distribution of the send latency, all seeds.",
            line_chart(distributions, title="CDF", x_label="send latency, ms", y_label="CDF"),
        ),
    ]  # fmt: skip


def _rounds(columns: Sequence[Column]) -> list[Block]:
    """Times and bytes of a round without bursts."""
    rows = [
        [
            column.setting.label,
            _milliseconds(column.spread("p50_send_s")),
            _milliseconds(column.spread("mean_exchange_s")),
            column.spread("mean_bytes_up").times(1e-6).text(),
            column.spread("delivered").times(100).text("{:.1f}"),
        ]
        for column in columns
        if not column.bursts
    ]
    names = ["", "send, median ms", "exchange, mean ms", "MB up, all ranks", "delivered, %"]
    return [Table("A round without bursts", names, rows)]


TimeRow = tuple[str, Spread, float | None]
"""What, baseline's time over DBLP's, the paper's."""


def _time_rows(experiment: str, columns: Sequence[Column]) -> list[TimeRow]:
    """Table V's rows of one experiment: time in the exchange, for traffic, or in training."""
    figures = PAPER.get(experiment)
    rows: list[TimeRow] = []
    for with_bursts in (True, False):
        by_name = {c.setting.name: c for c in columns if bool(c.bursts) == with_bursts}
        if not {BASELINE, "paper"} <= by_name.keys():
            continue
        measure = "exchange_s" if by_name[BASELINE].is_traffic else "train_s"
        spread = ratios(by_name[BASELINE].by_seed(measure), by_name["paper"].by_seed(measure))
        name = figures.model if figures else experiment
        paper = None
        if figures is not None:
            paper = figures.burst_time if with_bursts else figures.time
        rows.append((f"{name}, bursts" if with_bursts else name, spread, paper))
    return rows


def time_rows(stores: Sequence[Store]) -> list[TimeRow]:
    """Table V over several runs."""
    rows: list[TimeRow] = []
    for store in stores:
        columns = list(columns_of(store.results()).values())
        sent = [column for column in columns if column.is_traffic]
        rows += _time_rows(store.info().experiment, sent or columns)
    return rows


def time_blocks(rows: Sequence[TimeRow]) -> list[Block]:
    """Table V and Fig. 5."""
    if not rows:
        return []
    table = Table(
        "Table V of this run: time of the baseline, DBLP as in the paper being 1",
        ["", "baseline", "n", "paper"],
        [
            [name, spread.text("{:.3f}"), str(spread.count),
             "–" if paper is None else f"{paper:.3f}"]
            for name, spread, paper in rows
        ],
    )  # fmt: skip
    chart = bar_chart(
        [name for name, _, _ in rows],
        [
            ("this run", [spread.mean for _, spread, _ in rows]),
            ("paper", [math.nan if paper is None else paper for _, _, paper in rows]),
        ],
        title="Normalised time",
        y_label="baseline / DBLP",
    )
    name = "time-" + "-".join("".join(filter(str.isalnum, row[0].lower())) for row in rows)
    return [
        table,
        Figure(name[:60], "Fig. 5 of this run: time of the baseline over DBLP's.", chart),
    ]
