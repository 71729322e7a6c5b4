"""The tolerance policies: who is critical when, and what a checkpoint keeps."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.errors import ConfigError
from dblp.phase import (
    Decision,
    FixedTolerance,
    GradientNormPolicy,
    Regime,
    Schedule,
    TolerancePolicy,
)
from dblp.tolerance import Tolerance

LOW, HIGH = Tolerance.of("0.8%"), Tolerance.of("40.8%")


def policy(**changes: object) -> GradientNormPolicy:
    """The paper's policy for EfficientNetB0 with `changes`."""
    return GradientNormPolicy(**{"low": "0.8%", "high": "40.8%", **changes})


def critical_steps(detector: TolerancePolicy, norms: list[float], *, stream: int = 0) -> list[int]:
    """The steps of `norms` that the policy calls critical."""
    return [
        step
        for step, norm in enumerate(norms)
        if detector.observe(stream=stream, step=step, norm=norm).regime is Regime.CRITICAL
    ]


def test_fixed_is_the_same_in_every_round() -> None:
    fixed = FixedTolerance("0.8%")
    expected = Decision(LOW, Regime.NORMAL)
    assert fixed.initial() == expected
    assert fixed.observe(stream=3, step=9, norm=math.nan) == expected
    assert fixed.describe() == "fixed tolerance of 0.8%"


def test_every_stream_starts_critical_for_one_interval() -> None:
    assert policy().initial() == Decision(LOW, Regime.CRITICAL)
    assert critical_steps(policy(interval=4), [1.0] * 12) == [0, 1, 2, 3]


def test_the_decision_carries_the_tolerance_of_the_regime() -> None:
    detector = policy(interval=1)
    assert detector.observe(stream=0, step=0, norm=1.0) == Decision(LOW, Regime.CRITICAL)
    assert detector.observe(stream=0, step=1, norm=1.0) == Decision(HIGH, Regime.NORMAL)


@pytest.mark.parametrize(
    ("norm", "critical"),
    [(1.5, True), (1.499, False), (0.5, True), (0.501, False), (0.0, True), (100.0, True)],
)
def test_eq_1_takes_the_relative_change_either_way(norm: float, critical: bool) -> None:
    norms = [1.0] * 4 + [norm]
    assert (4 in critical_steps(policy(interval=2), norms)) is critical


def test_eta_is_the_threshold() -> None:
    assert 4 not in critical_steps(policy(interval=2, eta=0.8), [1.0] * 4 + [1.7])
    assert 4 in critical_steps(policy(interval=2, eta=0.8), [1.0] * 4 + [1.8])


def test_a_regime_lasts_one_interval() -> None:
    norms = [1.0] * 10 + [2.0] * 10
    assert critical_steps(policy(interval=5), norms) == [*range(5), *range(10, 15)]


def test_a_jump_between_checks_is_not_seen_as_in_the_paper() -> None:
    norms = [1.0] * 7 + [9.0] * 13
    assert critical_steps(policy(interval=5), norms) == [*range(5)]


def test_a_previous_norm_of_zero_is_critical() -> None:
    assert critical_steps(policy(interval=2), [1.0, 0.0, 0.0, 0.0, 0.0]) == [0, 1, 2, 3, 4]
    assert critical_steps(policy(interval=1), [0.0, 1.0, 1.0]) == [0, 1]


@pytest.mark.parametrize("overflow", [math.nan, math.inf, -math.inf, -1.0])
def test_an_overflow_neither_triggers_nor_updates(overflow: float) -> None:
    steady = [1.0] * 4 + [overflow] + [1.0] * 5
    assert critical_steps(policy(interval=2), steady) == [0, 1]


def test_the_check_of_an_overflow_falls_on_the_next_finite_step() -> None:
    norms = [1.0] * 4 + [math.nan, 2.0] + [2.0] * 4
    assert critical_steps(policy(interval=2), norms) == [0, 1, 5]
    late = [1.0] * 2 + [3.0, 3.0, math.inf, 3.0, 3.0, 3.0]
    assert critical_steps(policy(interval=2), late) == [0, 1, 2, 3, 4]


def test_overflows_from_the_start_keep_the_start_critical() -> None:
    assert critical_steps(policy(interval=2), [math.nan] * 4 + [1.0] * 4) == [0, 1, 2, 3, 4, 5]


def test_streams_are_independent() -> None:
    detector = policy(interval=2)
    for step in range(6):
        steady = detector.observe(stream=0, step=step, norm=1.0)
        jumping = detector.observe(stream=1, step=step, norm=float(4**step))
        assert jumping.regime is Regime.CRITICAL
        assert (steady.regime is Regime.CRITICAL) is (step < 2)


