"""The order that is told in advance: two bits per chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.proto.outline import CHUNKS_MIN, OrderToCome, outline_frames
from dblp.wire import Outline, decode_frame, encode_frame

COUNT = 9001
"""Three fragments, and a last byte that is not full."""


def classes_of(count: int, seed: int, kinds: int) -> list[np.ndarray]:
    kind = np.random.default_rng(seed).integers(0, kinds, count)
    return [np.flatnonzero(kind == number).astype(np.uint32) for number in range(3)]


@given(st.integers(CHUNKS_MIN * 4, COUNT), st.integers(0, 2**32), st.sampled_from([2, 3, 4]))
def test_an_order_of_up_to_three_runs_arrives_as_it_is(count: int, seed: int, kinds: int) -> None:
    order = np.concatenate(classes_of(count, seed, kinds))  # of four kinds one is not sent
    told = OrderToCome(count)
    frames = outline_frames(order, count, 3, 7)
    assert frames
    received = [told.add(frame) for frame in frames]
    assert all(one is None for one in received[:-1])
    assert np.array_equal(received[-1], order)


def test_index_order_and_what_has_too_many_runs_is_not_told() -> None:
    assert outline_frames(np.arange(COUNT, dtype=np.uint32), COUNT, 0, 0) == []
    shuffled = np.random.default_rng(0).permutation(COUNT).astype(np.uint32)
    assert outline_frames(shuffled, COUNT, 0, 0) == []
    assert outline_frames(np.arange(CHUNKS_MIN - 1, 0, -1, dtype=np.uint32), COUNT, 0, 0) == []


def test_fragments_fit_a_control_datagram() -> None:
    order = np.concatenate(classes_of(COUNT, 0, 3))
    for frame in outline_frames(order, COUNT, 9, 2**31):
        encoded = encode_frame(frame)
        assert len(encoded) < 1200
        assert decode_frame(encoded) == frame


@pytest.mark.parametrize(
    "frame",
    [
        Outline(0, 0, 1, b"\0" * 1024),
        Outline(0, 0, -4096, b"\0" * 1024),
        Outline(0, 0, 4096 * 3, b"\0" * 1024),
        Outline(0, 0, 0, b"\0"),
        Outline(0, 0, 0, b""),
    ],
)
def test_nonsense_is_no_order(frame: Outline) -> None:
    order = np.concatenate(classes_of(COUNT, 0, 3))
    told = OrderToCome(COUNT)
    assert told.add(frame) is None
    frames = outline_frames(order, COUNT, 0, 0)
    assert told.add(frames[0]) is None
    assert told.add(frames[0]) is None  # repeated
    assert told.add(frames[2]) is None
    assert np.array_equal(told.add(frames[1]), order)  # type: ignore[arg-type]
