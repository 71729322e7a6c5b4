"""A socket that takes no more: sending goes on when it does, whoever waits for that."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np

from tests.fastpath.channels import MS, TAG_A, TAG_B
from tests.fastpath.implementations import both
from tests.fastpath.sockets import Sockets


@both
def test_a_full_socket_is_looked_at_again(fastpath: ModuleType) -> None:
    """An event loop that only waits for what arrives would wait for ever."""
    with closing_pair(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)) as (here, there):
        channel = fastpath.Channel(here.fileno(), send_tag=TAG_B, recv_tag=TAG_A, chunk_bytes=64)
        channel.grant(0, 10_000)
        slot = channel.open_transmit(0, 7, bytes(64 * 5000))
        channel.queue(slot, np.arange(5000, dtype=np.uint32))
        for _ in range(1000):
            if channel.send_pending(0) == 0 and channel.sent_sequence:
                break
        before = channel.sent_sequence
        assert 0 < before < 5000 and channel.blocked()
        assert channel.next_deadline_ns(7 * MS) == 8 * MS
        while receive_now(there):
            pass
        fastpath.pump([channel], [], budget_ns=20 * MS, linger_ns=MS)
        assert channel.sent_sequence > before
        channel.cancel(slot)


@contextmanager
def closing_pair(pair: Sockets) -> Iterator[Sockets]:
    with pair[0], pair[1]:
        for each in pair:
            each.setblocking(False)
        yield pair


def receive_now(sock: socket.socket) -> bytes:
    try:
        return sock.recv(2048)
    except BlockingIOError:
        return b""
