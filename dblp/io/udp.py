"""UDP sockets: buffers, path MTU behaviour, and the window that a granted buffer allows."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass
from typing import Any

from .. import wire

log = logging.getLogger("dblp")

IP_MTU_DISCOVER = 10
IPV6_MTU_DISCOVER = 23
PMTUDISC_DO = 2
"""Linux: set DF, never fragment (field problem 6)."""

SKB_OVERHEAD_BYTES = 256 + 320 + 64
"""sk_buff, skb_shared_info and headroom that the kernel charges to SO_RCVBUF per datagram (Linux,
x86-64)."""

BUFFER_SHARE = 0.75
"""Linux gives receive memory back in steps of a quarter of the buffer (udp_rmem_release), so a
quarter may be charged for datagrams that were read long ago."""

WINDOW_MAX = 16_384
"""Sequences travel as 16 bits; serial arithmetic needs less than half of that in flight."""

_warned_about_buffers = False


@dataclass(frozen=True, slots=True)
class Buffers:
    """Socket buffer sizes in bytes, as `getsockopt` reports them (Linux: twice the usable size)."""

    wanted: int
    receive: int
    send: int

    @property
    def receive_limited(self) -> bool:
        """Whether the kernel granted less than was wanted."""
        return self.receive < 2 * self.wanted


def receive_window(granted_bytes: int, datagram_bytes: int) -> int:
    """Datagrams of `datagram_bytes` that fit a receive buffer of `granted_bytes` (as getsockopt
    reports it), in the worst case of one skb per datagram (hazard 5)."""
    charged = 1 << (datagram_bytes + SKB_OVERHEAD_BYTES - 1).bit_length()
    if charged > 4096:
        charged = -(-(datagram_bytes + SKB_OVERHEAD_BYTES) // 4096) * 4096 + 4096
    return max(2, min(WINDOW_MAX, int(granted_bytes * BUFFER_SHARE) // (charged + 256)))


def open_udp(family: int, buffer_bytes: int) -> tuple[socket.socket, Buffers]:
    """A non-blocking UDP socket with buffers as large as the kernel grants, DF set."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
    except OSError:
        pass  # another system: fragmentation stays its affair
    buffers = Buffers(
        wanted=buffer_bytes,
        receive=sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        send=sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
    )
    return sock, buffers


def warn_about_buffers(buffers: Buffers) -> None:
    """Once per process: the buffer was clipped, and the exact command that changes it (field
    problem 5)."""
    global _warned_about_buffers
    if not buffers.receive_limited or _warned_about_buffers:
        return
    _warned_about_buffers = True
    log.warning(
        "the kernel granted a UDP receive buffer of %s bytes where %s were wanted; large rounds "
        "will be slower. To change it: sudo sysctl -w net.core.rmem_max=%d",
        f"{buffers.receive // 2:,}",
        f"{buffers.wanted:,}",
        buffers.wanted,
    )


def ip_version(sock: socket.socket) -> int:
    """4 or 6: of the packets of this connected socket; IPv4 may travel on an IPv6 socket."""
    if sock.family != socket.AF_INET6:
        return 4
    return 4 if sock.getpeername()[0].startswith("::ffff:") else 6


def chunk_bytes_for(control: socket.socket, mtu: int) -> int:
    """Payload bytes per datagram beside this connected control socket."""
    return wire.chunk_bytes_for_mtu(mtu, ip_version(control))


def with_port(address: tuple[Any, ...], port: int) -> tuple[Any, ...]:
    """The socket address `address` with another port; keeps the scope of an IPv6 address."""
    return (address[0], port, *address[2:])


def same_host(sock: socket.socket) -> bool:
    """Whether the peer of a connected socket has the socket's own address, or one of loopback."""
    try:
        return is_own_address(sock.getpeername()[0], local=sock.getsockname()[0])
    except OSError:
        return False  # not connected any more


def is_own_address(peer: str, *, local: str | None) -> bool:
    """Whether `peer`, to which packets leave from `local`, is an address of this host."""
    return peer == local or ipaddress.ip_address(peer.partition("%")[0]).is_loopback
