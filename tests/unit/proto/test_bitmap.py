"""Bitmaps and how missing chunks travel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblp import fastpath
from dblp.errors import RemoteProtocolError
from dblp.proto import ReceiveBitmap, decode_ranges
from dblp.proto.bitmap import decode_bits

sets = st.sets(st.integers(0, 2**20 - 1), max_size=200)


def with_missing(count: int, missing: list[int]) -> ReceiveBitmap:
    bitmap = ReceiveBitmap(count)
    for index in set(range(count)) - set(missing):
        assert fastpath.bitmap_set(bitmap.bits, index)
    return bitmap


def decoded(bitmap: ReceiveBitmap, limit: int) -> list[int]:
    found: list[int] = []
    end = 0
    for fragment in bitmap.fragments(limit):
        assert fragment.first == end and len(fragment.data) <= limit
        end = fragment.first + fragment.count
        decode = decode_bits if fragment.encoding == "bits" else decode_ranges
        found += (decode(fragment.data, fragment.count) + fragment.first).tolist()
    assert end == bitmap.count
    return found


@given(sets)
def test_ranges_come_back(chunks: set[int]) -> None:
    missing = np.array(sorted(chunks), np.uint32)
    data = fastpath.encode_runs(missing)
    assert np.array_equal(decode_ranges(data, 2**20), missing)
    assert decode_ranges(data, 2**20).dtype == np.uint32


def test_large_indices() -> None:
    missing = np.array([0, 1, 2**28, 2**32 - 2, 2**32 - 1], np.uint32)
    assert np.array_equal(decode_ranges(fastpath.encode_runs(missing), 2**32), missing)


def test_known_bytes() -> None:
    assert fastpath.encode_runs(np.array([], np.uint32)) == b""
    assert fastpath.encode_runs(np.array([3, 4, 5, 305], np.uint32)) == bytes([3, 3, 0xAB, 0x02, 1])


@given(st.binary(max_size=40), st.integers(0, 5000))
def test_any_bytes_are_decoded_or_refused(data: bytes, count: int) -> None:
    try:
        missing = decode_ranges(data, count)
    except RemoteProtocolError:
        return
    assert missing.size <= count and np.all(np.diff(missing.astype(np.int64)) > 0)
    assert missing.size == 0 or missing[-1] < count


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",  # half a pair
        b"\x01\x80",  # ends within a number
        b"\x01\x00",  # empty run
        b"\x01\x01\x00\x01",  # two runs that touch
        b"\x05\x06",  # 11 chunks of 10
        b"\x00\xff\xff\xff\xff\x0f",  # 2**32 - 1 chunks
        b"\x80\x80\x80\x80\x80\x00\x01",  # six bytes
    ],
)
def test_illegal_ranges(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_ranges(data, 10)


def test_bits_of_the_wrong_size() -> None:
    with pytest.raises(RemoteProtocolError, match="bitmap of 9 chunks"):
        decode_bits(b"\x00", 9)


@settings(max_examples=40)
@given(st.integers(0, 600), st.floats(0, 1), st.integers(0, 99), st.sampled_from([1, 7, 64]))
def test_fragments_cover_everything_once(count: int, share: float, seed: int, limit: int) -> None:
    rng = np.random.default_rng(seed)
    missing = np.flatnonzero(rng.random(count) < share).tolist()
    bitmap = with_missing(count, missing)
    assert bitmap.accepted == count - len(missing)
    assert decoded(bitmap, limit) == missing == bitmap.missing().tolist()


def test_a_sparse_set_is_one_small_fragment() -> None:
    bitmap = with_missing(70_000, [5, 6, 7, 69_999])
    (fragment,) = bitmap.fragments(1000)
    assert fragment.encoding == "ranges" and len(fragment.data) < 10


def test_a_dense_set_is_as_small_as_its_bits() -> None:
    bitmap = with_missing(20_000, list(range(0, 20_000, 2)))
    fragments = bitmap.fragments(1000)
    assert len(fragments) == 3 and all(f.encoding == "bits" for f in fragments)
