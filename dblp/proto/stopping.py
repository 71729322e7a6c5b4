"""STOP (signal S), and how the set of missing chunks travels with it."""

from __future__ import annotations

from .. import fastpath
from ..wire import MAX_CONTROL_FRAME_BYTES, Stop
from .bitmap import ReceiveBitmap

__all__ = ["STOP_DATA_BYTES_MAX", "stop_frames"]

STOP_DATA_BYTES_MAX = MAX_CONTROL_FRAME_BYTES - 1024
"""A STOP with longer missing runs (rounds above 1.5 GB, scattered loss) does not name them."""


def stop_frames(
    stream: int, round_id: int, bitmap: ReceiveBitmap, *, accepted: int, late: bool, fits: int
) -> tuple[Stop, Stop | None]:
    """The decision to end a round with `accepted` chunks, those in `bitmap`.

    Args:
        late: it ends below its bound, as a deadline allows.
        fits: bytes of missing runs that fit a datagram.

    Returns:
        One frame that fits a datagram, and, where it cannot name the missing chunks, one that does,
        for TCP.
    """
    count = bitmap.count
    data = fastpath.encode_runs(bitmap.missing()) if accepted < count else b""
    if len(data) <= fits:
        return Stop(stream, round_id, accepted, count, late, data), None
    short = Stop(stream, round_id, accepted, count, late, None)
    if len(data) > STOP_DATA_BYTES_MAX:
        return short, None
    return short, Stop(stream, round_id, accepted, count, late, data)
