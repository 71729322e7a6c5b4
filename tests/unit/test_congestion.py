"""Congestion control without a network: what the window does with delays."""

from __future__ import annotations

import pytest

from dblp import AdaptiveWindow, ConfigError, FixedRate, TransportConfig, Unpaced
from dblp.congestion import CongestionControl, Feedback

BASE_S = 20e-6


def rounds(
    control: CongestionControl, count: int, delay_s: float, *, limited: bool = True, start: int = 0
) -> int:
    """`count` round trips of this delay; the next free sequence."""
    sent = start
    for index in range(count):
        sent += control.window
        control.on_feedback(
            Feedback(
                now=0.001 * (start + index + 1),
                path_delay_s=delay_s,
                smallest_delay_s=min(delay_s, BASE_S) if index == 0 and start == 0 else delay_s,
                samples=1,
                sent=sent,
                acknowledged=sent,
                window_limited=limited,
            )
        )
    return sent


def test_the_window_doubles_on_an_empty_path_and_only_if_it_limits() -> None:
    control = AdaptiveWindow().new_control(1472)
    first = control.window
    rounds(control, 3, BASE_S)
    assert control.window == 8 * first
    rounds(control, 3, BASE_S, limited=False, start=10_000)
    assert control.window == 8 * first


def test_a_queue_shrinks_the_window_in_proportion_and_never_below_the_minimum() -> None:
    plan = AdaptiveWindow()
    control = plan.new_control(1472)
    sent = rounds(control, 6, BASE_S)
    before = control.window
    sent = rounds(control, 1, 2 * (BASE_S + plan.queue_delay_s), start=sent)
    assert control.window == before // 2 + plan.step_datagrams
    rounds(control, 60, 1.0, start=sent)
    assert plan.minimum_datagrams <= control.window <= 2 * plan.step_datagrams + 8


def test_two_senders_with_one_queue_become_equal() -> None:
    """The step is what both gain alike; the loss is in proportion."""
    plan = AdaptiveWindow()
    controls = [plan.new_control(1472), plan.new_control(1472)]
    sent = [rounds(controls[0], 5, BASE_S), rounds(controls[1], 1, BASE_S)]
    capacity_per_s = 1e9 / 8 / 1514
    for _ in range(400):
        queued = sum(control.window for control in controls)
        delay = max(BASE_S, queued / capacity_per_s)
        for index, control in enumerate(controls):
            sent[index] = rounds(control, 1, delay, start=sent[index])
    small, large = sorted(control.window for control in controls)
    assert large <= 1.1 * small
    assert sum(control.window for control in controls) * 1514 < 200_000


def test_loss_is_no_signal() -> None:
    """Acknowledged means drained or known to be lost: nothing in the feedback counts losses."""
    assert not any("loss" in name for name in Feedback.__dataclass_fields__)


def test_the_constant_choices() -> None:
    assert Unpaced().new_control(1472).pacing_bytes_per_s == 0
    fixed = FixedRate(8e6).new_control(1472)
    assert fixed.pacing_bytes_per_s == 1e6 and fixed.window > 1 << 20
    rounds(fixed, 3, 1.0)
    assert fixed.window > 1 << 20


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast"])
def test_a_rate_must_be_positive(rate: object) -> None:
    with pytest.raises(ConfigError, match="bits_per_s"):
        FixedRate(rate)  # type: ignore[arg-type]


def test_bad_plans_and_choices_are_named() -> None:
    with pytest.raises(ConfigError, match="queue_delay_s"):
        AdaptiveWindow(queue_delay_s=0)
    with pytest.raises(ConfigError, match="step_datagrams"):
        AdaptiveWindow(step_datagrams=0)
    with pytest.raises(ConfigError, match="congestion"):
        TransportConfig(congestion="fast")  # type: ignore[arg-type]
