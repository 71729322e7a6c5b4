"""A parameter server and its workers in one process, and what the mean must be."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

import dblp
from dblp.config import TransportConfig
from dblp.faults import Impairment

LIMIT_S = 30.0
"""Longer than anything here takes on a busy machine: it only bounds what would hang."""

CHUNK_BYTES = 1448
"""Payload per datagram at the default MTU over IPv4."""

Result = TypeVar("Result")


def results(futures: Sequence[Future[Result]]) -> list[Result]:
    """The results of all futures, in order."""
    return [future.result(LIMIT_S) for future in futures]


def errors(futures: Sequence[Future[Any]]) -> list[BaseException]:
    """The errors of all futures, in order; each must have one."""
    found = [future.exception(LIMIT_S) for future in futures]
    assert all(error is not None for error in found), found
    return [error for error in found if error is not None]


class Cluster:
    """A server and `workers` workers; `with` closes them all."""

    def __init__(
        self,
        workers: int,
        config: TransportConfig,
        *,
        impairment: Impairment | None = None,
        worker_impairment: Impairment | None = None,
        **options: Any,
    ) -> None:
        with ExitStack() as stack:
            self.server = stack.enter_context(
                dblp.ParameterServer.serve_in_thread(
                    workers=workers, config=config, impairment=impairment, **options
                )
            )
            self.workers = [
                stack.enter_context(
                    dblp.Worker(
                        self.server.address, rank=rank, config=config, impairment=worker_impairment
                    )
                )
                for rank in range(workers)
            ]
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def start(self, buffers: Sequence[Any], stream: int = 0) -> list[Future[dblp.AllReduceReport]]:
        """Every rank starts an all-reduce of its buffer."""
        return [
            worker.all_reduce_async(buffer, stream=stream)
            for worker, buffer in zip(self.workers, buffers, strict=True)
        ]

    def all_reduce(self, buffers: Sequence[Any], stream: int = 0) -> list[dblp.AllReduceReport]:
        """One round of all ranks, in place."""
        return results(self.start(buffers, stream))

    def counters(self) -> dict[str, int]:
        """The counters of all channels of the server and the workers, added up."""
        total: dict[str, int] = {}
        links = list(self.server._owner._links.values())
        links += [worker._endpoint.link for worker in self.workers]
        for link in links:
            for name, value in link.channel.counters().items():
                total[name] = total.get(name, 0) + value
        return total


def gradients(workers: int, size: int, dtype: npt.DTypeLike = np.float32) -> list[Any]:
    """One array per rank, the same ones every time."""
    arrays = []
    for rank in range(workers):
        rng = np.random.default_rng(1000 * rank + size % 997)
        array = rng.standard_normal(size)
        if np.issubdtype(dtype, np.complexfloating):
            array = array + 1j * rng.standard_normal(size)
        arrays.append(array.astype(dtype))
    return arrays


def rank_order_mean(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The sum in rank order, divided, rounded once: in float32, or float64 for 64-bit elements."""
    first = arrays[0]
    real = first.view(first.real.dtype)
    wide = np.float64 if real.dtype == np.float64 else np.float32
    total = real.astype(wide)
    for array in arrays[1:]:
        total += array.view(real.dtype).astype(wide)
    total /= wide(len(arrays))
    return total.astype(real.dtype).view(first.dtype)


def sent_or_zero(
    result: npt.NDArray[Any], source: npt.NDArray[Any], chunk_bytes: int = CHUNK_BYTES
) -> int:
    """Asserts that every chunk of `result` is that of `source` or zero; returns the zero ones."""
    got = np.frombuffer(result.tobytes(), np.uint8)
    sent = np.frombuffer(source.tobytes(), np.uint8)
    assert got.size == sent.size
    starts = np.arange(0, got.size, chunk_bytes)
    if not starts.size:
        return 0
    differ = np.add.reduceat((got != sent).astype(np.int64), starts)
    nonzero = np.add.reduceat((got != 0).astype(np.int64), starts)
    wrong = (differ > 0) & (nonzero > 0)
    assert not wrong.any(), f"{int(wrong.sum())} chunks hold wrong bytes"
    return int((differ > 0).sum())
