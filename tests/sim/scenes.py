"""Scenarios made by hand, for what a seed would rarely show."""

from __future__ import annotations

from typing import Any

from dblp.congestion import Unpaced
from dblp.faults import Impairment
from dblp.sim.link import PathModel
from dblp.sim.options import TIMEOUT_S, Options, RoundPlan

ROUNDS = ((RoundPlan(500, "float32", "40.8%"), RoundPlan(500, "float32", "40.8%")),)
"""8 chunks of 256 bytes, twice."""


def scene(**changes: Any) -> Options:
    """A clean network and two workers, but for `changes`."""
    plain: dict[str, Any] = {
        "seed": 0, "kind": "cluster", "world": 2, "streams": ROUNDS, "first_round": 0,
        "chunk_bytes": 256, "window": 256, "congestion": Unpaced(), "order": "auto",
        "stop": "eager", "control": "datagram", "probe_quiet_s": None, "timeout_s": TIMEOUT_S,
        "policy": ("fixed", "0%"), "downlink": "exact", "rule": "zero", "norm": "sent",
        "norm_known": True, "queued": True, "think_s": 0.0, "skew_s": 0.0, "lags_s": (0.0, 0.0),
        "up": PathModel(), "down": PathModel(), "faults_up": Impairment(),
        "faults_down": Impairment(), "blocked": "", "blocked_for_ever": False,
        "blocked_known": False, "intruders": 0, "trouble": "", "trouble_rank": 0,
        "trouble_at_s": 0.0, "leave_when_done": False, "safety_s": 1.0, "late_turns": False,
    }  # fmt: skip
    return Options(**(plain | changes))


def lost_control(direction: str, *rounds: int) -> dict[str, Impairment]:
    """Changes that lose every datagram of `rounds` in one direction, control frames too."""
    return {f"faults_{direction}": Impairment(bursts=dict.fromkeys(rounds, 1.0))}
