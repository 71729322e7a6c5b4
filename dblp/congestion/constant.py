"""Window and rate that never change: `Unpaced` and `FixedRate`."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from .interface import RELAXED_INTERVAL_S, WINDOW_MAX, CongestionControl, Feedback


class _Constant:
    """Window and rate that never change."""

    def __init__(self, pacing_bytes_per_s: float) -> None:
        self.window = WINDOW_MAX
        self.pacing_bytes_per_s = pacing_bytes_per_s

    def on_feedback(self, feedback: Feedback) -> None:
        pass

    @property
    def update_interval_s(self) -> float:
        return RELAXED_INTERVAL_S


@dataclass(frozen=True, slots=True)
class Unpaced:
    """As fast as credit allows: for a path that is known to carry it."""

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        return _Constant(0.0)


@dataclass(frozen=True, slots=True)
class FixedRate:
    """A rate the user knows, such as a reserved share of a link; counts UDP payload."""

    bits_per_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.bits_per_s, int | float) or not self.bits_per_s > 0:
            raise ConfigError(
                f"bits_per_s is {self.bits_per_s!r}: choose a rate above 0, such as 1e9"
            )

    def new_control(self, datagram_bytes: int) -> CongestionControl:
        return _Constant(self.bits_per_s / 8)
