"""DBLP's phase detection: a jump of the gradient norm marks a critical regime (Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy, tolerance_pair

__all__ = ["GradientNormPolicy"]


@dataclass(slots=True)
class _StreamState:
    """What the policy remembers of one stream."""

    previous: float | None = None
    """Newest finite norm; None before the first."""
    checked: int | None = None
    """Number of the interval (step // interval) that was last checked; None before the first."""
    regime: Regime = Regime.CRITICAL
    """Holds from one check to the next."""


class GradientNormPolicy(TolerancePolicy):
    """Low tolerance in critical learning regimes, high tolerance elsewhere (paper, Section III-B).

    Once per `interval` steps, at the steps that are multiples of it, the norm is compared with that
    of the step before (Eq. 1, Algorithm 3)::

        | ‖G_prev‖ − ‖G_curr‖ |  ≥  eta · ‖G_prev‖      ⇒  critical until the next check

    What the paper leaves open: every stream starts critical; so does a jump from a norm of 0; a NaN
    or infinite norm (an overflow of mixed-precision training) is as if the step had not been, so
    the check it falls on moves to the next step with a finite norm.
    """

    def __init__(
        self,
        low: Tolerance | Fraction | int | str,
        high: Tolerance | Fraction | int | str,
        eta: float = 0.5,
        interval: int = 10,
    ) -> None:
        """
        Args:
            low: tolerance in critical regimes, P_low, such as "0.8%".
            high: tolerance elsewhere, P_high, such as "40.8%"; at least `low`.
            eta: threshold of the relative change, more than 0.
            interval: steps from one check to the next, DBLP_freq; also the length of a critical
                regime.

        Raises:
            ConfigError: a value is out of range.
        """
        self.low, self.high = tolerance_pair(low, high)
        if isinstance(eta, bool) or not isinstance(eta, int | float) or not 0 < eta < math.inf:
            raise ConfigError(f"eta is {eta!r}: choose a number above 0, such as 0.5")
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ConfigError(f"interval is {interval!r}: choose a number of steps, 1 or more")
        self.eta = eta
        self.interval = interval
        self._streams: dict[int, _StreamState] = {}

    def initial(self) -> Decision:
        """Critical: the start of training is (paper, Section IV-D)."""
        return self._decision(Regime.CRITICAL)

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The decision after this step's norm; see the class for the rule."""
        state = self._streams.setdefault(stream, _StreamState())
        if not math.isfinite(norm) or norm < 0:
            return self._decision(state.regime)
        if step // self.interval != state.checked:
            state.checked = step // self.interval
            state.regime = Regime.CRITICAL if self._jumped(state, norm) else Regime.NORMAL
        state.previous = norm
        return self._decision(state.regime)

    def _jumped(self, state: _StreamState, norm: float) -> bool:
        """Eq. 1, multiplied out so that a tiny previous norm cannot overflow."""
        if state.previous is None or state.previous == 0:
            return True
        return abs(state.previous - norm) >= self.eta * state.previous

    def _decision(self, regime: Regime) -> Decision:
        return Decision(self.low if regime is Regime.CRITICAL else self.high, regime)

    def describe(self) -> str:
        """Such as "0.8% in critical regimes, 40.8% otherwise (eta 0.5, checked every 10 steps)"."""
        return (
            f"{self.low} in critical regimes, {self.high} otherwise "
            f"(eta {self.eta:g}, checked every {self.interval} steps)"
        )

    def state_dict(self) -> dict[str, Any]:
        """Previous norm, last check and regime of every stream."""
        return {
            "streams": [
                [stream, state.previous, state.checked, state.regime.value]
                for stream, state in sorted(self._streams.items())
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory of all streams; ConfigError (and no change) if it cannot be read."""
        try:
            streams = {
                int(stream): _StreamState(
                    None if previous is None else float(previous),
                    None if checked is None else int(checked),
                    Regime(regime),
                )
                for stream, previous, checked, regime in state["streams"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the state is not one of a GradientNormPolicy: "
                "load it into the kind of policy that saved it"
            ) from error
        self._streams = streams
