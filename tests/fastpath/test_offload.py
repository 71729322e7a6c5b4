"""Segmentation and receive offload: whether there are any, and when they fail."""

from __future__ import annotations

import random
import socket
import time
from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.channels import MS, bitmap_for
from tests.fastpath.implementations import both
from tests.fastpath.sockets import channels_on, send_batch, udp_pair

CHUNK_BYTES = 1448

SO_NO_CHECK = 11
"""Linux: send datagrams without a checksum."""


@both
def test_probe_offload(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        works = fastpath.probe_offload(sockets[0].fileno())
        assert [type(each) for each in works] == [bool, bool]
        # Probing changes nothing: two datagrams are still two.
        send_batch(sockets[1], [b"12345678"] * 2) if works[0] else sockets[1].send(b"12345678")
        sockets[0].setblocking(True)
        assert sockets[0].recv(100) == b"12345678"


@both
def test_field_07_segmentation_offload_that_fails_stays_off(fastpath: ModuleType) -> None:
    """It works when it is tried first, and later the kernel says EINVAL: what was to go in a batch
    goes one by one, and so does all that follows."""
    nbytes = 300_000
    count = -(-nbytes // CHUNK_BYTES)
    source = random.Random(2).randbytes(nbytes)
    with udp_pair() as sockets:
        if not fastpath.probe_offload(sockets[0].fileno())[0]:
            pytest.skip("no segmentation offload here")
        # Linux segments no datagrams without a checksum.
        sockets[0].setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        a, b = channels_on(fastpath, sockets, CHUNK_BYTES, gso=True, gro=True)
        b.window = 16
        a.grant(0, 16)
        buffer, bitmap = bytearray(nbytes), bitmap_for(nbytes, CHUNK_BYTES)
        receiving = b.open_receive(0, 7, buffer, bitmap)
        sending = a.open_transmit(0, 7, source)
        a.queue(sending, np.arange(count, dtype=np.uint32))
        deadline = time.monotonic() + 10
        while b.accepted(receiving) < count:  # a dozen batches, as the window is that small
            for channel in (a, b):
                fastpath.pump([channel], [], budget_ns=20 * MS, linger_ns=5 * MS)
                channel.take_events()
            assert time.monotonic() < deadline, (a.counters(), b.counters())
        assert bytes(buffer) == source
        assert a.counters()["gso_fallbacks"] == 1
