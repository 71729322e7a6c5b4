"""Gradients in CPU memory, where the network can reach them.

CPU tensors are used where they are.  CUDA tensors are copied to pinned memory and back on streams
of their own, so that the copies of one bucket overlap with backward and with the network transfer
of others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from ..errors import DBLPError
from .work import BucketWork, WorkThread

__all__ = ["HostMemories", "HostMemory", "PinnedMemory"]

log = logging.getLogger("dblp")


class HostMemory:
    """CPU tensors: nothing to copy."""

    is_here = True
    """Whether `deliver` takes no time."""

    def new_future(self) -> torch.futures.Future[torch.Tensor]:
        """The future that a hook returns."""
        return torch.futures.Future()

    def fetch(self, work: BucketWork, then: Callable[[BucketWork], None]) -> None:
        """Sets `work.host` and calls `then`, which must not raise."""
        work.host = work.buffer
        then(work)

    def deliver(self, work: BucketWork) -> None:
        """The host has the result: brings it to the buffer and completes the work."""
        work.complete()

    def close(self) -> None:
        """Releases what it holds."""


class PinnedMemory(HostMemory):
    """CUDA tensors: staged through pinned memory.

    `fetch` queues the copy on a side stream after what the current stream computes, and a thread
    waits for it, so that the hook returns at once.  `deliver` queues the copy back and completes
    the future on that stream: whoever waits for the future waits for the copy, on the device.
    """

    is_here = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda: Any = torch.cuda
        self._down: Any = self._cuda.Stream(device)
        self._up: Any = self._cuda.Stream(device)
        self._hosts: dict[int, tuple[torch.Tensor, Any]] = {}
        self._waiter = WorkThread("dblp-copies")

    def new_future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future(devices=[self._device])

    def _pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype, pin_memory=True)

    def _host_for(self, work: BucketWork) -> tuple[torch.Tensor, Any]:
        """(pinned memory of the bucket's size, event after which it may be overwritten)."""
        buffer = work.buffer
        known = self._hosts.get(work.stream)
        if known is None or known[0].numel() < buffer.numel() or known[0].dtype != buffer.dtype:
            known = (self._pinned(buffer.numel(), buffer.dtype), self._cuda.Event())
            self._hosts[work.stream] = known
        return known[0][: buffer.numel()], known[1]

    def fetch(self, work: BucketWork, then: Callable[[BucketWork], None]) -> None:
        host, reusable = self._host_for(work)
        copied = self._cuda.Event()
        self._down.wait_stream(self._cuda.current_stream(self._device))
        with self._cuda.stream(self._down):
            self._down.wait_event(reusable)
            host.copy_(work.buffer, non_blocking=True)
            copied.record(self._down)

        def wait() -> None:
            try:
                copied.synchronize()  # without the GIL
            except RuntimeError as error:
                work.error = DBLPError(f"a gradient could not be copied from the GPU ({error})")
                work.complete()
                return
            work.host = host
            # What else is read from the device, such as a loss scale, waits for this copy at most,
            # not for what backward has queued by now.
            with self._cuda.stream(self._down):
                then(work)

        self._waiter.submit(wait)

    def deliver(self, work: BucketWork) -> None:
        try:
            with self._cuda.stream(self._up):
                if work.error is None and work.host is not None:
                    work.buffer.copy_(work.host, non_blocking=True)
                    self._hosts[work.stream][1].record(self._up)
                work.complete()  # on this stream: the future waits for the copy
        except RuntimeError as error:
            log.exception("a result could not be copied to the GPU")
            work.error = DBLPError(f"a result could not be copied to the GPU ({error})")
            if not work.done.is_set():
                work.complete()

    def close(self) -> None:
        self._waiter.close()


class HostMemories:
    """The way from every device to the network; pinned memory only where there is CUDA, as
    `pin_memory` raises elsewhere."""

    def __init__(self) -> None:
        self._by_device: dict[torch.device, HostMemory] = {}

    def of(self, device: torch.device) -> HostMemory:
        """That of tensors on `device`."""
        found = self._by_device.get(device)
        if found is None:
            found = PinnedMemory(device) if device.type == "cuda" else HostMemory()
            self._by_device[device] = found
        return found

    def close(self) -> None:
        """Ends the threads; does not wait."""
        for memory in self._by_device.values():
            memory.close()
