"""A mesh that cannot go on: every rank gets an error that names the cause, soon."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from tests.integration.cluster import errors, gradients
from tests.integration.meshes import QUICK, MeshGroup, connect_all, open_meshes
from tests.integration.processes import mesh_job

SOON_S = 5.0


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"fingerprint": "b"}, "fingerprint"),
        ({"world": 4}, "expects"),
        ({"servers": 1}, "servers"),
        ({"downlink": "lossy"}, "downlink"),
        ({"rule": "contributors"}, "rule"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(odd: dict[str, Any], words: str) -> None:
    with ExitStack() as stack:
        meshes = open_meshes(stack, {"fingerprint": "a"}, {"fingerprint": "a"} | odd)
        addresses = [mesh.address for mesh in meshes]
        if "world" in odd:
            addresses += addresses
        found = connect_all(meshes[1:], addresses)
        assert isinstance(found[0], dblp.RemoteProtocolError)
        assert words in str(found[0])
        with pytest.raises(dblp.RemoteProtocolError):  # the same error again
            meshes[1].connect(addresses)


def test_wrong_order_of_addresses() -> None:
    with ExitStack() as stack:
        meshes = open_meshes(stack, {}, {}, {})
        addresses = [meshes[0].address, meshes[2].address, meshes[1].address]
        error = connect_all(meshes[:1], addresses)[0]
        assert isinstance(error, dblp.RemoteProtocolError)
        assert "looks for rank" in str(error)


def test_addresses_are_tried_in_turn() -> None:
    """The first candidates lead nowhere, or to another rank."""
    with ExitStack() as stack:
        meshes = open_meshes(stack, {}, {}, {})
        addresses = [
            ["127.0.0.1:1", meshes[(rank + 1) % 3].address, mesh.address]
            for rank, mesh in enumerate(meshes)
        ]
        assert connect_all(meshes, addresses) == [None, None, None]
        arrays = gradients(3, 1000)
        started = [m.all_reduce_async(a) for m, a in zip(meshes, arrays, strict=True)]
        for future in started:
            future.result(10)
        assert arrays[0].tobytes() == arrays[2].tobytes()


def test_a_rank_that_never_comes_is_named() -> None:
    with ExitStack() as stack:
        meshes = open_meshes(stack, {"servers": 1}, {"servers": 1})
        error = connect_all(meshes[:1], [meshes[0].address, None])[0]
        assert isinstance(error, dblp.PeerLostError)
        assert "1" in str(error)


def test_a_server_that_does_not_listen_is_named() -> None:
    with ExitStack() as stack:
        meshes = open_meshes(stack, {}, {})
        meshes[1].close()
        error = connect_all(meshes[:1], [mesh.address for mesh in meshes])[0]
        assert isinstance(error, dblp.PeerLostError)
        assert "rank 1" in str(error)


def test_a_worker_is_no_rank_of_a_mesh() -> None:
    with ExitStack() as stack:
        meshes = open_meshes(stack, {}, {})
        with pytest.raises(dblp.RemoteProtocolError, match="Mesh"):
            dblp.Worker(meshes[0].address, rank=1, config=QUICK)
        with (
            dblp.ParameterServer("127.0.0.1:0", workers=2, config=QUICK) as server,
            pytest.raises(dblp.RemoteProtocolError, match="ParameterServer"),
        ):
            meshes[0].connect(["", server.address])


def test_arguments_are_checked() -> None:
    for odd in ({"rank": 2, "world": 2}, {"rank": 0, "world": 0}, {"rank": 0, "world": 2,
                "servers": 3}, {"rank": 0, "world": 2, "downlink": "half"}):  # fmt: skip
        with pytest.raises(dblp.ConfigError):
            dblp.Mesh(listen="127.0.0.1:0", **odd)  # type: ignore[arg-type]
    with dblp.Mesh(rank=0, world=2, listen="127.0.0.1:0") as mesh:
        with pytest.raises(dblp.ConfigError, match="addresses"):
            mesh.connect(["127.0.0.1:1"])
        with pytest.raises(dblp.ConfigError, match="has no address"):
            mesh.connect(["127.0.0.1:1", None])
        with pytest.raises(dblp.LocalProtocolError, match="connect"):
            mesh.all_reduce(np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("sizes", "dtypes", "tolerances", "words"),
    [
        ((1000, 1001), "ff", (None, None), "1,000 float32"),
        ((362, 1086), "ff", (None, None), "362 float32"),
        ((1000, 1000), "fe", (None, None), "float16"),
        ((1000, 1000), "ff", ("0.8%", "40.8%"), "tolerance 0.8%"),
        ((1000, 1000), "ff", ("0.8%", None), "tolerance"),
    ],
)
def test_ranks_that_disagree(
    sizes: tuple[int, int], dtypes: str, tolerances: tuple[Any, Any], words: str,
    config: TransportConfig,
) -> None:  # fmt: skip
    with MeshGroup(2, config) as group:
        started = [
            mesh.all_reduce_async(np.ones(size, dtype), tolerance=tolerance, stream=3)
            for mesh, size, dtype, tolerance in zip(
                group.meshes, sizes, dtypes, tolerances, strict=True
            )
        ]
        for error in errors(started):
            assert isinstance(error, dblp.RemoteProtocolError)
            assert words in str(error) and "stream 3" in str(error)
        for mesh in group.meshes:
            with pytest.raises(dblp.RemoteProtocolError):
                mesh.all_reduce(np.ones(5, np.float32))


def test_close_is_idempotent_during_rounds(config: TransportConfig) -> None:
    """Rank 0 closes while a round is open: it and the others get a named error."""
    with MeshGroup(3, config) as group:
        started = [mesh.all_reduce_async(np.ones(5000, np.float32)) for mesh in group.meshes[:2]]
        group.meshes[0].close()
        group.meshes[0].close()
        for error in errors(started):
            assert isinstance(error, dblp.RoundAbortedError)
            assert "rank 0" in str(error)
        with pytest.raises(dblp.DBLPError, match="rank 0"):
            group.meshes[2].all_reduce(np.ones(5000, np.float32))
        with pytest.raises(dblp.LocalProtocolError, match="closed"):
            group.meshes[0].all_reduce(np.ones(5, np.float32))


def test_a_rank_that_has_left_is_named(config: TransportConfig) -> None:
    with MeshGroup(3, config) as group:
        group.all_reduce([np.ones(50, np.float32) for _ in range(3)])
        group.meshes[2].close()
        time.sleep(0.05)
        with pytest.raises(dblp.DBLPError, match="rank 2"):
            group.meshes[0].all_reduce(np.ones(5000, np.float32))


def test_a_round_that_takes_too_long_names_the_rank() -> None:
    with (
        MeshGroup(2, TransportConfig(timeout_s=1.0)) as group,
        pytest.raises(dblp.RoundTimeoutError, match="rank 1"),
    ):
        group.meshes[0].all_reduce(np.ones(5000, np.float32))


def test_a_forked_child_is_refused(config: TransportConfig) -> None:
    with dblp.Mesh(rank=0, world=1, listen="127.0.0.1:0", config=config) as mesh:
        child = os.fork()
        if child == 0:
            try:
                mesh.all_reduce(np.ones(3, np.float32))
            except dblp.LocalProtocolError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("servers", [3, 1])
def test_a_killed_rank_is_named_by_all_others(loop: str, servers: int) -> None:
    with mesh_job(3, servers, loop) as ranks:
        ranks[2].kill()
        until = time.monotonic() + SOON_S
        for role in ranks[:2]:
            out, problems = role.end(max(0.1, until - time.monotonic()))
            last = out.strip().splitlines()[-1]
            assert last.startswith("PeerLostError: rank 2"), (out, problems)
            assert role.process.returncode == 3
