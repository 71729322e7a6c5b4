"""Tolerance policies: how much loss a round may have, by the phase that the training is in."""

from .base import Decision, Regime, TolerancePolicy
from .fixed import FixedTolerance
from .gradient_norm import GradientNormPolicy
from .schedule import Schedule

__all__ = [
    "Decision",
    "FixedTolerance",
    "GradientNormPolicy",
    "Regime",
    "Schedule",
    "TolerancePolicy",
]
