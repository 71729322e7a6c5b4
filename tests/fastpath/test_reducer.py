"""The mean over workers, against numpy and torch, byte for byte."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.fastpath.gradients import (
    ITEM_BYTES,
    bfloat16_to_float32,
    every_dtype,
    float32_to_bfloat16,
    random_gradients,
    wide,
)
from tests.fastpath.implementations import both


def rank_order_mean(sources: list[np.ndarray], dtype: str, divisor: int) -> bytes:
    total = wide(sources[0], dtype).copy()
    for source in sources[1:]:
        total += wide(source, dtype)
    total /= total.dtype.type(divisor)
    return (float32_to_bfloat16(total) if dtype == "bfloat16" else total.astype(dtype)).tobytes()


# --- the mean ---


@both
@every_dtype
@pytest.mark.parametrize("world", range(1, 9))
def test_mean_is_the_rank_order_mean(fastpath: ModuleType, dtype: str, world: int) -> None:
    rng = np.random.default_rng(world)
    sources = [random_gradients(rng, dtype, 1003) for _ in range(world)]
    out = np.empty_like(sources[0])
    reducer = fastpath.Reducer(out, sources, 1448, dtype)
    for rank in range(world):
        reducer.arrive(rank, rng.permutation(reducer.count).astype(np.uint32))
    assert reducer.ready == reducer.count == -(-out.nbytes // 1448)
    assert out.tobytes() == rank_order_mean(sources, dtype, world)


@both
@every_dtype
@pytest.mark.parametrize("contributors", [False, True])
@pytest.mark.parametrize("world", range(1, 9))
def test_missing_chunks(fastpath: ModuleType, dtype: str, contributors: bool, world: int) -> None:
    rng = np.random.default_rng(world)
    width = 64 // ITEM_BYTES[dtype]
    sources = [random_gradients(rng, dtype, 10 * width + 3) for _ in range(world)]
    out = random_gradients(rng, dtype, 10 * width + 3)
    reducer = fastpath.Reducer(out, sources, 64, dtype, contributors)
    delivered = rng.random((world, 11)) < 0.6
    delivered[:, 10] = True
    delivered[:, 0] = False
    bitmaps = []
    for rank in range(world):
        chunks = np.flatnonzero(delivered[rank]).astype(np.uint32)
        reducer.arrive(rank, chunks)
        bitmaps.append(np.packbits(delivered[rank], bitorder="little").tobytes())
    complete = np.flatnonzero(delivered.all(axis=0))
    assert sorted(reducer.ready_indices()[: reducer.ready]) == complete.tolist()
    zeros = reducer.finish(bitmaps)
    assert zeros.dtype == np.uint32
    assert zeros.tolist() == np.flatnonzero(~delivered.any(axis=0)).tolist()
    assert reducer.ready == reducer.limit == 11 - len(zeros)
    assert reducer.ready_indices()[len(complete) : reducer.ready].tolist() == [
        chunk for chunk in range(11) if chunk not in complete and chunk not in zeros
    ]
    for chunk in range(11):
        span = slice(chunk * width, (chunk + 1) * width)
        present = [sources[rank][span] for rank in range(world) if delivered[rank, chunk]]
        expected = bytes(out[span].nbytes)
        if present:
            expected = rank_order_mean(present, dtype, len(present) if contributors else world)
        assert out[span].tobytes() == expected


@both
def test_chunks_become_ready_when_the_last_source_delivers(fastpath: ModuleType) -> None:
    sources = [np.full(24, rank, np.float32) for rank in range(3)]
    out = np.full(24, -1, np.float32)
    reducer = fastpath.Reducer(out, sources, 32, "float32")
    reducer.arrive(2, np.array([2, 0], np.uint32))
    reducer.arrive(0, np.array([0, 1, 2], np.uint32))
    assert reducer.ready == 0
    assert (out == -1).all()
    reducer.arrive(1, np.array([2], np.uint32))
    assert reducer.ready_indices()[: reducer.ready].tolist() == [2]
    assert out.tolist() == [-1] * 16 + [1] * 8
    reducer.arrive(1, np.array([1, 0], np.uint32))
    assert reducer.ready_indices()[: reducer.ready].tolist() == [2, 0]
    reducer.arrive(2, np.array([1], np.uint32))
    assert reducer.ready_indices()[: reducer.ready].tolist() == [2, 0, 1]
    reducer.finish([b"\0"] * 3)
    assert out.tolist() == [1] * 24


@both
def test_every_float16_survives_a_mean_of_one(fastpath: ModuleType) -> None:
    """All 65,536 bit patterns; a NaN may change its payload but stays a NaN."""
    stored = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty_like(stored)
    fastpath.Reducer(out, [stored], 1 << 17, "float16").finish([b"\1"])
    is_nan = np.isnan(stored.view(np.float16))
    assert (out[~is_nan] == stored[~is_nan]).all()
    assert np.isnan(out.view(np.float16)[is_nan]).all()
    fastpath.Reducer(out, [stored], 1 << 17, "bfloat16").finish([b"\1"])
    is_nan = np.isnan(bfloat16_to_float32(stored))
    assert (out[~is_nan] == stored[~is_nan]).all()
    assert (out[is_nan] == (stored[is_nan] & 0x8000 | 0x7FC0)).all()


@both
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_to_nearest_even(fastpath: ModuleType, dtype: str) -> None:
    """Means of two neighbours lie half way: the even one wins."""
    # From 2**127 on the float32 sum of two bfloat16 overflows.
    last = 0x7BFF if dtype == "float16" else 0x7F00
    low = np.arange(last, dtype=np.uint16)
    out = np.empty_like(low)
    fastpath.Reducer(out, [low, low + np.uint16(1)], 1 << 17, dtype).finish([b"\1"] * 2)
    assert (out == low + (low & 1)).all()


@both
def test_overflow_rounds_to_infinity(fastpath: ModuleType) -> None:
    largest = np.full(4, 0x7BFF, np.uint16)
    infinity = np.full(4, 0x7C00, np.uint16)
    out = np.empty_like(largest)
    fastpath.Reducer(out, [largest, infinity], 8, "float16").finish([b"\1"] * 2)
    assert (out == infinity).all()
    sum_overflows = np.full(4, 0x7F7F, np.uint16)
    fastpath.Reducer(out, [sum_overflows] * 2, 8, "bfloat16").finish([b"\1"] * 2)
    assert (out == 0x7F80).all()


@both
def test_a_late_chunk_after_finish_changes_nothing(fastpath: ModuleType) -> None:
    """A datagram may still arrive for a slot that is not closed yet."""
    source, out = np.zeros(2, np.float32), np.zeros(2, np.float32)
    reducer = fastpath.Reducer(out, [source], 8, "float32")
    channel = fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=8)
    slot = channel.open_receive(0, 0, source, bytearray(1), reducer=reducer)
    assert reducer.finish([b"\0"]).tolist() == [0]
    assert channel.deliver(slot, 0, np.ones(2, np.float32))
    assert reducer.finish([b"\1"]).tolist() == []
    assert (reducer.ready, reducer.limit, reducer.count) == (0, 0, 1)
    assert (out == 0).all()


@both
@every_dtype
def test_empty_buffers(fastpath: ModuleType, dtype: str) -> None:
    reducer = fastpath.Reducer(bytearray(), [b"", b""], 64, dtype)
    assert (reducer.count, reducer.ready) == (0, 0)
    reducer.finish([b"", b""])
    assert reducer.ready == 0


@both
def test_reducer_refuses_misuse(fastpath: ModuleType) -> None:
    out = bytearray(64)
    for arguments in [
        (bytes(64), [bytes(64)], 64, "float32"),
        (out, [], 64, "float32"),
        (out, [bytes(60)], 64, "float32"),
        (out, [bytes(64)], 0, "float32"),
        (out, [bytes(64)], 12, "float32"),
        (out, [bytes(64)], 64, "int8"),
        (bytearray(63), [bytes(63)], 64, "float32"),
    ]:
        with pytest.raises(ValueError):
            fastpath.Reducer(*arguments)
    reducer = fastpath.Reducer(out, [bytes(64), bytes(64)], 64, "float32")
    for source in (-1, 2):
        with pytest.raises(ValueError):
            reducer.arrive(source, np.array([0], np.uint32))
    with pytest.raises(ValueError):
        reducer.arrive(0, np.array([1], np.uint32))
    with pytest.raises(ValueError):
        reducer.finish([b"\1"])
    with pytest.raises(ValueError):
        reducer.finish([b"\1", b""])
    reducer.finish([b"\1", b"\1"])
    with pytest.raises(ValueError):
        reducer.arrive(0, np.array([0], np.uint32))


# --- a source that comes late, whole, and is replaced by the mean


@both
@every_dtype
@pytest.mark.parametrize("world", [2, 3, 4, 7])
@pytest.mark.parametrize("late", ["first", "middle", "last"])
def test_the_mean_replaces_a_source_that_comes_late(
    fastpath: ModuleType, dtype: str, world: int, late: str
) -> None:
    """In any place of the order of the ranks, before and after the chunks of the others."""
    rng = np.random.default_rng(world)
    sources = [random_gradients(rng, dtype, 3001) for _ in range(world)]
    expected = rank_order_mean(sources, dtype, world)
    local = {"first": 0, "middle": world // 2, "last": world - 1}[late]
    own = sources[local].copy()
    others = [None if rank == local else source for rank, source in enumerate(sources)]
    reducer = fastpath.Reducer(None, others, 64, dtype)
    half = np.arange(reducer.count // 2, dtype=np.uint32)
    rest = np.arange(reducer.count // 2, reducer.count, dtype=np.uint32)
    for rank in range(world):
        if rank != local:
            reducer.arrive(rank, half)
    assert reducer.ready == 0
    reducer.provide(local, own)
    assert reducer.ready == half.size
    for rank in range(world):
        if rank != local:
            reducer.arrive(rank, rest)
    assert reducer.ready == reducer.count
    assert own.tobytes() == expected


@both
def test_a_provided_source_counts_where_others_are_missing(fastpath: ModuleType) -> None:
    own = np.full(48, 6, np.float32)
    reducer = fastpath.Reducer(None, [own * 0 + 2, None], 64, "float32")
    reducer.provide(1, own)
    reducer.finish([np.array([0b101], np.uint8), None])
    assert own.tolist() == [4.0] * 16 + [3.0] * 16 + [4.0] * 16


@both
def test_misuse_of_late_sources(fastpath: ModuleType) -> None:
    buffer = np.zeros(16, np.float32)
    with pytest.raises(ValueError):
        fastpath.Reducer(None, [None, None], 64, "float32")
    reducer = fastpath.Reducer(None, [buffer, None], 64, "float32")
    with pytest.raises(ValueError):
        reducer.finish([np.zeros(1, np.uint8), None])
    for source, wrong in ((0, buffer), (2, buffer), (1, buffer[:8]), (1, bytes(64))):
        with pytest.raises(ValueError):
            reducer.provide(source, wrong)
    reducer.provide(1, np.zeros(16, np.float32))
    with pytest.raises(ValueError):
        reducer.provide(1, np.zeros(16, np.float32))


# --- only the first chunks that are complete count


@both
@pytest.mark.parametrize("before", [0, 3, 6])
def test_chunks_above_the_limit_become_zero(fastpath: ModuleType, before: int) -> None:
    """`before` chunks are ready when the limit comes; it is 4 of 10."""
    sources = [np.full(160, rank + 1, np.float32) for rank in range(2)]
    out = np.full(160, 9, np.float32)
    reducer = fastpath.Reducer(out, sources, 64, "float32")
    arriving = np.array([7, 2, 9, 0, 5, 4, 8], np.uint32)
    for source in range(2):
        reducer.arrive(source, arriving[:before])
    assert reducer.ready == before
    reducer.set_limit(4)
    for source in range(2):
        reducer.arrive(source, arriving[before:])
    assert (reducer.ready, reducer.limit, reducer.count) == (4, 4, 10)
    reducer.finish([np.full(2, 255, np.uint8)] * 2)
    assert reducer.ready_indices()[:4].tolist() == [7, 2, 9, 0]
    expected = np.zeros((10, 16), np.float32)
    expected[[7, 2, 9, 0]] = 1.5
    assert out.tobytes() == expected.tobytes()


@both
def test_finish_fills_up_to_the_limit(fastpath: ModuleType) -> None:
    sources = [np.full(64, rank + 1, np.float32) for rank in range(2)]
    out = np.full(64, 9, np.float32)
    reducer = fastpath.Reducer(out, sources, 64, "float32")
    reducer.set_limit(2)
    for source in range(2):
        reducer.arrive(source, [3])
    reducer.finish([np.array([0b1011], np.uint8), np.array([0b1000], np.uint8)])
    assert reducer.ready == 2
    assert out.reshape(4, 16)[:, 0].tolist() == [0.5, 0.0, 0.0, 1.5]
    for wrong in (-1, 3):
        with pytest.raises(ValueError):
            reducer.set_limit(wrong)


@both
def test_finish_takes_some_chunks_first(fastpath: ModuleType) -> None:
    sources = [np.full(80, rank + 1, np.float32) for rank in range(2)]
    out = np.full(80, 9, np.float32)
    reducer = fastpath.Reducer(out, sources, 64, "float32")
    reducer.set_limit(3)
    for source in range(2):
        reducer.arrive(source, [1])
    bitmaps = [np.array([0b11111], np.uint8), np.array([0b00010], np.uint8)]
    with pytest.raises(ValueError):
        reducer.finish(bitmaps, [5])
    assert reducer.ready == 1
    reducer.finish(bitmaps, np.array([4, 1], np.uint32))
    assert reducer.ready_indices()[:3].tolist() == [1, 4, 0]
    assert out.reshape(5, 16)[:, 0].tolist() == [0.5, 1.5, 0.0, 0.0, 0.5]
