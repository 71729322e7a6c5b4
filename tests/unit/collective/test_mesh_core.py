"""`MeshCore` where a part of it knows of an error before the others."""

from __future__ import annotations

from typing import Any

import pytest

from dblp.collective.mesh_core import MeshCore
from dblp.collective.sharding import ShardPlan
from dblp.errors import PeerLostError


class Worker:
    """As much of a `WorkerCore` as a mesh needs that cannot start anything."""

    error = None

    def __init__(self, broken: PeerLostError | None = None) -> None:
        self.broken = broken
        self.failed: list[Exception] = []

    def all_reduce(self, view: memoryview, dtype: str, **more: Any) -> object:
        if self.broken is not None:
            raise self.broken
        return object()

    def fail(self, error: Exception) -> None:
        self.failed.append(error)

    def take_finished(self) -> list[Any]:
        return []


def test_a_round_that_cannot_start_everywhere_is_over_for_its_caller_alone() -> None:
    """Its caller has the exception and no future, so it must not appear among the finished."""
    lost = PeerLostError("rank 1 is gone")
    core = MeshCore(rank=2, world=3, server=None)
    workers = {0: Worker(), 1: Worker()}
    core.join(ShardPlan(2, 8), workers)  # type: ignore[arg-type]
    before = core.all_reduce(memoryview(bytearray(64)), "float32", stream=0, now=0.0)
    workers[1].broken = lost
    with pytest.raises(PeerLostError, match="rank 1"):
        core.all_reduce(memoryview(bytearray(64)), "float32", stream=2, now=0.0)
    assert core.error is lost
    assert workers[0].failed == [lost]
    assert [(one.work, one.error) for one in core.take_finished()] == [(before, lost)]
    assert core.idle
