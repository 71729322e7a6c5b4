"""A time limit for rounds that may lose chunks: a burst round then takes about as long as a clean
one (hazard 11).

70 % loss against a bound of 40.8 % still needs several passes.  With a deadline the receiver takes
what it has by then, if that is at least a floor; else it goes on and stops at the floor.  Where so
much is lost that an adaptive deadline will plainly not be enough, it does so before
(`proto.time_limit.TimeLimit`).  Exact rounds and critical regimes have no deadline.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from .errors import ConfigError
from .tolerance import Tolerance

__all__ = ["Deadline", "DeadlineClock"]

KEYS_MAX = 1024
"""Streams and sizes whose times are remembered; beyond it the oldest are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When a round may end early, and with how little.

    `Deadline()` adapts to recent rounds; `Deadline(seconds=0.05)` is fixed.
    """

    floor: Tolerance | str = "85%"
    """Largest share of the chunks that may be missing at the deadline: the paper's 70 % burst
    leaves 17.8 % of a round that is over after 59.2 % of its chunks."""
    seconds: float | None = None
    """From the first sign of the round at the receiver, in seconds; None adapts."""
    factor: float = 1.25
    """Adaptive: this many times what a slow one of recent rounds of the same stream and size took
    (their upper quartile)."""
    history: int = 32
    """Adaptive: rounds that count as recent."""
    warm_up: int = 5
    """Adaptive: rounds without a deadline before the first one has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "floor", Tolerance.of(self.floor))
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise ConfigError(
                f"seconds is {self.seconds!r}: choose a number above 0, or None to adapt"
            )
        if not 1 <= self.factor <= 100:
            raise ConfigError(
                f"factor is {self.factor!r}: choose a number from 1 to 100, such as 1.25"
            )
        if not 1 <= self.warm_up <= self.history:
            raise ConfigError(
                f"warm_up is {self.warm_up!r} and history {self.history!r}: "
                "choose 1 <= warm_up <= history"
            )


class DeadlineClock:
    """How fast recent rounds were, by stream and size; the state of one session.

    What is remembered is seconds per chunk that was needed: a critical round needs more chunks of
    the same buffer than the others, and takes longer for it.
    """

    def __init__(self, plan: Deadline | None) -> None:
        self.plan = plan
        self._paces: dict[tuple[int, int], deque[float]] = {}

    def limit_s(self, stream: int, count: int, needed: int) -> float | None:
        """Seconds that a round of `count` chunks has that ends with `needed`; None: no deadline
        (yet)."""
        plan = self.plan
        if plan is None:
            return None
        if plan.seconds is not None:
            return plan.seconds
        paces = self._known(stream, count)
        return plan.factor * sorted(paces)[3 * len(paces) // 4] * needed if paces else None

    def usual_s(self, stream: int, count: int, needed: int) -> float | None:
        """Seconds that such a round usually takes (the median); None: not known (yet), or the
        deadline is fixed."""
        paces = self._known(stream, count)
        return statistics.median(paces) * needed if paces else None

    def _known(self, stream: int, count: int) -> deque[float] | None:
        """Paces of recent rounds, if there are enough of them."""
        paces = self._paces.get((stream, count))
        return paces if self.plan and paces and len(paces) >= self.plan.warm_up else None

    def observe(self, stream: int, count: int, elapsed_s: float, *, needed: int, got: int) -> None:
        """A round of `count` chunks took `elapsed_s` and ended with `got` of `needed`: fewer
        at a deadline, so that a path that has become slower for good is noticed."""
        if self.plan is None or self.plan.seconds is not None or not needed:
            return
        key = (stream, count)
        paces = self._paces.get(key)
        if paces is None:
            if len(self._paces) >= KEYS_MAX:
                del self._paces[next(iter(self._paces))]
            paces = self._paces[key] = deque(maxlen=self.plan.history)
        paces.append(elapsed_s / min(max(got, needed / 100), needed))
