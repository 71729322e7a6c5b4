"""How much of a round that may lose chunks is sent before the receiver is heard."""

from __future__ import annotations

from typing import Protocol

from ..tolerance import Tolerance

__all__ = ["FirstPass"]


class Credits(Protocol):
    """What a channel knows of its datagrams from the peer's credits."""

    acknowledged: int
    peer_drained: int


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
        """A first pass has lost this share of its chunks."""
        self._loss += LOSS_WEIGHT * (min(loss, LOSS_MAX) - self._loss)

    def learn_since(self, acknowledged: int, drained: int, path: Credits) -> None:
        """A first pass was enough, from which `path` had `acknowledged` and `drained` datagrams:
        what the credits say that was lost, and nothing where none has come yet."""
        acknowledged = path.acknowledged - acknowledged
        drained = path.peer_drained - drained
        self.learn(1.0 - min(1.0, max(0, drained) / acknowledged) if acknowledged > 0 else 0.0)

    def chunks(self, tolerance: Tolerance | None, count: int) -> int:
        """Length of the first pass of a round of `count` chunks; None: the bound is not known."""
        if tolerance is None or not self._eager:
            return count
        needed = tolerance.needed(count)
        lost = needed * self._loss / (1.0 - self._loss)
        return min(count, needed + round(MARGIN * lost))
