"""What the buffers of one round look like, and what to say when the ranks disagree about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..errors import ConfigError, LocalProtocolError
from ..phase import Decision, Regime
from ..tolerance import Tolerance
from ..wire import Open

__all__ = [
    "ITEM_BYTES",
    "MAX_ROUND_BYTES",
    "STREAMS_MAX",
    "RoundLayout",
    "check_buffer",
    "disagreement",
    "objection",
    "told_by",
]

STREAMS_MAX = 1 << 16
"""Stream ids travel in 16 bits."""

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes per element of the dtypes that can be averaged."""

MAX_ROUND_BYTES = 64 << 30
"""Longest buffer that a peer may announce: 16 G float32.  A peer that announces more is broken, and
the server must not try to find the memory for it."""


@dataclass(frozen=True, slots=True)
class RoundLayout:
    """Size and element type of the buffers of one round, equal on all ranks."""

    nbytes: int
    """Length of the buffer in bytes."""
    chunk_bytes: int
    """Payload bytes per datagram."""
    dtype: str
    """'float16', 'bfloat16', 'float32' or 'float64'."""
    whole_bytes: int = 0
    """Length of the buffer of which this is one shard; 0: this is the buffer."""

    @classmethod
    def of(cls, offer: Open) -> Self:
        """The layout that `offer` announces."""
        return cls(offer.nbytes, offer.chunk_bytes, offer.dtype, offer.whole_bytes)

    def __str__(self) -> str:
        item_bytes = ITEM_BYTES.get(self.dtype)
        nbytes = self.whole_bytes or self.nbytes
        if item_bytes is None or nbytes % item_bytes:
            return f"{nbytes:,} bytes of {self.dtype}"
        elements = nbytes // item_bytes
        return f"{elements:,} {self.dtype} element{'' if elements == 1 else 's'}"


def objection(rank: int, offer: Open, chunk_bytes: int) -> str | None:
    """Why `offer` cannot be served at all (one sentence), or None when it can."""
    where = f"stream {offer.stream} round {offer.round}: rank {rank}"
    item_bytes = ITEM_BYTES.get(offer.dtype)
    if item_bytes is None:
        return (
            f"{where} offers elements of type {offer.dtype[:40]!r}: only "
            f"{', '.join(ITEM_BYTES)} can be averaged"
        )
    if not 0 <= offer.nbytes <= MAX_ROUND_BYTES or offer.nbytes % item_bytes:
        return (
            f"{where} offers {offer.nbytes:,} bytes of {offer.dtype}: a buffer must be a whole "
            f"number of elements and hold at most {MAX_ROUND_BYTES:,} bytes"
        )
    if offer.chunk_bytes != chunk_bytes:
        return (
            f"{where} cuts its buffer into chunks of {offer.chunk_bytes:,} bytes and the session "
            f"agreed on {chunk_bytes:,}: use the same version of dblp and the same MTU everywhere"
        )
    if offer.tolerance is not None:
        try:
            Tolerance.of(offer.tolerance)
        except ConfigError as error:
            return f"{where} announces an illegal tolerance: {error}"
    return None


def check_buffer(buffer: memoryview, dtype: str, stream: int) -> None:
    """LocalProtocolError unless `buffer` can be averaged in place as a round of `stream`."""
    item_bytes = ITEM_BYTES.get(dtype)
    if item_bytes is None:
        raise LocalProtocolError(
            f"elements of type {dtype!r} cannot be averaged: use one of {', '.join(ITEM_BYTES)}"
        )
    if buffer.readonly or buffer.nbytes % item_bytes or buffer.nbytes > MAX_ROUND_BYTES:
        raise LocalProtocolError(
            f"a buffer of {buffer.nbytes:,} bytes of {dtype} cannot be averaged in place: pass "
            f"a writable buffer of whole elements, at most {MAX_ROUND_BYTES:,} bytes"
        )
    if not 0 <= stream < STREAMS_MAX:
        raise LocalProtocolError(f"stream {stream} is out of range: use 0 … {STREAMS_MAX - 1}")


def told_by(offer: Open) -> Decision | None:
    """The tolerance that a rank announces for its round; None when the server is to decide."""
    if offer.tolerance is None:
        return None
    regime = Regime.CRITICAL if offer.critical else Regime.NORMAL
    return Decision(Tolerance.of(offer.tolerance), regime)


def disagreement(offers: Sequence[Open | None]) -> str:
    """How the offers (by rank, None = not there) differ, as one sentence; '' when they agree."""
    first: tuple[int, RoundLayout] | None = None
    for rank, offer in enumerate(offers):
        if offer is None:
            continue
        layout = RoundLayout.of(offer)
        if first is None:
            first = (rank, layout)
        elif layout != first[1]:
            return (
                f"stream {offer.stream} round {offer.round}: rank {first[0]} offers {first[1]}, "
                f"rank {rank} offers {layout}: every rank must pass a buffer of the same shape and "
                f"dtype"
            )
    return _unequal_tolerances(offers)


def _unequal_tolerances(offers: Sequence[Open | None]) -> str:
    first: tuple[int, Decision | None] | None = None
    for rank, offer in enumerate(offers):
        if offer is None:
            continue
        told = told_by(offer)
        if first is None:
            first = (rank, told)
        elif told != first[1]:
            return (
                f"stream {offer.stream} round {offer.round}: rank {first[0]} announces the "
                f"tolerance {_in_words(first[1])}, rank {rank} {_in_words(told)}: every rank must "
                f"pass the same tolerance"
            )
    return ""


def _in_words(told: Decision | None) -> str:
    if told is None:
        return "of the server"
    return f"{told.tolerance}{' (critical)' if told.regime is Regime.CRITICAL else ''}"
