"""Chunk indices as they travel: runs of missing chunks, and the classes of a send order."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.implementations import both


@both
@pytest.mark.parametrize(
    ("chunks", "data"),
    [
        ([], b""),
        ([0], bytes([0, 1])),
        ([3, 4, 5, 305], bytes([3, 3, 0xAB, 0x02, 1])),
        (range(128), bytes([0, 0x80, 0x01])),
        ([127, 256], bytes([127, 1, 0x80, 0x01, 1])),
        ([2**32 - 2, 2**32 - 1], bytes([0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 2])),
    ],
)
def test_runs_have_these_bytes(fastpath: ModuleType, chunks: list[int], data: bytes) -> None:
    assert fastpath.encode_runs(np.array(chunks, np.uint32)) == data
    decoded = fastpath.decode_runs(data, 2**32)
    assert decoded.dtype == np.uint32
    assert decoded.tolist() == list(chunks)


@both
@pytest.mark.parametrize("chunks", [[1, 1], [2, 1], [0, 2**32 - 1, 0]])
def test_runs_must_ascend(fastpath: ModuleType, chunks: list[int]) -> None:
    with pytest.raises(ValueError, match="chunks must ascend"):
        fastpath.encode_runs(np.array(chunks, np.uint32))


@both
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01", "within a pair"),
        (b"\x01\x80", "within a number"),
        (b"\x80", "within a number"),
        (b"\x01\x00", "empty"),
        (b"\x01\x01\x00\x01", "empty"),
        (b"\x05\x06", "beyond the 10"),
        (b"\x0a\x01", "beyond the 10"),
        (b"\x00\xff\xff\xff\xff\x0f", "beyond the 10"),
        (b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\x7f", "beyond the 10"),
        (b"\x80\x80\x80\x80\x80\x00\x01", "more than 32 bits"),
        (b"\x01\x80\x80\x80\x80\x80\x00", "more than 32 bits"),
    ],
)
def test_what_is_no_run_is_refused(fastpath: ModuleType, data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fastpath.decode_runs(data, 10)


@both
def test_runs_end_at_the_count(fastpath: ModuleType) -> None:
    assert fastpath.decode_runs(b"\x05\x05", 10).tolist() == [5, 6, 7, 8, 9]
    with pytest.raises(ValueError):
        fastpath.decode_runs(b"\x00\x01", -1)


@both
@pytest.mark.parametrize(
    ("order", "count", "classes"),
    [
        ([1, 2, 0, 5], 6, bytes([0b11_00_00_01, 0b11_11_01_11])),
        ([0, 1, 2], 4, bytes([0b11_00_00_00])),
        ([3, 2, 1], 4, bytes([0b00_01_10_11])),
        ([], 5, bytes([0xFF, 0xFF])),
        ([3, 2, 1, 0], 4, b""),  # four runs
        ([0, 1, 2, 3], 4, b""),  # nothing to tell
        ([], 0, b""),
    ],
)
def test_an_order_has_these_classes(
    fastpath: ModuleType, order: list[int], count: int, classes: bytes
) -> None:
    assert fastpath.pack_classes(np.array(order, np.uint32), count) == classes
    if classes:
        told = fastpath.order_of_classes(classes, count)
        assert told.dtype == np.uint32
        assert told.tolist() == order


@both
def test_bits_beyond_the_count_are_no_chunks(fastpath: ModuleType) -> None:
    assert fastpath.order_of_classes(bytes(2), 5).tolist() == [0, 1, 2, 3, 4]


@both
def test_classes_and_orders_must_fit_the_count(fastpath: ModuleType) -> None:
    with pytest.raises(ValueError, match="chunk 4 is not one of 4"):
        fastpath.pack_classes(np.array([0, 4], np.uint32), 4)
    for size, count in [(0, 1), (1, 0), (2, 4), (0, -1)]:
        with pytest.raises(ValueError, match="are not the classes"):
            fastpath.order_of_classes(bytes(size), count)
