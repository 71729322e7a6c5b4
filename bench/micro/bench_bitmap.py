"""The receiver's bitmap at a round of 20 MB (13,813 chunks), and smaller and larger ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dblp import wire

CHUNK_BYTES = wire.chunk_bytes_for_mtu(1500)
SIZES = {"full": (200_000, 20_000_000, 500_000_000), "smoke": (200_000,)}


def chunks_of(nbytes: int) -> int:
    return -(-nbytes // CHUNK_BYTES)


def lossy_bitmap(count: int, loss: float) -> bytearray:
    """A bitmap with a random share of its bits clear."""
    present = np.random.default_rng(3).random(count) >= loss
    return bytearray(np.packbits(present, bitorder="little"))


@pytest.mark.sizes(full=(20_000_000,), smoke=(200_000,))
def test_bitmap_set(benchmark: Any, fastpath: Any, nbytes: int) -> None:
    """One bit per call, as Python code sets it; the pump sets bits without a call."""
    bitmap = bytearray((chunks_of(nbytes) + 7) // 8)
    benchmark(fastpath.bitmap_set, bitmap, 77)
    assert fastpath.bitmap_count(bitmap, 100) == 1


@pytest.mark.sizes(**SIZES)
def test_bitmap_count(benchmark: Any, fastpath: Any, nbytes: int) -> None:
    count = chunks_of(nbytes)
    seen = benchmark(fastpath.bitmap_count, lossy_bitmap(count, 0.3), count)
    assert 0 < seen < count


@pytest.mark.parametrize("loss", [0.0, 0.008, 0.408])
@pytest.mark.sizes(**SIZES)
def test_bitmap_missing(benchmark: Any, fastpath: Any, loss: float, nbytes: int) -> None:
    count = chunks_of(nbytes)
    bitmap = lossy_bitmap(count, loss)
    missing = benchmark(fastpath.bitmap_missing, bitmap, count)
    assert len(missing) == count - fastpath.bitmap_count(bitmap, count)


@pytest.mark.parametrize("loss", [0.008, 0.408])
@pytest.mark.sizes(full=(200_000, 20_000_000), smoke=(200_000,))
def test_zero_missing(benchmark: Any, moves: Any, fastpath: Any, loss: float, nbytes: int) -> None:
    """Bytes per call are those of the whole buffer."""
    count = chunks_of(nbytes)
    buffer, bitmap = np.ones(nbytes, np.uint8), lossy_bitmap(count, loss)
    moves(nbytes)
    zeroed = benchmark(fastpath.zero_missing, buffer, bitmap, count, CHUNK_BYTES)
    assert zeroed == count - fastpath.bitmap_count(bitmap, count)
