"""Norms and chunk energies, against numpy."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.gradients import ITEM_BYTES, every_dtype, random_gradients, wide
from tests.fastpath.implementations import both


@both
@every_dtype
@pytest.mark.parametrize("count", [0, 1, 7, 1000, 70_001])
def test_squared_norm(fastpath: ModuleType, dtype: str, count: int) -> None:
    stored = random_gradients(np.random.default_rng(count), dtype, count)
    expected = math.fsum(wide(stored, dtype).astype(np.float64) ** 2)
    assert fastpath.squared_norm(stored, dtype) == pytest.approx(expected, rel=1e-12)


@both
def test_squared_norm_does_not_overflow_in_float32(fastpath: ModuleType) -> None:
    assert fastpath.squared_norm(np.full(4, 1e30, np.float32), "float32") == pytest.approx(4e60)
    assert fastpath.squared_norm(np.array([np.inf], np.float32), "float32") == math.inf
    assert math.isnan(fastpath.squared_norm(np.array([np.nan, 1], np.float32), "float32"))


@both
@every_dtype
def test_chunk_energy(fastpath: ModuleType, dtype: str) -> None:
    stored = random_gradients(np.random.default_rng(5), dtype, 1001)
    width = 64 // ITEM_BYTES[dtype]
    energy = fastpath.chunk_energy(stored, dtype, 64)
    assert energy.dtype == np.float32
    assert energy.shape == (-(-1001 // width),)
    squares = wide(stored, dtype).astype(np.float64) ** 2
    expected = [squares[start : start + width].sum() for start in range(0, 1001, width)]
    np.testing.assert_allclose(energy, expected, rtol=1e-6)
    assert fastpath.chunk_energy(b"", dtype, 64).size == 0


@both
@every_dtype
def test_energy_of_some_chunks_and_of_a_sample(fastpath: ModuleType, dtype: str) -> None:
    stored = random_gradients(np.random.default_rng(5), dtype, 1001)
    width = 64 // ITEM_BYTES[dtype]
    last = -(-1001 // width) - 1
    chunks = np.array([last, 0, 3], np.uint32)
    every = fastpath.chunk_energy(stored, dtype, 64)
    some = fastpath.chunk_energy(stored, dtype, 64, chunks=chunks)
    np.testing.assert_array_equal(some, every[chunks])


@both
@every_dtype
@pytest.mark.parametrize(("offset", "stride"), [(0, 256), (384, 512), (0, 128)])
def test_energy_of_a_sample(fastpath: ModuleType, dtype: str, offset: int, stride: int) -> None:
    stored = random_gradients(np.random.default_rng(5), dtype, 3001)
    chunk_bytes, size = 1448, ITEM_BYTES[dtype]
    sampled = fastpath.chunk_energy(stored, dtype, chunk_bytes, sample=(offset, stride))
    squares = wide(stored, dtype).astype(np.float64) ** 2
    width, expected = chunk_bytes // size, []
    for start in range(0, 3001, width):
        chunk = squares[start : start + width]
        at = np.arange(chunk.size) * size
        expected.append(chunk[(at >= offset) & ((at - offset) % stride < 128)].sum())
    np.testing.assert_allclose(sampled, expected, rtol=1e-6)


@both
def test_norms_refuse_misuse(fastpath: ModuleType) -> None:
    with pytest.raises(ValueError, match="int32"):
        fastpath.squared_norm(bytes(8), "int32")
    with pytest.raises(ValueError, match="bytes"):
        fastpath.squared_norm(bytes(7), "float32")
    with pytest.raises(ValueError, match="chunk_bytes"):
        fastpath.chunk_energy(bytes(8), "float32", 0)
    with pytest.raises(ValueError, match="chunk_bytes"):
        fastpath.chunk_energy(bytes(8), "float32", 12)
    for sample in ((0, 0), (0, 64), (64, 256), (256, 256), (-128, 256)):
        with pytest.raises(ValueError, match="multiples of 128"):
            fastpath.chunk_energy(bytes(8), "float32", 8, sample=sample)
    with pytest.raises(ValueError, match="1 chunks"):
        fastpath.chunk_energy(bytes(8), "float32", 8, chunks=np.array([1], np.uint32))
