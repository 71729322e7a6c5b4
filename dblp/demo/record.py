"""What one side of the demo did, round by round: the raw material of the summary and the plots."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .settings import Side


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One iteration, all workers together."""

    side: Side
    step: int
    epoch: int
    burst: bool
    """Whether a microburst hit this round."""
    critical: bool
    """Whether the round's uplink was held to the critical regime's tolerance."""
    tolerance: str
    loss: float
    """Training loss, mean over the workers."""
    gradient_norm: float
    """Root of the mean of the workers' squared gradient norms, as sent, before any loss."""
    send_latency_s: float
    """From the first byte of a worker's gradient until its server said stop, in seconds: the
    slowest worker's, since the step waits for it."""
    delivered_share: float
    """Chunks that reached the server in time over chunks sent for, all workers together."""
    workers: Sequence[Mapping[str, Any]]
    """Per rank: rank, elapsed_s of the whole all_reduce, and the uplink and downlink reports."""

    @classmethod
    def of(cls, side: Side, events: Mapping[int, Mapping[str, Any]], *, burst: bool) -> RoundRecord:
        """Of the "round" events of all ranks for one step."""
        ranks = [events[rank] for rank in sorted(events)]
        uplinks = [event["uplink"] for event in ranks]
        chunks = sum(uplink["chunks"] for uplink in uplinks)
        missing = sum(uplink["missing"] for uplink in uplinks)
        first = ranks[0]
        return cls(
            side=side,
            step=first["step"],
            epoch=first["epoch"],
            burst=burst,
            critical=first["critical"],
            tolerance=first["tolerance"],
            loss=sum(event["loss"] for event in ranks) / len(ranks),
            gradient_norm=math.sqrt(sum(event["squared_norm"] for event in ranks) / len(ranks)),
            send_latency_s=max(uplink["elapsed_s"] for uplink in uplinks),
            delivered_share=1 - missing / chunks if chunks else 1.0,
            workers=[
                {
                    "rank": rank,
                    "elapsed_s": events[rank]["elapsed_s"],
                    "uplink": events[rank]["uplink"],
                    "downlink": events[rank]["downlink"],
                }
                for rank in sorted(events)
            ],
        )


@dataclasses.dataclass(frozen=True)
class SideRecord:
    """One whole training run."""

    side: Side
    rounds: Sequence[RoundRecord]
    accuracy: Sequence[float]
    """Test accuracy after each epoch, 0 … 1."""
    train_time_s: float
    """Wall time inside the training steps of the slowest worker, without evaluation, in seconds."""
    replica_drift: float
    """Largest absolute difference of any parameter between two replicas at the end."""
    downlink_datagrams: int
    """Datagrams that the server sent, all rounds and workers."""

    @property
    def burst_rounds(self) -> list[RoundRecord]:
        """The rounds that a microburst hit."""
        return [record for record in self.rounds if record.burst]


def write_rounds(path: Path, sides: Sequence[SideRecord]) -> None:
    """rounds.jsonl: one JSON object per round, side after side."""
    with path.open("w") as file:
        for side in sides:
            for record in side.rounds:
                fields = {name: _json_ready(v) for name, v in dataclasses.asdict(record).items()}
                file.write(json.dumps(fields) + "\n")


def _json_ready(value: Any) -> Any:
    """`value`, with None for the floats that JSON cannot write (a diverged loss)."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
