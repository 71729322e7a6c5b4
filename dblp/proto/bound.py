"""With how many chunks a round is over (hazard 8)."""

from __future__ import annotations

from ..tolerance import Tolerance

__all__ = ["Bound"]


class Bound:
    """The bound of one round at its receiver.

    Chunks that are named as zeros (`wire.Zeros`) count as received, and as needed: they take the
    place of no chunk that carries something.  Of those the tolerance holds, once all that was sent
    has arrived or is lost; before, as many are waited for as in a round without zeros.

    *Commands*: `fix`, `lower`, `add_zeros`.  *Getters*: everything else.
    """

    __slots__ = ("_count", "_eager", "_floor", "tolerance", "zeros")

    def __init__(self, count: int, *, eager: bool) -> None:
        self.tolerance: Tolerance | None = None
        """Of the round; None while it is not known, and every chunk is needed."""
        self.zeros = 0
        """Chunks that were named as zeros."""
        self._eager = eager
        self._count = count
        self._floor: Tolerance | None = None

    def fix(self, tolerance: Tolerance) -> None:
        """The tolerance is known."""
        self.tolerance = tolerance

    def add_zeros(self, chunks: int) -> None:
        """So many more chunks are there, as zeros."""
        self.zeros += chunks

    def lower(self, floor: Tolerance) -> None:
        """From now on `floor` is enough, of the chunks that carry something (hazard 11)."""
        self._floor = floor

    @property
    def carried(self) -> int:
        """Chunks that are waited for with their bytes, while more may come."""
        carrying = self._count - self.zeros
        if self.tolerance is None:
            return carrying
        return min(carrying, self.tolerance.needed(self._count))

    def share(self, accepted: int) -> float:
        """Of the chunks that are waited for with their bytes, what has come with `accepted`."""
        return min(1.0, (accepted - self.zeros) / self.carried) if self.carried else 1.0

    @property
    def tolerated(self) -> int:
        """Chunks that are enough by the tolerance, when no more come."""
        if self.tolerance is None:
            return self._count
        return self.zeros + self.tolerance.needed(self._count - self.zeros)

    @property
    def needed(self) -> int:
        """Chunks that are enough now, when no more come."""
        if self._floor is None:
            return self.tolerated
        return min(self.tolerated, self.zeros + self._floor.needed(self._count - self.zeros))

    @property
    def awaited(self) -> int:
        """Chunks that are waited for now, while more may come."""
        return self.zeros + self.carried if self._floor is None else self.needed

    @property
    def target(self) -> int:
        """Chunks with which the round ends unasked: a patient receiver waits for a probe, unless
        its deadline is over."""
        return self.awaited if self._eager or self._floor is not None else self._count
