"""The two looks of a round with a deadline."""

from __future__ import annotations

import pytest

from dblp import Deadline
from dblp.deadline import DeadlineClock
from dblp.proto.time_limit import TimeLimit

NEEDED = 592
"""Of 1,000 chunks at 40.8 %; the floor is 150."""


def started(plan: Deadline | None, *, usual_s: float = 0.1) -> TimeLimit:
    clock = DeadlineClock(plan)
    for _ in range(5):
        clock.observe(0, 1000, usual_s, needed=NEEDED, got=NEEDED)
    limit = TimeLimit(clock, 1000)
    limit.start(0, began=7.0, needed=NEEDED)
    return limit


def test_without_a_deadline_there_is_no_look() -> None:
    assert started(None).due is None


@pytest.mark.parametrize(
    ("accepted", "bound", "is_past"),
    [
        (178, 150, True),  # what a burst of 70 % leaves: hopeless, and enough
        (149, 150, True),  # below the floor: only that far
        (0, 150, True),
        (474, NEEDED, False),  # at this pace the deadline will do
        (473, 150, True),
    ],
)
def test_the_first_look_is_at_the_usual_time(accepted: int, bound: int, is_past: bool) -> None:
    limit = started(Deadline())
    assert limit.due == pytest.approx(7.1)
    assert limit.bound_at(7.11, accepted=accepted, needed=NEEDED) == bound
    assert limit.is_past is is_past
    assert limit.due == (None if is_past else pytest.approx(7.125))


@pytest.mark.parametrize("accepted", [0, 149, 590])
def test_at_the_deadline_the_floor_is_the_bound(accepted: int) -> None:
    limit = started(Deadline())
    limit.bound_at(7.11, accepted=500, needed=NEEDED)
    assert limit.bound_at(7.126, accepted=accepted, needed=NEEDED) == 150
    assert limit.is_past and limit.due is None


def test_a_fixed_deadline_has_one_look() -> None:
    limit = started(Deadline(seconds=0.05))
    assert limit.due == pytest.approx(7.05)
    assert limit.bound_at(7.051, accepted=0, needed=NEEDED) == 150


def test_the_floor_never_raises_the_bound() -> None:
    limit = started(Deadline(floor="10%"))
    assert limit.bound_at(7.2, accepted=10, needed=NEEDED) == NEEDED
    assert not limit.is_past


def test_a_stopped_limit_wants_nothing_and_remembers_the_pace() -> None:
    clock = DeadlineClock(Deadline(factor=1.0, warm_up=1))
    limit = TimeLimit(clock, 1000)
    limit.stop()
    assert limit.due is None
    limit.remember(0, 0.1, needed=NEEDED, got=NEEDED // 4)
    assert clock.limit_s(0, 1000, NEEDED) == pytest.approx(0.4)
