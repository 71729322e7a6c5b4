"""Several policies at once: the most careful one decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .base import Decision, Regime, TolerancePolicy

__all__ = ["AnyCritical"]


class AnyCritical(TolerancePolicy):
    """Critical when any of its policies is; the tolerance is the lowest that one of them names.

    Eq. 1 with Accordion's learning-rate rule beside it::

        AnyCritical(GradientNormPolicy("0.8%", "40.8%"), LearningRateDecay("0.8%", "40.8%"))

    Every policy sees every norm and rate.
    """

    def __init__(self, *policies: TolerancePolicy) -> None:
        """`policies`: one or more, each an object of its own; else ConfigError."""
        wrong = [policy for policy in policies if not isinstance(policy, TolerancePolicy)]
        if wrong:
            raise ConfigError(
                f"{wrong[0]!r} is not a policy: pass objects such as GradientNormPolicy(...)"
            )
        if not policies:
            raise ConfigError("AnyCritical has no policy: pass one or more")
        if len({id(policy) for policy in policies}) < len(policies):
            raise ConfigError("the same policy is passed twice: each keeps state, make two of it")
        self.policies = policies

    def initial(self) -> Decision:
        """The most careful of the first decisions."""
        return _most_careful([policy.initial() for policy in self.policies])

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The most careful of the decisions."""
        return _most_careful(
            [policy.observe(stream=stream, step=step, norm=norm) for policy in self.policies]
        )

    def on_learning_rate(self, lr: float) -> None:
        """Passed on to all."""
        for policy in self.policies:
            policy.on_learning_rate(lr)

    @property
    def needs_norms(self) -> bool:
        """Whether one of them does."""
        return any(policy.needs_norms for policy in self.policies)

    def describe(self) -> str:
        """Such as "the lowest of: fixed tolerance of 2%; 0.8% from step 0"."""
        return "the lowest of: " + "; ".join(policy.describe() for policy in self.policies)

    def state_dict(self) -> dict[str, Any]:
        """The states of the policies, in order."""
        return {"policies": [policy.state_dict() for policy in self.policies]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives each policy its state; ConfigError (and no change) if one cannot be read."""
        states = state.get("policies")
        if not isinstance(states, list) or len(states) != len(self.policies):
            raise ConfigError(
                f"the state is not one of an AnyCritical of {len(self.policies)} policies: "
                "load it into the kind of policy that saved it"
            )
        before = [policy.state_dict() for policy in self.policies]
        try:
            for policy, one in zip(self.policies, states, strict=True):
                policy.load_state_dict(one)
        except Exception:
            for policy, one in zip(self.policies, before, strict=True):
                policy.load_state_dict(one)
            raise


def _most_careful(decisions: list[Decision]) -> Decision:
    critical = any(decision.regime is Regime.CRITICAL for decision in decisions)
    return Decision(
        min(decision.tolerance for decision in decisions),
        Regime.CRITICAL if critical else Regime.NORMAL,
    )
