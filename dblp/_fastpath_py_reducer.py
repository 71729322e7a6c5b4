"""Numbers of the readable fast path: norms, chunk energies and the mean over workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ._fastpath_py_bytes import Buffer, Bytes, bitmap_bits, byte_view, chunk_count

Array: TypeAlias = np.ndarray[Any, Any]

_STORED_AS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
_BLOCK_ELEMENTS = 1 << 16
"""Elements converted to float64 at a time: half a MiB stays in the cache."""

PIECE = 128
"""Bytes read at a time by a sample."""


def elements(buffer: Buffer, dtype: str, name: str, *, writable: bool = False) -> Array:
    """`buffer` as an array of elements as stored (bfloat16: uint16)."""
    stored = _STORED_AS.get(dtype)
    if stored is None:
        raise ValueError(f"dtype {dtype!r} is not supported: use one of {', '.join(_STORED_AS)}")
    view = byte_view(buffer, name, writable=writable)
    if view.size % stored.itemsize:
        raise ValueError(f"{name} has {view.size} bytes: not a whole number of {dtype} elements")
    return view.view(stored)


def _chunk_elements(chunk_bytes: int, dtype: str) -> int:
    itemsize = _STORED_AS[dtype].itemsize
    if chunk_bytes <= 0 or chunk_bytes % 8:
        raise ValueError(f"chunk_bytes is {chunk_bytes}: not a positive multiple of 8")
    return chunk_bytes // itemsize


def _widen(stored: Array, dtype: str) -> Array:
    """Elements in the type they are accumulated in: float64 for 'float64', otherwise float32."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored if dtype == "float64" else stored.astype(np.float32)


def _narrow(values: Array, dtype: str) -> Array:
    """`values` rounded to nearest even into the elements that `dtype` is stored as."""
    if dtype != "bfloat16":
        return values.astype(_STORED_AS[dtype])
    bits = values.view(np.uint32)
    high = (bits >> 16).astype(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (high & 1)) >> 16
    # Rounding may carry a NaN's mantissa away to infinity: a NaN becomes the quiet NaN of its sign.
    quiet_nan = (high & 0x8000) | 0x7FC0
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def squared_norm(buffer: Buffer, dtype: str) -> float:
    """Sum of squares in float64.  dtype: 'float32' 'float64' 'float16' 'bfloat16'."""
    stored = elements(buffer, dtype, "buffer")
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, stored.size, _BLOCK_ELEMENTS):
            block = _widen(stored[start : start + _BLOCK_ELEMENTS], dtype).astype(np.float64)
            total += float(np.sum(block * block))
    return total


