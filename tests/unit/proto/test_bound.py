"""With how many chunks a round is over."""

from __future__ import annotations

import pytest

from dblp.proto.bound import Bound
from dblp.tolerance import EXACT, Tolerance


def bound(
    tolerance: str | None = None, *, zeros: int = 0, floor: str | None = None, eager: bool = True
) -> Bound:
    """Of a round of 1,000 chunks."""
    made = Bound(1000, eager=eager)
    if tolerance is not None:
        made.fix(Tolerance.of(tolerance))
    made.add_zeros(zeros)
    if floor is not None:
        made.lower(Tolerance.of(floor))
    return made


@pytest.mark.parametrize(
    ("tolerance", "zeros", "carried", "target", "needed"),
    [
        (None, 0, 1000, 1000, 1000),
        (None, 300, 700, 1000, 1000),
        ("0%", 300, 700, 1000, 1000),
        ("40.8%", 0, 592, 592, 592),
        ("40.8%", 300, 592, 892, 715),  # 59.2 % of the 700, where no more come
        ("40.8%", 408, 592, 1000, 759),
        ("40.8%", 500, 500, 1000, 796),
        ("40.8%", 1000, 0, 1000, 1000),
    ],
)
def test_zeros_count_as_received_and_as_needed(
    tolerance: str | None, zeros: int, carried: int, target: int, needed: int
) -> None:
    made = bound(tolerance, zeros=zeros)
    assert (made.carried, made.awaited, made.target) == (carried, target, target)
    assert made.needed == made.tolerated == needed


@pytest.mark.parametrize(
    ("tolerance", "zeros", "floor", "needed"),
    [
        ("40.8%", 0, "85%", 150),
        ("40.8%", 500, "85%", 575),  # 15 % of the 500 that carry something
        ("40.8%", 0, "10%", 592),  # a floor never raises the bound
        ("40.8%", 1000, "85%", 1000),
        ("0%", 0, "85%", 150),
    ],
)
def test_the_floor_is_a_share_of_what_carries_something(
    tolerance: str, zeros: int, floor: str, needed: int
) -> None:
    made = bound(tolerance, zeros=zeros, floor=floor)
    assert made.needed == made.target == needed
    assert made.tolerated == bound(tolerance, zeros=zeros).needed
    made.add_zeros(1000 - zeros)
    assert made.needed == 1000


def test_a_patient_round_ends_unasked_when_it_is_whole_or_late() -> None:
    made = bound("40.8%", eager=False)
    assert (made.needed, made.awaited, made.target) == (592, 592, 1000)
    made.lower(Tolerance.of("85%"))
    assert (made.needed, made.target) == (150, 150)


def test_the_share_is_of_what_carries_something() -> None:
    made = bound("40.8%", zeros=500)
    assert (made.share(500), made.share(750), made.share(1000)) == (0.0, 0.5, 1.0)
    assert bound("40.8%").share(600) == 1.0
    assert bound("40.8%", zeros=1000).share(1000) == 1.0


def test_the_tolerance_is_not_known_before_it_is_fixed() -> None:
    made = bound()
    assert made.tolerance is None
    made.fix(EXACT)
    assert made.tolerance == EXACT
