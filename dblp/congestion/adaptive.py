"""A window that keeps the path's queue short: `AdaptiveWindow`."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from .constant import Unpaced
from .delivery_rate import DeliveryRate
from .interface import (
    HURRIED_INTERVAL_S,
    RELAXED_INTERVAL_S,
    WINDOW_MAX,
    Congestion,
    CongestionControl,
    Feedback,
)

USUAL_DATAGRAM_BYTES = 1472
"""UDP payload of a packet of 1,500 bytes: what a queue holds is bytes, not datagrams."""

BASE_DELAY_MEMORY_S = 10.0
"""How long the smallest delay seen counts as the path's own; then the route may have changed."""

RATE_HEADROOM = 1.25
"""By how much window and pacing exceed the delivery rate that was seen, so that it can grow (BBR's
probing gain, CACM 2017)."""

UNQUEUED_DATAGRAMS = 32 * 44
"""What the window may be on a path without a queue, whatever is delivered: 32 GSO batches.  A batch
and its credit get through in 9 % of all tries at 70 % loss: of 32, none in 5 %; of 8, in half of
all tries, and then the sender waits until it asks."""

IDLE_SHARE = 0.25
"""Part of the queueing delay aimed at up to which a path is idle.  At 1 Gb/s a window of 17
datagrams has more by itself, so that there it does not grow beyond what the delivery rate fills."""

BEYOND_DECAY = 7 / 8
"""What is left, after a round trip that gives no reason for it, of a window beyond what the rate
fills, while the path has no queue.  One says little: the first credit of a round ends one too."""

LOSING_MEMORY_S = 0.1
"""How long a lost window counts."""

OVERFLOW_SHARE = 1 / 16
"""A round trip that loses more than this may have overflowed a buffer; less is what a path loses by
itself, or has reordered."""

STEP_BACKOFF = 0.75
"""What is left of the step after a round trip that has overflowed a queue."""

STEP_MINIMUM = 8.0
"""Smallest step, in datagrams of 1,472 bytes.  A sender whose path loses more by itself, beside
others whose does not, keeps this part of its share."""

AHEAD_SHARE = 0.5
"""Part of its step that a sender takes which is ahead of the others.  Windows are in proportion to
the steps, so those gain on it; where it shares no queue with them nothing holds it back."""

STEP_RECOVERY = 1 / 64
"""By how much of itself the full step grows back per round trip."""


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


