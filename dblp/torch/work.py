"""One bucket on its way: what is known about it between the hook and the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

import torch

from ..collective.base import ExchangeReport
from ..tolerance import EXACT, Tolerance
from .layout import BucketLayout, Ranges

__all__ = ["BucketWork", "LossScale", "WorkThread", "lossless_report"]


def lossless_report(stream: int, mean_squared_norm: float) -> ExchangeReport:
    """Of a round in which nothing was lost, and of which no more is known."""
    return ExchangeReport(
        stream=stream,
        tolerance="0%",
        mean_squared_norm=mean_squared_norm,
        lost=(),
        delivered_share=1.0,
        regime=None,
        elapsed_s=0.0,
        rounds=(),
    )


class Memory(Protocol):
    """See `HostMemory`."""

    is_here: bool

    def fetch(self, work: BucketWork, then: Callable[[BucketWork], None]) -> None: ...
    def deliver(self, work: BucketWork) -> None: ...


@dataclass(slots=True, eq=False)
class BucketWork:
    """One bucket of one step."""

    stream: int
    """Index of the bucket."""
    buffer: torch.Tensor
    """The flat gradient where the caller keeps it; the mean ends up there."""
    layout: BucketLayout | None
    """None where nobody needs the names."""
    memory: Memory
    """The way to the network and back."""
    future: torch.futures.Future[torch.Tensor]
    """What DDP waits for."""

    tolerance: Tolerance = EXACT
    critical: bool = False
    """Whether the step belongs to a critical regime, in which rounds have no deadline."""
    scale: Callable[[], float] = lambda: 1.0
    """Loss scale of mixed precision; the gradient is that much too large.  Asked for only where it
    is needed, and not on the hook's thread if the gradient is on a GPU."""
    measured: bool = True
    """Whether somebody needs the norm: the policy, or the ranks, of which one may have a gradient
    that is not finite in a round that may lose chunks."""
    host: torch.Tensor | None = None
    """The gradient in CPU memory; the buffer itself for CPU tensors."""
    exact: Ranges = ()
    """Elements that also travel by an exact stream of their own."""
    sent: torch.Tensor | None = None
    """Copy of the gradient as it was sent, for error feedback."""
    backup: torch.Tensor | None = None
    """Copy of the gradient as it came, for the fallback to the process group."""
    report: ExchangeReport | None = None
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.perf_counter)
    ended: float = 0.0
    """On the clock of `started`, in seconds."""

    def complete(self) -> None:
        """The result is in the buffer, or `error` says why not.  DDP goes on in both cases: an
        exception in its future would lose its type."""
        self.ended = time.perf_counter()
        self.done.set()
        self.future.set_result(self.buffer)


class LossScale:
    """The loss scale of one step, read when somebody needs it, once.

    A `GradScaler` keeps it on the device and waits for the device when it is asked.
    """

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read
        self._value: float | None = None
        self._lock = threading.Lock()  # the buckets of several devices come on several threads

    def __call__(self) -> float:
        with self._lock:
            if self._value is None:
                self._value = self._read()
            return self._value


class WorkThread:
    """A daemon thread that does one thing after the other, started by the first.

    It takes what must not hold up the transport's own thread: conversions and copies.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # jobs come from several threads, the first ones too

    def submit(self, job: Callable[[], None]) -> None:
        """Runs `job`, which must not raise, after those before it."""
        self._jobs.put(job)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """Ends the thread after what is queued; does not wait."""
        if self._thread is not None:
            self._jobs.put(None)
