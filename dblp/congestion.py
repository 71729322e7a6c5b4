"""How fast a sender may go: one small interface, three answers.

Loss is no signal to slow down: bounded loss is tolerated, and a burst says nothing about the rate
a path can carry.  What counts is the delay that the path adds (Swift, SIGCOMM 2020; FAST TCP,
INFOCOM 2004), measured without the time that either host holds a datagram, and kept across rounds,
because a round is too short to find a rate from nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .errors import ConfigError

__all__ = [
    "AdaptiveWindow",
    "Congestion",
    "CongestionControl",
    "Feedback",
    "FixedRate",
    "Unpaced",
    "within_host",
]

WINDOW_MAX = 1 << 30
"""No limit."""

USUAL_DATAGRAM_BYTES = 1472
"""UDP payload of a packet of 1,500 bytes: what a queue holds is bytes, not datagrams."""


@dataclass(slots=True)
class Feedback:
    """What a sender has learnt since the last call.

    Not frozen: it is made hundreds of times a round, and a frozen one takes four times as long.
    """

    now: float
    """Seconds."""
    path_delay_s: float
    """Mean round trip of the samples, without the peer's own delay, in seconds."""
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


HURRIED_INTERVAL_S = 0.0002
"""Shortest time between updates: looks more often than that cost more than they tell."""

RELAXED_INTERVAL_S = 0.05
"""Nothing depends on the next update: as long as the pump may stay away."""


class _Constant:
    """Window and rate that never change."""

    def __init__(self, pacing_bytes_per_s: float) -> None:
        self.window = WINDOW_MAX
        self.pacing_bytes_per_s = pacing_bytes_per_s

    def on_feedback(self, feedback: Feedback) -> None:
        pass

    @property
    def update_interval_s(self) -> float:
        return RELAXED_INTERVAL_S


@dataclass(frozen=True, slots=True)
class Unpaced:
    """As fast as credit allows: for a path that is known to carry it."""

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        return _Constant(0.0)


@dataclass(frozen=True, slots=True)
class FixedRate:
    """A rate the user knows, such as a reserved share of a link; counts UDP payload."""

    bits_per_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.bits_per_s, int | float) or not self.bits_per_s > 0:
            raise ConfigError(
                f"bits_per_s is {self.bits_per_s!r}: choose a rate above 0, such as 1e9"
            )

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        return _Constant(self.bits_per_s / 8)


