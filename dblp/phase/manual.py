"""A tolerance that the training loop sets."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ..errors import ConfigError
from ..tolerance import Tolerance
from .base import Decision, Regime, TolerancePolicy

__all__ = ["Manual"]


class Manual(TolerancePolicy):
    """The tolerance that was set last: ``policy.set("40.8%")``.

    For training loops that know their phases.  Set before a step's norm is observed, it holds from
    the next uplink on.  Where every rank has a policy of its own, all must set the same values at
    the same steps.  `set` may be called from any thread.
    """

    def __init__(
        self,
        tolerance: Tolerance | Fraction | int | str = 0,
        regime: Regime | str = Regime.NORMAL,
    ) -> None:
        """`tolerance` and `regime` until the first `set`; ConfigError if one cannot be used."""
        self._current = _decision(tolerance, regime)

    def set(
        self, tolerance: Tolerance | Fraction | int | str, regime: Regime | str = Regime.NORMAL
    ) -> None:
        """From now on `tolerance`; `regime` is what reports call it.

        Raises:
            ConfigError: `tolerance` is none, or `regime` is not "critical" or "normal"; what was
                set before still holds.
        """
        self._current = _decision(tolerance, regime)

    def initial(self) -> Decision:
        """What is set now."""
        return self._current

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        """What is set now, whatever the norm."""
        return self._current

    @property
    def needs_norms(self) -> bool:
        """False: the norm changes nothing here."""
        return False

    def describe(self) -> str:
        """Such as "set by hand, now 40.8%"."""
        return f"set by hand, now {self._current.tolerance}"

    def state_dict(self) -> dict[str, Any]:
        """What is set now."""
        return {"set": [self._current.tolerance.wire(), self._current.regime.value]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets what was set; ConfigError (and no change) if it cannot be read."""
        try:
            tolerance, regime = state["set"]
            self._current = _decision(tolerance, regime)
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                "the state is not one of a Manual policy: "
                "load it into the kind of policy that saved it"
            ) from error


def _decision(tolerance: Tolerance | Fraction | int | str, regime: Regime | str) -> Decision:
    try:
        named = Regime(regime)
    except ValueError as error:
        raise ConfigError(f'the regime is {regime!r}: say "critical" or "normal"') from error
    return Decision(Tolerance.of(tolerance), named)
