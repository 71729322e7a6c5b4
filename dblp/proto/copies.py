"""How often a pass sends each chunk that is left."""

from __future__ import annotations

import numpy as np

from .bitmap import Indices

__all__ = ["repeated"]

COPIES_MAX = 16
"""Most copies of a chunk in one pass: 16 at 70 % loss miss all once in 300."""

COPIES_SHARE = 8
"""Repeated chunks make up at most this fraction of the round: passes get fewer, not much longer."""

COPIES_CHUNKS_MAX = 64
"""... but in a small round this many datagrams may always go."""

COPIES_LOSS_MIN = 0.2
"""A pass that lost less is no burst: one more pass gets nearly all of the rest."""

COPIES_LEFT = 0.5
"""Copies are added until fewer than this many chunks are expected to stay missing."""


def repeated(missing: Indices, count: int, loss: float) -> Indices:
    """`missing` of `count` chunks, in several copies when few are left and the last pass lost many:
    else a burst costs a pass, and its round trip, for every factor of the loss rate."""
    room = max(count // COPIES_SHARE, COPIES_CHUNKS_MAX)
    most = min(COPIES_MAX, room // missing.size)
    copies = 1
    if loss >= COPIES_LOSS_MIN:
        while copies < most and missing.size * loss**copies > COPIES_LEFT:
            copies += 1
    return np.tile(missing, copies) if copies > 1 else missing
