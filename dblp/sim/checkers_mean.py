"""The mean, recomputed with numpy from what each rank delivered, in rank order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..proto import Event, ReceiveFinished
from ..proto.finished import RoundKey
from .checkers import arrived_bits
from .network import End
from .watch import Observer, Violation, WatchedSession

__all__ = ["STORED_AS", "ExactMean", "narrowed", "reference_mean"]

Stored = np.ndarray[Any, Any]

STORED_AS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

Bits = npt.NDArray[np.bool_]


def _widened(stored: Stored, dtype: str) -> Stored:
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored if dtype == "float64" else stored.astype(np.float32)


def narrowed(values: Stored, dtype: str) -> Stored:
    """float32 (float64) values, rounded once to nearest even into how `dtype` is stored."""
    if dtype != "bfloat16":
        return values.astype(STORED_AS[dtype])
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def reference_mean(
    gradients: Sequence[bytes],
    delivered: Sequence[Bits],
    *,
    dtype: str,
    chunk_bytes: int,
    contributors: bool,
) -> bytes:
    """The mean of `gradients` (rank order, finite values) under the missing-chunk rule.

    Args:
        gradients: the bytes of every rank.
        delivered: per rank, which chunks count.
        dtype: element type.
        chunk_bytes: bytes per chunk.
        contributors: divide each chunk by the ranks that delivered it, and not by all.
    """
    stored = [np.frombuffer(gradient, STORED_AS[dtype]) for gradient in gradients]
    width = chunk_bytes // STORED_AS[dtype].itemsize
    total: Stored = np.zeros(stored[0].size, np.float64 if dtype == "float64" else np.float32)
    ranks: Stored = np.zeros(stored[0].size, total.dtype)
    for values, bits in zip(stored, delivered, strict=True):
        here = np.repeat(bits, width)[: values.size]
        total[here] += _widened(values, dtype)[here]
        ranks += here
    if not contributors:
        ranks[:] = len(gradients)
    ranks[ranks == 0] = 1
    return narrowed(total / ranks, dtype).tobytes()


class ExactMean(Observer):
    """R3 for means: what a worker has of a round is the rank-order mean of what the server had.

    Chunks that the worker lacks are zero; with exact and common downlinks all replicas are
    identical.
    """

    def __init__(
        self,
        sources: dict[tuple[str, int, int, int], bytes],
        *,
        world: int,
        identical: bool,
        contributors: bool,
    ) -> None:
        self._sources = sources
        self._world = world
        self._identical = identical
        self._contributors = contributors
        self._uplinks: dict[RoundKey, dict[int, Bits]] = {}
        self._results: dict[RoundKey, dict[int, tuple[bytes, Bits, str, int]]] = {}
        self._local: dict[RoundKey, tuple[int, bytes]] = {}

    def local_over(self, rank: int, stream: int, round_id: int, result: bytes) -> None:
        """Remembers what the rank has that lives with the server."""
        self._local[stream, round_id] = (rank, result)

    def event(self, session: WatchedSession, event: Event) -> None:
        """Remembers what arrived, at the server and at the workers."""
        if not isinstance(event, ReceiveFinished):
            return
        receiver = event.receiver
        key = (receiver.stream, receiver.round_id)
        bits = arrived_bits(receiver)
        if session.role == "server":
            self._uplinks.setdefault(key, {})[session.rank] = bits.copy()
        else:
            result = (
                bytes(receiver.plan.buffer), bits.copy(), receiver.plan.dtype,
                receiver.layout.chunk_bytes,
            )  # fmt: skip
            self._results.setdefault(key, {})[session.rank] = result

    def run_over(self, ends: list[End]) -> None:
        """Recomputes every round that the server has completed."""
        for key, results in self._results.items():
            uplinks = self._uplinks.get(key, {})
            self._add_local(key, uplinks, results)
            if self._identical and len({result[0] for result in results.values()}) > 1:
                raise Violation("R3", f"stream {key[0]} round {key[1]}: the replicas differ")
            if len(uplinks) == self._world:  # else a crash came before the server knew
                self._compare(key, uplinks, results)

    def _add_local(
        self,
        key: RoundKey,
        uplinks: dict[int, Bits],
        results: dict[int, tuple[bytes, Bits, str, int]],
    ) -> None:
        """The local rank: all its chunks count, and it lacks what a common set leaves out."""
        local = self._local.get(key)
        if local is None:
            return
        _, bits, dtype, chunk_bytes = next(iter(results.values()))
        whole = np.ones(bits.size, np.bool_)
        uplinks[local[0]] = whole
        results[local[0]] = (local[1], bits if self._identical else whole, dtype, chunk_bytes)

    def _compare(
        self,
        key: RoundKey,
        uplinks: dict[int, Bits],
        results: dict[int, tuple[bytes, Bits, str, int]],
    ) -> None:
        _, _, dtype, chunk_bytes = next(iter(results.values()))
        mean = reference_mean(
            [self._sources["worker", rank, *key] for rank in range(self._world)],
            [uplinks[rank] for rank in range(self._world)],
            dtype=dtype,
            chunk_bytes=chunk_bytes,
            contributors=self._contributors,
        )
        for rank, (result, bits, _, _) in results.items():
            expected = mean
            if not bits.all():
                zeroed = np.frombuffer(mean, np.uint8).copy()
                zeroed[~np.repeat(bits, chunk_bytes)[: zeroed.size]] = 0
                expected = zeroed.tobytes()
            if result != expected:
                raise Violation(
                    "R3", f"stream {key[0]} round {key[1]}: rank {rank} has a wrong mean"
                )
