"""Checksum, datagrams and bitmaps."""

from __future__ import annotations

import random
from types import ModuleType

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.implementations import both

# RFC 3720, appendix B.4, and the check value of the CRC catalogue.
KNOWN_CHECKSUMS = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


def crc_bit_by_bit(data: bytes) -> int:
    """The definition, independent of both implementations."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# --- CRC-32C ---


@both
@pytest.mark.parametrize(("data", "checksum"), KNOWN_CHECKSUMS)
def test_crc32c_known_values(fastpath: ModuleType, data: bytes, checksum: int) -> None:
    assert fastpath.crc32c(data) == checksum
    assert crc_bit_by_bit(data) == checksum


@both
def test_crc32c_every_length_to_300(fastpath: ModuleType) -> None:
    data = random.Random(1).randbytes(300)
    for length in range(301):
        assert fastpath.crc32c(data[:length]) == crc_bit_by_bit(data[:length]), length


@both
def test_crc32c_lengths_to_5000_continue_one_another(fastpath: ModuleType) -> None:
    rng = random.Random(2)
    data = rng.randbytes(5000)
    so_far = 0
    for length in range(5001):
        assert fastpath.crc32c(data[:length]) == so_far, length
        so_far = fastpath.crc32c(data[length : length + 1], so_far)
    assert so_far == crc_bit_by_bit(data)


@both
def test_crc32c_splits_and_alignments(fastpath: ModuleType) -> None:
    rng = random.Random(3)
    data = bytearray(rng.randbytes(6000))
    for _ in range(300):
        start = rng.randrange(64)
        length = rng.randrange(5001)
        view = memoryview(data)[start : start + length]
        cuts = sorted(rng.randrange(length + 1) for _ in range(rng.randrange(4)))
        value = 0
        for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
            value = fastpath.crc32c(view[begin:end], value)
        assert value == fastpath.crc32c(bytes(view))


@both
def test_crc32c_takes_any_contiguous_buffer(fastpath: ModuleType) -> None:
    array = np.arange(100, dtype=np.float32)
    expected = fastpath.crc32c(array.tobytes())
    for buffer in (array, array.data, bytearray(array.tobytes()), array.reshape(10, 10)):
        assert fastpath.crc32c(buffer) == expected
    with pytest.raises(ValueError, match="contiguous"):
        fastpath.crc32c(array[::2])
    with pytest.raises(ValueError, match="contiguous"):
        fastpath.crc32c("text")


# --- datagrams ---


@both
def test_header_layout_is_that_of_wire(fastpath: ModuleType) -> None:
    payload = b"abcdefgh"
    datagram = fastpath.pack_datagram(
        wire.KIND_DATA, 3, 0x1234, 0x1_2345_6789, 0x89ABCDEF, 0x01020304, 0xCAFEBABE, payload
    )
    *fields, crc = wire.HEADER.unpack_from(datagram)
    assert fields == [0x20, 3, 8, 0x1234, 0x6789, 0x89ABCDEF, 0x01020304, 0xCAFEBABE]
    assert crc == crc_bit_by_bit(datagram[:20] + payload)
    assert datagram[24:] == payload


@both
@pytest.mark.parametrize("length", [0, 1, 7, 8, 1448, 8948, 65483])
def test_pack_and_parse(fastpath: ModuleType, length: int) -> None:
    payload = random.Random(length).randbytes(length)
    datagram = fastpath.pack_datagram(
        15, 255, 65535, 65537, 2**32 - 1, 2**32 - 1, 2**32 - 1, payload
    )
    assert len(datagram) == 24 + length
    parsed = (15, 255, 65535, 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, payload)
    assert fastpath.parse_datagram(datagram) == parsed
    assert fastpath.parse_datagram(bytearray(datagram)) == parsed


@both
def test_pack_refuses_what_does_not_fit(fastpath: ModuleType) -> None:
    fields = {"kind": 0, "flags": 0, "stream": 0, "sequence": 0, "round": 0, "chunk": 0, "tag": 0}
    for name, value in [
        ("kind", 16), ("flags", 256), ("stream", 65536), ("round", 1 << 32), ("chunk", 1 << 32),
        ("tag", 1 << 32),
        ("kind", -1), ("flags", -1), ("stream", -1), ("round", -1), ("chunk", -1), ("tag", -1),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            fastpath.pack_datagram(**{**fields, name: value}, payload=b"")
    with pytest.raises(ValueError, match="payload"):
        fastpath.pack_datagram(**fields, payload=bytes(65536))


@both
def test_parse_refuses_any_flipped_bit(fastpath: ModuleType) -> None:
    datagram = fastpath.pack_datagram(1, 0, 2, 3, 4, 5, 6, b"payload!")
    for bit in range(len(datagram) * 8):
        flipped = bytearray(datagram)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert fastpath.parse_datagram(flipped) is None


@both
def test_parse_refuses_wrong_lengths_and_versions(fastpath: ModuleType) -> None:
    datagram = fastpath.pack_datagram(1, 0, 2, 3, 4, 5, 6, b"payload!")
    for length in range(len(datagram)):
        assert fastpath.parse_datagram(datagram[:length]) is None
    assert fastpath.parse_datagram(datagram + b"x") is None
    other_version = bytearray(datagram)
    other_version[0] = 0x11
    other_version[20:24] = crc_bit_by_bit(bytes(other_version[:20] + other_version[24:])).to_bytes(
        4, "little"
    )
    assert fastpath.parse_datagram(other_version) is None


# --- bitmaps ---


@both
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1000, 2049])
def test_bitmap_functions_agree_with_a_set(fastpath: ModuleType, count: int) -> None:
    rng = random.Random(count)
    bitmap = bytearray((count + 7) // 8)
    members: set[int] = set()
    for _ in range(count):
        index = rng.randrange(count)
        assert fastpath.bitmap_set(bitmap, index) == (index not in members)
        members.add(index)
        assert bitmap[index >> 3] >> (index & 7) & 1
    assert fastpath.bitmap_count(bitmap, count) == len(members)
    missing = sorted(set(range(count)) - members)
    for first in (0, 1, count // 2, count, count + 1):
        found = fastpath.bitmap_missing(bitmap, count, first)
        assert found.dtype == np.uint32
        assert found.tolist() == [index for index in missing if index >= first]


@both
def test_bits_beyond_the_count_do_not_matter(fastpath: ModuleType) -> None:
    bitmap = bytearray(b"\xff" * 20)
    for count in range(161):
        assert fastpath.bitmap_count(bitmap, count) == count
        assert fastpath.bitmap_missing(bitmap, count).size == 0


@both
def test_bitmap_functions_refuse_what_does_not_fit(fastpath: ModuleType) -> None:
    for index in (-1, 16):
        with pytest.raises(ValueError):
            fastpath.bitmap_set(bytearray(2), index)
    for count in (-1, 17):
        with pytest.raises(ValueError):
            fastpath.bitmap_count(bytes(2), count)
        with pytest.raises(ValueError):
            fastpath.bitmap_missing(bytes(2), count)
    with pytest.raises(ValueError):
        fastpath.bitmap_set(bytes(2), 0)


@both
@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 1000, 1024])
def test_zero_missing(fastpath: ModuleType, nbytes: int) -> None:
    chunk_bytes = 64
    count = -(-nbytes // chunk_bytes)
    buffer = bytearray(b"\xaa" * nbytes)
    bitmap = bytearray((count + 7) // 8)
    present = {index for index in range(count) if index % 3 == 1}
    for index in present:
        fastpath.bitmap_set(bitmap, index)
    assert fastpath.zero_missing(buffer, bitmap, count, chunk_bytes) == count - len(present)
    for position, byte in enumerate(buffer):
        assert byte == (0xAA if position // chunk_bytes in present else 0)


@both
def test_zero_missing_refuses_what_does_not_fit(fastpath: ModuleType) -> None:
    for buffer, bitmap, count, chunk_bytes in [
        (bytearray(100), bytes(1), 1, 64),
        (bytearray(100), bytes(1), 3, 64),
        (bytearray(100), bytes(0), 2, 64),
        (bytearray(100), bytes(1), 2, 0),
        (bytes(100), bytes(1), 2, 64),
        (bytearray(0), bytes(1), 1, 64),
    ]:
        with pytest.raises(ValueError):
            fastpath.zero_missing(buffer, bitmap, count, chunk_bytes)


# --- ranges ---


def pairs(*ranges: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(ranges, np.int64).reshape(-1, 2)


@both
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_ranges_are_gathered_and_added_back(fastpath: ModuleType, dtype: str) -> None:
    source = np.arange(10, dtype=dtype)
    ranges = pairs((0, 0), (2, 4), (4, 5), (9, 10))
    out = np.empty(4, dtype)
    fastpath.gather_ranges(source, ranges, out, dtype)
    assert out.tolist() == [2, 3, 4, 9]
    if dtype == "float16":
        with pytest.raises(ValueError, match="float16"):
            fastpath.add_ranges(source, ranges, out, dtype)
        return
    fastpath.add_ranges(source, ranges, out, dtype, 0.5)
    assert source.tolist() == [0, 1, 3, 4.5, 6, 5, 6, 7, 8, 13.5]


@both
@pytest.mark.parametrize(
    ("ranges", "room"),
    [
        (pairs((2, 11)), 9),  # behind the end
        (pairs((-1, 2)), 3),
        (pairs((3, 2)), 0),
        (pairs((2, 5), (4, 6)), 5),  # overlapping
        (pairs((2, 5)), 4),
        (np.zeros(3, np.int64), 0),
    ],
)
def test_ranges_that_do_not_fit_are_refused(
    fastpath: ModuleType, ranges: np.ndarray[tuple[int, int], np.dtype[np.int64]], room: int
) -> None:
    source, out = np.zeros(10, np.float32), np.zeros(room, np.float32)
    with pytest.raises(ValueError):
        fastpath.gather_ranges(source, ranges, out, "float32")
    with pytest.raises(ValueError):
        fastpath.add_ranges(source, ranges, out, "float32")
