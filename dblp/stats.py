"""What is told about a finished round: an immutable report, and nothing global."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["REPORTED_COUNTERS", "JsonValue", "RoundReport", "counter_deltas"]

JsonValue = int | float | str | bool | None

REPORTED_COUNTERS = (
    "stale",
    "future",
    "foreign",
    "corrupt",
    "malformed",
    "injected_loss",
    "kernel_drops",
)
"""Counters of the channel that a report carries as the difference between start and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """One direction of one round, seen from one end.

    The counters at the end (`REPORTED_COUNTERS`) belong to the whole channel while the round was
    open: with several streams in flight one datagram shows in the report of each.
    """

    stream: int
    """Stream (bucket) id."""
    round_id: int
    """Round id, modulo 2**32."""
    direction: str
    """"uplink" or "downlink" in the collective; "send" or "receive" point to point."""
    rank: int | None = None
    """Rank of the worker at one end of the exchange."""
    regime: str | None = None
    """"critical" or "normal"; None where no policy decides."""
    tolerance: str = "0%"
    """Tolerance of the round, such as "40.8%"."""
    chunks: int = 0
    """Chunks in the round."""
    missing: int = 0
    """Chunks not delivered when the round ended.  Those of a downlink that were named as zeros by
    then, because no worker has delivered them, are not among them."""
    duplicate: int = 0
    """Chunks that arrived though they were there."""
    passes: int = 0
    """Transmission passes, 1 when nothing was sent again."""
    overshoot: int = 0
    """Datagrams that left after the receiver's STOP decision; 0 if unknown."""
    nbytes: int = 0
    """Size of the buffer in bytes."""
    datagrams: int = 0
    """Data datagrams sent (by a sender) or accepted (by a receiver)."""
    retransmitted: int = 0
    """Data datagrams beyond the first pass."""
    elapsed_s: float = 0.0
    """From start to end of the round at this end, in seconds."""
    rtt_s: float | None = None
    """Smoothed round-trip time in seconds; None when it was not measured."""
    at_deadline: bool = False
    """The round ended below its bound, as its deadline allows."""
    fallback: bool = False
    """Part of the payload travelled on the reliable channel, as datagrams did not get through."""

    stale: int = 0
    """Datagrams of rounds that are over."""
    future: int = 0
    """Datagrams of rounds that are not open yet."""
    foreign: int = 0
    """Datagrams of another session."""
    corrupt: int = 0
    """Datagrams whose check failed."""
    malformed: int = 0
    """Datagrams with a wrong length, version or chunk index."""
    injected_loss: int = 0
    """Datagrams dropped by fault injection."""
    kernel_drops: int = 0
    """Datagrams that the kernel dropped because the socket's buffer was full."""

    @property
    def delivered(self) -> int:
        """Chunks delivered."""
        return self.chunks - self.missing

    @property
    def delivered_share(self) -> float:
        """Share of the chunks that was delivered, 0 … 1; 1 for an empty round."""
        return self.delivered / self.chunks if self.chunks else 1.0

    def to_dict(self) -> dict[str, JsonValue]:
        """The fields and `delivered_share` as plain values, ready for JSON (NaN and inf: None)."""
        fields: dict[str, JsonValue] = {**asdict(self), "delivered_share": self.delivered_share}
        return {name: _json_ready(value) for name, value in fields.items()}


def counter_deltas(start: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
    """What `REPORTED_COUNTERS` grew by between two `Channel.counters()`; keywords for a report."""
    return {name: end.get(name, 0) - start.get(name, 0) for name in REPORTED_COUNTERS}


def _json_ready(value: JsonValue) -> JsonValue:
    """`value`, with None for the floats that JSON cannot write."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
