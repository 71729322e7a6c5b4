"""What a worker keeps for one round of one stream, and for one stream."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from ..errors import DBLPError
from ..phase import Regime
from ..proto import Receiver, Sender
from ..proto.bitmap import Indices
from ..stats import RoundReport
from ..tolerance import Tolerance
from .round_layout import RoundLayout

__all__ = ["FinishedRound", "OpenRound", "StreamRounds"]

NO_CHUNKS = np.zeros(0, np.uint32)


class OpenRound:
    """One all-reduce of this worker, from the call to the result."""

    __slots__ = (
        "buffer", "critical", "deadline", "downlink", "dtype", "left_out", "receiver", "regime",
        "round_id", "sender", "squared_norm", "stream", "submitted", "tolerance", "uplink",
        "whole_bytes",
    )  # fmt: skip

    def __init__(
        self,
        buffer: memoryview,
        dtype: str,
        *,
        stream: int,
        squared_norm: float,
        tolerance: Tolerance | None = None,
        critical: bool = False,
        whole_bytes: int = 0,
        submitted: float,
    ) -> None:
        self.buffer = buffer
        """The gradient, replaced by the mean; nobody else may touch it before the round ends."""
        self.dtype = dtype
        self.stream = stream
        self.squared_norm = squared_norm
        self.tolerance = tolerance
        """What this rank announces; None: the server decides."""
        self.critical = critical
        self.whole_bytes = whole_bytes
        """As `wire.Open.whole_bytes`."""
        self.submitted = submitted
        """When `all_reduce` was called, in seconds."""
        self.round_id = -1
        """-1 while the round waits for the one before it."""
        self.deadline = math.inf
        self.receiver: Receiver | None = None
        self.sender: Sender | None = None
        self.uplink: RoundReport | None = None
        self.downlink: RoundReport | None = None
        self.regime: Regime | None = None
        """Regime that the server decided on with this round; None before its announcement."""
        self.left_out = NO_CHUNKS
        """Chunks that are in no rank's mean: a common downlink leaves them out.  Ascending."""

    @property
    def mean_squared_norm(self) -> float:
        """Mean over the ranks of `squared_norm`, once the downlink is announced; else NaN."""
        offer = self.receiver.open if self.receiver is not None else None
        return math.nan if offer is None else offer.squared_norm

    @property
    def awaits_missing(self) -> bool:
        """The uplink has ended, and which chunks it lost is still to come: with a tolerance that
        this rank announced it wants to know, to make up for them."""
        sender = self.sender
        assert sender is not None and sender.report is not None
        return (
            self.tolerance is not None
            and not self.tolerance.is_exact
            and sender.final_missing is None
            and sender.layout.count > 0
        )

    def lost(self) -> Indices:
        """Chunks of this rank's gradient that are not in the mean, ascending."""
        missing = None if self.sender is None else self.sender.final_missing
        if missing is None or not missing.size:
            return self.left_out
        return _union(missing, self.left_out) if self.left_out.size else missing


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """The end of one `OpenRound`."""

    round: OpenRound
    error: DBLPError | None
    """None: the buffer holds the mean.  Otherwise the contents of the buffer are unspecified."""
    uplink: RoundReport | None
    """None when the round failed before its uplink ended."""
    downlink: RoundReport | None
    """None when the round failed before its downlink ended."""

    @property
    def work(self) -> OpenRound:
        """What the call that started it returned."""
        return self.round


class StreamRounds:
    """The rounds of one stream: one is going on, the others wait in order."""

    __slots__ = ("active", "layout", "next_round_id", "regime", "told", "tolerance", "waiting")

    def __init__(self, first_round: int, tolerance: Tolerance) -> None:
        self.active: OpenRound | None = None
        self.waiting: deque[OpenRound] = deque()
        self.next_round_id = first_round
        self.layout: RoundLayout | None = None
        """Layout of the last round, which the server has armed for the next."""
        self.tolerance = tolerance
        """Uplink tolerance of the next round."""
        self.told = ""
        """`tolerance` as it came."""
        self.regime: Regime | None = None
        """Regime of the next uplink; None before the server has said."""


def _union(one: Indices, other: Indices) -> Indices:
    """Sorted and each once.  `np.union1d` imports another module first, in the first round."""
    both = np.sort(np.concatenate((one, other)))
    again = np.zeros(len(both), bool)
    again[1:] = both[1:] == both[:-1]
    return both[~again]
