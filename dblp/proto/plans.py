"""What one half of a round is told when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..fastpath import Reducer
from ..tolerance import Tolerance
from ..wire import Open
from .bitmap import Indices
from .layout import ChunkLayout
from .link import RoundLabel

__all__ = ["ReceivePlan", "SendPlan"]


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """What a receiver is to receive."""

    stream: int
    round_id: int
    layout: ChunkLayout
    buffer: memoryview
    """Writable, `layout.nbytes` bytes."""
    dtype: str
    tolerance: Tolerance | None
    """Fixed for the life of the round (C1); None: it comes with the announcement."""
    reducer: Reducer | None
    source: int
    """Which of the reducer's sources this is."""
    aim: bool
    label: RoundLabel
    yields: bool = False
    """An announced tolerance replaces `tolerance`."""
    timed: bool = True
    """The deadline holds here, from the beginning; else from `Receiver.allow_deadline` on."""

    def fits(self, open_: Open) -> bool:
        """Whether the announcement has the layout and dtype that are armed (hazard 7)."""
        return (
            open_.nbytes == self.layout.nbytes
            and open_.chunk_bytes == self.layout.chunk_bytes
            and open_.dtype == self.dtype
        )


@dataclass(frozen=True, slots=True)
class SendPlan:
    """What a sender is to send."""

    open: Open
    layout: ChunkLayout
    source: memoryview
    """The bytes; they do not change between start and terminal state (S2)."""
    order: Callable[[bool], Indices] | None
    """Gives the send order of the first pass and of the missing chunks later, by whether the
    receiver wants every chunk; None with a reducer."""
    reducer: Reducer | None
    """Follow this reducer: chunks leave as they become ready."""
    tolerance: Tolerance | None
    """Tolerance of the round as far as the sender knows it; for the report."""
    label: RoundLabel
    only: npt.NDArray[np.bool_] | None = None
    """By chunk, whether it may be sent; None: all."""

    @property
    def lands(self) -> bool:
        """Whether the receiver reduces the chunks: it takes them anywhere, in whatever order."""
        return self.label.direction == "uplink"

    @property
    def is_told(self) -> bool:
        """Whether the receiver names the missing chunks over TCP: a worker that announced a
        tolerance makes up for them."""
        return self.open.tolerance is not None and self.label.direction == "uplink"
