"""Tolerances that change at given steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from fractions import Fraction

from ..errors import ConfigError
from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy

__all__ = ["Schedule"]


class Schedule(TolerancePolicy):
    """A tolerance per range of steps: ``Schedule([(0, "0.8%"), (100, "40.8%")])``.

    The entry of a step holds for its downlink and the uplink of the step after it, as with every
    policy.  The steps with the lowest tolerance count as critical, unless all are the same.
    """

    def __init__(self, entries: Iterable[tuple[int, Tolerance | Fraction | int | str]]) -> None:
        """
        Args:
            entries: pairs (first step, tolerance), steps ascending from 0.

        Raises:
            ConfigError: no entry, steps that do not ascend from 0, or a bad tolerance.
        """
        pairs = [(step, Tolerance.of(tolerance)) for step, tolerance in entries]
        self._steps = [step for step, _ in pairs]
        if not self._steps or self._steps[0] != 0:
            raise ConfigError('a schedule starts at step 0: make its first entry (0, "0.8%")')
        if any(a >= b for a, b in zip(self._steps, self._steps[1:], strict=False)):
            raise ConfigError(f"the steps {self._steps} of the schedule do not ascend: sort them")
        lowest = min(tolerance for _, tolerance in pairs)
        varies = any(tolerance != lowest for _, tolerance in pairs)
        self._decisions = [
            Decision(
                tolerance, Regime.CRITICAL if varies and tolerance == lowest else Regime.NORMAL
            )
            for _, tolerance in pairs
        ]

    def initial(self) -> Decision:
        """The decision of step 0."""
        return self._decisions[0]

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The decision of `step`, whatever the norm."""
        return self._decisions[max(0, bisect_right(self._steps, step) - 1)]

    @property
    def needs_norms(self) -> bool:
        """False: the norm changes nothing here."""
        return False

    def describe(self) -> str:
        """Such as "0.8% from step 0, 40.8% from step 100"."""
        return ", ".join(
            f"{decision.tolerance} from step {step}"
            for step, decision in zip(self._steps, self._decisions, strict=True)
        )
