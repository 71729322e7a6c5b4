"""Numbers over seeds."""

from __future__ import annotations

import math

import pytest

from dblp.experiments.statistics import differences, quantile, ratios, spread_of


def test_mean_and_sample_deviation() -> None:
    spread = spread_of([1.0, 2.0, 3.0, 6.0])
    assert spread.mean == 3.0 and spread.count == 4
    assert spread.deviation == pytest.approx(math.sqrt(14 / 3))
    assert (spread.low, spread.high) == (1.0, 6.0)
    assert spread.text("{:.1f}") == "3.0 ± 2.2"
    assert spread.times(100).text("{:.0f}") == "300 ± 216"


def test_one_value_has_no_spread_and_none_is_a_dash() -> None:
    assert spread_of([2.0]).text() == "2.00"
    assert math.isnan(spread_of([2.0]).deviation)
    assert spread_of([math.nan, math.inf]).text() == "–"


def test_ratios_and_differences_pair_the_seeds_that_both_have() -> None:
    ours, theirs = {1: 2.0, 2: 4.0, 3: 0.0}, {1: 4.0, 2: 4.0, 3: 1.0, 4: 100.0}
    paired = ratios(theirs, ours)
    assert (paired.mean, paired.count) == (1.5, 2)  # a ratio to nothing is no ratio
    assert differences(theirs, ours).mean == pytest.approx(1.0)
    assert differences(theirs, ours).count == 3


def test_paired_differences_do_not_see_what_seeds_share() -> None:
    exact, lossy = {1: 0.60, 2: 0.70}, {1: 0.59, 2: 0.69}
    assert differences(exact, lossy).deviation == pytest.approx(0.0, abs=1e-9)


def test_quantiles_are_interpolated() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([4.0, 1.0], 1.0) == 4.0
    assert math.isnan(quantile([], 0.5))


def test_few_seeds_need_a_large_difference() -> None:
    assert not spread_of([1.0]).is_clear
    assert not spread_of([1.0, 1.4]).is_clear  # 1.2 against 12.71 · 0.28 / √2
    assert spread_of([1.0, 1.1]).is_clear
    assert spread_of([-1.0, -1.3, -1.2]).is_clear
    assert not spread_of([-1.0, 1.3, -1.2] * 20).is_clear
