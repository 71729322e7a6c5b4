"""Receive and result buffers that are made once per layout and used again.

A fresh 100 MB array costs a page fault per 4 KiB when it is first written, which is milliseconds in
the middle of a round.  The pool pays once, outside the hot path: its buffers are written to when
they are made, and go from round to round afterwards.  Those of which little is usually used may be
left untouched.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["ALIGNMENT_BYTES", "RETAIN_BYTES", "BufferPool"]

ALIGNMENT_BYTES = 64
"""Buffers start on a cache line, so that vector loads of the reduction never straddle two."""

RETAIN_BYTES = 64 << 20
"""Idle bytes that are always kept; below this it is not worth giving memory back."""


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
        self._idle: dict[int, list[npt.NDArray[np.uint8]]] = {}  # oldest use first
        self._in_use: dict[int, npt.NDArray[np.uint8]] = {}  # by id()
        self._idle_bytes = 0
        self._in_use_bytes = 0
        self._peak_bytes = 0
        self._retain = retain_bytes
        self.allocations = 0
        """Buffers made since the pool exists: constant in steady state."""

    # --- commands ---------------------------------------------------------------------------

    def acquire(self, nbytes: int, *, touched: bool = True) -> npt.NDArray[np.uint8]:
        """A contiguous writable buffer of `nbytes` bytes, contents unspecified.

        With `touched` a new one is written to at once.  Raises MemoryError when the machine has not
        got it.
        """
        idle = self._idle.get(nbytes)
        if idle:
            buffer = idle.pop()
            self._idle_bytes -= nbytes
        else:
            buffer = _aligned(nbytes, touched=touched)
            self.allocations += 1
        self._in_use[id(buffer)] = buffer
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

    def release(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Gives back a buffer that nothing reads or writes any more."""
        known = self._in_use.pop(id(buffer), None)
        assert known is buffer, "a buffer was released twice or is not from this pool"
        nbytes = buffer.nbytes
        self._in_use_bytes -= nbytes
        self._idle_bytes += nbytes
        idle = self._idle.pop(nbytes, [])
        idle.append(buffer)
        self._idle[nbytes] = idle  # re-inserted: this size is now the one used last
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
        for nbytes in list(self._idle):
            idle = self._idle[nbytes]
            while idle and self._idle_bytes > limit:
                idle.pop()
                self._idle_bytes -= nbytes
            if not idle:
                del self._idle[nbytes]
            if self._idle_bytes <= limit:
                return


def _aligned(nbytes: int, *, touched: bool) -> npt.NDArray[np.uint8]:
    """A new array whose start is aligned, and with `touched` all of whose pages are mapped."""
    block = np.empty(nbytes + ALIGNMENT_BYTES, dtype=np.uint8)
    if touched:
        block.fill(0)
    start = -block.ctypes.data % ALIGNMENT_BYTES
    return block[start : start + nbytes]
