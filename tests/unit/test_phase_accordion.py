"""Policies that know windows, learning rates, each other, and their user's wishes."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dblp.errors import ConfigError
from dblp.phase import (
    AccordionPolicy,
    AnyCritical,
    Decision,
    FixedTolerance,
    GradientNormPolicy,
    LearningRateDecay,
    Manual,
    Regime,
    Schedule,
    TolerancePolicy,
)
from dblp.tolerance import Tolerance

LOW, HIGH = Tolerance.of("0.8%"), Tolerance.of("40.8%")
CRITICAL, NORMAL = Decision(LOW, Regime.CRITICAL), Decision(HIGH, Regime.NORMAL)

NORMS = st.floats(0, sys.float_info.max) | st.sampled_from([math.nan, math.inf, -1.0, 0.0])
RATES = st.floats(0, 1) | st.sampled_from([math.nan, 0.1, 0.01])
STEPS = st.lists(st.tuples(st.integers(0, 2), NORMS, RATES), max_size=40)
"""(stream, norm, learning rate) of calls in order."""


def accordion(**changes: object) -> AccordionPolicy:
    """Windows of four steps, with `changes`."""
    return AccordionPolicy(**{"low": "0.8%", "high": "40.8%", "window": 4, **changes})


def decaying(**changes: object) -> LearningRateDecay:
    """Critical for three steps after a decay, with `changes`."""
    return LearningRateDecay(**{"low": "0.8%", "high": "40.8%", "hold": 3, **changes})


def beside() -> AnyCritical:
    """Eq. 1 with the learning-rate rule beside it."""
    return AnyCritical(GradientNormPolicy("0.8%", "40.8%", interval=2), decaying())


def critical_steps(
    detector: TolerancePolicy, norms: list[float], *, decays: tuple[int, ...] = (), stream: int = 0
) -> list[int]:
    """The steps of `norms` that the policy calls critical; the rate is cut at `decays`."""
    rate = 0.1
    found = []
    for step, norm in enumerate(norms):
        rate *= 0.1 if step in decays else 1.0
        detector.on_learning_rate(rate)
        if detector.observe(stream=stream, step=step, norm=norm).regime is Regime.CRITICAL:
            found.append(step)
    return found


def fed(policy: TolerancePolicy, calls: list[tuple[int, float, float]], first: int = 0) -> list:
    """What the policy answers to calls whose steps count from `first`."""
    answers = []
    for step, (stream, norm, rate) in enumerate(calls, first):
        policy.on_learning_rate(rate)
        answers.append(policy.observe(stream=stream, step=step, norm=norm))
    return answers


# --- Accordion ------------------------------------------------------------------------------------


def test_the_first_window_is_critical_and_a_steady_second_is_not() -> None:
    assert accordion().initial() == CRITICAL
    # The decision of a window's last step is that of the next uplink, so it belongs to the next.
    assert critical_steps(accordion(), [1.0] * 12) == [0, 1, 2]


@pytest.mark.parametrize(
    ("norm", "critical"),
    [(1.5, True), (1.499, False), (0.5, True), (0.501, False), (0.0, True), (100.0, True)],
)
def test_a_window_is_compared_with_the_one_before(norm: float, critical: bool) -> None:
    norms = [1.0] * 4 + [norm] * 4 + [norm] * 4
    expected = [0, 1, 2, *([7, 8, 9, 10] if critical else [])]
    if norm == 0.0:
        expected.append(11)  # nothing can be said of what comes after a norm of 0
    assert critical_steps(accordion(), norms) == expected


def test_one_wild_step_does_not_make_a_window_critical_as_it_would_a_pair_of_steps() -> None:
    norms = [1.0] * 8 + [1.0, 1.0, 1.0, 1.8] + [1.0] * 4
    assert critical_steps(accordion(), norms) == [0, 1, 2]
    pairs = GradientNormPolicy("0.8%", "40.8%", interval=1)
    assert 11 in critical_steps(pairs, norms)


def test_the_norm_of_a_window_is_the_root_mean_square() -> None:
    steady = math.sqrt((1 + 4 + 9 + 16) / 4)
    assert critical_steps(accordion(eta=1e-6), [1.0, 2.0, 3.0, 4.0] + [steady] * 8) == [0, 1, 2]


def test_a_slow_drift_is_seen_by_windows() -> None:
    drift = [1.2**step for step in range(16)]
    assert critical_steps(accordion(), drift) == [0, 1, 2, *range(7, 16)]


def test_a_fall_of_the_learning_rate_is_critical_up_to_the_end_of_the_next_window() -> None:
    for step in (8, 9, 11):
        expected = [0, 1, 2, *range(step, 15)]
        assert critical_steps(accordion(), [1.0] * 24, decays=(step,)) == expected


def test_every_stream_sees_a_fall_of_the_learning_rate_once() -> None:
    detector = accordion()
    for step in range(16):
        detector.on_learning_rate(0.1 if step < 9 else 0.01)
        for stream in (0, 1):
            regime = detector.observe(stream=stream, step=step, norm=1.0).regime
            assert (regime is Regime.CRITICAL) is (step < 3 or 9 <= step < 15)
    late = detector.observe(stream=2, step=16, norm=1.0)
    assert late == CRITICAL  # its first window; the fall was before its time
    assert detector.observe(stream=2, step=19, norm=1.0) == NORMAL


@pytest.mark.parametrize("overflow", [math.nan, math.inf, -math.inf, -1.0])
def test_an_overflow_neither_triggers_nor_updates(overflow: float) -> None:
    for at in range(4, 12):
        norms = [1.0] * 16
        norms[at] = overflow
        assert critical_steps(accordion(), norms) == [0, 1, 2]


def test_a_window_of_overflows_keeps_the_regime() -> None:
    assert critical_steps(accordion(), [math.nan] * 4 + [1.0] * 8) == list(range(7))
    assert critical_steps(accordion(), [1.0] * 4 + [math.nan] * 4 + [2.0] * 4) == [0, 1, 2, 11]


def test_a_window_whose_last_step_never_came_is_closed_by_the_next() -> None:
    detector = accordion()
    for step in (0, 1, 4, 5):
        regime = detector.observe(stream=0, step=step, norm=1.0).regime
        assert (regime is Regime.CRITICAL) is (step < 4)


def test_norms_near_the_largest_float_do_not_overflow() -> None:
    detector = accordion()
    assert critical_steps(detector, [sys.float_info.max] * 12) == [0, 1, 2]
    json.dumps(detector.state_dict(), allow_nan=False)


# --- the learning rate ----------------------------------------------------------------------------


def test_a_decay_holds_for_its_steps_and_nothing_else_is_critical() -> None:
    assert decaying().initial() == NORMAL
    wild = [float(10**step) for step in range(12)]
    assert critical_steps(decaying(), wild, decays=(4,)) == [4, 5, 6]
    assert critical_steps(decaying(), wild, decays=(4, 6)) == [4, 5, 6, 7, 8]
    assert critical_steps(decaying(hold=1), wild, decays=(4,)) == [4]


def test_warm_up_and_cosine_are_no_decays() -> None:
    detector = decaying()
    warm_up = [0.1 * (step + 1) / 10 for step in range(10)]
    cosine = [0.1 * (1 + math.cos(math.pi * step / 100)) / 2 for step in range(80)]
    for step, rate in enumerate([*warm_up, *cosine]):
        detector.on_learning_rate(rate)
        assert detector.observe(stream=0, step=step, norm=1.0) == NORMAL
    every = decaying(decay=0)
    critical = 0
    for step, rate in enumerate(cosine):
        every.on_learning_rate(rate)
        critical += every.observe(stream=0, step=step, norm=1.0).regime is Regime.CRITICAL
    assert critical == len(cosine) - 1


@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1])
def test_a_rate_that_is_none_neither_triggers_nor_updates(rate: float) -> None:
    detector = decaying()
    for step, now in enumerate([0.1, rate, 0.1, rate, 0.05]):
        detector.on_learning_rate(now)
        regime = detector.observe(stream=0, step=step, norm=1.0).regime
        assert (regime is Regime.CRITICAL) is (step == 4)


def test_a_rate_of_zero_is_a_decay_and_rising_from_it_is_none() -> None:
    detector = decaying(hold=1)
    rates = [0.1, 0.0, 0.0, 0.1]
    seen = [fed(detector, [(0, 1.0, rate)], step)[0].regime for step, rate in enumerate(rates)]
    assert seen == [Regime.NORMAL, Regime.CRITICAL, Regime.NORMAL, Regime.NORMAL]


def test_a_step_counter_that_starts_again_ends_the_critical_steps() -> None:
    detector = decaying()
    assert fed(detector, [(0, 1.0, 0.1), (0, 1.0, 0.01)], 50)[1] == CRITICAL
    assert detector.observe(stream=0, step=0, norm=1.0) == NORMAL


@pytest.mark.parametrize(
    "policy",
    [
        FixedTolerance("0.8%"),
        Schedule([(0, "0.8%"), (2, "40.8%")]),
        GradientNormPolicy("0.8%", "40.8%"),
        Manual("0.8%"),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_the_other_policies_ignore_the_learning_rate(policy: TolerancePolicy) -> None:
    before = policy.state_dict(), policy.initial()
    policy.on_learning_rate(0.1)
    policy.on_learning_rate(0.001)
    assert (policy.state_dict(), policy.initial()) == before


@pytest.mark.parametrize(
    ("policy", "needs"),
    [
        (FixedTolerance(0), False),
        (Schedule([(0, "0.8%"), (2, "40.8%")]), False),
        (Manual("0.8%"), False),
        (LearningRateDecay("0.8%", "40.8%"), False),
        (AnyCritical(FixedTolerance(0), Manual(0)), False),
        (GradientNormPolicy("0.8%", "40.8%"), True),
        (AccordionPolicy("0.8%", "40.8%"), True),
        (AnyCritical(FixedTolerance(0), GradientNormPolicy("0.8%", "40.8%")), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_needs_no_norms_decides_the_same_without(policy: TolerancePolicy, needs: bool) -> None:
    assert policy.needs_norms is needs
    if not needs:
        fresh = [policy.observe(stream=7, step=step, norm=1.0) for step in range(4)]
        assert [policy.observe(stream=8, step=s, norm=math.nan) for s in range(4)] == fresh


# --- several at once ------------------------------------------------------------------------------


def test_any_critical_policy_makes_the_round_critical() -> None:
    norms = [1.0] * 6 + [3.0] * 10
    assert critical_steps(beside(), norms, decays=(10,)) == [0, 1, 6, 7, 10, 11, 12]
    assert beside().initial() == CRITICAL


def test_the_lowest_tolerance_wins_whoever_is_critical() -> None:
    capped = AnyCritical(GradientNormPolicy("0.8%", "40.8%", interval=1), FixedTolerance("2%"))
    assert capped.initial() == CRITICAL
    assert fed(capped, [(0, 1.0, 0.1)] * 2)[1] == Decision(Tolerance.of("2%"), Regime.NORMAL)


def test_a_combination_needs_policies_each_of_its_own() -> None:
    one = FixedTolerance(0)
    for wrong in ((), (one, one), (one, "0.8%"), (FixedTolerance,)):
        with pytest.raises(ConfigError):
            AnyCritical(*wrong)


def test_a_state_that_only_some_can_read_changes_none() -> None:
    combined = beside()
    fed(combined, [(0, 1.0, 0.1)] * 3)
    before = combined.state_dict()
    broken = {"policies": [GradientNormPolicy("0.8%", "40.8%").state_dict(), {"rate": 7}]}
    with pytest.raises(ConfigError, match="LearningRateDecay"):
        combined.load_state_dict(broken)
    assert combined.state_dict() == before


# --- by hand --------------------------------------------------------------------------------------


def test_manual_is_what_was_set_last() -> None:
    policy = Manual()
    assert policy.initial() == Decision(Tolerance.of(0), Regime.NORMAL)
    policy.set("0.8%", "critical")
    assert policy.observe(stream=1, step=9, norm=math.nan) == CRITICAL
    policy.set("40.8%")
    assert policy.observe(stream=0, step=0, norm=1.0) == NORMAL
    assert policy.describe() == "set by hand, now 40.8%"


@pytest.mark.parametrize("wrong", [(0.5,), ("100%",), ("1%", "urgent"), ("1%", None)])
def test_what_cannot_be_set_is_refused_and_changes_nothing(wrong: tuple) -> None:
    policy = Manual("40.8%")
    with pytest.raises(ConfigError):
        policy.set(*wrong)
    assert policy.initial() == NORMAL


# --- all of them ----------------------------------------------------------------------------------

MAKERS = {
    "accordion": accordion,
    "decay": decaying,
    "combination": beside,
    "manual": lambda: Manual("0.8%", "critical"),
}


@pytest.mark.parametrize("name", MAKERS)
@given(calls=STEPS, cut=st.integers(0, 40))
@example(calls=[(0, sys.float_info.max, 0.1)] * 9, cut=6)
def test_a_restored_policy_goes_on_as_if_never_stopped(name: str, calls: list, cut: int) -> None:
    whole, first, second = (MAKERS[name]() for _ in range(3))
    expected = fed(whole, calls)
    actual = fed(first, calls[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert actual + fed(second, calls[cut:], min(cut, len(calls))) == expected


@pytest.mark.parametrize("name", MAKERS)
@given(calls=STEPS)
def test_ranks_that_see_the_same_decide_the_same(name: str, calls: list) -> None:
    """No message is needed where every rank has a policy of its own."""
    assert fed(MAKERS[name](), calls) == fed(MAKERS[name](), calls)


@given(calls=STEPS)
def test_an_accordion_is_critical_until_a_finite_window_is_over(calls: list) -> None:
    seen: dict[int, bool] = {}
    for step, ((stream, norm, _), decision) in enumerate(
        zip(calls, fed(accordion(), calls), strict=True)
    ):
        finite = math.isfinite(norm) and norm >= 0
        seen[stream] = seen.get(stream, False) or finite
        if not seen[stream]:
            assert decision == CRITICAL, step


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "state",
    [
        {},
        {"rate": 3, "windows": [], "held": [], "set": 3, "policies": 3},
        {"rate": [0.1, 0], "windows": [[1, 2]], "held": [[1]], "set": ["x", "normal"]},
        {"rate": [0.1, 0], "windows": [[0, 0, 0, 0, 1.0, 1, 1.0, "odd"]], "set": ["1%", "odd"]},
        {"rate": [None, None], "windows": [], "held": [], "policies": [{}, {}]},
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(name: str, state: dict) -> None:
    policy = MAKERS[name]()
    fed(policy, [(0, 1.0, 0.1), (1, 2.0, 0.01)])
    before = policy.state_dict()
    with pytest.raises(ConfigError, match="load it into the kind of policy that saved it"):
        policy.load_state_dict(state)
    assert policy.state_dict() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"low": "50%", "high": "40%"},
        {"low": 0.008},
        {"eta": 0},
        {"eta": math.nan},
        {"eta": "0.5"},
        {"window": 0},
        {"window": 2.0},
        {"window": True},
        {"decay": 1},
        {"decay": -0.1},
        {"decay": math.nan},
        {"decay": "0.2"},
    ],
)
def test_bad_settings_of_an_accordion_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        accordion(**changes)


@pytest.mark.parametrize(
    "changes", [{"low": "50%"}, {"hold": 0}, {"hold": 1.0}, {"hold": True}, {"decay": None}]
)
def test_bad_settings_of_a_decay_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        decaying(**changes)


def test_describe_says_what_the_policies_do() -> None:
    assert accordion().describe() == (
        "0.8% in critical regimes, 40.8% otherwise "
        "(eta 0.5, windows of 4 steps, or a fall of 20% of the learning rate)"
    )
    assert decaying(decay=0).describe() == (
        "0.8% for 3 steps after the learning rate falls, 40.8% otherwise"
    )
    assert AnyCritical(decaying(hold=1), FixedTolerance("2%")).describe() == (
        "the lowest of: 0.8% for 1 step after the learning rate falls by 20%, 40.8% otherwise; "
        "fixed tolerance of 2%"
    )
