"""The result of one flow between two processes, whatever carried it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class FlowResult:
    """Rounds of one flow from a sender to a receiver. Times in seconds, at the sender."""

    name: str
    nbytes: int
    """Payload of one round, in bytes."""
    elapsed_s: tuple[float, ...]
    """Each measured round: from the first byte handed to the kernel to the receiver's word."""
    cold_s: tuple[float, ...]
    """The rounds before them: connection, page faults and slow start are in these."""
    sender_cpu_s: float
    """User and system time of the sender process over the measured rounds."""
    receiver_cpu_s: float
    congestion: str | None = None
    datagrams: int = 0
    """Datagrams that left over all measured rounds (0: not a datagram flow)."""
    chunks: int = 0
    """Chunks that had to arrive over all measured rounds (0: the flow has no chunks)."""
    kernel_drops: int = 0
    """Datagrams that found the receive buffer full."""

    @property
    def gbit_per_s(self) -> tuple[float, ...]:
        """Goodput of each measured round."""
        return tuple(self.nbytes * 8e-9 / seconds for seconds in self.elapsed_s)

    @property
    def median_gbit_per_s(self) -> float:
        return statistics.median(self.gbit_per_s)

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of both sides for a gigabyte (1e9 bytes) of payload."""
        moved_gb = self.nbytes * len(self.elapsed_s) / 1e9
        return (self.sender_cpu_s + self.receiver_cpu_s) / moved_gb
