"""A whole round through a channel without a socket: what the protocol costs beside the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench.micro.conftest import gradient
from dblp import wire

CHUNK_BYTES = wire.chunk_bytes_for_mtu(1500)
HERE, THERE = 0xAAAA0001, 0xBBBB0002
SIZES = {"full": (200_000, 20_000_000), "smoke": (20_000,)}


def datagrams_of(fastpath: Any, buffer: np.ndarray) -> list[bytes]:
    """Every chunk of round 7, stream 0, as the peer would send it."""
    data = buffer.tobytes()
    return [
        fastpath.pack_datagram(
            wire.KIND_DATA, 0, 0, index + 1, 7, index, HERE, data[at : at + CHUNK_BYTES]
        )
        for index, at in enumerate(range(0, len(data), CHUNK_BYTES))
    ]


@pytest.mark.sizes(**SIZES)
def test_ingest(repeat: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    """Check, find the place, copy, set the bit."""
    buffer = np.zeros(nbytes, np.uint8)
    datagrams = datagrams_of(fastpath, gradient(nbytes))
    moves(nbytes)

    def setup() -> tuple[tuple[Any, int], dict[str, Any]]:
        channel = fastpath.Channel(-1, send_tag=THERE, recv_tag=HERE, chunk_bytes=CHUNK_BYTES)
        bitmap = bytearray((len(datagrams) + 7) // 8)
        return (channel, channel.open_receive(0, 7, buffer, bitmap)), {}

    def ingest(channel: Any, slot: int) -> int:
        channel.ingest(datagrams, 0)
        return int(channel.accepted(slot))

    assert repeat(ingest, setup, 50) == len(datagrams)


@pytest.mark.sizes(**SIZES)
def test_collect(repeat: Any, moves: Any, fastpath: Any, nbytes: int) -> None:
    """Queue all chunks, header and checksum of each, copied into `bytes`."""
    buffer = gradient(nbytes)
    order = np.arange(-(-buffer.nbytes // CHUNK_BYTES), dtype=np.uint32)
    moves(nbytes)

    def setup() -> tuple[tuple[Any, int], dict[str, Any]]:
        channel = fastpath.Channel(-1, send_tag=THERE, recv_tag=HERE, chunk_bytes=CHUNK_BYTES)
        channel.grant(0, len(order))
        return (channel, channel.open_transmit(0, 7, buffer)), {}

    def collect(channel: Any, slot: int) -> int:
        channel.queue(slot, order)
        return len(channel.collect(len(order), 0))

    assert repeat(collect, setup, 50) == len(order)