@dataclass(frozen=True, slots=True)
class AdaptiveWindow:
    """Keeps the path's queue short: the default, fit for incast and shallow buffers."""

    queue_delay_s: float = 0.0004
    """Queueing on the path from which on windows shrink, in seconds.  The step keeps the queue
    above it: three senders at 1 Gb/s have 1.1 ms by the rule, seven tenths of a 200 KB buffer."""
    step_datagrams: int = 20
    """Additive increase per round trip, in datagrams of 1,472 bytes as all numbers here; equal for
    all senders, which is what makes shares equal.  A large one makes them so quickly, and takes up
    at once what another sender leaves.  Where it is too large for a buffer it shrinks."""
    initial_datagrams: int = 44
    """First window: one GSO batch (RFC 6928 allows 10 segments; a batch is one send)."""
    minimum_datagrams: int = 8
    within_host: bool = False
    """Also towards peers with this host's own address.  No datagram waits in a switch there, so the
    credits are enough, and a window makes processes that share CPUs wait for each other."""

    def __post_init__(self) -> None:
        if not 0 < self.queue_delay_s < 10:
            raise ConfigError(
                f"queue_delay_s is {self.queue_delay_s!r}: choose seconds, such as 0.0004"
            )
        for name in ("step_datagrams", "initial_datagrams", "minimum_datagrams"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: choose 1 or more")

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        return AdaptiveWindowControl(self, datagram_bytes)


def within_host(congestion: Congestion) -> Congestion:
    """What this choice means towards a peer on the same host."""
    adaptive = isinstance(congestion, AdaptiveWindow) and not congestion.within_host
    return Unpaced() if adaptive else congestion


BASE_DELAY_MEMORY_S = 10.0
"""How long the smallest delay seen counts as the path's own; then the route may have changed."""

RATE_SAMPLE_S = 0.002
"""Shortest time over which a delivery rate is measured: longer than credits bunch up while a
process waits for its turn."""

RATE_MEMORY_S = 0.1
"""How long a delivery rate counts: some rounds, or some hundred round trips of a busy path."""

RATE_HEADROOM = 1.25
"""By how much window and pacing exceed the delivery rate that was seen, so that it can grow (BBR's
probing gain, CACM 2017)."""


LOSING_DATAGRAMS = 32 * 44
"""What the window may be while whole windows are lost: 32 GSO batches.  A batch and its credit get
through in 9 % of all tries at 70 % loss: of 32, none in 5 %; of 8, in half of all tries, and then
the sender waits until it asks."""

LOSING_MEMORY_S = 0.1
"""How long a lost window counts."""

OVERFLOW_SHARE = 1 / 16
"""A round trip that loses more than this while there is a queue has overflowed it; less is what a
path loses by itself, or has reordered."""

STEP_BACKOFF = 0.75
"""What is left of the step after a round trip that has overflowed a queue."""

STEP_MINIMUM = 8.0
"""Smallest step, in datagrams of 1,472 bytes.  A sender whose path loses more by itself, beside
others whose does not, keeps this part of its share."""

STEP_RECOVERY = 1 / 64
"""By how much of itself the full step grows back per round trip."""


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


class AdaptiveWindowControl:
    """Once per round trip: below half the target delay the window doubles if it was the limit,
    below the target it grows by a step, above it shrinks in proportion to the excess (at most by
    half) and still gains the step.

    In equilibrium every sender's proportional loss equals the common step, so the windows are
    equal whatever they were (FAST TCP's argument), and the queue stays above the target.  By how
    much depends on the number of senders, which none of them knows.  Where more than a few
    datagrams are lost while there is a queue, all the steps together are too large for the buffer:
    the step falls by a quarter, and grows back slowly, so that the steps of all who share the
    buffer become equal (as windows do by AIMD).  Loss without a queue changes nothing, and as the
    window still follows the delay, the path stays full.

    Two rules are there for bursts.  The window is never much more than what the delivery rate
    fills in the target delay: a sender that was limited by its own work would double it without
    end.  And where the path has a queue, the window is spread over time: three bursts of one GSO
    batch each fill a buffer of 200 KB by themselves.

    The first of them yields while whole windows are lost on a path that had no queue: then the rate
    is low because the sender waits for lost credits, and a smaller window would be lost whole more
    often still.
    """

    def __init__(self, plan: AdaptiveWindow, datagram_bytes: int) -> None:
        self._plan = plan
        self._datagram_bytes = datagram_bytes
        scale = USUAL_DATAGRAM_BYTES / datagram_bytes
        self._most_step = max(1.0, scale * plan.step_datagrams)
        self._least_step = min(self._most_step, scale * STEP_MINIMUM)
        self._step = self._most_step
        self._lost = 0  # in this round trip
        self._round_start = 0
        self._minimum = max(1.0, scale * plan.minimum_datagrams)
        self._window = max(1.0, scale * plan.initial_datagrams)
        self._losing_window = scale * LOSING_DATAGRAMS
        self.pacing_bytes_per_s = 0.0
        self._base_s = 0.0
        self._candidate_s = 0.0
        self._base_until = 0.0
        self._round_end = 0
        self._delay_sum_s = 0.0  # of this round trip
        self._delay_samples = 0
        self._last_delay_s = 0.0
        self._limited = False
        self._hurry = True
        self._losing_until = 0.0
        self._rate = DeliveryRate()

    @property
    def window(self) -> int:
        """Datagrams that may be unacknowledged."""
        return int(self._window)

    @property
    def base_delay_s(self) -> float:
        """The path's delay without a queue, in seconds; 0 before the first sample."""
        return self._base_s

    @property
    def target_delay_s(self) -> float:
        """Delay that is aimed at, in seconds."""
        return self._base_s + max(self._plan.queue_delay_s, self._base_s / 4)

    @property
    def update_interval_s(self) -> float:
        """A round trip while the window is what limits or is too large, else no hurry."""
        return max(HURRIED_INTERVAL_S, self._last_delay_s) if self._hurry else RELAXED_INTERVAL_S

    def on_feedback(self, feedback: Feedback) -> None:
        """Collects the delays of this round trip; at its end adapts the window."""
        self._limited = self._limited or feedback.window_limited
        self._rate.update(feedback.acknowledged, now=feedback.now)
        self._lost += feedback.lost
        if feedback.tail_lost and self._is_short(self._last_delay_s):
            self._losing_until = feedback.now + LOSING_MEMORY_S
        if feedback.samples:
            self._remember_base(feedback.smallest_delay_s, feedback.now)
            self._delay_sum_s += feedback.path_delay_s * feedback.samples
            self._delay_samples += feedback.samples
        if feedback.acknowledged < self._round_end or not self._delay_samples:
            return
        delay = self._last_delay_s = self._delay_sum_s / self._delay_samples
        self._hurry = self._limited or delay > self.target_delay_s
        self._fit_step(delay, feedback.acknowledged - self._round_start)
        self._adapt(delay, feedback.now)
        self._pace(delay)
        self._round_end = feedback.sent
        self._delay_sum_s = 0.0
        self._delay_samples = 0
        self._limited = False
        self._lost = 0
        self._round_start = feedback.acknowledged

    def _fit_step(self, delay: float, datagrams: int) -> None:
        """To the room that the queue has beyond the target delay, after a round trip of so many."""
        if self._lost > OVERFLOW_SHARE * datagrams and delay > self.target_delay_s:
            self._step = max(self._least_step, STEP_BACKOFF * self._step)
        else:
            grown = self._step + STEP_RECOVERY * self._most_step
            self._step = min(self._most_step, grown)

    def _remember_base(self, delay: float, now: float) -> None:
        """Minimum over the last one to two memory spans."""
        if self._base_until == 0.0 or delay < self._base_s:
            self._base_s = delay
        if now >= self._base_until:
            if self._base_until:
                self._base_s = min(self._candidate_s, delay)
            self._candidate_s = delay
            self._base_until = now + BASE_DELAY_MEMORY_S
        self._candidate_s = min(self._candidate_s, delay)

    def _pace(self, delay: float) -> None:
        """Never below the minimum window per round trip: a rate that was measured while there was
        little to send is no rate of the path, and a round at that rate would take a second."""
        if self._is_short(delay) or not self._rate.per_s:
            self.pacing_bytes_per_s = 0.0
        else:
            per_s = max(RATE_HEADROOM * self._rate.per_s, self._minimum / delay)
            self.pacing_bytes_per_s = per_s * self._datagram_bytes

    def _is_short(self, delay: float) -> bool:
        """Whether there is next to no queue on the path."""
        return delay <= (self._base_s + self.target_delay_s) / 2

    def _adapt(self, delay: float, now: float) -> None:
        target = self.target_delay_s
        step = self._step
        recovered = 0.0 < self._losing_until <= now
        if recovered:
            self._losing_until = 0.0
        if delay > target:
            window = self._window * max(0.5, target / delay) + step
        elif not self._limited:
            if not recovered:
                return
            window = self._window
        elif self._is_short(delay):
            window = 2 * self._window
        else:
            window = self._window + step
        if self._rate.per_s:
            most = RATE_HEADROOM * self._rate.per_s * target + step
            if now < self._losing_until and self._is_short(delay):
                most = max(most, self._losing_window)
            window = min(window, most)
        self._window = min(max(window, self._minimum), WINDOW_MAX)
