"""Chunks of a mean that no rank has delivered: they are zero, and are named instead of sent.

With a tolerance up to that share of a downlink is zeros, where ranks leave out the same chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..wire import Zeros
from .bitmap import Indices, ReceiveBitmap

__all__ = ["ZeroChunks", "zero_frames"]


class ZeroChunks:
    """The zeros of one round, for all of its senders.

    *Getters*: `frames`, `frames_among`, `unknown_to`.
    """

    __slots__ = ("_by_limit", "_count", "_indices", "_is_zero", "_round_id", "_stream")

    def __init__(self, indices: Indices, count: int, stream: int, round_id: int) -> None:
        """`indices`: ascending, of the `count` chunks of the round."""
        self._indices = indices
        self._count = count
        self._stream = stream
        self._round_id = round_id
        self._is_zero: npt.NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._is_zero[indices] = True
        self._by_limit: dict[int, list[Zeros]] = {}

    def __len__(self) -> int:
        return len(self._indices)

    def frames(self, limit_bytes: int) -> list[Zeros]:
        """What names all of them, in frames of at most `limit_bytes` bytes of data each; made
        once."""
        frames = self._by_limit.get(limit_bytes)
        if frames is None:
            frames = self._by_limit[limit_bytes] = zero_frames(
                self._indices, self._count, limit_bytes, self._stream, self._round_id
            )
        return frames

    def frames_among(self, chunks: Indices, limit_bytes: int) -> list[Zeros]:
        """What names those that are among `chunks` (ascending)."""
        named = chunks[self._is_zero[chunks]]
        return zero_frames(named, self._count, limit_bytes, self._stream, self._round_id)

    def unknown_to(self, missing: Indices) -> int:
        """How many of them are among `missing`."""
        return int(np.count_nonzero(self._is_zero[missing]))


def zero_frames(
    zeros: Indices, count: int, limit_bytes: int, stream: int, round_id: int
) -> list[Zeros]:
    """Frames that name the chunks `zeros` (ascending) of `count`."""
    if not zeros.size:
        return []
    there = np.ones(count, np.bool_)
    there[zeros] = False
    bitmap = ReceiveBitmap(count)
    bitmap.bits[:] = np.packbits(there, bitorder="little").tobytes()
    return [
        Zeros(stream, round_id, part.first, part.count, part.encoding, part.data)
        for part in bitmap.fragments(limit_bytes)
        if part.data
    ]
