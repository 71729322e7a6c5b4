"""Which chunks are there, and how the missing ones travel in control frames (signals B and S).

Missing chunks are runs, and runs travel as LEB128 numbers: (gap since the last run, length).  A
bitmap fragment carries runs or plain bits, whichever is shorter.  Everything is vectorised: a round
of 100 MB has 70,000 chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .. import fastpath
from ..errors import RemoteProtocolError

__all__ = ["Fragment", "Indices", "ReceiveBitmap", "decode_bits", "decode_ranges", "encode_ranges"]

Indices = npt.NDArray[np.uint32]
"""Chunk indices, ascending unless they are a send order."""

_LEB128_BYTES_MAX = 5
"""A chunk index has 32 bits."""

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
        ranges = encode_ranges(missing)
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
            ranges = encode_ranges(missing[cuts[number] : cuts[number + 1]] - np.uint32(first))
            if len(ranges) <= (count + 7) // 8:
                fragment = Fragment(first, count, "ranges", ranges)
            else:
                end = (first + count + 7) // 8
                fragment = Fragment(first, count, "bits", bytes(self.bits[first // 8 : end]))
            if len(fragment.data) > limit_bytes:
                return None
            fragments.append(fragment)
        return fragments


def encode_ranges(missing: Indices) -> bytes:
    """Ascending chunk indices as LEB128 (gap, length) pairs; nothing missing is b""."""
    if missing.size == 0:
        return b""
    chunks = missing.astype(np.int64)
    breaks = np.flatnonzero(np.diff(chunks) != 1) + 1
    starts = chunks[np.concatenate(([0], breaks))]
    ends = chunks[np.concatenate((breaks - 1, [chunks.size - 1]))] + 1
    numbers = np.empty(2 * starts.size, np.int64)
    numbers[0] = starts[0]
    numbers[2::2] = starts[1:] - ends[:-1]
    numbers[1::2] = ends - starts
    return _encode_leb128(numbers)


def decode_ranges(data: bytes, count: int) -> Indices:
    """The chunk indices in `data` (LEB128 pairs), all below `count`.

    Raises RemoteProtocolError before anything larger than `count` indices is allocated.
    """
    if not data:
        return _NO_CHUNKS
    numbers = _decode_leb128(np.frombuffer(data, np.uint8))
    if numbers.size % 2:
        raise RemoteProtocolError("the peer sent runs of missing chunks and half a pair")
    gaps, lengths = numbers[0::2], numbers[1::2]
    if not lengths.all() or not gaps[1:].all():
        raise RemoteProtocolError("the peer sent an empty run of missing chunks")
    if int(numbers.sum()) > count:
        raise RemoteProtocolError(f"the peer sent missing chunks beyond the {count} of the round")
    ends = np.cumsum(lengths)
    starts = np.cumsum(gaps + lengths) - lengths
    shifts = np.repeat(starts - (ends - lengths), lengths)
    return (shifts + np.arange(int(ends[-1]))).astype(np.uint32)


def decode_bits(data: bytes, count: int) -> Indices:
    """The clear bits among the first `count`; RemoteProtocolError on a wrong size."""
    if len(data) != (count + 7) // 8:
        raise RemoteProtocolError(f"the peer sent {len(data)} bytes as a bitmap of {count} chunks")
    if count == 0:
        return _NO_CHUNKS
    return fastpath.bitmap_missing(data, count)


def _encode_leb128(numbers: npt.NDArray[np.int64]) -> bytes:
    sizes = np.ones(numbers.size, np.int64)
    for k in range(1, _LEB128_BYTES_MAX):
        sizes += numbers >= 1 << 7 * k
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    for k in range(int(sizes.max())):
        chosen = sizes > k
        more = (sizes[chosen] > k + 1).astype(np.int64) << 7
        out[starts[chosen] + k] = (numbers[chosen] >> 7 * k & 0x7F) | more
    return out.tobytes()


def _decode_leb128(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    ends = np.flatnonzero(data < 0x80) + 1
    if ends.size == 0 or int(ends[-1]) != data.size:
        raise RemoteProtocolError("the peer sent runs of missing chunks that end within a number")
    starts = np.concatenate(([0], ends[:-1]))
    sizes = ends - starts
    longest = int(sizes.max())
    if longest > _LEB128_BYTES_MAX:
        raise RemoteProtocolError("the peer sent a run of missing chunks longer than 32 bits")
    numbers = np.zeros(ends.size, np.int64)
    for k in range(longest):
        chosen = sizes > k
        numbers[chosen] |= (data[starts[chosen] + k].astype(np.int64) & 0x7F) << 7 * k
    return numbers
