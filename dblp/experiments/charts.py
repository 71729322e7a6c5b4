"""Charts as SVG text: no library, no script, readable on a phone and in a dark theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Series", "bar_chart", "line_chart"]

WIDTH, PLOT_HEIGHT = 420, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 34
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")
"""Okabe and Ito's, which can be told apart with any eyes."""
POINTS_MAX = 400
LEGEND_ROW = 15


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line; `low` and `high` are the borders of its band, if it has one."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class _Axis:
    """Values to places along one side."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    whole: bool = False
    """Ticks at whole numbers only: nobody ran half an epoch."""

    def place(self, value: float) -> float:
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            value = math.log10(max(value, self.low))
        else:
            low, high = self.low, self.high
        share = (value - low) / (high - low or 1.0)
        return self.start + (self.stop - self.start) * share

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            ticks = [f * 10.0**power for power in range(first, last + 1) for f in (1, 2, 5)]
            seen = [tick for tick in ticks if self.low <= tick <= self.high]
            return seen if len(seen) <= 6 else [10.0**power for power in range(first + 1, last)]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2 or 1.0))
        for factor in (1, 2, 5, 10):
            if (self.high - self.low) / (step * factor) <= 6:
                step *= factor
                break
        step = max(step, 1.0) if self.whole else step
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _axis(values: Sequence[float], start: float, stop: float, *, log: bool, zero: bool) -> _Axis:
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (min(finite), max(finite)) if finite else (1.0, 10.0)
    if log:
        return _Axis(low / 1.15, high * 1.15, start, stop, log=True)
    if zero:
        low = min(low, 0.0)
    margin = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    whole = all(float(value).is_integer() for value in finite)
    return _Axis(low if zero else low - margin, high + margin, start, stop, whole=whole)


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    marks: Sequence[float] = (),
) -> str:
    """Lines with bands.

    Args:
        log: logarithmic vertical axis.
        marks: places on the horizontal axis with a dashed line.
    """
    ys = [value for one in series for part in (one.ys, one.low, one.high) for value in part]
    xs = [value for one in series for value in one.xs]
    across = _axis(xs, LEFT, WIDTH - RIGHT, log=False, zero=False)
    up = _axis(ys, TOP + PLOT_HEIGHT, TOP, log=log, zero=False)
    body = _frame(across, up, x_label, y_label)
    for mark in marks:
        x = across.place(mark)
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + PLOT_HEIGHT}" '
            'stroke="currentColor" stroke-dasharray="3 3" opacity=".5"/>'
        )
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        if one.low and one.high:
            border = [*zip(one.xs, one.high, strict=True)]
            border += [*zip(one.xs, one.low, strict=True)][::-1]
            body.append(
                f'<polygon points="{_points(border, across, up)}" fill="{colour}" opacity=".15"/>'
            )
        line = _thinned([*zip(one.xs, one.ys, strict=True)])
        dash = ' stroke-dasharray="6 3"' if number >= len(COLOURS) else ""
        body.append(
            f'<polyline points="{_points(line, across, up)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.6"{dash}/>'
        )
    return _svg(body, title, [one.name for one in series])


def bar_chart(
    groups: Sequence[str],
    bars: Sequence[tuple[str, Sequence[float]]],
    *,
    title: str,
    y_label: str,
) -> str:
    """Groups of bars side by side: `bars` has a name and one value per group."""
    values = [value for _, heights in bars for value in heights]
    up = _axis(values, TOP + PLOT_HEIGHT, TOP, log=False, zero=True)
    across = _Axis(0, max(1, len(groups)), LEFT, WIDTH - RIGHT)
    body = _frame(None, up, "", y_label)
    width = 0.8 / max(1, len(bars))
    size = 11 if len(groups) <= 3 else 8
    for place, group in enumerate(groups):
        middle = f"{across.place(place + 0.5):.1f}"
        words = [group] if len(groups) <= 3 else group.split()
        body += [
            f'<text x="{middle}" y="{TOP + PLOT_HEIGHT + 13 + 11 * line}" font-size="{size}" '
            f'text-anchor="middle">{escape(word)}</text>'
            for line, word in enumerate(words)
        ]
        for number, (_, heights) in enumerate(bars):
            value = heights[place]
            if not math.isfinite(value):
                continue
            left = across.place(place + 0.1 + width * number)
            right = across.place(place + 0.1 + width * (number + 0.9))
            top = up.place(value)
            colour = COLOURS[number % len(COLOURS)]
            body.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
                f'height="{up.place(0) - top:.1f}" fill="{colour}"/>'
                f'<text x="{(left + right) / 2:.1f}" y="{top - 3:.1f}" '
                f'font-size="{size}" text-anchor="middle">{value:.2f}</text>'
            )
    return _svg(body, title, [name for name, _ in bars])


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS_MAX of them; of each stretch the highest, so that no spike is lost."""
    if len(points) <= POINTS_MAX:
        return points
    size = math.ceil(len(points) / POINTS_MAX)
    return [
        max(points[first : first + size], key=lambda point: point[1])
        for first in range(0, len(points), size)
    ]


def _points(line: Sequence[tuple[float, float]], across: _Axis, up: _Axis) -> str:
    return " ".join(
        f"{across.place(x):.1f},{up.place(y):.1f}"
        for x, y in line
        if math.isfinite(x) and math.isfinite(y)
    )


def _frame(across: _Axis | None, up: _Axis, x_label: str, y_label: str) -> list[str]:
    """Axes, ticks and labels."""
    bottom = TOP + PLOT_HEIGHT
    body = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}" stroke="currentColor"'
        "/>"
    ]
    for tick in up.ticks():
        y = up.place(tick)
        body.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="currentColor" opacity=".15"/>'
            f'<text x="{LEFT - 4}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for x, tick in (
        [] if across is None else [(across.place(tick), tick) for tick in across.ticks()]
    ):
        body.append(f'<text x="{x:.1f}" y="{bottom + 13}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    body.append(
        f'<text x="{middle}" y="{bottom + 28}" text-anchor="middle">{escape(x_label)}</text>'
    )
    body.append(
        f'<text transform="translate(11 {TOP + PLOT_HEIGHT / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return body


def _svg(body: list[str], title: str, names: Sequence[str]) -> str:
    """The whole picture, with its legend below."""
    legend = []
    top = TOP + PLOT_HEIGHT + BOTTOM + 8
    for number, name in enumerate(names):
        y = top + LEGEND_ROW * number
        dash = ' stroke-dasharray="6 3"' if number >= len(COLOURS) else ""
        legend.append(
            f'<line x1="{LEFT}" x2="{LEFT + 18}" y1="{y - 4}" y2="{y - 4}" '
            f'stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="3"{dash}/>'
            f'<text x="{LEFT + 24}" y="{y}">{escape(name)}</text>'
        )
    height = top + LEGEND_ROW * len(names)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">'
        f"<title>{escape(title)}</title>{''.join(body)}{''.join(legend)}</svg>"
    )
