"""Chunks of a mean that no rank has delivered: they are zero, and are named instead of sent.

With a tolerance up to that share of a downlink is zeros, where ranks leave out the same chunks.
"""

from __future__ import annotations

import numpy as np

from ..wire import Open, Zeros
from .bitmap import Indices, ReceiveBitmap

__all__ = ["zero_frames"]


def zero_frames(zeros: Indices, count: int, limit_bytes: int, open_: Open) -> list[Zeros]:
    """Frames of at most `limit_bytes` bytes of data each that name the chunks `zeros` of `count` of
    the round that `open_` announces."""
    if not zeros.size:
        return []
    there = np.ones(count, np.bool_)
    there[zeros] = False
    bitmap = ReceiveBitmap(count)
    bitmap.bits[:] = np.packbits(there, bitorder="little").tobytes()
    return [
        Zeros(open_.stream, open_.round, part.first, part.count, part.encoding, part.data)
        for part in bitmap.fragments(limit_bytes)
        if part.data
    ]
