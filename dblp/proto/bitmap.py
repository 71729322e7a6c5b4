"""Which chunks are there, and how the missing ones travel in control frames (signals B and S).

Missing chunks are runs, and runs travel as LEB128 numbers: (gap since the last run, length).  A
bitmap fragment carries runs or plain bits, whichever is shorter.  The loops over chunks are the
fast path's: a round of 100 MB has 70,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .. import fastpath
from ..errors import RemoteProtocolError
from ..wire import Bitmap, Zeros

__all__ = [
    "Fragment", "Indices", "ReceiveBitmap", "decode_bits", "decode_fragment", "decode_ranges",
]  # fmt: skip

Indices = npt.NDArray[np.uint32]
"""Chunk indices, ascending unless they are a send order."""

_NO_CHUNKS: Indices = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Fragment:
    """What is missing among chunks first … first+count-1; `data` as in `wire.Bitmap`."""

    first: int
    count: int
    encoding: Literal["bits", "ranges"]
    data: bytes


class ReceiveBitmap:
    """One bit per chunk, LSB first; the fast path sets the bits (Algorithm 2, line 7)."""

    __slots__ = ("bits", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        """Chunks in the round."""
        self.bits = bytearray((count + 7) // 8)
        """1 = received."""

    @property
    def accepted(self) -> int:
        """Number of chunks received."""
        return fastpath.bitmap_count(self.bits, self.count)

    def missing(self) -> Indices:
        """uint32 indices of the chunks that are not there, ascending."""
        return fastpath.bitmap_missing(self.bits, self.count)

    def fragments(self, limit_bytes: int) -> list[Fragment]:
        """All of the bitmap in fragments of at most `limit_bytes` bytes of data each."""
        missing = self.missing()
        ranges = fastpath.encode_runs(missing)
        size = len(self.bits)
        shortest = min(size, len(ranges))
        if shortest <= limit_bytes:
            if len(ranges) <= size:
                return [Fragment(0, self.count, "ranges", ranges)]
            return [Fragment(0, self.count, "bits", bytes(self.bits))]
        pieces = -(-shortest // limit_bytes)
        pieces_max = -(-size // limit_bytes)  # plain bits always fit then
        while True:
            pieces = min(pieces, pieces_max)
            fragments = self._cut(missing, pieces, limit_bytes)
            if fragments is not None:
                return fragments
            assert pieces < pieces_max
            pieces += max(1, pieces // 4)

    def _cut(self, missing: Indices, pieces: int, limit_bytes: int) -> list[Fragment] | None:
        """`pieces` fragments of equal span, or None if one of them is too long."""
        span = 8 * -(-len(self.bits) // pieces)
        fragments: list[Fragment] = []
        starts = range(0, self.count, span)
        cuts = np.searchsorted(missing, [*starts, self.count]).tolist()
        for number, first in enumerate(starts):
            count = min(span, self.count - first)
            ranges = fastpath.encode_runs(
                missing[cuts[number] : cuts[number + 1]] - np.uint32(first)
            )
            if len(ranges) <= (count + 7) // 8:
                fragment = Fragment(first, count, "ranges", ranges)
            else:
                end = (first + count + 7) // 8
                fragment = Fragment(first, count, "bits", bytes(self.bits[first // 8 : end]))
            if len(fragment.data) > limit_bytes:
                return None
            fragments.append(fragment)
        return fragments


def decode_fragment(frame: Bitmap | Zeros, count: int) -> Indices:
    """The chunks that a fragment names, of a round of `count`, ascending.

    RemoteProtocolError where it is none.
    """
    first, end = frame.first, frame.first + frame.count
    if not 0 <= first <= end <= count:
        raise RemoteProtocolError(
            f"the peer sent {type(frame).__name__} about the chunks {first} to {end} of round "
            f"{frame.round}, which has {count}: use the same version of dblp on both sides"
        )
    decode = decode_bits if frame.encoding == "bits" else decode_ranges
    return decode(frame.data, frame.count) + np.uint32(first)


def decode_ranges(data: bytes, count: int) -> Indices:
    """The chunk indices in `data` (runs as `fastpath.encode_runs` makes them), all below `count`.

    Raises RemoteProtocolError before anything larger than `count` indices is allocated.
    """
    try:
        return fastpath.decode_runs(data, count)
    except ValueError as error:
        raise RemoteProtocolError(f"the peer sent runs of chunks, but {error}") from None


def decode_bits(data: bytes, count: int) -> Indices:
    """The clear bits among the first `count`; RemoteProtocolError on a wrong size."""
    if len(data) != (count + 7) // 8:
        raise RemoteProtocolError(f"the peer sent {len(data)} bytes as a bitmap of {count} chunks")
    if count == 0:
        return _NO_CHUNKS
    return fastpath.bitmap_missing(data, count)
