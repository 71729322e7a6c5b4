"""What a tolerance policy is.

A policy is asked once per stream and round, when the norm of the round is known.  With a parameter
server that happens on the server, and its answer is sent to all ranks.  Where every rank has a
policy of its own, all are fed the same norms and learning rates and so give the same answers.
Either way every rank uses the same tolerance for the same round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance

__all__ = ["Decision", "Regime", "TolerancePolicy", "tolerance_pair"]


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

    A policy never reads a clock or a random source: the same steps, norms and learning rates in the
    same order give the same decisions.
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

    def on_learning_rate(self, lr: float) -> None:  # noqa: B027  (ignoring it is a choice)
        """Tells the learning rate of the next step.  Most policies ignore it.

        Call it once per step and before `observe`: the decision that `observe` gives, which holds
        for the next uplink, then knows the rate that the next gradients are applied with.  Ranks
        with policies of their own must all tell the same rates.

        Args:
            lr: the learning rate; with several parameter groups, the largest.
        """

    @property
    def needs_norms(self) -> bool:
        """Whether decisions depend on norms; if not, `observe` may get NaN for all of them.

        Measuring a norm costs a pass over the gradient.
        """
        return True

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


def tolerance_pair(
    low: Tolerance | Fraction | int | str, high: Tolerance | Fraction | int | str
) -> tuple[Tolerance, Tolerance]:
    """The two tolerances of a policy with two regimes; ConfigError if `low` is above `high`."""
    pair = Tolerance.of(low), Tolerance.of(high)
    if pair[0] > pair[1]:
        raise ConfigError(
            f"the low tolerance {pair[0]} is above the high tolerance {pair[1]}: swap them"
        )
    return pair
