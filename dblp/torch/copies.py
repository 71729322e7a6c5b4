"""Copies in memory that is kept from step to step.

Fresh memory is cleared by the kernel, page by page, whenever it is taken: that costs more than the
copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

__all__ = ["KeptCopies"]

Key = TypeVar("Key", bound=Hashable)


class KeptCopies(Generic[Key]):
    """One copy per key; any thread.

    *Commands*: `copy_of`, `forget`.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, torch.Tensor] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @torch.no_grad()
    def copy_of(
        self, key: Key, tensor: torch.Tensor, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A contiguous copy of `tensor`, as `dtype` if it is given; valid until the next one with
        this key."""
        wanted = tensor.dtype if dtype is None else dtype
        with self._lock:
            kept = self._kept.get(key)
        if (
            kept is None
            or kept.shape != tensor.shape
            or kept.dtype != wanted
            or kept.device != tensor.device
        ):
            kept = torch.empty(tensor.shape, dtype=wanted, device=tensor.device)
            with self._lock:
                self._kept[key] = kept
        return kept.copy_(tensor)

    def forget(self, which: Callable[[Key], bool]) -> None:
        """Gives back the memory of these keys."""
        with self._lock:
            for key in [key for key in self._kept if which(key)]:
                del self._kept[key]
