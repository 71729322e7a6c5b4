"""What reaches a mesh between two turns of its driver: commands and other links know of it.

And what a mesh that has ended keeps.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.collective.mesh_owner import MeshOwner
from dblp.config import TransportConfig
from dblp.wire import Abort, frame_with_prefix
from tests.integration.meshes import MeshGroup, open_meshes

SOON_S = 5.0


def on_the_loop_thread(mesh: dblp.Mesh, act: Callable[[MeshOwner], Any]) -> Any:
    """What `act(owner)` returns, run as one callback of the loop: no turn comes in between."""
    owner = mesh._owner
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(act(owner))
        except Exception as error:
            done.set_exception(error)

    owner._thread.submit(run)
    return done.result(SOON_S)


@pytest.mark.parametrize("served", [True, False])
def test_a_round_right_after_an_abort_names_its_cause(
    served: bool, config: TransportConfig
) -> None:
    """The abort of rank 1 has arrived, and a round starts before the driver has had a turn."""
    with MeshGroup(3, config) as group:

        def abort_and_start(owner: MeshOwner) -> None:
            links = owner._admission.links if served else owner._uplinks
            links[1].control.on_frame(Abort("PeerLostError", "rank 2 is lost: it was killed"))
            buffer = np.ones(5000, np.float32).data.cast("B")
            owner.core.all_reduce(buffer, "f32", now=owner.driver.now())

        with pytest.raises(dblp.PeerLostError, match="rank 2 is lost"):
            on_the_loop_thread(group.meshes[0], abort_and_start)
        with pytest.raises(dblp.PeerLostError, match="rank 2"):
            group.meshes[1].all_reduce(np.ones(5000, np.float32))


def test_a_server_lost_while_others_are_awaited_is_named() -> None:
    """Rank 0 has reached rank 1 and waits for rank 2; the link to rank 1 breaks."""
    with ExitStack() as stack:
        meshes = open_meshes(stack, {}, {}, {})
        owner = meshes[0]._owner
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(meshes[0].connect, [mesh.address for mesh in meshes])
            until = time.monotonic() + SOON_S
            while len(owner._uplinks) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            closed = dblp.PeerLostError("the connection was closed")
            on_the_loop_thread(meshes[0], lambda owner: owner._uplinks[1].control.fail(closed))
            with pytest.raises(dblp.PeerLostError, match="rank 1 is lost: the connection was cl"):
                waiting.result(SOON_S)


def test_a_bug_of_ours_is_not_blamed_on_the_peer(
    config: TransportConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with MeshGroup(3, config) as group:
        mesh = group.meshes[0]

        def break_it(owner: MeshOwner) -> None:
            owner.core.on_worker_events = None  # type: ignore
            abort = Abort("PeerLostError", "rank 2 is lost: it was killed")
            owner._uplinks[1].control.data_received(frame_with_prefix(abort))
            del owner.core.on_worker_events

        on_the_loop_thread(mesh, break_it)
        with pytest.raises(dblp.DBLPError, match="internal error"):
            mesh.all_reduce(np.ones(5000, np.float32))


def test_what_has_ended_does_not_keep_the_buffers_of_later_calls(config: TransportConfig) -> None:
    """One error is raised again and again: with the frames of all calls it would grow."""
    with MeshGroup(2, config) as group:
        mesh = group.meshes[0]
        on_the_loop_thread(mesh, lambda owner: owner.core.fail(dblp.PeerLostError("rank 1")))
        buffers: list[weakref.ref[np.ndarray]] = []

        def attempt() -> None:
            buffer = np.ones(100, np.float32)
            buffers.append(weakref.ref(buffer))
            mesh.all_reduce(buffer)

        for _ in range(20):
            with pytest.raises(dblp.PeerLostError, match="rank 1"):
                attempt()
        gc.collect()
        assert sum(buffer() is not None for buffer in buffers) <= 1
