"""A decay of the learning rate marks a critical regime, as in Accordion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy, tolerance_pair

__all__ = ["DecayCounter", "LearningRateDecay"]


class DecayCounter:
    """Counts the decays of a learning rate; policies compare the count with the one they know.

    So a call from the training loop's thread only ever changes two numbers here, and what follows
    from it happens where the policy is asked.
    """

    def __init__(self, decay: float) -> None:
        """`decay`: the smallest relative fall from one call to the next that counts, 0 ≤ decay < 1;
        0 counts every fall.  Raises ConfigError.
        """
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise ConfigError(
                f"decay is {decay!r}: choose the share by which the learning rate must fall, "
                "at least 0 and below 1, such as 0.2"
            )
        self.decay = decay
        self.count = 0
        """Decays so far."""
        self._newest: float | None = None

    def on_learning_rate(self, lr: float) -> None:
        """The rate of the next step.  NaN, infinite and negative ones neither count nor update."""
        if not math.isfinite(lr) or lr < 0:
            return
        if (
            self._newest is not None
            and lr < self._newest
            and self._newest - lr >= self.decay * self._newest
        ):
            self.count += 1
        self._newest = lr

    def state(self) -> list[float | int | None]:
        """Newest rate and count, ready for JSON."""
        return [self._newest, self.count]

    @staticmethod
    def read(state: Any) -> tuple[float | None, int]:
        """What `restore` takes, from what `state` gave; TypeError or ValueError if it is not."""
        newest, count = state
        return None if newest is None else float(newest), int(count)

    def restore(self, newest: float | None, count: int) -> None:
        """Takes back what `read` has read."""
        self._newest, self.count = newest, count


@dataclass(slots=True)
class _StreamState:
    """What the policy remembers of one stream."""

    decays: int
    """The count of decays that this stream has seen."""
    until: int | None = None
    """First step after the critical regime; None when there is none."""


class LearningRateDecay(TolerancePolicy):
    """Low tolerance for some steps after the learning rate has fallen, high tolerance elsewhere.

    Accordion's second rule, for use beside a rule on the gradient norm::

        AnyCritical(GradientNormPolicy("0.8%", "40.8%"), LearningRateDecay("0.8%", "40.8%"))

    It knows the learning rate from `on_learning_rate` only.  A fall counts when it is at least
    `decay` of the rate of the call before: a step schedule triggers it, the small steps of a cosine
    or linear schedule do not.  A rising rate (warm-up) never does.
    """

    def __init__(
        self,
        low: Tolerance | Fraction | int | str,
        high: Tolerance | Fraction | int | str,
        hold: int = 10,
        decay: float = 0.2,
    ) -> None:
        """
        Args:
            low: tolerance after a decay, such as "0.8%".
            high: tolerance elsewhere, such as "40.8%"; at least `low`.
            hold: for how many steps a decay counts, 1 or more.
            decay: smallest relative fall that counts, 0 ≤ decay < 1; 0 counts every fall.

        Raises:
            ConfigError: a value is out of range.
        """
        self.low, self.high = tolerance_pair(low, high)
        if isinstance(hold, bool) or not isinstance(hold, int) or hold < 1:
            raise ConfigError(f"hold is {hold!r}: choose a number of steps, 1 or more")
        self.hold = hold
        self._rate = DecayCounter(decay)
        self._streams: dict[int, _StreamState] = {}

    def initial(self) -> Decision:
        """Normal: nothing has decayed."""
        return Decision(self.high, Regime.NORMAL)

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """Critical for `hold` steps from the first that a stream is asked for after a decay."""
        state = self._streams.setdefault(stream, _StreamState(decays=0))
        if state.decays != self._rate.count:
            state.decays = self._rate.count
            state.until = step + self.hold
        if state.until is not None and not state.until - self.hold <= step < state.until:
            state.until = None
        if state.until is None:
            return Decision(self.high, Regime.NORMAL)
        return Decision(self.low, Regime.CRITICAL)

    def on_learning_rate(self, lr: float) -> None:
        """The learning rate of the next step."""
        self._rate.on_learning_rate(lr)

    @property
    def needs_norms(self) -> bool:
        """False: the norm changes nothing here."""
        return False

    def describe(self) -> str:
        """Such as "0.8% for 10 steps after the learning rate falls by 20%, 40.8% otherwise"."""
        steps = "1 step" if self.hold == 1 else f"{self.hold} steps"
        fall = f" by {self._rate.decay * 100:g}%" if self._rate.decay else ""
        return f"{self.low} for {steps} after the learning rate falls{fall}, {self.high} otherwise"

    def state_dict(self) -> dict[str, Any]:
        """The learning rate, the decays, and the critical regime of every stream."""
        streams = sorted(self._streams.items())
        return {
            "rate": self._rate.state(),
            "held": [[stream, state.decays, state.until] for stream, state in streams],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory of all streams; ConfigError (and no change) if it cannot be read."""
        try:
            rate = DecayCounter.read(state["rate"])
            streams = {
                int(stream): _StreamState(int(decays), None if until is None else int(until))
                for stream, decays, until in state["held"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the state is not one of a LearningRateDecay: "
                "load it into the kind of policy that saved it"
            ) from error
        self._rate.restore(*rate)
        self._streams = streams
