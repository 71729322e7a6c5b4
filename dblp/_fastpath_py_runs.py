"""Chunk indices as they travel, in the readable fast path: runs of missing chunks, and the classes
of a send order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ._fastpath_py_bytes import Buffer, byte_view

Chunks: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

LEB128_BYTES_MAX = 5
"""A chunk index has 32 bits."""

CLASSES_MAX = 3
"""Ascending runs of an order that two bits can name."""

NOT_SENT = 3
"""The fourth value."""

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def encode_runs(chunks: npt.ArrayLike) -> bytes:
    """Ascending chunk indices as LEB128 numbers: (gap since the last run, length) of every run."""
    out = bytearray()
    place = 0
    for first, end in _runs(np.asarray(chunks, np.uint32).tolist()):
        out += _leb128(first - place) + _leb128(end - first)
        place = end
    return bytes(out)


def _runs(chunks: list[int]) -> Iterator[tuple[int, int]]:
    """(first, end) of every run of neighbours; ValueError unless `chunks` ascend."""
    first = 0
    for at in range(1, len(chunks) + 1):
        if at < len(chunks) and chunks[at] <= chunks[at - 1]:
            raise ValueError(f"chunk {chunks[at]} follows {chunks[at - 1]}: chunks must ascend")
        if at == len(chunks) or chunks[at] != chunks[at - 1] + 1:
            yield chunks[first], chunks[at - 1] + 1
            first = at


def _leb128(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_runs(data: Buffer, count: int) -> Chunks:
    """The indices that `encode_runs` took; ValueError unless they are all below `count`."""
    numbers = _numbers(byte_view(data, "data").tobytes())
    runs: list[Chunks] = []
    place = 0
    for gap in numbers:
        length = next(numbers, None)
        if length is None:
            raise ValueError("they end within a pair")
        if length == 0 or (gap == 0 and runs):
            raise ValueError("a run is empty")
        place += gap + length
        if place > count:
            raise ValueError(f"they go beyond the {count} of the round")
        runs.append(np.arange(place - length, place, dtype=np.uint32))
    return np.concatenate(runs) if runs else np.empty(0, np.uint32)


def _numbers(data: bytes) -> Iterator[int]:
    value = size = 0
    for byte in data:
        value |= (byte & 0x7F) << 7 * size
        size += 1
        if byte < 0x80:
            yield value
            value = size = 0
        elif size == LEB128_BYTES_MAX:
            raise ValueError("a number has more than 32 bits")
    if size:
        raise ValueError("they end within a number")


def pack_classes(order: npt.ArrayLike, count: int) -> bytes:
    """Two bits per chunk, four to a byte: which ascending run of `order` it is in; 3: in none."""
    chunks = np.asarray(order, np.uint32)
    if count < 0:
        raise ValueError(f"a round has no {count} chunks")
    if chunks.size and chunks.max() >= count:
        raise ValueError(f"chunk {chunks.max()} is not one of {count}")
    runs = np.split(chunks, np.flatnonzero(chunks[1:] <= chunks[:-1]) + 1)
    if len(runs) > CLASSES_MAX or (len(runs) == 1 and chunks.size == count):
        return b""
    classes = np.full(-(-count // 4) * 4, NOT_SENT, np.uint8)
    for number, run in enumerate(runs):
        classes[run] = number
    packed = np.bitwise_or.reduce(classes.reshape(-1, 4) << _SHIFTS, axis=1)
    return bytes(packed.astype(np.uint8))


def order_of_classes(classes: Buffer, count: int) -> Chunks:
    """The order that `pack_classes` took."""
    packed = byte_view(classes, "classes")
    if count < 0 or packed.size != -(-count // 4):
        raise ValueError(f"{packed.size} bytes are not the classes of {count} chunks")
    kinds = (packed[:, None] >> _SHIFTS & 3).ravel()[:count]
    return np.argsort(kinds, kind="stable")[: np.count_nonzero(kinds != NOT_SENT)].astype(np.uint32)
