"""One decision per training step, the same on all ranks without a message.

Every rank feeds the same numbers (the mean squared norms that came with the results of step t) into
the same policy, and so gets the same tolerance for step t+1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..phase import Decision, TolerancePolicy
from ..tolerance import Tolerance

__all__ = ["StepClock"]

WHOLE_MODEL = 0
"""Stream that the policy sees when it is asked once per step."""


class StepClock:
    """Counts steps and holds the decision of each.

    *Commands*: `finish`, `decide`, `load_state_dict`.  *Getters*: the others.

    The policy is asked late, at the first bucket of the next step: by then a schedule has set the
    learning rate that this step's gradients will be applied with.
    """

    def __init__(self, policy: TolerancePolicy, *, per_bucket: bool = False) -> None:
        self.policy = policy
        self.step = 0
        """Number of steps that have ended: the number of the one that goes on, from 0."""
        self._per_bucket = per_bucket
        self._decisions: dict[int, Decision] = {}
        self._norms: dict[int, float] = {}
        """Norms of the last step that the policy has not seen, by stream."""

    @property
    def needs_norms(self) -> bool:
        """Whether the policy looks at norms: measuring them costs a pass over the gradient."""
        return self.policy.needs_norms

    def decide(self, learning_rate: float | None = None) -> None:
        """Asks the policy about the step that begins.

        Args:
            learning_rate: of this step, the largest of all parameter groups; None: unknown.
        """
        if learning_rate is not None:
            self.policy.on_learning_rate(learning_rate)
        norms, self._norms = self._norms, {}
        for stream, norm in sorted(norms.items()):
            self._decisions[stream] = self.policy.observe(
                stream=stream, step=self.step - 1, norm=norm
            )

    def decision(self, stream: int = WHOLE_MODEL) -> Decision:
        """The decision that holds for the bucket `stream` in this step."""
        key = stream if self._per_bucket else WHOLE_MODEL
        found = self._decisions.get(key)
        return self.policy.initial() if found is None else found

    def finish(self, squared_norms: Mapping[int, float]) -> float:
        """Ends the step.

        Args:
            squared_norms: mean over the ranks of the squared norm, by bucket; NaN or infinity when
                a rank's gradient was not finite.

        Returns:
            The norm of the whole gradient.
        """
        total = 0.0
        for stream in sorted(squared_norms):  # one order of addition: the same sum everywhere
            total += squared_norms[stream]
        norm = _root(total)
        if self._per_bucket:
            self._norms = {stream: _root(value) for stream, value in squared_norms.items()}
        else:
            self._norms = {WHOLE_MODEL: norm}
        self.step += 1
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Step, decisions and what the policy remembers, ready for JSON."""
        return {
            "step": self.step,
            "decisions": [
                [stream, decision.tolerance.wire(), decision.regime.value]
                for stream, decision in sorted(self._decisions.items())
            ],
            "norms": sorted(self._norms.items()),
            "policy": self.policy.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state`; ConfigError (and no change) when it cannot be read."""
        try:
            step = int(state["step"])
            regime_of = type(self.policy.initial().regime)
            decisions = {
                int(stream): Decision(Tolerance.of(str(tolerance)), regime_of(regime))
                for stream, tolerance, regime in state["decisions"]
            }
            norms = {int(stream): float(norm) for stream, norm in state["norms"]}
            remembered = state["policy"]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the checkpoint has no dblp steps in it: pass what state_dict() gave"
            ) from error
        self.policy.load_state_dict(remembered)
        self.step, self._decisions, self._norms = step, decisions, norms


def _root(squared: float) -> float:
    """Square root that keeps NaN and infinity."""
    return math.sqrt(squared) if squared >= 0 else math.nan
