"""Residuals and layouts by themselves, without a network."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dblp.errors import ConfigError
from dblp.torch.feedback import ErrorFeedback
from dblp.torch.layout import BucketLayout, Slot, check_patterns, subtract

LAYOUT = BucketLayout((Slot("a", 0, 4), Slot("b", 4, 10)))


def owing(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> ErrorFeedback:
    """Elements 2, 3 and 8 of 0 … 9 were not delivered."""
    feedback = ErrorFeedback()
    sent = (torch.arange(10.0) * scale).to(dtype)
    feedback.capture(sent, LAYOUT, ((2, 4), (8, 9)), scale=scale)
    return feedback


def added(
    feedback: ErrorFeedback, scale: float = 1.0, layout: BucketLayout = LAYOUT
) -> list[float]:
    gradient = torch.zeros(layout.numel)
    feedback.add_to(gradient, layout, scale=scale)
    return gradient.tolist()


OWED = [0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 8.0, 0.0]


def test_what_was_lost_is_added_once_the_step_counts() -> None:
    feedback = owing()
    assert added(feedback) == [0.0] * 10
    feedback.commit()
    assert added(feedback) == OWED
    assert added(feedback) == OWED  # until a later step replaces it
    feedback.settle(LAYOUT)
    feedback.commit()
    assert added(feedback) == [0.0] * 10


def test_a_step_that_does_not_count_keeps_what_was_owed() -> None:
    feedback = owing()
    feedback.commit()
    feedback.capture(torch.full((10,), float("nan")), LAYOUT, ((0, 10),))
    feedback.discard()
    assert added(feedback) == OWED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_field_20_residuals_are_kept_without_the_loss_scale(dtype: torch.dtype) -> None:
    feedback = owing(1024.0, dtype)
    feedback.commit()
    assert added(feedback, 8.0) == [8 * value for value in OWED]
    assert feedback.state_dict()["a"].tolist() == OWED[:4]


def test_field_20_an_overflow_of_gradient_and_debt_is_not_owed_for_ever() -> None:
    feedback = owing(dtype=torch.float16)
    feedback.capture(torch.full((10,), float("inf"), dtype=torch.float16), LAYOUT, ((0, 4),))
    feedback.commit()
    assert added(feedback) == [0.0] * 10


def test_field_12_residuals_follow_their_parameters_into_other_buckets() -> None:
    feedback = owing()
    feedback.commit()
    assert added(feedback, layout=BucketLayout((Slot("b", 0, 6),))) == OWED[4:]
    assert added(feedback, layout=BucketLayout((Slot("c", 0, 2), Slot("a", 2, 6)))) == [
        0.0, 0.0, *OWED[:4]
    ]  # fmt: skip


def test_field_19_residuals_in_a_checkpoint() -> None:
    feedback, other = owing(), ErrorFeedback()
    feedback.commit()
    other.load_state_dict(feedback.state_dict())
    assert other.state_dict().keys() == {"a", "b"}
    assert added(other) == OWED
    other.load_state_dict({"a": torch.ones(3)})
    with pytest.raises(ConfigError, match="residual of a has 3 elements, the parameter 4"):
        added(other)
    with pytest.raises(ConfigError):
        other.load_state_dict({"a": 3})


def test_patterns_name_parameters() -> None:
    assert LAYOUT.matching(["a"]) == ((0, 4),)
    assert LAYOUT.matching(["*"]) == ((0, 10),)
    assert LAYOUT.matching(["c"]) == ()
    check_patterns(["a", "[ab]"], ["a", "b"])
    with pytest.raises(ConfigError, match=r"'x\*'.*a, b"):
        check_patterns(["a", "x*"], ["a", "b"])


Runs = st.lists(st.booleans(), min_size=1, max_size=40)


def runs_of(flags: list[bool]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for place, flag in enumerate(flags):
        if flag and found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        elif flag:
            found.append((place, place + 1))
    return tuple(found)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_subtracting_ranges(flags: list[tuple[bool, bool]]) -> None:
    left = subtract(runs_of([a for a, _ in flags]), runs_of([b for _, b in flags]))
    covered = {place for start, stop in left for place in range(start, stop)}
    assert covered == {place for place, (a, b) in enumerate(flags) if a and not b}
    assert all(start < stop for start, stop in left)


def test_memory_is_kept_from_step_to_step_and_belongs_to_one_debt_at_a_time() -> None:
    """Fresh memory for a copy of every gradient is touched page by page in every step."""
    feedback = ErrorFeedback()
    copies, rooms = set(), set()
    for step in range(6):
        gradient = torch.full((10,), float(step + 1))
        feedback.add_to(gradient, LAYOUT)
        before = gradient.clone()
        sent = feedback.copy_of(gradient, LAYOUT)
        copies.add(sent.data_ptr())
        gradient.zero_()  # the mean is written over it
        assert torch.equal(sent, before)
        feedback.capture(sent, LAYOUT, ((2, 4), (5, 9)))
        if step == 3:
            feedback.discard()
            continue
        feedback.commit()
        rooms.add(feedback._known[LAYOUT.names].values.data_ptr())
        owed = [0.0] * 10
        for index in (2, 3, 5, 6, 7, 8):
            owed[index] = before[index].item()
        assert added(feedback) == owed
    assert len(copies) == 1 and len(rooms) == 2
    other = BucketLayout((Slot("a", 0, 4),))
    feedback.add_to(torch.zeros(4), other)
    assert len(feedback._copies) == 0 and not feedback._rooms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_memory_is_kept_through_steps_without_loss(dtype: torch.dtype) -> None:
    feedback = ErrorFeedback()
    rooms = set()
    for step in range(9):
        sent = torch.full((10,), float(step + 1), dtype=dtype)
        feedback.add_to(sent, LAYOUT)
        feedback.capture(sent, LAYOUT, ((2, 4), (5, 9)) if step % 3 else ())
        feedback.commit()
        debt = feedback._known[LAYOUT.names]
        rooms.update(
            room.data_ptr()
            for room in (debt.room, *feedback._rooms.get(LAYOUT.names, []))
            if room is not None and room.numel()
        )
    assert 1 <= len(rooms) <= 2


def test_copies_of_steps_that_did_not_count_are_kept() -> None:
    """A loss scale that is still being looked for: nothing is owed yet."""
    feedback = ErrorFeedback()
    places = set()
    for _ in range(3):
        gradient = torch.ones(10)
        feedback.add_to(gradient, LAYOUT)
        places.add(feedback.copy_of(gradient, LAYOUT).data_ptr())
        feedback.capture(gradient, LAYOUT, ((2, 4),))
        feedback.discard()
    assert len(places) == 1


def test_buckets_of_several_devices_come_from_several_threads() -> None:
    feedback = ErrorFeedback()

    def step(thread: int) -> None:
        for number in range(300):
            layout = BucketLayout((Slot(f"{thread}.{number}", 0, 10),))
            gradient = torch.ones(10)
            feedback.add_to(gradient, layout)
            feedback.capture(feedback.copy_of(gradient, layout), layout, ((2, 4),))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(step, range(2)))
    finally:
        sys.setswitchinterval(interval)
    feedback.commit()
    assert len(feedback.state_dict()) == 600
