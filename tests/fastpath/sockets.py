"""Connected UDP socket pairs on loopback, a channel on each, and raw batches with GSO."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.fastpath.channels import TAG_A, TAG_B

SOL_UDP = 17
UDP_SEGMENT = 103

Sockets = tuple[socket.socket, socket.socket]


@contextmanager
def udp_pair(family: int = socket.AF_INET, receive_buffer: int | None = None) -> Iterator[Sockets]:
    """Two UDP sockets connected to each other."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with (
        socket.socket(family, socket.SOCK_DGRAM) as a,
        socket.socket(family, socket.SOCK_DGRAM) as b,
    ):
        for each in (a, b):
            each.setblocking(False)
            if receive_buffer is not None:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            each.bind((host, 0))
        a.connect(b.getsockname())
        b.connect(a.getsockname())
        yield a, b


def channels_on(
    fastpath: ModuleType, sockets: Sockets, chunk_bytes: int, **options: bool
) -> tuple[Any, Any]:
    a, b = sockets
    return (
        fastpath.Channel(
            a.fileno(), send_tag=TAG_B, recv_tag=TAG_A, chunk_bytes=chunk_bytes, **options
        ),
        fastpath.Channel(
            b.fileno(), send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=chunk_bytes, **options
        ),
    )


def send_batch(peer: socket.socket, datagrams: list[bytes]) -> None:
    """One GSO message of one size, the last may be shorter.  It arrives as one (GRO)."""
    segment = struct.pack("=H", len(datagrams[0]))
    peer.sendmsg(datagrams, [(SOL_UDP, UDP_SEGMENT, segment)] if len(datagrams) > 1 else [])


def settle(fastpath: ModuleType, channel: Any, expected_datagrams: int, limit_s: float = 5) -> None:
    """Pumps until so many datagrams have been received."""
    deadline = time.monotonic() + limit_s
    while channel.counters()["datagrams_received"] < expected_datagrams:
        channel.take_events()
        fastpath.pump([channel], [], budget_ns=50_000_000, linger_ns=1_000_000)
        assert time.monotonic() < deadline, channel.counters()
