"""What was learned: Figs. 1 and 6, Tables IV and VI, bytes and time to a target, the CLR trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .charts import Series, line_chart
from .effects import effects_of
from .measures import Column, best_value, detections, reaches
from .page import Block, Figure, Heading, Items, Table, Text
from .paper import PaperFigures
from .statistics import Spread, differences, spread_of
from .store import CellResult, RunInfo

__all__ = ["blocks", "findings"]

REFERENCES = ("exact", "none")
"""Names of the setting that loses nothing."""

WORTH_A_SENTENCE = (
    "baseline", "paper", "ours", "forgetful", "common", "best", "more-80", "more-60",
    "contributors", "warm-up",
)  # fmt: skip
"""Names of the settings that are compared with exact in words."""

SEEDS_MIN = 3
"""For a verdict: two seeds that agree by luck look like certainty."""

CHARTED_MAX = 8
"""More lines than this in one picture tell nobody anything."""

TARGET_SHARE = 0.95
"""A target that most settings can reach: this share of what exact training ends with."""


def blocks(info: RunInfo, columns: Sequence[Column], figures: PaperFigures | None) -> list[Block]:
    """Everything about learning; nothing where nothing was learned."""
    columns = [column for column in columns if column.metric]
    if not columns:
        return []
    calm = [column for column in columns if not column.bursts]
    found: list[Block] = [Heading("What was learned", 3)]
    sentences = findings(info.experiment, calm)
    if sentences:
        found.append(Items(sentences))
    found += [_curves(info, calm), *_sweep(info, calm), _scores(columns, figures)]
    target = _targets(calm)
    if target is not None:
        found.append(target)
    return found + _critical(info, calm)


def reference_of(columns: Sequence[Column]) -> Column | None:
    """The column that loses nothing, without bursts."""
    return next((column for column in columns if column.setting.name in REFERENCES), None)


def in_units(column: Column, spread: Spread) -> str:
    """A score or a difference of scores as people write it: percent, or perplexity."""
    return (spread.times(100) if column.metric == "accuracy" else spread).text()


def findings(experiment: str, columns: Sequence[Column]) -> list[str]:
    """What the scores say, in sentences; differences are made seed by seed."""
    reference = reference_of(columns)
    if reference is None:
        return ["The setting that loses nothing is not finished: there is nothing to compare with."]
    unit = "points" if reference.metric == "accuracy" else "perplexity"
    sentences = []
    if experiment == "phase-drop":
        sentences += _early_and_late({column.setting.name: column for column in columns})
    worth = [c for c in columns if c.setting.name in WORTH_A_SENTENCE]
    for column in worth:
        spread = differences(column.by_seed("score"), reference.by_seed("score"))
        sentences.append(
            f"{column.setting.label}: {in_units(reference, spread)} {unit} against exact "
            f"(n = {spread.count})."
        )
    if not worth:
        sentences += _effects(columns, unit)
    counts = [len(column.cells) for column in columns]
    if min(counts) < 2:
        sentences.append("With one seed there is no spread: these differences may be chance.")
    else:
        noise = reference.spread("score")
        sentences.append(
            f"Seeds alone move the exact result by ± {in_units(reference, _only(noise))} {unit}; "
            "smaller differences show nothing."
        )
    return sentences


def _effects(columns: Sequence[Column], unit: str) -> list[str]:
    """What each choice changes, all others being equal."""
    sentences = []
    for effect in effects_of(columns):
        pairs = f", mean of {effect.pairs} pairs" if effect.pairs > 1 else ""
        sentences.append(
            f"{effect.factor} {effect.value} instead of {effect.instead_of}: "
            f"{in_units(columns[0], effect.scores)} {unit} (n = {effect.scores.count}{pairs})"
            f"{'' if effect.scores.is_clear else '; it may be chance'}."
        )
    return sentences


def _charted(columns: Sequence[Column]) -> list[Column]:
    """All that fit into a picture: what loses nothing, and those that do best."""
    reference = reference_of(columns)
    others = sorted(
        (column for column in columns if column is not reference),
        key=lambda column: column.spread("score").mean,
        reverse=columns[0].metric == "accuracy",
    )
    best = others[: CHARTED_MAX - (reference is not None)]
    return [column for column in columns if column is reference or column in best]


def _only(spread: Spread) -> Spread:
    """The deviation as a value of its own."""
    return Spread(spread.deviation, math.nan, 1, 0, 0)


def _early_and_late(columns: dict[str, Column]) -> list[str]:
    """Fig. 1's question: confirmed where an early drop costs clearly more than a later one."""
    sentences = []
    for share in ("40", "80"):
        early, late = columns.get(f"early-{share}"), columns.get(f"late-{share}")
        none = columns.get("none")
        if early is None or late is None or none is None:
            continue
        scores = none.by_seed("score")
        costs = [differences(scores, each.by_seed("score")) for each in (early, late)]
        more = differences(late.by_seed("score"), early.by_seed("score"))
        if more.count < SEEDS_MIN:
            verdict = f"undecided, it takes {SEEDS_MIN} seeds at least"
        elif not more.is_clear:
            verdict = "a difference that may be chance (0 is in its 95 % interval)"
        else:
            verdict = "as in Fig. 1" if more.mean > 0 else "the opposite of Fig. 1"
        sentences.append(
            f"Dropping {share} % early costs {in_units(none, costs[0])} points at the end, "
            f"dropping it in the middle and late {in_units(none, costs[1])} (n = {more.count}): "
            f"{verdict}. In those steps {early.spread('dropped').times(100).text('{:.1f}')} % and "
            f"{late.spread('dropped').times(100).text('{:.1f}')} % were lost indeed."
        )
    return sentences


