"""CUDA staging: the order of copies and events with a stand-in for CUDA, and the real thing where
there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dblp.torch
from dblp.torch import buffers
from dblp.torch.buffers import HostMemories, HostMemory, PinnedMemory
from dblp.torch.work import BucketWork
from tests.train.models import batches, gradients, loss_of, perceptron, wrapped
from tests.train.ranks import Job, Ranks


class Cuda:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        cuda = self

        class Stream:
            count = 0

            def __init__(self, device: Any) -> None:
                self.name = ("down", "up")[Stream.count % 2]
                Stream.count += 1

            def wait_stream(self, other: str) -> None:
                cuda.log.append(f"{self.name} waits for {other}")

            def wait_event(self, event: Any) -> None:
                cuda.log.append(f"{self.name} waits for {event.what}")

        class Event:
            what = "nothing"

            def record(self, stream: Any) -> None:
                self.what = f"copy on {stream.name}"
                cuda.log.append(f"record {stream.name}")

            def synchronize(self) -> None:
                cuda.log.append(f"host waits for {self.what}")

        self.Stream, self.Event = Stream, Event

    def current_stream(self, device: Any) -> str:
        return "compute"

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield


class Staged(PinnedMemory):
    def new_future(self) -> torch.futures.Future[torch.Tensor]:
        return torch.futures.Future()

    def _pinned(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(numel, dtype=dtype)


def work_on(memory: HostMemory, buffer: torch.Tensor) -> BucketWork:
    return BucketWork(3, buffer, None, memory, memory.new_future())


def test_copies_run_beside_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setattr(buffers.torch, "cuda", cuda)
    memory = Staged(torch.device("cpu"))
    for step in range(2):
        cuda.log.clear()
        buffer = torch.arange(5.0) + step
        work = work_on(memory, buffer)

        def then(work: BucketWork) -> None:  # the network
            assert work.host is not None
            assert torch.equal(work.host, work.buffer)
            cuda.log.append("network")
            work.host += 1
            work.memory.deliver(work)

        memory.fetch(work, then)
        assert work.done.wait(5.0)
        assert torch.equal(work.future.wait(), torch.arange(5.0) + step + 1)
        assert cuda.log[:5] == [
            "down waits for compute",
            "on down",
            # The pinned memory may be overwritten once the copy back of the last step is over.
            "down waits for copy on up" if step else "down waits for nothing",
            "record down",
            "host waits for copy on down",
        ]
        # What is read from the device for the network, such as a loss scale, waits for copies only.
        assert cuda.log[5:9] == ["on down", "network", "on up", "record up"]
    memory.close()


def test_the_pinned_memory_follows_the_size_of_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers.torch, "cuda", Cuda())
    memory = Staged(torch.device("cpu"))
    for numel in (5, 9, 4):
        work = work_on(memory, torch.ones(numel))
        memory.fetch(work, lambda work: work.memory.deliver(work))
        assert work.done.wait(5.0)
        assert work.host is not None
        assert work.host.numel() == numel
    memory.close()


def test_cpu_tensors_are_not_copied() -> None:
    memory = HostMemories().of(torch.device("cpu"))
    buffer = torch.ones(4)
    work = work_on(memory, buffer)
    memory.fetch(work, lambda work: None)
    assert work.host is buffer


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def on_the_gpu(job: Job, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradients over gloo, over DBLP), with all ranks on one device."""
    found = []
    for over_dblp in (False, True):
        model = wrapped(perceptron().cuda(), job)
        state = dblp.torch.register(model, **options) if over_dblp else None
        for batch in batches(job.rank, 3):
            model.zero_grad()
            loss_of(model, batch.cuda()).backward()
        found.append(gradients(model).cpu())
        if state is not None:
            state.close()
    return found[0], found[1]


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"wire_dtype": "bf16"}, {"residual": True}])
def test_gradients_on_a_gpu(ranks: Ranks, options: dict[str, Any]) -> None:
    for plain, seen in ranks.run(on_the_gpu, 2, tolerance=0, **options):
        assert torch.allclose(seen, plain, rtol=1e-2 if options else 1e-5, atol=1e-4)
