"""Ranges of elements in the readable fast path: what was not delivered, and is added later."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ._fastpath_py_bytes import Buffer, byte_view
from ._fastpath_py_reducer import elements

Pairs: TypeAlias = list[tuple[int, int]]


def _pairs(ranges: Buffer, items: int) -> tuple[Pairs, int]:
    """(ranges, elements in all of them); ValueError unless they ascend and end within `items`."""
    view = byte_view(ranges, "ranges")
    if view.size % 16:
        raise ValueError(f"{view.size} bytes are no pairs of int64")
    pairs: Any = view.view(np.int64).reshape(-1, 2).tolist()
    place = total = 0
    for index, (start, stop) in enumerate(pairs):
        if not place <= start <= stop <= items:
            raise ValueError(
                f"range {index} is {start} to {stop}: ranges must ascend, within {items}"
            )
        place = stop
        total += stop - start
    return pairs, total


def gather_ranges(source: Buffer, ranges: Buffer, out: Buffer, dtype: str) -> None:
    """Copies the elements of `ranges`, int64 pairs [start, stop), to `out`."""
    whole = elements(source, dtype, "source")
    packed = byte_view(out, "out", writable=True)
    pairs, total = _pairs(ranges, whole.size)
    if packed.size != total * whole.itemsize:
        raise ValueError(f"the ranges have {total} elements, out has {packed.size} bytes")
    place = 0
    for start, stop in pairs:
        part = whole[start:stop].view(np.uint8)
        packed[place : place + part.size] = part
        place += part.size


def add_ranges(
    target: Buffer, ranges: Buffer, values: Buffer, dtype: str, factor: float = 1.0
) -> None:
    """Adds `values` times `factor` to the elements of `ranges`."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype {dtype!r} cannot be added to: use float32 or float64")
    whole = elements(target, dtype, "target", writable=True)
    packed = elements(values, dtype, "values")
    pairs, total = _pairs(ranges, whole.size)
    if packed.size != total:
        raise ValueError(f"the ranges have {total} elements, values {packed.size}")
    factor = whole.dtype.type(factor)
    place = 0
    with np.errstate(all="ignore"):
        for start, stop in pairs:
            whole[start:stop] += packed[place : place + stop - start] * factor
            place += stop - start
