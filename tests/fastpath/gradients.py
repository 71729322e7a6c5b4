"""Stored gradients of every dtype, and what they are as float32."""

from __future__ import annotations

import numpy as np
import pytest

DTYPES = ["float16", "bfloat16", "float32", "float64"]
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def bfloat16_to_float32(stored: np.ndarray) -> np.ndarray:
    return (stored.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()


def random_gradients(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """`count` elements over many magnitudes, as stored."""
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-4, 4, count)
    if dtype == "bfloat16":
        return float32_to_bfloat16(values.astype(np.float32))
    return values.astype(dtype)


def wide(stored: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return bfloat16_to_float32(stored)
    return stored.astype(np.float64 if dtype == "float64" else np.float32)
