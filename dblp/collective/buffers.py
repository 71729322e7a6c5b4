"""Receive and result buffers that are made once per layout and used again.

A fresh 100 MB array costs a page fault per 4 KiB when it is first written, which is milliseconds in
the middle of a round.  The pool pays once, outside the hot path: its buffers are written to when
they are made, and go from round to round afterwards.  Those of which little is usually used may be
left untouched, and are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENT_BYTES", "RETAIN_BYTES", "BufferPool"]

ALIGNMENT_BYTES = 64
"""Buffers start on a cache line, so that vector loads of the reduction never straddle two."""

RETAIN_BYTES = 64 << 20
"""Idle bytes that are always kept; below this it is not worth giving memory back."""


Buffer: TypeAlias = npt.NDArray[np.uint8]


class _Kind(NamedTuple):
    nbytes: int
    touched: bool
    """All of its pages are mapped."""


class BufferPool:
    """A pool of uint8 arrays by exact size in bytes.

    Commands: `acquire`, `reserve`, `release`, `clear`.  Getters: the counts below.

    An acquired buffer holds whatever the last round left in it.  Idle buffers are dropped, the
    longest unused size first, once they hold more than `retain_bytes` and more than twice the most
    that was ever in use at once: a job whose sizes alternate keeps both sets, and one whose layout
    changed for good gives the old set back.
    """

    __slots__ = (
        "_idle",
        "_idle_bytes",
        "_in_use",
        "_in_use_bytes",
        "_peak_bytes",
        "_retain",
        "allocations",
    )

    def __init__(self, *, retain_bytes: int = RETAIN_BYTES) -> None:
        self._idle: dict[_Kind, list[Buffer]] = {}  # oldest use first
        self._in_use: dict[int, tuple[_Kind, Buffer]] = {}  # by id()
        self._idle_bytes = 0
        self._in_use_bytes = 0
        self._peak_bytes = 0
        self._retain = retain_bytes
        self.allocations = 0
        """Buffers made since the pool exists: constant in steady state."""

    # --- commands ---------------------------------------------------------------------------

    def acquire(self, nbytes: int, *, touched: bool = True) -> Buffer:
        """A contiguous writable buffer of `nbytes` bytes, contents unspecified.

        With `touched` all of it has been written to; without, an untouched one is taken first.
        Raises MemoryError when the machine has not got it.
        """
        wanted = (_Kind(nbytes, True),) if touched else (_Kind(nbytes, False), _Kind(nbytes, True))
        kind = next((kind for kind in wanted if self._idle.get(kind)), wanted[0])
        if idle := self._idle.get(kind):
            buffer = idle.pop()
            self._idle_bytes -= nbytes
        else:
            buffer = _aligned(kind)
            self.allocations += 1
        self._in_use[id(buffer)] = (kind, buffer)
        self._in_use_bytes += nbytes
        self._peak_bytes = max(self._peak_bytes, self._in_use_bytes)
        return buffer

    def reserve(self, sizes: Iterable[int], *, copies: int) -> None:
        """Makes `copies` buffers of each size at once.

        Raises MemoryError when the machine has not got them.
        """
        made = [self.acquire(nbytes) for nbytes in sizes for _ in range(copies)]
        for buffer in made:
            self.release(buffer)

    def release(self, buffer: Buffer) -> None:
        """Gives back a buffer that nothing reads or writes any more."""
        kind, known = self._in_use.pop(id(buffer), (None, None))
        assert kind is not None and known is buffer, (
            "a buffer was released twice or is not from this pool"
        )
        self._in_use_bytes -= kind.nbytes
        self._idle_bytes += kind.nbytes
        idle = self._idle.pop(kind, [])
        idle.append(buffer)
        self._idle[kind] = idle  # re-inserted: this one is now the one used last
        if self._idle_bytes > self._retain:
            self._evict()

    def clear(self) -> None:
        """Forgets all buffers, also those in use: after an error, when the owner ends."""
        self._idle.clear()
        self._in_use.clear()
        self._idle_bytes = self._in_use_bytes = 0

    # --- getters ----------------------------------------------------------------------------

    @property
    def in_use(self) -> int:
        """Buffers that are out at the moment."""
        return len(self._in_use)

    @property
    def in_use_bytes(self) -> int:
        """Bytes of the buffers that are out at the moment."""
        return self._in_use_bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes of the buffers that wait for their next use."""
        return self._idle_bytes

    # --- inside -----------------------------------------------------------------------------

    def _evict(self) -> None:
        limit = max(self._retain, 2 * self._peak_bytes)
        for kind in list(self._idle):
            idle = self._idle[kind]
            while idle and self._idle_bytes > limit:
                idle.pop()
                self._idle_bytes -= kind.nbytes
            if not idle:
                del self._idle[kind]
            if self._idle_bytes <= limit:
                return


def _aligned(kind: _Kind) -> Buffer:
    """A new array whose start is aligned."""
    block = np.empty(kind.nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
    if kind.touched:
        block.fill(0)
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + kind.nbytes]