def _curves(info: RunInfo, columns: Sequence[Column]) -> Block:
    """Fig. 6, and Fig. 1 of phase-drop: the score after each epoch, with the range of the seeds."""
    metric = columns[0].metric
    scale = 100 if metric == "accuracy" else 1
    lines = []
    for column in _charted(columns):
        epochs = range(min(len(cell.scores) for cell in column.cells))
        spreads = [
            spread_of(scale * cell.scores[epoch]["value"] for cell in column.cells)
            for epoch in epochs
        ]
        lines.append(
            Series(
                name=column.setting.label,
                xs=[epoch + 1 for epoch in epochs],
                ys=[spread.mean for spread in spreads],
                low=[spread.low for spread in spreads],
                high=[spread.high for spread in spreads],
            )
        )
    name = "Fig. 1" if info.experiment == "phase-drop" else "Fig. 6"
    left = len(columns) - len(lines)
    rest = f" The {left} that do worse are in the table only." if left > 0 else ""
    label = axis_label(metric)
    svg = line_chart(lines, title=name, x_label="epoch", y_label=label, log=metric != "accuracy")
    caption = f"{name} of this run: {label} after each epoch, mean and range of the seeds.{rest}"
    return Figure(f"{info.name}-learning", caption, svg)


def _sweep(info: RunInfo, columns: Sequence[Column]) -> list[Block]:
    """The score over P_high, where an experiment varies it."""
    swept = [column for column in columns if column.setting.name.startswith("high-")]
    if len(swept) < 2:
        return []
    scale = 100 if swept[0].metric == "accuracy" else 1
    spreads = [column.spread("score").times(scale) for column in swept]
    line = Series(
        name="last epoch",
        xs=[float(column.setting.high.rstrip("%")) for column in swept],
        ys=[spread.mean for spread in spreads],
        low=[spread.low for spread in spreads],
        high=[spread.high for spread in spreads],
    )
    reference = reference_of(columns)
    lines = [line]
    if reference is not None:
        level = reference.spread("score").times(scale).mean
        lines.append(Series(name=reference.setting.label, xs=line.xs, ys=[level for _ in line.xs]))
    svg = line_chart(
        lines, title="P_high", x_label="P_high (%)", y_label=axis_label(swept[0].metric)
    )
    caption = "The score over P_high, mean and range of the seeds."
    return [Figure(f"{info.name}-high", caption, svg)]


def axis_label(metric: str) -> str:
    """Of a vertical axis."""
    return "test accuracy (%)" if metric == "accuracy" else "perplexity"


def _scores(columns: Sequence[Column], figures: PaperFigures | None) -> Block:
    """Tables IV and VI beside the paper's."""
    calm = reference_of([column for column in columns if not column.bursts])
    rows = []
    for column in columns:
        against = "–"
        if calm is not None and column is not calm:
            spread = differences(column.by_seed("score"), calm.by_seed("score"))
            against = in_units(column, spread)
        bursts = f", {column.bursts} bursts" if column.bursts else ""
        best = best_value(column)
        rows.append(
            [
                f"{column.setting.label}{bursts}",
                in_units(column, column.spread("score")),
                in_units(column, Spread(best, math.nan, 1, best, best)),
                against,
                str(len(column.cells)),
                _paper_score(column, figures),
            ]
        )
    unit = "accuracy, %" if columns[0].metric == "accuracy" else "perplexity"
    names = ["", f"last epoch ({unit})", "best epoch", "against exact", "n", "paper"]
    caption = "Tables IV (with bursts) and VI of this run, and the paper's"
    if figures is None:
        names, rows = names[:-1], [row[:-1] for row in rows]
        caption = "Scores of this run"
    return Table(caption, names, rows)


