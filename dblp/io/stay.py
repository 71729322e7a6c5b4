"""A stay in the pump, from one whole turn to the next."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .. import fastpath
from ..proto import Session

__all__ = ["BUDGET_S", "LINGER_S", "stay"]

BUDGET_S = 0.05
"""Longest stay in the pump: bounds the delay of everything else on this loop (heartbeats, new
connections)."""

SHORTEST_S = 0.0001
"""Shortest time in the pump: a timer that is due must not keep it from its work."""

LINGER_S = 0.02
"""How long the pump sleeps on quiet sockets before the loop's own readers take over; shorter than
the budget."""


def stay(
    channels: Sequence[fastpath.Channel],
    wake: Sequence[int],
    sessions: Sequence[Session],
    *,
    timer: float,
    once: bool = False,
) -> int:
    """Pumps until a whole turn is needed; returns the pump's flags, 0 when a timer is due.

    Congestion control wants a look once per round trip.  That alone is no reason for a whole turn,
    which costs several times as much, in every process, on CPUs that the receivers need.

    Args:
        channels, wake: as for `fastpath.pump`.
        sessions: those of the channels, whose `steer_at` is obeyed.
        timer: when something else is due, in seconds of the monotonic clock; infinite if never.
        once: congestion control gets whole turns, because somebody else has work between them.
    """
    now = time.monotonic()
    until = now + BUDGET_S
    while True:
        steer = min((session.steer_at for session in sessions), default=until)
        flags = fastpath.pump(
            channels,
            wake,
            budget_ns=int(max(min(steer, until, timer) - now, SHORTEST_S) * 1e9),
            linger_ns=max(0, int(min(timer - now, LINGER_S) * 1e9)),
        )
        if flags == fastpath.QUIET and timer < now + LINGER_S:
            return 0  # a timer is due, not silence
        if flags != fastpath.BUDGET:
            return flags
        now = time.monotonic()
        if once or now >= min(timer, until):
            return flags
        for session in sessions:
            if session.steer_at <= now + SHORTEST_S:  # else the pump would be back for it at once
                session.steer(now=now)
