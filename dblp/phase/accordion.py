"""Accordion's phase detection: windows of steps instead of pairs of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy, tolerance_pair
from .learning_rate import DecayCounter

__all__ = ["AccordionPolicy"]


@dataclass(slots=True)
class _StreamState:
    """What the policy remembers of one stream."""

    decays: int
    """The count of learning-rate decays that this stream has seen."""
    held: bool = False
    """The learning rate fell in this window: the next one is critical too."""
    window: int | None = None
    """Number of the window (step // window) that is open; None before the first step."""
    norm: float = 0.0
    """Root mean square of the finite norms of the open window."""
    count: int = 0
    """How many they are."""
    previous: float | None = None
    """`norm` of the newest window that had one; None before the first."""
    regime: Regime = Regime.CRITICAL
    """Holds from one window to the next."""


class AccordionPolicy(TolerancePolicy):
    """Low tolerance while the gradients of a window of steps change, high tolerance elsewhere.

    After Agarwal et al., *Accordion: Adaptive Gradient Communication via Critical Learning Regime
    Identification* (MLSys 2021), with a stream in the place of a layer.  At the last step of every
    window the norm of what the window has accumulated is compared with the window's before::

        | previous − current |  ≥  eta · previous      ⇒  the next window is critical

    The first window is critical.  So are the steps after a fall of the learning rate
    (`on_learning_rate`), up to the end of the window after the one it falls into.

    A policy sees norms and no gradients, so it accumulates those: the norm of a window is the root
    mean square of its norms, which is the norm of all its gradients side by side, per step.
    Accordion adds the gradients up, so that noise cancels; here it does not, but a window averages
    over it, where `GradientNormPolicy` compares two single steps.

    Guards as there: a jump from 0 is critical; a NaN or infinite norm is as if the step had not
    been, and a window of nothing else neither triggers nor updates.
    """

    def __init__(
        self,
        low: Tolerance | Fraction | int | str,
        high: Tolerance | Fraction | int | str,
        eta: float = 0.5,
        window: int = 100,
        decay: float = 0.2,
    ) -> None:
        """
        Args:
            low: tolerance in critical regimes, such as "0.8%".
            high: tolerance elsewhere, such as "40.8%"; at least `low`.
            eta: threshold of the relative change, more than 0.
            window: steps of a window; Accordion's is an epoch.
            decay: smallest relative fall of the learning rate from one step to the next that is
                critical, 0 ≤ decay < 1; 0, every fall, is Accordion's rule, which makes a cosine
                schedule critical throughout.

        Raises:
            ConfigError: a value is out of range.
        """
        self.low, self.high = tolerance_pair(low, high)
        if isinstance(eta, bool) or not isinstance(eta, int | float) or not 0 < eta < math.inf:
            raise ConfigError(f"eta is {eta!r}: choose a number above 0, such as 0.5")
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"window is {window!r}: choose a number of steps, 1 or more")
        self.eta = eta
        self.window = window
        self._rate = DecayCounter(decay)
        self._streams: dict[int, _StreamState] = {}

    def initial(self) -> Decision:
        """Critical: the first window is."""
        return self._decision(Regime.CRITICAL)

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """The decision after this step's norm; see the class for the rule."""
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _StreamState(self._rate.count)
        if state.window is not None and state.window != step // self.window:
            # Its last step was never observed.
            self._close(state)
        state.window = step // self.window
        if state.decays != self._rate.count:
            state.decays = self._rate.count
            state.regime = Regime.CRITICAL
            state.held = True
        if math.isfinite(norm) and norm >= 0:
            state.count += 1
            state.norm = _mean_square_root(state.norm, norm, state.count)
        if step % self.window == self.window - 1:
            self._close(state)
            state.window = None
        return self._decision(state.regime)

    def on_learning_rate(self, lr: float) -> None:
        """The learning rate of the next step; a fall of at least `decay` is critical."""
        self._rate.on_learning_rate(lr)

    def _close(self, state: _StreamState) -> None:
        """The window is over: decides the regime of the next."""
        if not state.count:
            return
        jumped = state.previous is not None and (
            state.previous == 0 or abs(state.previous - state.norm) >= self.eta * state.previous
        )
        state.regime = Regime.CRITICAL if jumped or state.held else Regime.NORMAL
        state.previous, state.norm, state.count, state.held = state.norm, 0.0, 0, False

    def _decision(self, regime: Regime) -> Decision:
        return Decision(self.low if regime is Regime.CRITICAL else self.high, regime)

    def describe(self) -> str:
        """One line with tolerances, threshold, window, and the fall that counts."""
        fall = f"fall of {self._rate.decay * 100:g}%" if self._rate.decay else "fall"
        return (
            f"{self.low} in critical regimes, {self.high} otherwise (eta {self.eta:g}, windows of "
            f"{self.window} steps, or a {fall} of the learning rate)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The learning rate, the decays, and the window and regime of every stream."""
        return {
            "rate": self._rate.state(),
            "windows": [
                [
                    *(stream, state.decays, state.held, state.window),
                    *(state.norm, state.count, state.previous, state.regime.value),
                ]
                for stream, state in sorted(self._streams.items())
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the memory of all streams; ConfigError (and no change) if it cannot be read."""
        try:
            rate = DecayCounter.read(state["rate"])
            streams = {int(stream): _stream_state(*rest) for stream, *rest in state["windows"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the state is not one of an AccordionPolicy: "
                "load it into the kind of policy that saved it"
            ) from error
        self._rate.restore(*rate)
        self._streams = streams


def _mean_square_root(root: float, norm: float, count: int) -> float:
    """The root mean square of `count` norms from that of the others and the newest.

    Never squares, as the square of a large norm overflows.
    """
    total = math.hypot(root * math.sqrt((count - 1) / count), norm / math.sqrt(count))
    # Rounding may carry it just above the largest of the norms, and so above the largest float.
    return min(total, max(root, norm))


def _stream_state(
    decays: Any, held: Any, window: Any, norm: Any, count: Any, previous: Any, regime: Any
) -> _StreamState:
    """One stream of a saved state."""
    return _StreamState(
        decays=int(decays),
        held=bool(held),
        window=None if window is None else int(window),
        norm=float(norm),
        count=int(count),
        previous=None if previous is None else float(previous),
        regime=Regime(regime),
    )
