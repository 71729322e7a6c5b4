"""When to probe again, how long to wait before a bitmap, and what a stall is: pure policy."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ProbePolicy", "RttEstimate"]

PROBE_TIMEOUT_MIN_S = 0.002
"""Shorter than any TCP retransmission timeout (200 ms on Linux, hazard 3), longer than a scheduling
hiccup."""

PROBE_TIMEOUT_MAX_S = 0.5
"""End of the backoff: bounds how long a round stands still after the network is back (L1)."""

RELIABLE_TIMEOUT_MIN_S = 0.1
"""On TCP the probe itself cannot be lost: a resend only asks again for the answer."""

STALL_MIN_S = 0.02
"""Blocked without progress for this long: credit and data must have been lost."""

FIRST_PROBE_MIN_S = 0.0002
"""An eager receiver needs about this long to say STOP on its own."""

QUIET_UNKNOWN_S = 0.00025
"""Quiet period while no round trip has been measured."""

QUIET_MAX_S = 0.005
"""An RTT inflated by a busy peer must not delay every bitmap."""

QUIET_BOUND = 4
"""News may extend the wait to this many quiet periods."""


@dataclass(slots=True)
class RttEstimate:
    """Smoothed round-trip time of one session (RFC 6298 weights)."""

    smoothed_s: float | None = None
    """None until the first sample."""

    def update(self, last_ns: int) -> None:
        """One new sample in nanoseconds."""
        sample = last_ns * 1e-9
        if self.smoothed_s is None:
            self.smoothed_s = sample
        else:
            self.smoothed_s += (sample - self.smoothed_s) / 8


@dataclass(frozen=True, slots=True)
class ProbePolicy:
    """Times of the probe exchange, as a function of the round-trip time."""

    rtt: RttEstimate = field(default_factory=RttEstimate)
    quiet_fixed_s: float | None = None
    """`TransportConfig.probe_quiet_s`."""

    def resend_after_s(self, resends: int, *, reliable: bool) -> float:
        """How long a probe that was resent `resends` times waits for its answer."""
        lowest = RELIABLE_TIMEOUT_MIN_S if reliable else PROBE_TIMEOUT_MIN_S
        base = max(lowest, 4 * (self.rtt.smoothed_s or 0.0))
        return float(min(PROBE_TIMEOUT_MAX_S, base * 2 ** min(resends, 16)))

    def first_probe_after_s(self) -> float:
        """How long a sender waits for an unasked STOP after its first pass, in seconds."""
        return min(PROBE_TIMEOUT_MIN_S, max(FIRST_PROBE_MIN_S, (self.rtt.smoothed_s or 0.0) / 2))

    def quiet_s(self) -> float:
        """How long no chunk must arrive before the bitmap goes out (hazard 2): ¼ RTT."""
        if self.quiet_fixed_s is not None:
            return self.quiet_fixed_s
        if self.rtt.smoothed_s is None:
            return QUIET_UNKNOWN_S
        return min(QUIET_MAX_S, self.rtt.smoothed_s / 4)

    def stall_s(self) -> float:
        """How long a sender may be blocked without progress before its pass ends early."""
        return max(STALL_MIN_S, 8 * (self.rtt.smoothed_s or 0.0))
