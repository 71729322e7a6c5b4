"""UDP sockets: buffers, windows, chunk sizes."""

from __future__ import annotations

import logging
import socket
from typing import Any, cast

import pytest

from dblp import wire
from dblp.io import udp
from dblp.io.udp import Buffers, chunk_bytes_for, open_udp, receive_window, same_host, with_port


def test_a_socket_as_wanted() -> None:
    sock, buffers = open_udp(socket.AF_INET, 256 << 10)
    with sock:
        assert not sock.getblocking()
        assert buffers.wanted == 256 << 10
        assert buffers.receive == sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert buffers.send == sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert not buffers.receive_limited
        mtu_mode = sock.getsockopt(socket.IPPROTO_IP, udp.IP_MTU_DISCOVER)
        assert mtu_mode == udp.PMTUDISC_DO


def test_the_window_fits_the_buffer_in_the_worst_case() -> None:
    """Hazard 5: one skb per datagram, each charged with its overhead."""
    for granted in (1 << 17, 1 << 20, 8 << 20):
        last = udp.WINDOW_MAX + 1
        for datagram_bytes in (32, 1472, 4000, 8972, 65_472):
            window = receive_window(granted, datagram_bytes)
            assert 2 <= window <= udp.WINDOW_MAX
            assert window <= last
            if window > 2:
                assert window * (datagram_bytes + udp.SKB_OVERHEAD_BYTES) < granted
            last = window
    assert receive_window(0, 1472) == 2
    assert receive_window(1 << 40, 1472) == udp.WINDOW_MAX


def test_a_window_is_never_overrun_on_a_real_socket() -> None:
    """As many datagrams as the window says fit into the buffer before anybody reads."""
    receiver, buffers = open_udp(socket.AF_INET, 256 << 10)
    with receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        for size in (100, 1472, 9000):
            window = receive_window(buffers.receive, size)
            for _ in range(window):
                sender.send(bytes(size))
            arrived = 0
            while True:
                try:
                    receiver.recv(1 << 16)
                except BlockingIOError:
                    break
                arrived += 1
            assert arrived == window


def test_field_05_a_clipped_buffer_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the exact command."""
    monkeypatch.setattr(udp, "_warned_about_buffers", False)
    clipped = Buffers(wanted=8 << 20, receive=416 << 10, send=416 << 10)
    assert clipped.receive_limited
    with caplog.at_level(logging.DEBUG, "dblp"):
        udp.warn_about_buffers(Buffers(wanted=1, receive=2, send=2))
        assert not caplog.records
        for _ in range(3):
            udp.warn_about_buffers(clipped)
    assert len(caplog.records) == 1
    assert "sysctl -w net.core.rmem_max=8388608" in caplog.text


class Connected:
    """What is asked of a connected socket."""

    def __init__(self, family: int, peer: str) -> None:
        self.family = family
        self._peer = peer

    def getpeername(self) -> tuple[Any, ...]:
        return (self._peer, 5000, 0, 0)


@pytest.mark.parametrize(
    ("family", "peer", "version"),
    [
        (socket.AF_INET, "10.0.0.1", 4),
        (socket.AF_INET6, "fe80::1", 6),
        (socket.AF_INET6, "::ffff:10.0.0.1", 4),
    ],
)
def test_the_ip_version_is_that_of_the_packets(family: int, peer: str, version: int) -> None:
    sock: Any = Connected(family, peer)
    assert udp.ip_version(sock) == version
    assert chunk_bytes_for(sock, 1500) == wire.chunk_bytes_for_mtu(1500, version)


def test_another_port_on_the_same_address() -> None:
    assert with_port(("127.0.0.1", 80), 7) == ("127.0.0.1", 7)
    assert with_port(("fe80::1", 80, 0, 3), 7) == ("fe80::1", 7, 0, 3)


def test_a_peer_with_the_own_address_or_one_of_loopback_is_on_this_host() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        assert not same_host(sock)  # not connected
        for peer in ("127.0.0.1", "127.0.1.1"):
            sock.connect((peer, 9))
            assert same_host(sock)


class BetweenHosts:
    """A socket with addresses that this machine need not have."""

    def __init__(self, own: str, peer: str) -> None:
        self.getsockname = lambda: (own, 5000)
        self.getpeername = lambda: (peer, 5001)


@pytest.mark.parametrize(
    ("own", "peer", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1", "fe80::2%eth0", False),
        ("::1", "::1", True),
    ],
)
def test_hosts_are_told_apart_by_their_addresses(own: str, peer: str, same: bool) -> None:
    assert same_host(cast(socket.socket, BetweenHosts(own, peer))) is same