@given(st.lists(st.floats(0, 1e300) | st.just(math.nan), max_size=40), st.integers(1, 7))
def test_the_regime_changes_only_at_checks(norms: list[float], interval: int) -> None:
    detector = policy(interval=interval)
    before = Regime.CRITICAL
    overflowed = False
    for step, norm in enumerate(norms):
        if step % interval == 0:
            overflowed = False
        regime = detector.observe(stream=0, step=step, norm=norm).regime
        if regime is not before:
            assert step % interval == 0 or overflowed
        overflowed = overflowed or math.isnan(norm)
        before = regime


@given(st.lists(st.floats(0, 1e300) | st.just(math.inf), max_size=30), st.integers(0, 30))
def test_a_restored_policy_goes_on_as_if_never_stopped(norms: list[float], cut: int) -> None:
    whole, first, second = (policy(interval=3) for _ in range(3))
    expected = [whole.observe(stream=5, step=step, norm=n) for step, n in enumerate(norms)]
    actual = [first.observe(stream=5, step=step, norm=n) for step, n in enumerate(norms[:cut])]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    actual += [
        second.observe(stream=5, step=step, norm=n) for step, n in enumerate(norms[cut:], cut)
    ]
    assert actual == expected


def test_a_step_counter_that_starts_again_is_checked_at_once() -> None:
    detector = policy(interval=10)
    critical_steps(detector, [1.0] * 50)
    assert detector.observe(stream=0, step=0, norm=5.0).regime is Regime.CRITICAL


@pytest.mark.parametrize(
    "state",
    [{}, {"streams": 3}, {"streams": [[1, 2]]}, {"streams": [[0, 1.0, 2, "odd"]]}],
)
def test_a_foreign_state_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    detector = policy()
    detector.observe(stream=0, step=0, norm=1.0)
    before = detector.state_dict()
    with pytest.raises(ConfigError, match="GradientNormPolicy"):
        detector.load_state_dict(state)
    assert detector.state_dict() == before


def test_a_policy_without_state_refuses_one() -> None:
    fixed = FixedTolerance(0)
    fixed.load_state_dict(fixed.state_dict())
    with pytest.raises(ConfigError, match="FixedTolerance"):
        fixed.load_state_dict({"streams": []})


@pytest.mark.parametrize(
    "changes",
    [
        {"low": "50%", "high": "40%"},
        {"low": 0.008},
        {"eta": 0},
        {"eta": math.nan},
        {"eta": math.inf},
        {"eta": "0.5"},
        {"interval": 0},
        {"interval": 2.0},
        {"interval": True},
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        policy(**changes)


def test_describe_says_what_the_policy_does() -> None:
    assert policy().describe() == (
        "0.8% in critical regimes, 40.8% otherwise (eta 0.5, checked every 10 steps)"
    )


def test_schedule_changes_at_its_steps() -> None:
    schedule = Schedule([(0, "0.8%"), (3, Fraction(51, 125)), (5, 0)])
    assert schedule.initial().tolerance == LOW
    assert [str(schedule.observe(stream=0, step=s, norm=1.0).tolerance) for s in range(7)] == [
        *["0.8%"] * 3,
        *["40.8%"] * 2,
        *["0%"] * 2,
    ]
    assert schedule.describe() == "0.8% from step 0, 40.8% from step 3, 0% from step 5"


def test_the_lowest_tolerance_of_a_schedule_is_critical() -> None:
    schedule = Schedule([(0, "0.8%"), (2, "40.8%"), (4, "0.8%")])
    assert critical_steps(schedule, [1.0] * 6) == [0, 1, 4, 5]
    assert critical_steps(Schedule([(0, "0.8%")]), [1.0] * 3) == []


@pytest.mark.parametrize(
    "entries", [[], [(1, 0)], [(0, 0), (0, 0)], [(0, 0), (5, 0), (4, 0)], [(0, 0.5)]]
)
def test_bad_schedules_are_refused(entries: list[tuple[int, object]]) -> None:
    with pytest.raises(ConfigError):
        Schedule(entries)


def test_a_policy_of_ones_own_needs_two_methods() -> None:
    class AlwaysExact(TolerancePolicy):
        def initial(self) -> Decision:
            return Decision(Tolerance.of(0), Regime.NORMAL)

        def observe(self, *, stream: int, step: int, norm: float) -> Decision:
            return self.initial()

    own = AlwaysExact()
    assert own.describe() == "AlwaysExact"
    assert own.state_dict() == {}
