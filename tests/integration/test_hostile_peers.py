"""Peers that are none: garbage, oversized frames, hand-made greetings.  Ignored, or an error."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dblp
from dblp import wire
from dblp.config import TransportConfig
from dblp.errors import DBLPError, RemoteProtocolError
from dblp.io.control import parse_address
from dblp.wire import Abort, FrameReader, Hello, frame_with_prefix
from tests.integration.cluster import LIMIT_S, Cluster, errors, gradients, rank_order_mean


@contextlib.contextmanager
def raw_connection(address: str) -> Iterator[socket.socket]:
    with socket.create_connection(parse_address(address), timeout=LIMIT_S) as sock:
        yield sock


def answer(sock: socket.socket) -> wire.AnyFrame | None:
    """The next frame from the server; None when it has closed the connection."""
    reader = FrameReader()
    while True:
        with contextlib.suppress(ConnectionResetError):
            if data := sock.recv(65_536):
                if frames := reader.feed(data):
                    return frames[0]
                continue
        return None


def hello(**changed: Any) -> Hello:
    fields = {
        "version": wire.PROTOCOL_VERSION, "rank": 0, "world": 0, "mtu": 1500, "window": 100,
        "fingerprint": "",
    }  # fmt: skip
    return Hello(**{**fields, **changed})


def assert_still_works(cluster: Cluster) -> None:
    arrays = gradients(len(cluster.workers), 3000)
    wanted = rank_order_mean(arrays)
    cluster.all_reduce(arrays)
    assert all((array == wanted).all() for array in arrays)


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "oversized": struct.pack("<I", wire.MAX_CONTROL_FRAME_BYTES + 1) + bytes(100),
    "empty frame": struct.pack("<I", 0),
    "no msgpack": struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
    "unknown tag": struct.pack("<I", 6) + b"\x92\xa3xyz\x01",
    "random": random.Random(1).randbytes(5000),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_on_the_tcp_port(kind: str, config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        with raw_connection(cluster.server.address) as sock:
            sock.sendall(GARBAGE[kind])
            reply = answer(sock)  # the connection is closed, perhaps with a reason
            assert reply is None or isinstance(reply, Abort)
        assert_still_works(cluster)


def test_connections_that_say_nothing(config: TransportConfig) -> None:
    with Cluster(1, config) as cluster, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(raw_connection(cluster.server.address))
        half = stack.enter_context(raw_connection(cluster.server.address))
        half.sendall(frame_with_prefix(hello())[:7])
        assert_still_works(cluster)


def test_a_silent_newcomer_is_shown_the_door() -> None:
    config = TransportConfig(connect_timeout_s=0.3)
    serving = dblp.ParameterServer.serve_in_thread(workers=1, config=config)
    with serving as server, raw_connection(server.address) as sock:
        reply = answer(sock)
        assert isinstance(reply, Abort)
        assert "handshake" in reply.reason


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": 0}, "version 0"),
        ({"version": 99}, "version 99"),
        ({"rank": 5}, "out of range"),
        ({"rank": -7}, "out of range"),
        ({"rank": 2**40}, "out of range"),
        ({"world": 7}, "7 workers"),
        ({"mtu": 0}, "MTU"),
        ({"mtu": -1500}, "MTU"),
        ({"mtu": 2**40}, "MTU"),
        ({"window": 0}, "window"),
        ({"window": -1}, "window"),
        ({"window": 2**40}, "window"),
        ({"fingerprint": "other"}, "fingerprint"),
    ],
    ids=str,
)
def test_a_hand_made_hello(changed: dict[str, Any], words: str) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=1, fingerprint="job") as server:
        with raw_connection(server.address) as sock:
            sock.sendall(frame_with_prefix(hello(**changed)))
            reply = answer(sock)
            assert isinstance(reply, Abort), reply
            assert words in reply.reason
        with dblp.Worker(server.address, rank=0) as worker:
            worker.all_reduce(np.ones(10, np.float32))


def test_another_frame_than_hello() -> None:
    serving = dblp.ParameterServer.serve_in_thread(workers=1)
    with serving as server, raw_connection(server.address) as sock:
        sock.sendall(frame_with_prefix(wire.Ready(stream=0, round=0)))
        reply = answer(sock)
        assert isinstance(reply, Abort)
        assert "Ready" in reply.reason


def test_a_worker_that_vanishes_in_the_handshake(config: TransportConfig) -> None:
    """Its rank is free again."""
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server:
        welcomes = 0
        while welcomes < 3:
            with raw_connection(server.address) as sock:
                sock.sendall(frame_with_prefix(hello()))
                # For a moment the server may not know yet that the one before has gone.
                welcomes += isinstance(answer(sock), wire.Welcome)
        worker = None
        while worker is None:
            with contextlib.suppress(RemoteProtocolError):
                worker = dblp.Worker(server.address, rank=0, config=config)
        with worker:
            worker.all_reduce(np.ones(10, np.float32))


FRAMES = {
    "a second hello": hello(),
    "a stop of nothing": wire.Stop(0, 7, 1, 2, False, b""),
    "an impossible credit": wire.Bitmap(0, 0, 1, 0, 0, 1, 1, "bits", b"\0", 5, 1),
    "a tiny open": wire.Open(0, 1, 7, 1448, "float32", False, 1.0, None, False, None),
    "a huge open": wire.Open(0, 1, 1 << 60, 1448, "float32", False, 1.0, None, False, None),
    "an odd dtype": wire.Open(0, 1, 8, 1448, "int3", False, 1.0, None, False, None),
    "negative bytes": wire.Open(0, 1, -8, 1448, "float32", False, 1.0, None, False, None),
    "a far round": wire.Open(0, 77, 8, 1448, "float32", False, 1.0, None, False, None),
    "chunks beyond the end": wire.ChunkData(0, 1, 1 << 40, b"x"),
    "chunks of no round": wire.ChunkData(0, 9, 0, b"x"),
    "zeros beyond the end": wire.Zeros(0, 1, 0, 1 << 40, "ranges", b"\x00\x01"),
    "zeros of no round": wire.Zeros(0, 9, 0, 8, "bits", b"\x00"),
}

HARMLESS = {"a stop of nothing", "chunks of no round", "zeros of no round"}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_worker_that_says_what_it_must_not(kind: str, config: TransportConfig) -> None:
    """Every rank learns which one it was, or nothing happens at all."""
    with Cluster(2, config) as cluster:
        cluster.all_reduce(gradients(2, 100))
        endpoint = cluster.workers[1]._endpoint
        endpoint._group.thread.submit(lambda: endpoint.link.control.send(FRAMES[kind]))
        if kind in HARMLESS:
            assert_still_works(cluster)
            return
        with pytest.raises(DBLPError, match="rank 1"):
            cluster.server.wait(LIMIT_S)
        for error in errors(cluster.start(gradients(2, 100))):
            assert isinstance(error, DBLPError)
            assert "rank 1" in str(error)


def test_a_server_that_says_what_it_must_not(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        owner = cluster.server._owner
        cluster.server._thread.submit(lambda: owner._links[0].control.send(hello()))
        with pytest.raises(DBLPError, match="Hello"):
            for _ in range(10_000):
                cluster.workers[0].all_reduce_async(np.ones(3, np.float32)).result(0.2)
        assert isinstance(cluster.workers[1].all_reduce_async(np.ones(3, np.float32)).exception(
            LIMIT_S), DBLPError)  # fmt: skip


def test_garbage_on_the_udp_port(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster, socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.connect(parse_address(cluster.server.address))
        rng = random.Random(2)
        for _ in range(300):
            sock.send(rng.randbytes(rng.randrange(2000)))
            sock.send(dblp.fastpath.pack_datagram(wire.KIND_HELLO, 0, 0, 0, 0, 0, 0, bytes(16)))
        assert_still_works(cluster)


def test_garbage_from_the_right_address_is_counted(config: TransportConfig) -> None:
    """Invariant R4: it changes nothing but a counter."""
    with Cluster(2, config) as cluster:
        assert_still_works(cluster)
        worker = cluster.workers[0]
        sock = worker._endpoint.link.sock
        tag = 0x12345678
        pack = dblp.fastpath.pack_datagram
        for payload in (b"", b"x", bytes(1448)):
            sock.send(payload)
            sock.send(pack(wire.KIND_DATA, 0, 0, 1, 1, 0, tag, payload))
            sock.send(pack(wire.KIND_DATA, 0, 0, 1, 1, 0, tag, payload)[:-1] + b"!")
        assert_still_works(cluster)
        counters = cluster.server._owner._links[0].channel.counters()
        assert counters["malformed"] >= 3
        assert counters["foreign"] >= 3
