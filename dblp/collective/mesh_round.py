"""One all-reduce of a mesh: the parts that make it up, and what they say at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..errors import DBLPError
from ..phase import Regime
from ..proto.bitmap import Indices
from ..stats import RoundReport
from ..tolerance import Tolerance
from .base import ExchangeReport
from .local_rank import LocalRound
from .round_layout import ITEM_BYTES
from .sharding import Shard
from .worker_round import OpenRound

__all__ = ["FinishedMeshRound", "MeshRound", "Part"]


@dataclass(slots=True, eq=False)
class Part:
    """One shard of one all-reduce."""

    shard: Shard
    work: OpenRound | LocalRound | None = None


@dataclass(slots=True, eq=False)
class MeshRound:
    """One all-reduce of this rank, from the call to the result."""

    buffer: memoryview
    """The gradient, replaced by the mean; nobody else may touch it before the round ends."""
    dtype: str
    stream: int = field(kw_only=True)
    tolerance: Tolerance = field(kw_only=True)
    critical: bool = field(kw_only=True)
    squared_norm: float = field(kw_only=True)
    chunk_bytes: int = field(kw_only=True)
    parts: list[Part] = field(default_factory=list)
    left: int = 0
    """Parts that are not over."""

    def report(self, elapsed_s: float) -> ExchangeReport:
        """What the round did; all parts are over, well."""
        rounds: list[RoundReport] = []
        lost: list[tuple[int, int]] = []
        missing = 0
        mean = self._mean_without_parts()
        for part in self.parts:
            work = part.work
            assert work is not None
            mean = work.mean_squared_norm
            if isinstance(work, OpenRound):
                assert work.uplink is not None and work.downlink is not None
                rounds += (work.uplink, work.downlink)
            chunks_lost = work.lost()
            missing += chunks_lost.size
            lost += _element_ranges(
                chunks_lost, part.shard, self.chunk_bytes, ITEM_BYTES[self.dtype]
            )
        chunks = -(-self.buffer.nbytes // self.chunk_bytes)
        return ExchangeReport(
            stream=self.stream,
            tolerance=str(self.tolerance),
            mean_squared_norm=mean,
            lost=tuple(lost),
            delivered_share=1.0 - missing / chunks if missing else 1.0,
            regime=(Regime.CRITICAL if self.critical else Regime.NORMAL).value,
            elapsed_s=elapsed_s,
            rounds=tuple(rounds),
        )

    def _mean_without_parts(self) -> float:
        """Of a world of one; an empty buffer has the norm 0 on all ranks."""
        return self.squared_norm if self.buffer.nbytes else 0.0


@dataclass(frozen=True, slots=True)
class FinishedMeshRound:
    """The end of one `MeshRound`."""

    round: MeshRound
    error: DBLPError | None
    """None: the buffer holds the mean.  Otherwise its contents are unspecified."""

    @property
    def work(self) -> MeshRound:
        """What the call that started it returned."""
        return self.round


def _element_ranges(
    chunks: Indices, shard: Shard, chunk_bytes: int, item_bytes: int
) -> list[tuple[int, int]]:
    """Runs of ascending chunk indices of a shard as element ranges of the whole buffer."""
    if chunks.size == 0:
        return []
    indices = chunks.astype(np.int64)
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    firsts = indices[np.concatenate(([0], breaks))]
    lasts = indices[np.concatenate((breaks - 1, [indices.size - 1]))]
    starts = (shard.start + firsts * chunk_bytes) // item_bytes
    stops = np.minimum(shard.start + (lasts + 1) * chunk_bytes, shard.stop) // item_bytes
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
