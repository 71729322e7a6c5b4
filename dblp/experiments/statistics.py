"""Numbers over seeds: means with their spread, and ratios of what belongs together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Spread", "differences", "quantile", "ratios", "spread_of"]


STUDENT_95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95 % points of Student's distribution by degrees of freedom; with more, the last: a
little strict."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds."""

    mean: float
    deviation: float
    """Sample standard deviation; NaN for a single value."""
    count: int
    low: float
    high: float

    def times(self, factor: float) -> Spread:
        """In another unit; `factor` is above 0."""
        return Spread(
            factor * self.mean, factor * self.deviation, self.count, factor * self.low,
            factor * self.high,
        )  # fmt: skip

    @property
    def is_clear(self) -> bool:
        """Whether the mean differs from 0 by more than chance: 0 is outside of the 95 % interval
        of a mean of so few."""
        if self.count < 2:
            return False
        factor = STUDENT_95[min(self.count - 1, len(STUDENT_95) - 1)]
        return abs(self.mean) > factor * self.deviation / math.sqrt(self.count)

    def text(self, pattern: str = "{:.2f}") -> str:
        """Such as "70.5 ± 0.8"."""
        if self.count == 0:
            return "–"
        mean = pattern.format(self.mean).replace("-", "−")
        return mean if self.count == 1 else f"{mean} ± {pattern.format(self.deviation)}"


def spread_of(values: Iterable[float]) -> Spread:
    """Of the values that are finite; mean and extremes are NaN when there are none."""
    finite = [value for value in values if math.isfinite(value)]
    count = len(finite)
    if not count:
        return Spread(math.nan, math.nan, 0, math.nan, math.nan)
    mean = math.fsum(finite) / count
    deviation = math.nan
    if count > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (count - 1))
    return Spread(mean, deviation, count, min(finite), max(finite))


def ratios(above: Mapping[int, float], below: Mapping[int, float]) -> Spread:
    """above / below seed by seed, of the seeds that both have."""
    return spread_of(
        above[seed] / below[seed] for seed in sorted(above.keys() & below.keys()) if below[seed]
    )


def differences(left: Mapping[int, float], right: Mapping[int, float]) -> Spread:
    """left − right seed by seed, of the seeds that both have."""
    return spread_of(left[seed] - right[seed] for seed in sorted(left.keys() & right.keys()))


def quantile(values: Sequence[float], share: float) -> float:
    """Of sorted or unsorted values, interpolated; NaN when there are none."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
