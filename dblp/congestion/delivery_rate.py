"""How much a path delivers, seen from the sender."""

from __future__ import annotations

RATE_SAMPLE_S = 0.002
"""Shortest time over which a delivery rate is measured: longer than credits bunch up while a
process waits for its turn."""

RATE_MEMORY_S = 0.1
"""How long a delivery rate counts: some rounds, or some hundred round trips of a busy path."""


class DeliveryRate:
    """Datagrams that reached the peer per second: the largest rate of the last one to two memory
    spans, because a sender that had little to send delivers less than the path can."""

    def __init__(self) -> None:
        self.per_s = 0.0
        """0 before the first measurement."""
        self._candidate = 0.0
        self._until = 0.0
        self._acknowledged = 0
        self._since = -RATE_MEMORY_S

    def update(self, acknowledged: int, *, now: float) -> None:
        """`acknowledged` datagrams have arrived so far, at `now` seconds."""
        span = now - self._since
        if span < RATE_SAMPLE_S:
            return
        delivered = acknowledged - self._acknowledged
        self._acknowledged, self._since = acknowledged, now
        if delivered <= 0 or span > RATE_MEMORY_S:  # a pause between rounds says nothing
            return
        rate = delivered / span
        self._candidate = max(self._candidate, rate)
        self.per_s = max(self.per_s, rate)
        if now >= self._until:
            self.per_s, self._candidate = self._candidate, rate
            self._until = now + RATE_MEMORY_S
