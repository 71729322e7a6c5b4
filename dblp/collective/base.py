"""What every way to average gradients looks like from outside."""

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
    """Stream id."""
    tolerance: str
    """Of this round, such as "40.8%"."""
    mean_squared_norm: float
    """Mean over the ranks of the squared norms of their gradients, the same bits on all ranks; NaN
    when a rank's was not known."""
    lost: tuple[tuple[int, int], ...]
    """Element ranges [start, stop) of this rank's gradient that are not in the mean: their server
    did without them, or a common downlink leaves their chunk out.  Ascending within a shard;
    nothing with a `ParameterServer`, which keeps it to itself."""
    delivered_share: float
    """Share of this rank's chunks that are in the mean, 0 … 1."""
    regime: str | None
    """"critical" or "normal", as announced."""
    elapsed_s: float
    """From the call to the result, in seconds."""
    rounds: tuple[RoundReport, ...]
    """This rank's uplinks and downlinks, one pair per remote server."""


class Collective(Protocol):
    """What averages gradients: one process' end of a group of ranks."""

    rank: int
    """Of this process, 0 … world-1."""
    world: int
    """Number of ranks."""

    def all_reduce_async(
        self,
        grad: Any,
        *,
        stream: int = 0,
        tolerance: Tolerance | str | None = None,
        critical: bool = False,
        squared_norm: float | None = None,
    ) -> Future[ExchangeReport]:
        """Replaces `grad` by its mean over the ranks; `grad` is the transport's until then."""
        ...

    def close(self) -> None:
        """Releases everything; idempotent, waits for nobody."""
        ...
