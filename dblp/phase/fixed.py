"""The baseline: one tolerance for the whole training, as in MLT."""

from __future__ import annotations

from fractions import Fraction

from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy

__all__ = ["FixedTolerance"]


class FixedTolerance(TolerancePolicy):
    """The same tolerance in every round (the paper's baseline, Section V-A)."""

    def __init__(self, tolerance: Tolerance | Fraction | int | str) -> None:
        """`tolerance` as `Tolerance.of` takes it, such as "0.8%"; ConfigError if it is none."""
        self._decision = Decision(Tolerance.of(tolerance), Regime.NORMAL)

    def initial(self) -> Decision:
        """The one decision; its regime is always NORMAL, as the baseline knows no other."""
        return self._decision

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The one decision, whatever the norm."""
        return self._decision

    @property
    def needs_norms(self) -> bool:
        """False: the norm changes nothing here."""
        return False

    def describe(self) -> str:
        """Such as "fixed tolerance of 0.8%"."""
        return f"fixed tolerance of {self._decision.tolerance}"
