"""In which order chunks will come, told in advance.

A receiver that knows which chunk is next has it delivered straight to its place (`aim`); one that
guesses wrong copies it once more.  In index order the next chunk is known; an order that sends the
chunks by class needs two bits per chunk, far less than what a copy of every chunk costs.
"""

from __future__ import annotations

from .. import fastpath
from ..wire import Outline
from .bitmap import Indices

__all__ = ["CHUNKS_MIN", "OrderToCome", "outline_frames"]

CHUNKS_MIN = 256
"""Shorter rounds have come before anything can be aimed."""

FRAGMENT_BYTES = 1024
"""Fits a control datagram."""

FRAGMENT_CHUNKS = 4 * FRAGMENT_BYTES


def outline_frames(order: Indices, count: int, stream: int, round_id: int) -> list[Outline]:
    """What the receiver should know of `order` (chunk indices, each at most once, of `count`);
    nothing where it is index order, or has too many runs to be told."""
    if len(order) < CHUNKS_MIN:
        return []
    classes = fastpath.pack_classes(order, count)
    return [
        Outline(stream, round_id, 4 * at, classes[at : at + FRAGMENT_BYTES])
        for at in range(0, len(classes), FRAGMENT_BYTES)
    ]


class OrderToCome:
    """Collects the fragments of one round.

    *Inputs*: `add`.  Fragments may be lost, repeated or nonsense: the order is a hint, and a chunk
    is taken wherever it comes.
    """

    __slots__ = ("_awaited", "_classes", "_count")

    def __init__(self, count: int) -> None:
        self._count = count
        self._classes = bytearray()  # until something is told
        self._awaited: set[int] = set()  # fragments, by their first chunk

    def add(self, frame: Outline) -> Indices | None:
        """The order, with the last fragment of it."""
        if not self._classes:
            self._classes = bytearray(-(-self._count // 4))
            self._awaited = set(range(0, self._count, FRAGMENT_CHUNKS))
        place = slice(frame.first // 4, frame.first // 4 + FRAGMENT_BYTES)
        if frame.first not in self._awaited or len(frame.classes) != len(self._classes[place]):
            return None
        self._classes[place] = frame.classes
        self._awaited.remove(frame.first)
        return None if self._awaited else fastpath.order_of_classes(self._classes, self._count)
