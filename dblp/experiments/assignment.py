"""What one process of a cell is told to do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .. import AdaptiveWindow, FixedRate, TransportConfig
from ..config import MTU_USUAL
from ..faults import Impairment
from .network import is_shaped
from .settings import Cell, burst_rounds

__all__ = ["Assignment"]

START_UP_S = 120.0
"""How long the processes may take to import torch, load data and find each other."""


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One process: the parameter server (rank None) or a rank."""

    cell: Cell
    steps: int
    """Rounds of the whole cell."""
    data: str | None
    store: str
    """File through which the ranks' process group finds itself; not there yet."""
    rank: int | None = None
    address: str | None = None
    """Of the parameter server, if there is one."""

    def to_json(self) -> str:
        """One line; `from_json` reads it back."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return json.dumps({**fields, "cell": self.cell.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        """The assignment that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "cell": Cell.from_dict(fields["cell"])})

    @property
    def config(self) -> TransportConfig:
        """How bytes travel; equal on all processes."""
        rate = self.cell.setting.rate_bit_per_s
        return TransportConfig(
            mtu=MTU_USUAL,  # chunks as between hosts: they are what is lost
            # All ranks have one address; in a shaped network there is a queue all the same.
            congestion=AdaptiveWindow(within_host=is_shaped()) if rate is None else FixedRate(rate),
            order=self.cell.setting.order,
            timeout_s=self.cell.timeout_s,
            connect_timeout_s=START_UP_S,
            seed=self.cell.seed,
        )

    @property
    def impairment(self) -> Impairment | None:
        """The microbursts as this endpoint sees them: each loses datagrams of its own."""
        if not self.cell.bursts.count:
            return None
        endpoint = 0 if self.rank is None else self.rank + 1
        rounds = burst_rounds(self.cell, self.steps)
        return Impairment(
            seed=self.cell.seed * 1000 + endpoint,
            bursts=dict.fromkeys(rounds, self.cell.bursts.loss),
        )
