"""What one process of the demo is told to do."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from .. import FixedTolerance, GradientNormPolicy, TolerancePolicy, TransportConfig
from .settings import DemoSettings, Side

if TYPE_CHECKING:
    from ..faults import Impairment

START_UP_S = 120.0
"""How long the processes may take to import torch and find each other; a loaded machine is slow."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What one process is to do."""

    side: Side
    settings: DemoSettings
    burst_rounds: tuple[int, ...]
    rank: int | None = None
    """Rank of the worker; None for the server."""
    address: str = "127.0.0.1:0"
    """Where the server listens."""
    parameters_path: str = ""
    """Where a worker leaves its final parameters (.npy)."""

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return json.dumps({**fields, "settings": self.settings.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        """The assignment that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        fields["settings"] = DemoSettings.from_json(fields["settings"])
        fields["burst_rounds"] = tuple(fields["burst_rounds"])
        return cls(**fields)

    @property
    def config(self) -> TransportConfig:
        """The transport configuration, equal on all processes."""
        return TransportConfig(
            timeout_s=self.settings.timeout_s,
            connect_timeout_s=START_UP_S,
            seed=self.settings.seed,
        )

    @property
    def impairment(self) -> Impairment:
        """The microbursts, as seen by this endpoint: every one loses datagrams of its own."""
        from ..faults import Impairment

        endpoint = 0 if self.rank is None else self.rank + 1
        return Impairment(
            seed=self.settings.seed * 1000 + endpoint,
            bursts=dict.fromkeys(self.burst_rounds, self.settings.burst_loss),
        )

    @property
    def policy(self) -> TolerancePolicy:
        """The one thing in which the two sides differ."""
        settings = self.settings
        if self.side == "baseline":
            return FixedTolerance(settings.low)
        return GradientNormPolicy(
            low=settings.low, high=settings.high, interval=settings.recipe.interval
        )
