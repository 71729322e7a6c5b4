"""Checksums, datagrams and bitmaps of the readable fast path: pure functions over bytes."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from .wire import HEADER, HEADER_BYTES, PROTOCOL_VERSION

Buffer: TypeAlias = Any
"""Any object with a contiguous buffer (`collections.abc.Buffer` from Python 3.12 on)."""

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

MAX_PAYLOAD_BYTES = 65_536 - HEADER_BYTES
"""What the receive buffers hold; a little more than UDP can carry."""

CRC_OFFSET = 20
"""Bytes of the header before the CRC; the CRC covers them and the payload."""

_CRC_POLYNOMIAL = 0x82F63B78
_CRC_BLOCK_BYTES = 2048
_CRC_BYTEWISE_BYTES = 48


def byte_view(buffer: Buffer, name: str, *, writable: bool = False) -> Bytes:
    """`buffer` (any contiguous buffer) as a uint8 array that shares and pins its memory."""
    try:
        view = memoryview(buffer)
    except TypeError as error:
        kind = type(buffer).__name__
        raise ValueError(f"{name} is a {kind}: pass a contiguous buffer") from error
    if writable and view.readonly:
        raise ValueError(f"{name} is read-only: pass a writable buffer")
    if not view.c_contiguous:
        raise ValueError(f"{name} is not contiguous: pass a contiguous buffer")
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def chunk_count(nbytes: int, chunk_bytes: int) -> int:
    """Chunks in a buffer of `nbytes`; the last may be shorter."""
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes is {chunk_bytes}: it must be positive")
    return -(-nbytes // chunk_bytes)


# --- CRC-32C -------------------------------------------------------------------------------------


@cache
def _crc_table() -> list[int]:
    """Remainder of every byte value, for the byte-by-byte loop."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_CRC_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return table


@cache
def _crc_position_table() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What a byte contributes when so many bytes follow it, and the row offsets, far end first.

    A CRC is linear: it is the XOR of the contributions of its bytes.  One table look-up per byte
    and one XOR over all of them need no Python loop.
    """
    one_byte = np.array(_crc_table(), np.uint32)
    rows = np.empty((_CRC_BLOCK_BYTES, 256), np.uint32)
    rows[0] = one_byte
    for following in range(1, _CRC_BLOCK_BYTES):
        previous = rows[following - 1]
        rows[following] = (previous >> 8) ^ one_byte[previous & 0xFF]
    return rows.ravel(), np.arange(_CRC_BLOCK_BYTES - 1, -1, -1, dtype=np.intp) * 256


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of any contiguous buffer, continuing from `value`."""
    remaining = byte_view(data, "data")
    crc = value ^ 0xFFFFFFFF
    while remaining.size > _CRC_BYTEWISE_BYTES:
        block = remaining[:_CRC_BLOCK_BYTES]
        remaining = remaining[_CRC_BLOCK_BYTES:]
        contributions, offsets = _crc_position_table()
        index = offsets[-block.size :] + block
        # The register so far acts like four more bits of data: XORed onto the first four bytes.
        index[:4] = offsets[-block.size :][:4] + (block[:4] ^ _register_bytes(crc))
        crc = int(np.bitwise_xor.reduce(contributions.take(index)))
    table = _crc_table()
    for byte in remaining.tobytes():
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _register_bytes(crc: int) -> Bytes:
    return np.frombuffer(crc.to_bytes(4, "little"), np.uint8)


def crc32c_backend() -> str:
    """'vpclmulqdq', 'sse4.2', 'armv8' or 'portable' (the twin: 'python')."""
    return "python"


# --- datagrams -----------------------------------------------------------------------------------


