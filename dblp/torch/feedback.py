"""Error feedback: what was not delivered is added to the next gradient.

The final bitmap of a round says exactly what did not arrive, so a residual is only kept for that:
element ranges and their values, packed.  Values are kept without the loss scale of mixed precision,
in float32 (float64 for float64 buckets).

A step's residuals wait until the step is known to be good: when a rank's gradient was not finite,
the optimizer skips the step, and the residuals from before it stay.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from .. import fastpath
from ..buffers import byte_view_of
from ..errors import ConfigError
from .copies import KeptCopies
from .layout import BucketLayout, Ranges

__all__ = ["ErrorFeedback"]

_Pairs = np.ndarray[Any, np.dtype[np.int64]]
"""Ranges as the fast path takes them, of shape (n, 2)."""

_WIDE = (torch.float32, torch.float64)
"""Dtypes of residuals."""


@dataclass(slots=True)
class _Residual:
    """What one bucket owes."""

    layout: BucketLayout
    ranges: _Pairs
    values: torch.Tensor
    """The elements of `ranges`, one after the other, unscaled."""
    room: torch.Tensor | None = None
    """What `values` is the beginning of; free when it is owed no more."""


class ErrorFeedback:
    """Residuals of all buckets.

    *Commands*: `add_to`, `copy_of`, `capture`, `settle`, `commit`, `discard`, `load_state_dict`.
    *Getters*: `state_dict`.

    A bucket is known by the names of its parameters, never by its index: DDP rebuilds its buckets
    after the first step.  Then residuals are moved to the new buckets, parameter by parameter.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], _Residual] = {}
        self._new: dict[tuple[str, ...], _Residual] = {}
        self._loose: dict[str, torch.Tensor] = {}
        """Residuals of parameters whose bucket has not been seen yet."""
        self._copies: KeptCopies[tuple[str, ...]] = KeptCopies()
        self._rooms: dict[tuple[str, ...], list[torch.Tensor]] = {}
        """Memory of residuals that is free, kept as that of copies."""
        self._lock = threading.Lock()
        self.is_needed = False
        """Whether anything may be owed: a round that may lose chunks has begun.  The same on all
        ranks, unlike what is owed."""

    @torch.no_grad()
    def add_to(self, gradient: torch.Tensor, layout: BucketLayout, *, scale: float = 1.0) -> None:
        """Adds the bucket's residual, times the loss scale, to the flat `gradient` (in place)."""
        names = layout.names
        with self._lock:  # buckets of several devices come from several threads
            if names not in self._known:
                self._move_in(layout)
            residual = self._known.get(names)
        if residual is None or not residual.ranges.size:
            return
        gradient = gradient.detach()
        # What has fewer bits than a residual is summed with those of the residual.
        widest = torch.promote_types(gradient.dtype, residual.values.dtype)
        wide, values = gradient.to(widest), residual.values.to(widest)
        view, dtype = byte_view_of(wide, what="gradient", writable=True)
        fastpath.add_ranges(view, residual.ranges, values.numpy(), dtype, scale)
        if widest != gradient.dtype:
            gradient.copy_(wide)

    def copy_of(self, gradient: torch.Tensor, layout: BucketLayout) -> torch.Tensor:
        """What is being sent, for `capture`; valid until the bucket's next step."""
        return self._copies.copy_of(layout.names, gradient)

    @torch.no_grad()
    def capture(
        self, sent: torch.Tensor, layout: BucketLayout, lost: Ranges, *, scale: float = 1.0
    ) -> None:
        """Remembers what of `sent` is not in the mean, until `commit` or `discard`."""
        ranges = _pairs(lost)
        count = int((ranges[:, 1] - ranges[:, 0]).sum())
        room = self._room(layout, count, sent.dtype)
        packed = room[:count]
        view, dtype = byte_view_of(sent.detach(), what="gradient", writable=False)
        there, _ = byte_view_of(packed, what="residual", writable=True)
        fastpath.gather_ranges(view, ranges, there, dtype)
        values = packed.to(_wide(packed.dtype))
        if scale != 1.0:
            values /= scale
        if sent.dtype == torch.float16:
            # A gradient and what is owed may overflow together, and an infinite debt would come
            # back in every step.
            values[~torch.isfinite(values)] = 0.0
        residual = _Residual(layout, ranges, values)
        if count and values.data_ptr() == room.data_ptr():
            residual.room = room
        else:  # the values are elsewhere
            self._keep(layout, room)
        self._new[layout.names] = residual

    def _room(self, layout: BucketLayout, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for `count` values."""
        with self._lock:
            free = self._rooms.get(layout.names)
            room = free.pop() if free else None
        if room is None or room.numel() < count or room.dtype != dtype:
            room = torch.empty(max(count, min(count + count // 8, layout.numel)), dtype=dtype)
        return room

    def _keep(self, layout: BucketLayout, room: torch.Tensor) -> None:
        """This memory is for a later residual of the bucket.  There are two at most: of what is
        owed, and of what may replace it."""
        with self._lock:
            self._rooms.setdefault(layout.names, []).append(room)

    def settle(self, layout: BucketLayout) -> None:
        """The bucket's residual travels in a round that delivers everything: nothing is owed when
        the step counts."""
        self._new[layout.names] = _Residual(layout, _pairs(()), torch.empty(0))

    def commit(self) -> None:
        """The step counts: its residuals replace those that its gradients had taken up."""
        for names in self._new:
            self._free(self._known.get(names))
        self._known.update(self._new)
        self._new.clear()

    def discard(self) -> None:
        """The step does not count: what was known before it is still owed."""
        for residual in self._new.values():
            self._free(residual)
        self._new.clear()

    def _free(self, residual: _Residual | None) -> None:
        if residual is not None and residual.room is not None:
            self._keep(residual.layout, residual.room)

    def _move_in(self, layout: BucketLayout) -> None:
        """Gives a new bucket the residuals of its parameters, wherever they are."""
        wanted = set(layout.names)
        for names in [names for names in self._known if wanted.intersection(names)]:
            self._loose.update(_by_parameter(self._known.pop(names)))

        def is_gone(names: tuple[str, ...]) -> bool:
            return names != layout.names and not wanted.isdisjoint(names)

        self._copies.forget(is_gone)
        for names in [names for names in self._rooms if is_gone(names)]:
            del self._rooms[names]
        found = [slot for slot in layout.slots if slot.name in self._loose]
        values = []
        for slot in found:
            part = self._loose.pop(slot.name)
            if part.numel() != slot.stop - slot.start:
                raise ConfigError(
                    f"the checkpoint's residual of {slot.name} has {part.numel()} elements, the "
                    f"parameter {slot.stop - slot.start}: load a checkpoint of the same model"
                )
            values.append(part)
        if found:
            ranges = _pairs(tuple((slot.start, slot.stop) for slot in found))
            self._known[layout.names] = _Residual(layout, ranges, torch.cat(values))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Flat residuals by parameter name; parameters that owe nothing are left out."""
        state = dict(self._loose)
        for residual in self._known.values():
            state.update(_by_parameter(residual))
        return {name: part.clone() for name, part in sorted(state.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces all residuals; ConfigError when `state` is none."""
        if not all(isinstance(part, torch.Tensor) for part in state.values()):
            raise ConfigError("the residuals of the checkpoint are no tensors: is it damaged?")
        self._known.clear()
        self._new.clear()
        self._loose = {
            name: part.detach().cpu().reshape(-1).to(_wide(part.dtype), copy=True)
            for name, part in state.items()
        }


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in _WIDE else torch.float32


def _pairs(ranges: Ranges) -> _Pairs:
    flat = np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges))
    return flat.reshape(-1, 2)


def _by_parameter(residual: _Residual) -> dict[str, torch.Tensor]:
    """Dense residuals of the parameters that owe anything."""
    dense = torch.zeros(residual.layout.numel, dtype=residual.values.dtype)
    place = 0
    for start, stop in residual.ranges.tolist():
        dense[start:stop] = residual.values[place : place + stop - start]
        place += stop - start
    parts = {slot.name: dense[slot.start : slot.stop] for slot in residual.layout.slots}
    return {name: part for name, part in parts.items() if bool(part.any())}
