"""What a congestion control is told and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

WINDOW_MAX = 1 << 30
"""No limit."""

HURRIED_INTERVAL_S = 0.0002
"""Shortest time between updates: looks more often than that cost more than they tell."""

RELAXED_INTERVAL_S = 0.05
"""Nothing depends on the next update: as long as the pump may stay away."""


@dataclass(slots=True)
class Feedback:
    """What a sender has learnt since the last call.

    Not frozen: it is made hundreds of times a round, and a frozen one takes four times as long.
    """

    now: float
    """Seconds."""
    path_delay_s: float
    """Mean round trip of the samples, without the delay in either host, in seconds."""
    smallest_delay_s: float
    """Smallest of these."""
    samples: int
    sent: int
    """Newest sequence sent."""
    acknowledged: int
    """Newest sequence that has reached the receiver (or is known to be lost)."""
    window_limited: bool
    """The congestion window has held chunks back."""
    lost: int
    """Datagrams that are newly known to be lost."""
    tail_lost: bool
    """The newest of what was in flight is known to be lost: the sender stood still until it had
    asked."""
    ahead: bool = False
    """The receiver has more from this sender than from others whose data it needs as well."""


class CongestionControl(Protocol):
    """State of one direction to one peer."""

    pacing_bytes_per_s: float
    """0: no pacing."""

    @property
    def window(self) -> int:
        """Datagrams that may be unacknowledged."""

    def on_feedback(self, feedback: Feedback) -> None:
        """Takes news into account."""

    @property
    def update_interval_s(self) -> float:
        """How soon the next feedback should come, in seconds."""


class Congestion(Protocol):
    """A choice in `TransportConfig`; frozen, and shared by all sessions."""

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        """The state of a new session whose full datagrams have this size."""
