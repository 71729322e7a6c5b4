"""How the gradients of one rank are averaged: over DBLP, or over gloo beside it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..torch import GradientExchange, StepReport
from ..wire import HEADER_BYTES
from .assignment import Assignment
from .settings import policy_of

__all__ = ["Link", "Passage", "connect"]

ONE_BUCKET = 1 << 62
"""The whole gradient in one buffer, as in the paper: a round is a step, and a burst hits it."""


@dataclasses.dataclass(frozen=True)
class Passage:
    """One exchange, seen from one rank."""

    tolerance: str
    critical: bool
    send_s: float
    """From the first byte of this rank's gradient to the last STOP; gloo: the whole exchange."""
    exchange_s: float
    """From the call to the mean."""
    delivered: float
    """Share of this rank's gradient in the mean."""
    bytes_up: float
    """Datagrams of this rank's gradient with headers, retransmissions included."""
    bytes_down: float
    """Datagrams of the mean that arrived here with headers, repeated ones left out."""


class Link(Protocol):
    """Averages gradients."""

    def exchange(self) -> Passage:
        """Replaces the gradients of the parameters by their mean over the ranks."""

    def close(self) -> None:
        """Releases everything."""


def connect(
    assignment: Assignment, named: Iterable[tuple[str, torch.Tensor]], flat: torch.Tensor
) -> Link:
    """The link of this rank; collective.  `flat` has the gradients of all parameters."""
    if assignment.cell.setting.transport == "gloo":
        return GlooLink(flat)
    return DBLPLink(assignment, named)


class DBLPLink:
    """As users have it: `dblp.torch.GradientExchange`, with a parameter server or a mesh."""

    def __init__(self, assignment: Assignment, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        setting = assignment.cell.setting
        options: dict[str, Any] = {
            "config": assignment.config,
            "impairment": assignment.impairment,
            "check_every": 0,
            "exact_below_bytes": 0,
            "downlink": setting.downlink,
        }
        if setting.transport == "server":
            options["address"] = assignment.address
        else:
            options |= {
                "policy": policy_of(assignment.cell, assignment.steps),
                "rule": setting.rule,
                "residual": setting.residual,
            }
        self._exchange = GradientExchange(named, bucket_bytes=ONE_BUCKET, **options)

    def exchange(self) -> Passage:
        """Over UDP."""
        began = time.perf_counter()
        report = self._exchange.step()
        return _passage(report, time.perf_counter() - began)

    def close(self) -> None:
        """Leaves."""
        self._exchange.close()


def _passage(report: StepReport, elapsed_s: float) -> Passage:
    rounds = [round_ for each in report.exchanges for round_ in each.rounds]
    ups = [round_ for round_ in rounds if round_.direction == "uplink"]
    downs = [round_ for round_ in rounds if round_.direction == "downlink"]
    # With a server the report's regime is what it decided for the next uplink.
    regime = next((round_.regime for round_ in ups if round_.regime), report.regime)
    return Passage(
        tolerance=next((round_.tolerance for round_ in ups), report.tolerance),
        critical=regime == "critical",
        send_s=max((round_.elapsed_s for round_ in ups), default=0.0),
        exchange_s=elapsed_s,
        delivered=report.delivered_share,
        bytes_up=sum(map(_wire_bytes, ups)),
        bytes_down=sum(map(_wire_bytes, downs)),
    )


def _wire_bytes(report: Any) -> float:
    """Bytes of a round's datagrams; every chunk counts as the average one."""
    if not report.chunks:
        return 0.0
    return float(report.datagrams * (HEADER_BYTES + report.nbytes / report.chunks))


class GlooLink:
    """PyTorch's own all-reduce over TCP, in one buffer too."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    def exchange(self) -> Passage:
        """Over TCP; bytes are those of a ring, without headers and retransmissions."""
        began = time.perf_counter()
        here = self._flat.cpu()  # gloo need not know CUDA; on the CPU this is the buffer itself
        dist.all_reduce(here)
        self._flat.copy_(here.div_(dist.get_world_size()))
        elapsed_s = time.perf_counter() - began
        world = dist.get_world_size()
        payload = self._flat.numel() * self._flat.element_size() * (world - 1) / world
        return Passage("0%", False, elapsed_s, elapsed_s, 1.0, payload, payload)

    def close(self) -> None:
        """Nothing to release."""
