"""Tolerance policies: how much loss a round may have, by the phase that the training is in."""

from .accordion import AccordionPolicy
from .any_critical import AnyCritical
from .base import Decision, Regime, TolerancePolicy
from .fixed import FixedTolerance
from .gradient_norm import GradientNormPolicy
from .learning_rate import LearningRateDecay
from .manual import Manual
from .schedule import Schedule

__all__ = [
    "AccordionPolicy",
    "AnyCritical",
    "Decision",
    "FixedTolerance",
    "GradientNormPolicy",
    "LearningRateDecay",
    "Manual",
    "Regime",
    "Schedule",
    "TolerancePolicy",
]
