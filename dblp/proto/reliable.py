"""Chunks on the reliable channel, for when datagrams do not get through (hazard 9)."""

from __future__ import annotations

import numpy as np

from ..errors import RemoteProtocolError
from ..fastpath import Channel
from ..wire import ChunkData, Open
from .bitmap import Indices
from .layout import ChunkLayout

__all__ = ["chunk_frames", "deliver_chunks"]

FRAME_BYTES_MAX = 64 << 10
"""Payload of one frame; at least one chunk."""


def chunk_frames(
    open_: Open,
    source: memoryview,
    layout: ChunkLayout,
    missing: Indices,
    budget_bytes: int,
) -> list[ChunkData]:
    """Frames with the first of the `missing` chunks (ascending), about `budget_bytes` in all."""
    per_frame = max(1, FRAME_BYTES_MAX // layout.chunk_bytes)
    chosen = missing[: max(1, budget_bytes // layout.chunk_bytes)].astype(np.int64)
    if chosen.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
    frames: list[ChunkData] = []
    for run in np.split(chosen, breaks):
        first, end = int(run[0]), int(run[-1]) + 1
        for start in range(first, end, per_frame):
            last = min(start + per_frame, end) - 1
            payload = bytes(source[layout.span(start)[0] : layout.span(last)[1]])
            frames.append(ChunkData(open_.stream, open_.round, start, payload))
    return frames


def deliver_chunks(channel: Channel, slot: int, layout: ChunkLayout, frame: ChunkData) -> None:
    """Puts the chunks of `frame` into their places; chunks that are there already do not matter."""
    payload = memoryview(frame.payload)
    chunks = -(-payload.nbytes // layout.chunk_bytes)
    end = frame.first + chunks
    if (
        frame.first < 0
        or chunks == 0
        or end > layout.count
        or payload.nbytes != layout.span(end - 1)[1] - layout.span(frame.first)[0]
    ):
        raise RemoteProtocolError(
            f"the peer sent {payload.nbytes} bytes as chunks {frame.first} to {end} of round "
            f"{frame.round}, which has {layout.nbytes} bytes in {layout.count} chunks: use the "
            "same version of dblp on both sides"
        )
    for offset in range(chunks):
        start = offset * layout.chunk_bytes
        channel.deliver(slot, frame.first + offset, payload[start : start + layout.chunk_bytes])