def chunk_energy(
    buffer: Buffer,
    dtype: str,
    chunk_bytes: int,
    *,
    chunks: Array | None = None,
    sample: tuple[int, int] | None = None,
) -> Array:
    """float32 array: sum of squares per chunk (accumulated in float64).

    chunks: of these only, in their order.  sample: (offset, stride): only so many bytes are read.
    """
    stored = elements(buffer, dtype, "buffer")
    width = _chunk_elements(chunk_bytes, dtype)
    if sample is not None:
        offset, stride = sample
        if stride < PIECE or stride % PIECE or offset % PIECE or not 0 <= offset < stride:
            raise ValueError(
                f"sample must be multiples of {PIECE} with 0 <= offset < stride, not {sample}"
            )
        places = np.arange(width) * stored.itemsize
        read = (places >= offset) & ((places - offset) % stride < PIECE)
    count = chunk_count(stored.nbytes, chunk_bytes)
    wanted = np.arange(count) if chunks is None else np.asarray(chunks, np.uint32).astype(np.int64)
    if wanted.size and int(wanted.max()) >= count:
        raise ValueError(f"the buffer has {count} chunks, but others are named")
    energy = np.empty(wanted.size, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for place, index in enumerate(wanted):
            start = index * width
            block = _widen(stored[start : start + width], dtype).astype(np.float64)
            if sample is not None:
                block = block[read[: block.size]]
            energy[place] = np.sum(block * block)
    return energy


class Reducer:
    """Mean over workers, chunk by chunk while data arrives.  Accumulates in rank order, in float32
    (float64 for 'float64'), divides at the end, rounds once to the buffer's dtype."""

    def __init__(
        self,
        out: Buffer | None,
        sources: Sequence[Buffer | None],
        chunk_bytes: int,
        dtype: str,
        contributors: bool = False,
    ) -> None:
        """`out` and each of `sources` (rank order) are writable/readable contiguous buffers of
        equal size in bytes, pinned while the Reducer lives.  dtype as in squared_norm.
        contributors=False: divide by len(sources); True: divide each chunk by the number of sources
        that delivered it.  A source that is None comes later (`provide`); `out` None: the mean
        replaces the source that is provided."""
        self._sources = [
            None if each is None else elements(each, dtype, f"source {i}")
            for i, each in enumerate(sources)
        ]
        self._out = None if out is None else elements(out, dtype, "out", writable=True)
        known = [each for each in (self._out, *self._sources) if each is not None]
        if not known:
            raise ValueError("a Reducer needs at least one buffer to know its size")
        self.nbytes = known[0].nbytes
        if not 1 <= len(self._sources) <= 254:
            raise ValueError(f"a Reducer takes 1 to 254 sources, not {len(self._sources)}")
        for rank, source in enumerate(self._sources):
            if source is not None and source.nbytes != self.nbytes:
                raise ValueError(
                    f"source {rank} has {source.nbytes} bytes, the others have {self.nbytes}: "
                    "they must be of equal size"
                )
        self.dtype = dtype
        self.chunk_bytes = chunk_bytes
        self.contributors = contributors
        self._width = _chunk_elements(chunk_bytes, dtype)
        self.count = chunk_count(self.nbytes, chunk_bytes)
        self._delivered = np.zeros(self.count, np.uint32)
        self._is_ready = np.zeros(self.count, bool)
        self._order = np.zeros(self.count, np.uint32)
        self._ready = 0
        self.limit = self.count
        """Chunks that may become ready; see `set_limit` and `finish`."""
        self._arrived: dict[int, int] = {}

    @property
    def ready(self) -> int:
        """Chunks reduced so far; their indices are ready_indices()[:ready]."""
        return self._ready

    def land(self, source: int, buffer: Bytes) -> None:
        """The chunks of a source are going to arrive in `buffer`; ValueError unless it is its own,
        or when they are being received already."""
        if not 0 <= source < len(self._sources):
            raise ValueError(f"source {source} is not one of {len(self._sources)}")
        own = self._sources[source]
        if self.nbytes and (own is None or own.ctypes.data != buffer.ctypes.data):
            raise ValueError(f"the buffer is not that of source {source} of the reducer")
        if source in self._arrived:
            raise ValueError(f"source {source} of the reducer is being received already")
        self._arrived[source] = 0

    def arrive_from(self, source: int, index: int) -> None:
        """Chunk `index` (in range) of a source has landed."""
        self._arrived[source] += 1
        self.arrive_one(index)

    def is_ahead(self, source: int, by: int) -> bool:
        """More than `by` chunks of this source have arrived beyond those of the slowest."""
        return self._arrived[source] - min(self._arrived.values()) > by

    def ready_indices(self) -> Array:
        """uint32 indices of the reduced chunks in order of becoming ready; zeros to `count`."""
        return self._order

    def arrive(self, source: int, indices: Sequence[int] | Array) -> None:
        """Source has these chunks (uint32 array).  Chunks now delivered by all sources are reduced
        and become ready.  Called from Channel ingest; at most once per (source, chunk)."""
        if not 0 <= source < len(self._sources):
            raise ValueError(f"source {source} is not one of {len(self._sources)} sources")
        chunks = np.asarray(indices, np.int64)
        if chunks.size and not 0 <= int(chunks.min()) <= int(chunks.max()) < self.count:
            raise ValueError(f"a chunk index is out of range: there are {self.count} chunks")
        for index in chunks.tolist():
            if self._is_ready[index]:
                raise ValueError(f"chunk {index} cannot arrive: it is complete already")
            self.arrive_one(index)

    def arrive_one(self, index: int) -> None:
        """One more source has chunk `index` (in range); nothing changes once it is ready."""
        self._delivered[index] += 1
        if self._delivered[index] == len(self._sources) and not self._is_ready[index]:
            self._reduce(index, range(len(self._sources)))

    def set_limit(self, limit: int) -> None:
        """Only the first `limit` chunks to become ready are of use: the others become zero.  Before
        anyone follows; the limit can only go down."""
        if not 0 <= limit <= self.limit:
            raise ValueError(f"the limit is {limit}: it can go down from {self.limit} only")
        for index in self._order[limit : self._ready].tolist():
            self._zero(index)
        self.limit = limit
        self._ready = min(self._ready, limit)

    def provide(self, source: int, buffer: Buffer) -> None:
        """The whole of a source that was None is in `buffer`: every chunk of it arrives.  Without
        an `out` the mean is written there too, in place."""
        if not 0 <= source < len(self._sources):
            raise ValueError(f"source {source} is not one of {len(self._sources)} sources")
        if self._sources[source] is not None:
            raise ValueError(f"source {source} is there already")
        in_place = self._out is None
        given = elements(buffer, self.dtype, f"source {source}", writable=in_place)
        if given.nbytes != self.nbytes:
            raise ValueError(
                f"source {source} has {given.nbytes} bytes, the others have {self.nbytes}"
            )
        self._sources[source] = given
        if in_place:
            self._out = given
        for index in range(self.count):
            self.arrive_one(index)

    def finish(self, bitmaps: Sequence[Buffer | None], first: Sequence[int] | Array = ()) -> Array:
        """All sources have stopped; bitmaps say what each delivered (missing = contributes
        nothing; None: it delivered all).  Reduces every chunk that is not ready yet and makes it
        ready: those of `first` in its order, then the others, ascending.

        A chunk that no source has is zero.  Where no limit was set it does not become ready: the
        limit goes down by these chunks, and their indices (uint32, ascending) are returned."""
        if len(bitmaps) != len(self._sources):
            raise ValueError(f"{len(bitmaps)} bitmaps for {len(self._sources)} sources")
        for rank, source in enumerate(self._sources):
            if source is None:
                raise ValueError(f"source {rank} has not been provided")
        whole = np.ones(self.count, bool)
        bits = [whole if each is None else bitmap_bits(each, self.count) for each in bitmaps]
        ahead = np.asarray(first, np.int64)
        if ahead.size and not 0 <= int(ahead.min()) <= int(ahead.max()) < self.count:
            raise ValueError(f"a chunk index is out of range: there are {self.count} chunks")
        skip = self.limit == self.count
        nobody = []
        for index in [*ahead.tolist(), *range(self.count)]:
            if self._is_ready[index]:
                continue
            ranks = [rank for rank, row in enumerate(bits) if row[index]]
            if skip and not ranks:
                self._zero(index)
                self.limit -= 1
                nobody.append(index)
            else:
                self._reduce(index, ranks)
        return np.array(sorted(nobody), np.uint32)

    def _reduce(self, index: int, ranks: Sequence[int]) -> None:
        if self._ready == self.limit:
            self._zero(index)
            return
        assert self._out is not None, "nothing is reduced before every source is there"
        span = slice(index * self._width, (index + 1) * self._width)
        present = [source for rank in ranks if (source := self._sources[rank]) is not None]
        if present:
            divisor = len(present) if self.contributors else len(self._sources)
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                total = _widen(present[0][span], self.dtype)
                for source in present[1:]:
                    total = total + _widen(source[span], self.dtype)
                self._out[span] = _narrow(total / total.dtype.type(divisor), self.dtype)
        else:
            self._out[span] = 0
        self._is_ready[index] = True
        self._order[self._ready] = index
        self._ready += 1

    def _zero(self, index: int) -> None:
        assert self._out is not None, "nothing is reduced before every source is there"
        self._out[index * self._width : (index + 1) * self._width] = 0
        self._is_ready[index] = True
