"""Channels without a socket, and the datagrams that tests feed them."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np

from dblp import wire

CHUNK_BYTES = 64
DATAGRAM_BYTES = CHUNK_BYTES + 24
TAG_A = 0xAAAA0001
TAG_B = 0xBBBB0002

MS = 1_000_000

PAYLOAD = bytes(range(CHUNK_BYTES))

# Kind and flags.
DATA = (wire.KIND_DATA, 0)
CONTROL = (wire.KIND_CONTROL, 0)
CREDIT = (wire.KIND_CREDIT, 0)
UNTIMED_CREDIT = (wire.KIND_CREDIT, wire.FLAG_CREDIT_UNTIMED)
REQUEST = (wire.KIND_CREDIT, wire.FLAG_CREDIT_REQUEST)


def pair(fastpath: ModuleType, chunk_bytes: int = CHUNK_BYTES) -> tuple[Any, Any]:
    """Two channels that understand each other: (a, b)."""
    a = fastpath.Channel(-1, send_tag=TAG_B, recv_tag=TAG_A, chunk_bytes=chunk_bytes)
    b = fastpath.Channel(-1, send_tag=TAG_A, recv_tag=TAG_B, chunk_bytes=chunk_bytes)
    return a, b


def indices(*chunks: int) -> np.ndarray:
    return np.array(chunks, np.uint32)


def bitmap_for(nbytes: int, chunk_bytes: int = CHUNK_BYTES) -> bytearray:
    return bytearray((-(-nbytes // chunk_bytes) + 7) // 8)


def changed_counters(channel: Any, before: dict[str, int] | None = None) -> dict[str, int]:
    """Counters that are not zero (or not as before), without the ones of plain traffic."""
    plain = {"datagrams_received", "bytes_received", "datagrams_sent", "bytes_sent", "moved"}
    return {
        name: value - (before or {}).get(name, 0)
        for name, value in channel.counters().items()
        if name not in plain and value != (before or {}).get(name, 0)
    }


class Datagrams:
    """Makes the datagrams that a peer with `tag` would send."""

    def __init__(self, fastpath: ModuleType, tag: int) -> None:
        self._pack = fastpath.pack_datagram
        self._tag = tag
        self.sequence = 0

    def data(
        self,
        payload: bytes,
        *,
        chunk: int,
        round: int = 7,
        stream: int = 0,
        sequence: int | None = None,
    ) -> bytes:
        self.sequence = self.sequence + 1 if sequence is None else sequence
        return self._pack(
            wire.KIND_DATA, 0, stream, self.sequence, round, chunk, self._tag, payload
        )

    def credit(self, seen: int, limit: int, held: int = 0) -> bytes:
        """`held`: how long the datagram was with the peer's host, in units of 4,096 ns."""
        return self._pack(
            wire.KIND_CREDIT, 0, held, 0, seen & 0xFFFFFFFF, limit & 0xFFFFFFFF, self._tag, b""
        )

    def request(self, sent: int) -> bytes:
        return self._pack(
            wire.KIND_CREDIT, wire.FLAG_CREDIT_REQUEST, 0, 0, sent & 0xFFFFFFFF, 0, self._tag, b""
        )

    def control(self, payload: bytes) -> bytes:
        return self._pack(wire.KIND_CONTROL, 0, 0, 0, 0, 0, self._tag, payload)

    def of_kind(self, kind: int) -> bytes:
        return self._pack(kind, 0, 0, 0, 0, 0, self._tag, b"")


def opened(
    fastpath: ModuleType, nbytes: int = 10 * CHUNK_BYTES, round: int = 7
) -> tuple[Any, int, bytearray, bytearray, Datagrams]:
    """A channel with one open round: (channel, slot, buffer, bitmap, its peer's datagrams)."""
    channel, _ = pair(fastpath)
    buffer, bitmap = bytearray(nbytes), bitmap_for(nbytes)
    slot = channel.open_receive(0, round, buffer, bitmap)
    return channel, slot, buffer, bitmap, Datagrams(fastpath, TAG_A)


def sender(fastpath: ModuleType, count: int = 10, limit: int = 1000) -> tuple[Any, int, bytes]:
    """A channel with credit and one round to send: (channel, slot, its bytes)."""
    channel, _ = pair(fastpath)
    source = random.Random(count).randbytes(count * CHUNK_BYTES)
    slot = channel.open_transmit(0, 7, source)
    channel.grant(0, limit)
    return channel, slot, source


def chunks_of(fastpath: ModuleType, datagrams: list[bytes]) -> list[int]:
    """Chunk indices of the data among `datagrams`."""
    parsed = [fastpath.parse_datagram(datagram) for datagram in datagrams]
    return [fields[5] for fields in parsed if fields[0] == wire.KIND_DATA]


def kinds_of(fastpath: ModuleType, datagrams: list[bytes]) -> list[tuple[int, int]]:
    """Kind and flags of each."""
    return [fastpath.parse_datagram(datagram)[:2] for datagram in datagrams]
