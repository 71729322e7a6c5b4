"""A shorter GIL switch interval while rounds are open."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dblp.io.gil import hold_short_interval, release_short_interval


@pytest.fixture(autouse=True)
def interval_as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_held_by_the_first_and_released_by_the_last() -> None:
    hold_short_interval(0.001)
    hold_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    release_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    release_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_zero_leaves_it_alone() -> None:
    hold_short_interval(0)
    assert sys.getswitchinterval() == pytest.approx(0.005)
    release_short_interval(0)


def test_an_interval_that_is_shorter_already_stays() -> None:
    sys.setswitchinterval(0.0001)
    hold_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)
    release_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_what_somebody_else_has_set_meanwhile_stays() -> None:
    hold_short_interval(0.001)
    sys.setswitchinterval(0.01)
    release_short_interval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.01)
