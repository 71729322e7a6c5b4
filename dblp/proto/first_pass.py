"""How much of a round that may lose chunks is sent before the receiver is heard."""

from __future__ import annotations

import math
from typing import Protocol

from ..tolerance import Tolerance

__all__ = ["FirstPass"]

LOSS_WEIGHT = 0.25
"""Of a new round in the running loss rate: a burst is forgotten after some rounds."""

LOSS_MAX = 0.5
"""More than this is a burst, which no margin makes up for."""

MARGIN = 1.1
"""Times the loss that is expected: a pass that falls short costs a probe, its round trip and an
answer."""

SPREAD = 1.5
"""Standard deviations of the number of lost chunks that are added: where losses are independent,
and their rate is right, at most one pass in fifteen falls short."""

SAMPLE_MIN = 64
"""Datagrams from which on credits show a loss rate; fewer are left for the next round."""


class Credits(Protocol):
    """What a channel knows of its datagrams from the peer's credits."""

    credited: tuple[int, int]


class FirstPass:
    """The losses of the last rounds of one session, and what follows from them.

    An eager receiver stops a round as soon as it has what it needs, but what is sent until STOP
    arrives is wasted: a tenth of a round at 40.8 %.  So a first pass has as many chunks as are
    needed, and as many more as are usually lost.

    *Inputs*: `learn`, `learn_from_credits`.  *Getters*: `chunks`.
    """

    __slots__ = ("_eager", "_loss", "_mark", "_path")

    def __init__(self, path: Credits, *, eager: bool) -> None:
        self._eager = eager
        self._path = path
        self._loss = 0.0
        self._mark = path.credited  # what has been learnt from

    def learn(self, loss: float) -> None:
        """A first pass has lost this share of its chunks, as its receiver says."""
        self._mark = self._path.credited
        self._add(loss)

    def learn_from_credits(self) -> None:
        """A first pass was enough, and its receiver has said no more: the credits since the last
        call tell what was lost.  Datagrams that the network repeats hide as many losses."""
        acknowledged, drained = (
            now - before for now, before in zip(self._path.credited, self._mark, strict=True)
        )
        if acknowledged >= SAMPLE_MIN:
            self._mark = self._path.credited
            self._add(1.0 - min(1.0, drained / acknowledged))

    def chunks(self, tolerance: Tolerance | None, count: int) -> int:
        """Length of the first pass of a round of `count` chunks; None: the bound is not known."""
        if tolerance is None or not self._eager:
            return count
        needed = tolerance.needed(count)
        lost = needed * self._loss / (1.0 - self._loss)
        spread = math.sqrt(needed * self._loss) / (1.0 - self._loss)
        return min(count, needed + round(MARGIN * lost + SPREAD * spread))

    def _add(self, loss: float) -> None:
        self._loss += LOSS_WEIGHT * (min(loss, LOSS_MAX) - self._loss)
