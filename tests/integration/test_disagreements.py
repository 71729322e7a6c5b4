"""Mistakes of the caller and ranks that do not agree: a named error on every rank, no hang."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.errors import ConfigError, DBLPError, LocalProtocolError, RemoteProtocolError
from tests.integration.cluster import Cluster, errors, gradients, rank_order_mean


def read_only() -> Any:
    array = np.ones(10, np.float32)
    array.setflags(write=False)
    return array


LOCAL_MISTAKES = {
    "read-only": (read_only, "read-only"),
    "bytes": (lambda: bytes(8), "read-only"),
    "strided": (lambda: np.ones(20, np.float32)[::2], "contiguous"),
    "fortran": (lambda: np.ones((3, 4), np.float32, order="F"), "contiguous"),
    "transposed": (lambda: np.ones((3, 4), np.float32).T, "contiguous"),
    "integers": (lambda: np.ones(10, np.int64), "int64"),
    "booleans": (lambda: np.ones(10, bool), "bool"),
    "bytearray": (lambda: bytearray(8), "uint8"),
    "objects": (lambda: np.array([1.0, "a"], object), "objects"),
    "foreign byte order": (lambda: np.ones(10, ">f4"), "byte order"),
    "list": (lambda: [1.0, 2.0], "list"),
    "number": (lambda: 1.0, "float"),
    "none": (lambda: None, "NoneType"),
}


@pytest.mark.parametrize("mistake", LOCAL_MISTAKES)
def test_a_buffer_that_cannot_be_averaged(mistake: str) -> None:
    """Refused before anything is sent, so the job goes on."""
    make, words = LOCAL_MISTAKES[mistake]
    with Cluster(2, TransportConfig()) as cluster:
        for call in (cluster.workers[0].all_reduce, cluster.workers[0].all_reduce_async):
            with pytest.raises(LocalProtocolError, match=words):
                call(make())
        arrays = gradients(2, 100)
        wanted = rank_order_mean(arrays)
        cluster.all_reduce(arrays)
        assert (arrays[0] == wanted).all()


TENSOR_MISTAKES = {
    "sparse": (lambda torch: torch.eye(3).to_sparse(), "sparse"),
    "csr": (lambda torch: torch.eye(3).to_sparse_csr(), "sparse"),
    "strided": (lambda torch: torch.ones(4, 4).t(), "contiguous"),
    "meta": (lambda torch: torch.ones(3, device="meta"), "meta"),
    "integers": (lambda torch: torch.ones(3, dtype=torch.int32), "int32"),
    "booleans": (lambda torch: torch.ones(3, dtype=torch.bool), "bool"),
    "lazy conjugate": (lambda torch: torch.ones(3, dtype=torch.complex64).conj(), "conj"),
    "lazy negative": (lambda torch: torch.ones(1, dtype=torch.complex64).conj().imag, "neg"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("mistake", TENSOR_MISTAKES)
def test_a_tensor_that_cannot_be_averaged(mistake: str) -> None:
    torch = pytest.importorskip("torch")
    make, words = TENSOR_MISTAKES[mistake]
    with Cluster(1, TransportConfig()) as cluster:
        with pytest.raises(LocalProtocolError, match=words):
            cluster.workers[0].all_reduce(make(torch))
        cluster.all_reduce(gradients(1, 10))


@pytest.mark.parametrize("stream", [-1, 65_536])
def test_a_stream_out_of_range(stream: int) -> None:
    with Cluster(1, TransportConfig()) as cluster:
        with pytest.raises(LocalProtocolError, match=str(stream)):
            cluster.workers[0].all_reduce(np.ones(3, np.float32), stream=stream)
        cluster.all_reduce(gradients(1, 10), stream=65_535)


@pytest.mark.parametrize(
    "different",
    [
        np.ones(4096, np.float32),
        np.ones(2500, np.float64),
        np.ones(10_000, np.float16),
        np.ones(0, np.float32),
    ],
    ids=["size", "dtype with equal bytes", "half the width", "empty"],
)
@pytest.mark.parametrize("first_agree", [False, True])
def test_ranks_that_offer_different_buffers(
    different: Any, first_agree: bool, config: TransportConfig
) -> None:
    """Field problem 29: every rank learns who offered what; also when a round went well before."""
    with Cluster(3, config) as cluster:
        if first_agree:
            cluster.all_reduce([np.ones(5000, np.float32) for _ in range(3)])
        buffers = [np.ones(5000, np.float32), different.copy(), np.ones(5000, np.float32)]
        for error in errors(cluster.start(buffers)):
            assert isinstance(error, RemoteProtocolError)
            assert "rank 1" in str(error)
            assert "rank 0" in str(error) or "rank 2" in str(error)  # whoever came first
            assert "same shape and dtype" in str(error)
        with pytest.raises(RemoteProtocolError, match="rank 1"):
            cluster.server.wait(10)
        with pytest.raises(RemoteProtocolError):  # and every later call says it again
            cluster.workers[0].all_reduce(np.ones(3, np.float32))


def test_complex_and_float_of_the_same_bytes_are_the_same_to_the_wire(
    config: TransportConfig,
) -> None:
    with Cluster(2, config) as cluster:
        arrays = [np.full(10, 1 + 3j, np.complex64), np.full(20, 3, np.float32)]
        cluster.all_reduce(arrays)
        assert (arrays[0] == 2 + 3j).all()


def join(address: str, **options: Any) -> dblp.Worker:
    return dblp.Worker(address, config=TransportConfig(connect_timeout_s=20), **options)


def test_workers_that_cannot_be_part_of_the_job(config: TransportConfig) -> None:
    """Refused with a reason; those who are in do not notice."""
    serving = dblp.ParameterServer.serve_in_thread(workers=2, config=config, fingerprint="model 7")
    with serving as server, join(server.address, rank=0, fingerprint="model 7") as first:
        for options, words in (
            ({"rank": 0}, "rank 0 is taken"),
            ({"rank": 2}, "rank 2 is out of range"),
            ({"rank": 1, "world": 3}, "3 workers, the server 2"),
            ({"rank": 1, "fingerprint": "model 8"}, "model 8"),
        ):
            with pytest.raises(RemoteProtocolError, match=words):
                join(server.address, **options)
        with join(server.address, rank=1, world=2) as second:
            arrays = gradients(2, 1000)
            wanted = rank_order_mean(arrays)
            futures = [first.all_reduce_async(arrays[0]), second.all_reduce_async(arrays[1])]
            for future in futures:
                future.result(20)
            assert (arrays[0] == wanted).all()
            assert first.world == second.world == 2


def test_a_job_that_has_ended_takes_no_more_workers(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        errors(cluster.start([np.ones(3, np.float32), np.ones(4, np.float32)]))
        with pytest.raises(DBLPError, match="ended"):
            join(cluster.server.address, rank=0)


def test_a_worker_at_a_listener_and_a_peer_at_a_server(config: TransportConfig) -> None:
    refused = pytest.raises(RemoteProtocolError, match="Listener")
    with dblp.Listener(config=config) as listener, refused:
        join(listener.address, rank=0)
    refused = pytest.raises(RemoteProtocolError, match="Worker")
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server, refused:
        dblp.Peer.connect(server.address, config=config)


@pytest.mark.parametrize("rank", [-1, 1.0, "0", None, True])
def test_a_rank_that_is_none(rank: Any) -> None:
    with pytest.raises(ConfigError, match="rank"):
        dblp.Worker("127.0.0.1:1", rank=rank)


@pytest.mark.parametrize("world", [0, 1, -3, "2", 2.0])
def test_a_world_that_is_none(world: Any) -> None:
    with pytest.raises(ConfigError, match="world"):
        dblp.Worker("127.0.0.1:1", rank=1, world=world)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 256},
        {"workers": 1.0},
        {"workers": True},
        {"workers": 1, "downlink": "maybe"},
        {"workers": 1, "rule": "one"},
        {"workers": 1, "norm": "l1"},
        {"workers": 1, "reserve": 4000},
        {"workers": 1, "reserve": [-1]},
        {"workers": 1, "reserve": [1 << 63]},
        {"workers": 1, "reserve": [4000, 0.5]},
    ],
    ids=str,
)
def test_a_server_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        dblp.ParameterServer.serve_in_thread(**options)
