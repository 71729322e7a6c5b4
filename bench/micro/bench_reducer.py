"""The server's mean over its workers' buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.micro.conftest import gradient
from dblp import wire

CHUNK_BYTES = wire.chunk_bytes_for_mtu(1500)
BURST_CHUNKS = 32
"""Chunks that arrive from one worker at a time, about one GRO batch."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("workers", [3, 8])
@pytest.mark.sizes(full=(200_000, 20_000_000), smoke=(20_000,))
def test_reducer_arrive(
    repeat: Any, moves: Any, fastpath: Any, workers: int, dtype: str, nbytes: int
) -> None:
    """Chunk by chunk while data arrives, workers in turn.  Bytes per call: of all sources."""
    out, sources = np.zeros(nbytes, np.uint8), [gradient(nbytes, dtype) for _ in range(workers)]
    count = -(-nbytes // CHUNK_BYTES)
    bursts = [
        np.arange(first, min(first + BURST_CHUNKS, count), dtype=np.uint32)
        for first in range(0, count, BURST_CHUNKS)
    ]
    moves(nbytes * workers)

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        return (fastpath.Reducer(out, sources, CHUNK_BYTES, dtype),), {}

    def arrive(reducer: Any) -> int:
        for burst in bursts:
            for source in range(workers):
                reducer.arrive(source, burst)
        return int(reducer.ready)

    assert repeat(arrive, setup, 50) == count


@pytest.mark.parametrize("contributors", [False, True], ids=["zero", "contributors"])
@pytest.mark.sizes(full=(200_000, 20_000_000), smoke=(20_000,))
def test_reducer_finish(
    repeat: Any, moves: Any, fastpath: Any, contributors: bool, nbytes: int
) -> None:
    """All at the end, from bitmaps with 0.8 % missing."""
    out, sources = np.zeros(nbytes, np.uint8), [gradient(nbytes) for _ in range(3)]
    count = -(-nbytes // CHUNK_BYTES)
    rng = np.random.default_rng(5)
    bitmaps = [
        bytearray(np.packbits(rng.random(count) >= 0.008, bitorder="little")) for _ in sources
    ]
    moves(3 * nbytes)

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        return (fastpath.Reducer(out, sources, CHUNK_BYTES, "float32", contributors),), {}

    def finish(reducer: Any) -> int:
        reducer.finish(bitmaps)
        return int(reducer.ready)

    assert repeat(finish, setup, 50) == count
