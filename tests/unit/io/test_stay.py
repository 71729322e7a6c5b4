"""What ends a stay in the pump, and what congestion control gets meanwhile."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from dblp import fastpath
from dblp.io import stay as stay_module
from dblp.io.stay import BUDGET_S, LINGER_S, stay


class FakeSession:
    """Wants to steer every 0.2 ms."""

    def __init__(self) -> None:
        self.steered = 0
        self.steer_at = 0.0

    def steer(self, *, now: float) -> None:
        self.steered += 1
        self.steer_at = now + 0.0002


class FakePump:
    """Comes back with these flags, one after the other, and remembers its limits; the budget takes
    its time."""

    def __init__(self, *flags: int) -> None:
        self.flags = list(flags)
        self.limits: list[tuple[int, int]] = []

    def __call__(self, channels: Any, wake: Any, *, budget_ns: int, linger_ns: int) -> int:
        self.limits.append((budget_ns, linger_ns))
        flags = self.flags.pop(0)
        if flags == fastpath.BUDGET:
            time.sleep(budget_ns * 1e-9)
        return flags


def run(
    monkeypatch: pytest.MonkeyPatch,
    pump: FakePump,
    session: Any,
    timer: float,
    *others: Any,
    once: bool = False,
) -> int:
    monkeypatch.setattr(stay_module.fastpath, "pump", pump)
    return stay([], [], [session, *others], timer=timer, once=once)


def test_steering_does_not_end_the_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    session, budget = FakeSession(), fastpath.BUDGET
    pump = FakePump(budget, budget, budget, fastpath.EVENT)
    assert run(monkeypatch, pump, session, math.inf) == fastpath.EVENT
    assert session.steered == 3
    assert all(at_most <= 0.0002e9 for at_most, _ in pump.limits)


def test_only_sessions_that_are_due_are_steered(monkeypatch: pytest.MonkeyPatch) -> None:
    due, later = FakeSession(), FakeSession()
    later.steer_at = math.inf
    budget = fastpath.BUDGET
    run(monkeypatch, FakePump(budget, budget, fastpath.EVENT), due, math.inf, later)
    assert (due.steered, later.steered) == (2, 0)


def test_a_timer_that_is_due_ends_the_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    pump = FakePump(fastpath.BUDGET)
    assert run(monkeypatch, pump, session, time.monotonic() - 1) == fastpath.BUDGET
    assert session.steered == 0
    assert pump.limits[0][1] == 0  # the pump must not sleep past the timer


def test_silence_before_a_timer_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = time.monotonic() + LINGER_S / 2
    assert run(monkeypatch, FakePump(fastpath.QUIET), FakeSession(), soon) == 0
    assert run(monkeypatch, FakePump(fastpath.QUIET), FakeSession(), math.inf) == fastpath.QUIET


def test_others_with_work_get_every_return(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    assert run(monkeypatch, FakePump(fastpath.BUDGET), session, math.inf, once=True) == 4
    assert session.steered == 0


def test_without_a_round_the_stay_is_as_long_as_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    session.steer_at = math.inf
    pump = FakePump(fastpath.WAKE)
    assert run(monkeypatch, pump, session, math.inf) == fastpath.WAKE
    assert 0.9 * BUDGET_S * 1e9 < pump.limits[0][0] <= BUDGET_S * 1e9
