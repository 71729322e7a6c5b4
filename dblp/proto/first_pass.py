"""How much of a round that may lose chunks is sent before the receiver is heard."""

from __future__ import annotations

from ..tolerance import Tolerance

__all__ = ["FirstPass"]

LOSS_WEIGHT = 0.25
"""Of a new round in the running loss rate: a burst is forgotten after some rounds."""

LOSS_MAX = 0.5
"""More than this is a burst, which no margin makes up for."""

MARGIN = 1.1
"""Times the loss that is expected: a pass that falls short costs a probe, its round trip and an
answer."""


class FirstPass:
    """The losses of the last rounds of one session, and what follows from them.

    An eager receiver stops a round as soon as it has what it needs, but what is sent until STOP
    arrives is wasted: a tenth of a round at 40.8 %.  So a first pass has as many chunks as are
    needed,
    and as many more as are usually lost.
    """

    __slots__ = ("_eager", "_loss")

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager
        self._loss = 0.0

    def learn(self, loss: float) -> None:
        """A first pass lost this share of its chunks."""
        self._loss += LOSS_WEIGHT * (min(loss, LOSS_MAX) - self._loss)

    def chunks(self, tolerance: Tolerance | None, count: int) -> int:
        """Length of the first pass of a round of `count` chunks; None: the bound is not known."""
        if tolerance is None or not self._eager:
            return count
        needed = tolerance.needed(count)
        lost = needed * self._loss / (1.0 - self._loss)
        return min(count, needed + round(MARGIN * lost))