def _paper_score(column: Column, figures: PaperFigures | None) -> str:
    if figures is None or column.setting.name not in ("paper", "baseline"):
        return "–"
    pair = figures.burst_score if column.bursts else figures.score
    return "–" if pair is None else f"{pair[column.setting.name == 'baseline']:g}"


def _targets(columns: Sequence[Column]) -> Block | None:
    """Bytes and time to a target that exact training reaches."""
    reference = reference_of(columns)
    if reference is None:
        return None
    best = best_value(reference)
    target = TARGET_SHARE * best if reference.metric == "accuracy" else best / TARGET_SHARE
    rows = []
    for column in columns:
        found = [reach for cell in column.cells if (reach := reaches(cell, target)) is not None]
        rows.append(
            [
                column.setting.label,
                f"{len(found)} of {len(column.cells)}",
                spread_of(seconds for seconds, _ in found).text("{:.1f}"),
                spread_of(1e-6 * size for _, size in found).text("{:.0f}"),
            ]
        )
    shown = f"{100 * target:.1f} %" if reference.metric == "accuracy" else f"{target:.2f}"
    caption = f"To {reference.metric} {shown} ({TARGET_SHARE:.0%} of exact), to the epoch"
    return Table(caption, ["", "seeds that reach it", "s", "MB, up and down"], rows)


def _critical(info: RunInfo, columns: Sequence[Column]) -> list[Block]:
    """Which steps were critical, and what Eq. 1 would have said without its own tolerance."""
    watched = [column for column in columns if column.setting.policy == "norm"][:CHARTED_MAX]
    if not watched:
        return []
    rows = []
    for column in watched:
        interval = column.setting.interval or column.workload.interval
        counted = {
            norms: column.spread(_firings(norms, interval)) for norms in ("norm", "mean_norm")
        }
        rows.append(
            [
                column.setting.label,
                column.spread("critical").times(100).text("{:.0f}"),
                counted["norm"].text("{:.1f}"),
                counted["mean_norm"].text("{:.1f}"),
                column.spread(_saved).times(100).text("{:.0f}"),
            ]
        )
    names = ["", "critical steps, %", "Eq. 1 on the norm as sent", "on the mean received",
             "bytes up saved in normal steps, %"]  # fmt: skip
    cell = watched[0].cells[0]
    chart = line_chart(
        [
            Series(name=f"norm {name}", xs=range(cell.rounds), ys=cell.steps[key])
            for name, key in (("as sent", "norm"), ("of the mean received", "mean_norm"))
        ],
        title="CLR trace",
        x_label="step",
        y_label="gradient norm",
        log=True,
        marks=_starts(cell),
    )
    return [
        Text(
            "The CLR trace. Eq. 1 compares norms at the steps that are multiples of the interval. "
            "Where it fires on the mean that was received and not on the norm as sent, it fires on "
            "its own tolerance."
        ),
        Table("How often Eq. 1 fires per training", names, rows),
        Figure(
            f"{info.name}-clr",
            f"{watched[0].setting.label}, seed {cell.cell.seed}: gradient norms; dashed where a "
            "critical regime begins.",
            chart,
        ),
    ]


def _firings(norms: str, interval: int) -> Callable[[CellResult], float]:
    return lambda cell: float(len(detections(cell, norms, interval)))


def _saved(cell: CellResult) -> float:
    """How many bytes fewer a normal step sends than a critical one; NaN without both."""
    by_regime: dict[bool, list[float]] = {True: [], False: []}
    for critical, sent in zip(cell.steps["critical"], cell.steps["bytes_up"], strict=True):
        by_regime[bool(critical)].append(sent)
    if not by_regime[True] or not by_regime[False]:
        return math.nan
    return 1 - spread_of(by_regime[False]).mean / spread_of(by_regime[True]).mean


def _starts(cell: CellResult) -> list[int]:
    critical = [bool(value) for value in cell.steps["critical"]]
    return [
        step
        for step, value in enumerate(critical)
        if value and (step == 0 or not critical[step - 1])
    ]