def pack_header(
    kind: int,
    flags: int,
    stream: int,
    sequence: int,
    round: int,
    chunk: int,
    tag: int,
    payload: Buffer,
) -> bytes:
    """The 24 header bytes that go before `payload`; `sequence` is cut to 16 bits."""
    for name, value, bits in (
        ("kind", kind, 4),
        ("flags", flags, 8),
        ("stream", stream, 16),
        ("round", round, 32),
        ("chunk", chunk, 32),
        ("tag", tag, 32),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} is {value}: it must fit in {bits} bits")
    length = memoryview(payload).nbytes
    if length > MAX_PAYLOAD_BYTES:
        raise ValueError(f"the payload has {length} bytes; at most {MAX_PAYLOAD_BYTES} fit")
    first_byte = PROTOCOL_VERSION << 4 | kind
    fields = (first_byte, flags, length, stream, sequence & 0xFFFF, round, chunk, tag)
    unchecked = HEADER.pack(*fields, 0)
    crc = crc32c(payload, crc32c(unchecked[:CRC_OFFSET]))
    return HEADER.pack(*fields, crc)


def pack_datagram(
    kind: int,
    flags: int,
    stream: int,
    sequence: int,
    round: int,
    chunk: int,
    tag: int,
    payload: Buffer,
) -> bytes:
    """One whole datagram with valid length and CRC (tests, injector, HELLO)."""
    return pack_header(kind, flags, stream, sequence, round, chunk, tag, payload) + bytes(payload)


def parse_datagram(data: Buffer) -> tuple[int, int, int, int, int, int, int, bytes] | None:
    """(kind, flags, stream, sequence & 0xffff, round, chunk, tag, payload), or None when version,
    length or CRC is wrong."""
    datagram = bytes(data)
    if len(datagram) < HEADER_BYTES:
        return None
    first_byte, flags, length, stream, sequence, round, chunk, tag, crc = HEADER.unpack_from(
        datagram
    )
    if first_byte >> 4 != PROTOCOL_VERSION or length != len(datagram) - HEADER_BYTES:
        return None
    if crc != datagram_crc(datagram):
        return None
    payload = datagram[HEADER_BYTES:]
    return first_byte & 0x0F, flags, stream, sequence, round, chunk, tag, payload


def datagram_crc(datagram: bytes | memoryview) -> int:
    """The CRC that the header of `datagram` should carry."""
    view = memoryview(datagram)
    return crc32c(view[HEADER_BYTES:], crc32c(view[:CRC_OFFSET]))


# --- bitmaps -------------------------------------------------------------------------------------


def bitmap_set(bitmap: Buffer, index: int) -> bool:
    """Sets bit `index` (LSB first); True if it was clear."""
    view = byte_view(bitmap, "bitmap", writable=True)
    if not 0 <= index < view.size * 8:
        raise ValueError(f"bit {index} is not in a bitmap of {view.size * 8} bits")
    mask = 1 << (index & 7)
    was_clear = not int(view[index >> 3]) & mask
    view[index >> 3] |= mask
    return was_clear


def bitmap_bits(bitmap: Buffer, count: int) -> Bytes:
    """The first `count` bits as a uint8 array of zeros and ones."""
    view = byte_view(bitmap, "bitmap")
    if not 0 <= count <= view.size * 8:
        raise ValueError(f"{count} bits are not in a bitmap of {view.size * 8} bits")
    return np.unpackbits(view, bitorder="little", count=count)


def bitmap_count(bitmap: Buffer, count: int) -> int:
    """Number of set bits among the first `count`."""
    return int(np.count_nonzero(bitmap_bits(bitmap, count)))


def bitmap_missing(
    bitmap: Buffer, count: int, first: int = 0
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """uint32 indices in first … count-1 whose bit is clear, ascending."""
    first = max(first, 0)
    clear = np.flatnonzero(bitmap_bits(bitmap, count)[first:] == 0)
    return (clear + first).astype(np.uint32)


def zero_missing(buffer: Buffer, bitmap: Buffer, count: int, chunk_bytes: int) -> int:
    """Zeroes every chunk of `buffer` whose bit is clear; returns how many."""
    view = byte_view(buffer, "buffer", writable=True)
    if count != chunk_count(view.size, chunk_bytes):
        raise ValueError(
            f"{count} chunks of {chunk_bytes} bytes do not make a buffer of {view.size} bytes"
        )
    missing = bitmap_missing(bitmap, count)
    for index in missing.tolist():
        view[index * chunk_bytes : (index + 1) * chunk_bytes] = 0
    return len(missing)
