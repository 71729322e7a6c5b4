"""What averages gradients: the interface that the layers above hold on to."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ..stats import RoundReport
from ..tolerance import Tolerance

__all__ = ["Collective", "ExchangeReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeReport:
    """What one all-reduce did, seen from this rank."""

    stream: int
    """Stream (bucket) id."""
    tolerance: str
    """Tolerance of this round, such as "40.8%"."""
    mean_squared_norm: float
    """Mean over the ranks of the squared norms, the same float on all ranks; NaN if unknown."""
    undelivered: tuple[tuple[int, int], ...] = ()
    """Element ranges [start, stop) of this rank's gradient that did not get to their server."""
    delivered_share: float = 1.0
    """Share of this rank's chunks that was delivered, 0 … 1."""
    regime: str | None = None
    """"critical" or "normal"; None where no policy decides."""
    elapsed_s: float = 0.0
    """From the call to the result, in seconds."""
    rounds: tuple[RoundReport, ...] = ()
    """The parts: this rank's uplinks and downlinks."""


class Collective(Protocol):
    """One process' end of a group of ranks."""

    rank: int
    world: int

    def all_reduce_async(
        self,
        grad: Any,
        *,
        stream: int = 0,
        tolerance: Tolerance | str | None = None,
        squared_norm: float | None = None,
    ) -> Future[ExchangeReport]:
        """Replaces `grad` by its mean over the ranks; the future is done when it is."""

    def close(self) -> None:
        """Releases everything; idempotent, never collective."""
