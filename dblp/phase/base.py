"""What a tolerance policy is.

A policy is asked once per stream and round, on the server, when the norm of the round is known.
Its answer is sent to all ranks, so that every rank uses the same tolerance for the same round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance

__all__ = ["Decision", "Regime", "TolerancePolicy"]


class Regime(StrEnum):
    """How sensitive the training is to lost gradients at the moment (paper, Section II-D)."""

    CRITICAL = "critical"
    """A critical learning regime (CLR): little may be lost."""
    NORMAL = "normal"
    """Everything else."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says about a round."""

    tolerance: Tolerance
    regime: Regime


class TolerancePolicy(ABC):
    """Decides the tolerance of the rounds.  To write your own, implement `initial` and `observe`.

    A policy never reads a clock or a random source: the same norms give the same decisions.
    """

    @abstractmethod
    def initial(self) -> Decision:
        """The decision for the first uplink of every stream, before any norm is known."""

    @abstractmethod
    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The decision for the downlink of this round and the uplink of the next (Algorithm 3).

        Called once per stream and round, after the norms of all workers are known.

        Args:
            stream: stream (bucket) id; streams are independent of each other.
            step: training step, counted from 0.
            norm: L2 norm of the round's gradient, the root of the mean of the workers' squared
                norms; NaN or inf when a worker's gradient was.
        """

    def describe(self) -> str:
        """One line for people."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, ready for JSON; settings are not part of it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state_dict` gave.

        Raises:
            ConfigError: the state is not one of this kind of policy.
        """
        if state:
            raise ConfigError(
                f"{type(self).__name__} keeps no state, but the checkpoint has {sorted(state)}: "
                "load it into the kind of policy that saved it"
            )
