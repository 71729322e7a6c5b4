"""A transport made of threads and a barrier, with the drops DBLP would cause: no sockets."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import torch

CHUNK_ELEMENTS = 362
"""float32 per datagram at an MTU of 1500."""


@dataclasses.dataclass
class Report:
    """Looks like a RoundReport as far as the demo reads it."""

    fields: dict[str, Any]
    regime: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.fields


@dataclasses.dataclass
class AllReduce:
    uplink: Report
    downlink: Report
    elapsed_s: float
    regime: str
    tolerance: str


class Cluster:
    """`world` threads average their arrays; the smallest chunks, up to the tolerance, are lost."""

    def __init__(self, world: int, *, low: float, high: float, interval: int = 10) -> None:
        self.world, self.low, self.high, self.interval = world, low, high, interval
        self.barrier = threading.Barrier(world, timeout=60)
        self.buffers: list[Any] = [None] * world
        self.tolerance = low
        self.previous_norm = 0.0
        self.step = 0
        self.critical: list[bool] = []
        self.norms: list[float] = []
        self.mean: np.ndarray = np.empty(0, np.float32)

    def rank(self, rank: int) -> StandIn:
        return StandIn(self, rank)

    def reduce(self) -> None:
        kept = [drop_smallest(buffer, self.tolerance) for buffer in self.buffers]
        self.mean = np.mean(kept, axis=0, dtype=np.float32)
        norm = float(np.sqrt(np.mean([float(np.square(b).sum()) for b in self.buffers])))
        self.norms.append(norm)
        self.critical.append(self.tolerance == self.low)
        self.step += 1
        if self.step % self.interval == 0:
            previous = self.previous_norm
            triggered = previous == 0 or abs(previous - norm) / previous >= 0.5
            self.tolerance = self.low if triggered else self.high
        self.previous_norm = norm


class StandIn:
    """One rank of a `Cluster`, with the part of `dblp.Worker` that the trainer needs."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self.cluster, self.index = cluster, rank

    def all_reduce(self, buffer: torch.Tensor) -> AllReduce:
        cluster, array = self.cluster, buffer.numpy()
        step, critical = cluster.step, cluster.tolerance == cluster.low
        cluster.buffers[self.index] = array
        if cluster.barrier.wait() == 0:
            cluster.reduce()
        cluster.barrier.wait()
        array[:] = cluster.mean
        cluster.barrier.wait()
        return AllReduce(
            uplink=Report(round_report(step, "uplink", array.nbytes)),
            downlink=Report(round_report(step, "downlink", array.nbytes)),
            elapsed_s=0.002,
            regime="critical" if critical else "normal",
            tolerance="0.8%" if critical else "40.8%",
        )


def round_report(step: int, direction: str, nbytes: int) -> dict[str, Any]:
    chunks = -(-nbytes // (4 * CHUNK_ELEMENTS))
    return {
        "round_id": step,
        "direction": direction,
        "nbytes": nbytes,
        "chunks": chunks,
        "missing": 0,
        "datagrams": chunks,
        "elapsed_s": 0.001,
    }


def drop_smallest(array: np.ndarray, tolerance: float) -> np.ndarray:
    """A copy of `array` without the floor(tolerance · chunks) chunks of least energy."""
    kept = array.copy()
    count = -(-len(array) // CHUNK_ELEMENTS)
    padded = np.zeros(count * CHUNK_ELEMENTS, np.float32)
    padded[: len(array)] = array
    energy = np.square(padded.reshape(count, -1)).sum(1)
    for chunk in np.argsort(energy)[: int(tolerance * count)]:
        kept[chunk * CHUNK_ELEMENTS : (chunk + 1) * CHUNK_ELEMENTS] = 0
    return kept


def run(world: int, work: Any) -> list[Any]:
    """work(rank) on `world` threads; their results in rank order, or the first error."""
    results: list[Any] = [None] * world
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return results
