"""Sides of a comparison take turns within one run, so a noisy minute hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.transport.peers.role import PeerError, PeerTimeoutError

OVERRUN_S = 10.0
"""A side may exceed its budget by this: a turn that is under way ends, and counts."""


@dataclass(frozen=True)
class Plan:
    """How long a side shall measure."""

    rounds: int
    """How many samples are wanted."""
    budget_s: float
    """How long the side may run in total; its last turn may take longer."""
    turn_s: float = 1.0
    """About how long one turn shall last."""


@dataclass
class Side:
    """One side of a comparison, and what it has measured so far."""

    name: str
    measure: Callable[[int, float], Sequence[float]]
    """`measure(rounds, limit_s)` runs that many rounds and returns each one's seconds; it raises
    `PeerTimeoutError` when they do not end within `limit_s`."""
    plan: Plan
    samples: list[float] = field(default_factory=list)
    spent_s: float = 0.0
    gave_up_s: float | None = None
    """A turn did not end: it was waited for this long. The side takes no further turns."""
    failure: str | None = None
    """A turn failed, for this reason. The side takes no further turns; the others go on."""

    @property
    def done(self) -> bool:
        return (
            self.gave_up_s is not None
            or self.failure is not None
            or len(self.samples) >= self.plan.rounds
            or self.spent_s >= self.plan.budget_s
        )

    def take_turn(self) -> None:
        wanted = self.plan.rounds - len(self.samples)
        if not self.samples:
            count = 1
        else:
            recent = self.samples[-20:]
            turn_s = min(self.plan.turn_s, self.plan.budget_s - self.spent_s)
            count = int(turn_s / max(sum(recent) / len(recent), 1e-6))
        count = max(1, min(count, wanted))
        started = time.monotonic()
        limit_s = max(self.plan.budget_s - self.spent_s, OVERRUN_S)
        try:
            self.samples += self.measure(count, limit_s)
        except PeerTimeoutError as error:
            self.gave_up_s = error.waited_s
        except PeerError as error:
            self.failure = str(error)
        self.spent_s += time.monotonic() - started


def interleave(sides: Sequence[Side]) -> None:
    """Let the sides take turns (A B C, B C A, C A B, ...) until each has its samples or its time.

    The order rotates, so no side always runs right after the same other one.
    """
    turn = 0
    while any(not side.done for side in sides):
        shift = turn % len(sides)
        for side in (*sides[shift:], *sides[:shift]):
            if not side.done:
                side.take_turn()
        turn += 1