class AdaptiveWindowControl:
    """Once per round trip: below half the target delay the window doubles if it was the limit,
    below the target it grows by a step, above it shrinks in proportion to the excess (at most by
    half) and still gains the step.

    In equilibrium every sender's proportional loss equals the common step, so the windows are
    equal whatever they were (FAST TCP's argument), and the queue stays above the target.  By how
    much depends on the number of senders, which none of them knows.  Where more than a few
    datagrams are lost while there is a queue, all the steps together are too large for the buffer:
    the step falls by a quarter, and grows back slowly, so that the steps of all who share the
    buffer become equal (as windows do by AIMD).  Loss without a queue does not change the step, and
    as the window still follows the delay, the path stays full.

    The receiver needs the same of all whose data goes into one mean, and the slowest ends the
    round.  So a sender that is ahead of others, as the receiver tells it, takes half of its step.

    Two rules are there for bursts.  The window is never much more than what the delivery rate
    fills in the target delay: a sender that was limited by its own work would double it without
    end.  And where the path has a queue, the window is spread over time: three bursts of one GSO
    batch each fill a buffer of 200 KB by themselves.

    The first of them yields, up to a limit, on a path that has no queue.  While whole windows are
    lost the rate is low because the sender waits for lost credits, and a smaller window would be
    lost whole more often still.  And where the window was filled and nearly all of it arrived, the
    rate is low because of the window: hosts that answer late, as their processors are busy, make a
    round trip longer than the path's delay, and a window for that delay would stay small for good.
    There it grows by a step, and doubles where no queue was seen, and no full window lost much, in
    the last 10 s.  A path that loses more than a sixteenth by itself keeps the window of its rate.
    """

    def __init__(self, plan: AdaptiveWindow, datagram_bytes: int) -> None:
        self._plan = plan
        self._datagram_bytes = datagram_bytes
        scale = USUAL_DATAGRAM_BYTES / datagram_bytes
        self._most_step = max(1.0, scale * plan.step_datagrams)
        self._least_step = min(self._most_step, scale * STEP_MINIMUM)
        self._step = self._most_step
        self._round_start = 0
        self._minimum = max(1.0, scale * plan.minimum_datagrams)
        self._window = max(1.0, scale * plan.initial_datagrams)
        self._unqueued_window = scale * UNQUEUED_DATAGRAMS
        self.pacing_bytes_per_s = 0.0
        self._base_s = 0.0
        self._candidate_s = 0.0
        self._base_until = 0.0
        self._round_end = 0
        self._delay_sum_s = 0.0  # of this round trip
        self._delay_samples = 0
        self._last_delay_s = 0.0
        self._limited = False
        self._lost = 0
        self._filled = False  # of the last round trip: not just for a moment
        self._loses = False  # more than an overflow's share of it
        self._yields = False  # to those who are behind
        self._hurry = True
        self._careful_until = 0.0
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
        datagrams = feedback.acknowledged - self._round_start
        # After an interval without hurry it may be many windows, one of them full.
        self._filled = self._hurry and self._limited and datagrams >= self._window / 2
        self._loses = self._lost > OVERFLOW_SHARE * datagrams
        self._hurry = self._limited or delay > self.target_delay_s
        self._fit_step(delay)
        self._yields = feedback.ahead
        self._adapt(delay, feedback.now)
        self._pace(delay)
        self._round_end = feedback.sent
        self._delay_sum_s = 0.0
        self._delay_samples = 0
        self._limited = False
        self._lost = 0
        self._round_start = feedback.acknowledged

    def _fit_step(self, delay: float) -> None:
        """To the room that the queue has beyond the target delay."""
        if self._loses and delay > self.target_delay_s:
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

    def _is_idle(self, delay: float) -> bool:
        """Whether a window that is sent at once hardly shows as a queue."""
        return delay - self._base_s <= IDLE_SHARE * (self.target_delay_s - self._base_s)

    def _overflows(self, delay: float, now: float) -> bool:
        """Whether a buffer too small to show a queue seems to have cut off a full window; a burst
        says nothing about it."""
        in_burst = now < self._losing_until
        return self._filled and self._loses and self._is_short(delay) and not in_burst

    def _adapt(self, delay: float, now: float) -> None:
        target = self.target_delay_s
        step = AHEAD_SHARE * self._step if self._yields else self._step
        recovered = 0.0 < self._losing_until <= now
        if recovered:
            self._losing_until = 0.0
        if delay > target or self._overflows(delay, now):
            self._careful_until = now + BASE_DELAY_MEMORY_S
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
            burst_is_over = recovered and not self._limited
            most = self._rate_window() if burst_is_over else self._most(delay, now)
            window = min(window, most)
        self._window = min(max(window, self._minimum), WINDOW_MAX)

    def _rate_window(self) -> float:
        """What the delivery rate fills in the target delay, with some room to grow."""
        return RATE_HEADROOM * self._rate.per_s * self.target_delay_s + self._step

    def _most(self, delay: float, now: float) -> float:
        """Largest window after a round trip: what the delivery rate fills, and more on a path
        without a queue."""
        if not self._is_short(delay):
            return self._rate_window()
        if now < self._losing_until:
            return max(self._rate_window(), self._unqueued_window)
        if self._filled and self._is_idle(delay) and not self._loses:
            is_careful = now < self._careful_until
            beyond = self._window + self._step if is_careful else 2 * self._window
        else:
            beyond = BEYOND_DECAY * self._window
        return max(self._rate_window(), min(beyond, self._unqueued_window))
