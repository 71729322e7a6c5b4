"""Deadlines without a network: how long a round has."""

from __future__ import annotations

import pytest

from dblp import ConfigError, Deadline, TransportConfig
from dblp.deadline import DeadlineClock


def test_no_plan_means_no_limit() -> None:
    clock = DeadlineClock(None)
    clock.observe(0, 100, 1.0, needed=60, got=60)
    assert clock.limit_s(0, 100, 60) is None


def test_a_fixed_limit_holds_from_the_first_round() -> None:
    assert DeadlineClock(Deadline(seconds=0.05)).limit_s(3, 7, 4) == 0.05


def test_an_adaptive_limit_follows_slow_rounds_of_its_stream_and_size() -> None:
    clock = DeadlineClock(Deadline(factor=2.0, warm_up=4, history=5))
    for seconds in (1.0, 4.0, 2.0):
        clock.observe(0, 100, seconds, needed=60, got=60)
        assert clock.limit_s(0, 100, 60) is None and clock.usual_s(0, 100, 60) is None
    clock.observe(0, 100, 3.0, needed=60, got=60)
    assert clock.usual_s(0, 100, 60) == pytest.approx(2.5)  # the median
    assert clock.limit_s(0, 100, 60) == pytest.approx(8.0)  # the upper quartile, twice
    assert clock.limit_s(1, 100, 60) is None and clock.limit_s(0, 101, 60) is None
    for _ in range(5):
        clock.observe(0, 100, 10.0, needed=60, got=60)
    assert clock.limit_s(0, 100, 60) == pytest.approx(20.0)


def test_rounds_that_need_more_have_more_time() -> None:
    clock = DeadlineClock(Deadline(factor=1.0, warm_up=1))
    clock.observe(0, 100, 1.0, needed=100, got=100)
    assert clock.limit_s(0, 100, 60) == pytest.approx(0.6)


def test_a_round_cut_short_counts_for_what_it_would_have_taken() -> None:
    clock = DeadlineClock(Deadline(factor=1.0, warm_up=1))
    clock.observe(0, 10, 1.0, needed=10, got=5)
    assert clock.limit_s(0, 10, 10) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0.0}, {"factor": 0.5}, {"warm_up": 0}, {"warm_up": 9, "history": 8}]
)
def test_bad_plans_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Deadline(**wrong)  # type: ignore[arg-type]


def test_the_config_takes_a_deadline_and_nothing_else() -> None:
    assert TransportConfig(deadline=Deadline()).deadline == Deadline()
    with pytest.raises(ConfigError, match="deadline"):
        TransportConfig(deadline="adaptive")  # type: ignore[arg-type]
