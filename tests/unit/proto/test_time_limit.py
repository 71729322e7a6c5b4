"""The looks of a round with a deadline."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dblp import Deadline
from dblp.deadline import DeadlineClock
from dblp.proto.time_limit import TimeLimit

NEEDED = 592
"""Of 1,000 chunks at 40.8 %."""

FLOOR = Deadline().floor


def path() -> SimpleNamespace:
    """A peer that has sent 5,000 datagrams before the round, of which 4,000 came."""
    return SimpleNamespace(received_sequence=5000, drained=4000)


def started(plan: Deadline | None, *, usual_s: float = 0.1, lost: float = 0.0) -> TimeLimit:
    """A round that began at 7 s, and since then 600 datagrams, of which a share of `lost` is
    missing."""
    clock, sent = DeadlineClock(plan), path()
    for _ in range(5):
        clock.observe(0, 1000, usual_s, needed=NEEDED, got=NEEDED)
    limit = TimeLimit(clock, sent, 0, 1000)
    limit.start(began=7.0, needed=NEEDED)
    sent.received_sequence += 600
    sent.drained += round(600 * (1 - lost))
    return limit


def test_without_a_deadline_there_is_no_look() -> None:
    limit = started(None, lost=0.7)
    assert limit.due is None
    assert limit.look(8.0, 0, NEEDED) is None


@pytest.mark.parametrize(
    ("accepted", "given_up"),
    [
        (178, True),  # what a burst of 70 % leaves
        (0, True),
        (474, False),  # at this pace the deadline will do
        (473, True),
    ],
)
def test_at_the_usual_time_a_round_in_a_burst_is_given_up(accepted: int, given_up: bool) -> None:
    limit = started(Deadline(), lost=0.7)
    assert limit.due == pytest.approx(7.1)
    assert limit.look(7.1, accepted, NEEDED) == (FLOOR if given_up else None)
    assert limit.due == (None if given_up else pytest.approx(7.125))


@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_what_is_behind_without_losses_has_all_of_its_time(lost: float) -> None:
    limit = started(Deadline(), lost=lost)
    assert limit.look(7.1, 0, NEEDED) is None
    assert limit.due == pytest.approx(7.125)


@pytest.mark.parametrize(
    ("at", "accepted", "given_up"),
    [
        (7.03, 178, True),  # all of it would take 0.0998 s, and the result would come after it
        (7.015, 178, False),  # 0.0499 s: it sends faster than usual, there is time for both
        (7.03, 297, True),
        (7.02, 297, False),
        (7.11, 474, False),  # less lost than the factor has room for
    ],
)
def test_at_the_end_of_a_pass_the_pace_counts(at: float, accepted: int, given_up: bool) -> None:
    limit = started(Deadline(), lost=0.0)  # datagrams that came before the limit was set
    floor = limit.look(at, accepted, NEEDED, pass_over=True)
    assert floor == (FLOOR if given_up else None)
    assert limit.due is None if given_up else limit.due is not None


def test_what_was_lost_before_the_round_does_not_count() -> None:
    limit = started(Deadline())  # a fifth of the 5,000 before it was lost
    assert limit.look(7.05, 10, NEEDED) is None


@pytest.mark.parametrize("accepted", [0, 149, 590])
def test_at_the_deadline_the_floor_is_the_bound(accepted: int) -> None:
    limit = started(Deadline())
    limit.look(7.11, 500, NEEDED)
    assert limit.look(7.126, accepted, NEEDED) == FLOOR
    assert limit.due is None


def test_a_fixed_deadline_is_the_only_look() -> None:
    limit = started(Deadline(seconds=0.05), lost=0.9)
    assert limit.due == pytest.approx(7.05)
    assert limit.look(7.049, 0, NEEDED) is None
    assert limit.look(7.051, 0, NEEDED) == FLOOR


def test_a_stopped_limit_wants_nothing_and_remembers_the_pace() -> None:
    clock = DeadlineClock(Deadline(factor=1.0, warm_up=1))
    limit = TimeLimit(clock, path(), 0, 1000)
    limit.stop()
    assert limit.due is None
    limit.remember(0.1, NEEDED, 0.25)
    assert clock.limit_s(0, 1000, NEEDED) == pytest.approx(0.4)
