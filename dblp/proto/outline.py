"""In which order chunks will come, told in advance.

A receiver that knows which chunk is next has it delivered straight to its place (`aim`); one that
guesses wrong copies it once more.  In index order the next chunk is known; an order that sends the
chunks by class needs two bits per chunk, far less than what a copy of every chunk costs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..wire import Outline
from .bitmap import Indices

__all__ = ["CHUNKS_MIN", "OrderToCome", "outline_frames"]

CLASSES_MAX = 3
"""Ascending runs of an order that two bits can name; the fourth value is: not sent."""

NOT_SENT = 3

CHUNKS_MIN = 256
"""Shorter rounds have come before anything can be aimed."""

FRAGMENT_CHUNKS = 4096
"""1 KiB of classes fit a control datagram."""

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def outline_frames(order: Indices, count: int, stream: int, round_id: int) -> list[Outline]:
    """What the receiver should know of `order` (chunk indices, each at most once, of `count`);
    nothing where it is index order, or has too many runs to be told."""
    if len(order) < CHUNKS_MIN:
        return []
    ends = np.flatnonzero(order[1:] < order[:-1]) + 1
    if not 1 <= len(ends) < CLASSES_MAX and len(order) == count:
        return []
    if len(ends) >= CLASSES_MAX:
        return []
    classes = np.full(-(-count // 4) * 4, NOT_SENT, np.uint8)
    for number, chunks in enumerate(np.split(order, ends)):
        classes[chunks] = number
    packed = np.bitwise_or.reduce(classes.reshape(-1, 4) << _SHIFTS, axis=1).astype(np.uint8)
    step = FRAGMENT_CHUNKS // 4
    return [
        Outline(stream, round_id, 4 * at, packed[at : at + step].tobytes())
        for at in range(0, len(packed), step)
    ]


class OrderToCome:
    """Collects the fragments of one round.

    *Inputs*: `add`.  Fragments may be lost, repeated or nonsense: the order is a hint, and a chunk
    is taken wherever it comes.
    """

    __slots__ = ("_classes", "_count", "_told")

    def __init__(self, count: int) -> None:
        self._count = count
        self._classes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)  # until something is told
        self._told: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def add(self, frame: Outline) -> Indices | None:
        """The order, with the last fragment of it."""
        if not len(self._told):
            self._classes = np.full(-(-self._count // 4) * 4, NOT_SENT, np.uint8)
            self._told = np.zeros(-(-self._count // FRAGMENT_CHUNKS), np.bool_)
        number, rest = divmod(frame.first, FRAGMENT_CHUNKS)
        if rest or not 0 <= number < len(self._told) or self._told[number]:
            return None
        place = self._classes[frame.first : frame.first + FRAGMENT_CHUNKS]
        if 4 * len(frame.classes) != len(place):
            return None
        packed = np.frombuffer(frame.classes, np.uint8)
        place[:] = (packed[:, None] >> _SHIFTS & 3).ravel()
        self._told[number] = True
        if not self._told.all():
            return None
        runs = [np.flatnonzero(self._classes == number) for number in range(CLASSES_MAX)]
        return np.concatenate(runs).astype(np.uint32)
