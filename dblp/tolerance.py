"""The share of a round's chunks that may be missing, as an exact number.

Binary floating point has no 0.408: ``math.floor(0.408 * 625)`` is 254, one chunk short of the exact
255.  So a tolerance is a fraction and every bound is computed in integers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from .errors import ConfigError

__all__ = ["EXACT", "Tolerance"]

_DECIMAL = re.compile(r"(?P<whole>[0-9]{0,18})(?:\.(?P<digits>[0-9]{1,18}))?\s*(?P<percent>%?)")
_RATIO = re.compile(r"(?P<numerator>[0-9]{1,21})\s*/\s*(?P<denominator>[0-9]{1,21})")

_DENOMINATOR_MAX = 10**20
"""18 decimals of a percentage.  The text form also comes from peers, so its size is bounded."""

_PERCENT_DECIMALS_MAX = 12
"""Longest percentage that `str()` writes out; beyond it the ratio is easier to read."""

_HOW = 'write it as "40.8%", "0.408", "51/125" or a Fraction'


@dataclass(frozen=True, order=True, slots=True)
class Tolerance:
    """The bounded-loss tolerance p of a round (paper, Section III-A), exact and immutable.

    Tolerances compare by value: ``Tolerance.of("0.8%") < Tolerance.of("40.8%")``.
    """

    fraction: Fraction
    """p as a fraction, 0 ≤ p < 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, Fraction):
            raise ConfigError(f"{self.fraction!r} is not a Fraction: use Tolerance.of")
        if not 0 <= self.fraction < 1:
            raise ConfigError(
                f"the tolerance {self.fraction} is out of range: choose at least 0, below 100%"
            )
        if self.fraction.denominator > _DENOMINATOR_MAX:
            raise ConfigError(
                f"the tolerance {float(self.fraction)} has a denominator above 10**20: "
                "round it to 18 decimals"
            )

    @classmethod
    def of(cls, value: Tolerance | Fraction | int | str) -> Tolerance:
        """`value` as a tolerance.

        Args:
            value: a Tolerance, a Fraction, the integer 0, or text: ``"40.8%"``, ``"0.408"``,
                ``"51/125"``.

        Raises:
            ConfigError: the value is a float (it cannot say 0.408 exactly), is not in [0, 1) or
                cannot be read.
        """
        if isinstance(value, Tolerance):
            return value
        if isinstance(value, Fraction):
            return cls(value)
        if isinstance(value, str):
            return cls(_parse(value))
        if isinstance(value, float):
            raise ConfigError(f"the float {value!r} is not an exact tolerance: {_HOW}")
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(Fraction(value))
        raise ConfigError(f"{value!r} is not a tolerance: {_HOW}")

    @property
    def is_exact(self) -> bool:
        """Whether nothing may be missing (p = 0)."""
        return self.fraction == 0

    def missing_max(self, chunks: int) -> int:
        """Most chunks of `chunks` that may be missing: floor(p · chunks)."""
        if chunks < 0:
            raise ConfigError(f"a round cannot have {chunks} chunks: pass the number of chunks")
        return self.fraction.numerator * chunks // self.fraction.denominator

    def needed(self, chunks: int) -> int:
        """Fewest chunks of `chunks` that must be delivered: ceil((1 − p) · chunks)."""
        return chunks - self.missing_max(chunks)

    def wire(self) -> str:
        """The text that travels in control frames, such as ``"51/125"``; `of` reads it back."""
        return f"{self.fraction.numerator}/{self.fraction.denominator}"

    def __str__(self) -> str:
        """The exact percentage, such as ``"40.8%"``; the ratio where that would not end or be long.

        `of` reads it back.
        """
        percent = self.fraction * 100
        for decimals in range(_PERCENT_DECIMALS_MAX + 1):
            scaled = percent * 10**decimals
            if scaled.denominator == 1:
                whole, digits = divmod(scaled.numerator, 10**decimals)
                return f"{whole}.{digits:0{decimals}}%" if decimals else f"{whole}%"
        return self.wire()


def _parse(text: str) -> Fraction:
    """The number in `text`; only the documented forms, so that no text can cost much to read."""
    stripped = text.strip()
    if ratio := _RATIO.fullmatch(stripped):
        denominator = int(ratio["denominator"])
        if denominator == 0:
            raise ConfigError(f"the tolerance {text!r} divides by zero: {_HOW}")
        return Fraction(int(ratio["numerator"]), denominator)
    decimal = _DECIMAL.fullmatch(stripped)
    if decimal is None or not (decimal["whole"] or decimal["digits"]):
        raise ConfigError(f"{text[:60]!r} is not a tolerance: {_HOW}")
    digits = decimal["digits"] or ""
    number = Fraction(int(decimal["whole"] + digits), 10 ** len(digits))
    return number / 100 if decimal["percent"] else number


EXACT = Tolerance.of(0)
"""Every chunk is needed."""
