"""Where endpoints find each other: ports, host names, IPv6."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.errors import ConfigError
from tests.integration.cluster import gradients
from tests.integration.pairs import peers


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback")


def one_round(listen: Any, reach: str | None, config: TransportConfig) -> str:
    """A job of one worker, which comes by `reach` (format with the port); the server's address."""
    with dblp.ParameterServer.serve_in_thread(listen, workers=1, config=config) as server:
        port = int(server.address.rpartition(":")[2])
        address = server.address if reach is None else reach.format(port)
        with dblp.Worker(address, rank=0, config=config) as worker:
            array = gradients(1, 50_001)[0]
            wanted = array.tobytes()
            for _ in range(2):
                report = worker.all_reduce(array)
            assert array.tobytes() == wanted
            assert not report.uplink.fallback
        return server.address


@pytest.mark.parametrize(
    ("listen", "reach"),
    [
        ("127.0.0.1:0", None),
        (("127.0.0.1", 0), None),
        ("localhost:0", None),
        ("0.0.0.0:0", "127.0.0.1:{}"),
        ("0.0.0.0:0", "localhost:{}"),
        (":0", "127.0.0.1:{}"),
        ("0.0.0.0:0", "127.0.0.2:{}"),
    ],
    ids=str,
)
def test_ipv4(listen: Any, reach: str | None, config: TransportConfig) -> None:
    one_round(listen, reach, config)


@needs_ipv6
@pytest.mark.parametrize(
    ("listen", "reach"),
    [
        ("[::1]:0", None),
        (("::1", 0), None),
        ("[::]:0", "[::1]:{}"),
        ("[::]:0", "127.0.0.1:{}"),
    ],
    ids=str,
)
def test_ipv6(listen: Any, reach: str | None, config: TransportConfig) -> None:
    """The data socket has the family of the control socket (field problem 3)."""
    address = one_round(listen, reach, config)
    assert address.startswith("[")


@needs_ipv6
def test_peers_over_ipv6(config: TransportConfig) -> None:
    with (
        dblp.Listener("[::1]:0", config=config) as listener,
        dblp.Peer.connect(listener.address, config=config) as here,
        listener.accept() as there,
    ):
        got = bytearray(5000)
        future = there.recv_async(got)
        here.send(bytes(range(250)) * 20)
        future.result(20)
        assert got == bytes(range(250)) * 20


def test_the_own_address_of_this_host(config: TransportConfig) -> None:
    """Not loopback, where this host has one."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing; only the route is looked up
            own = sock.getsockname()[0]
        except OSError:
            pytest.skip("this host has no route to anywhere")
    one_round(f"{own}:0", None, config)


def test_a_port_in_use(config: TransportConfig) -> None:
    """Field problem 4: the error prints the address."""
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server:
        for listen in (
            lambda: dblp.ParameterServer.serve_in_thread(server.address, workers=1),
            lambda: dblp.Listener(server.address),
        ):
            with pytest.raises(ConfigError, match=f"{server.address} is in use"):
                listen()


def test_a_udp_port_in_use_does_not_matter(config: TransportConfig) -> None:
    """The server takes another one and tells the workers."""
    with socket.socket(type=socket.SOCK_DGRAM) as taken, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # a number that is free for TCP
        port = probe.getsockname()[1]
        taken.bind(("127.0.0.1", port))
        probe.close()
        one_round(f"127.0.0.1:{port}", None, config)


@pytest.mark.parametrize(
    "address",
    [
        "", "localhost", "1.2.3.4", "host:", "host:abc", "host:-1", "host:65536", "host:1.5",
        "::1:5000", "host:１", ("host",), ("host", "5000"), ("host", 65_536), ("host", -1),
        ("host", 1.5), ("host", True), ("host", 1, 2), (5000, "host"), 5000, None, b"host:1",
    ],
    ids=repr,
)  # fmt: skip
def test_an_address_that_is_none(address: Any) -> None:
    config = TransportConfig(connect_timeout_s=5)
    for use in (
        lambda: dblp.ParameterServer.serve_in_thread(address, workers=1, config=config),
        lambda: dblp.Worker(address, rank=0, config=config),
        lambda: dblp.Listener(address, config=config),
        lambda: dblp.Peer.connect(address, config=config),
    ):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            use()


def test_a_host_that_nobody_knows() -> None:
    for use in (
        lambda: dblp.ParameterServer.serve_in_thread("no-such-host.invalid:0", workers=1),
        lambda: dblp.Worker("no-such-host.invalid:5000", rank=0),
    ):
        with pytest.raises(ConfigError, match=r"no-such-host\.invalid"):
            use()


def test_an_address_of_another_host() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        dblp.ParameterServer.serve_in_thread("192.0.2.1:0", workers=1)


def test_many_jobs_on_one_host(config: TransportConfig) -> None:
    """Each has its own port and its own session tags; nothing gets mixed up."""
    with peers(config) as one, peers(config) as two, peers(config) as three:
        pairs = (one, two, three)
        for number in range(20):
            got = [np.zeros(4000, np.int32) for _ in pairs]
            futures = [
                there.recv_async(buffer) for (_, there), buffer in zip(pairs, got, strict=True)
            ]
            for index, (here, _) in enumerate(pairs):
                here.send(np.full(4000, 10 * number + index, np.int32))
            for index, (future, buffer) in enumerate(zip(futures, got, strict=True)):
                future.result(20)
                assert (buffer == 10 * number + index).all()
