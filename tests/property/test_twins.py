"""The readable twin is the specification: Hypothesis holds the compiled fast path equal to it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fastpath.implementations import AVAILABLE, twins
from tests.property.channel_machine import OPERATIONS, Machine, outcome

pytestmark = twins

PYTHON = AVAILABLE["python"]
COMPILED = AVAILABLE.get("compiled", PYTHON)

U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from(["float16", "bfloat16", "float32", "float64"])


# --- functions ---


@given(st.binary(max_size=5000), U32, st.integers(0, 64))
def test_crc32c(data: bytes, value: int, start: int) -> None:
    view = memoryview(data)[start:]
    assert COMPILED.crc32c(view, value) == PYTHON.crc32c(view, value)


@given(
    st.tuples(
        st.integers(0, 15),
        st.integers(0, 255),
        U16,
        st.integers(0, 2**63),
        U32,
        U32,
        U32,
        st.binary(max_size=2000),
    )
)
def test_pack_datagram(fields: tuple[Any, ...]) -> None:
    datagram = PYTHON.pack_datagram(*fields)
    assert COMPILED.pack_datagram(*fields) == datagram
    assert COMPILED.parse_datagram(datagram) == PYTHON.parse_datagram(datagram)


@given(
    st.binary(max_size=100),
    st.integers(0, 200),
    st.integers(0, 7),
    st.integers(0, 200),
    st.binary(),
)
def test_parse_datagram(payload: bytes, byte: int, bit: int, length: int, other: bytes) -> None:
    datagram = bytearray(PYTHON.pack_datagram(1, 2, 3, 4, 5, 6, 7, payload))
    if byte < len(datagram):
        datagram[byte] ^= 1 << bit
    for damaged in (bytes(datagram), bytes(datagram[:length]), other):
        assert COMPILED.parse_datagram(damaged) == PYTHON.parse_datagram(damaged)


@given(st.binary(max_size=300), st.integers(-2, 2500), st.integers(-2, 2500))
def test_bitmaps(content: bytes, count: int, index: int) -> None:
    for name, arguments in [("bitmap_count", (count,)), ("bitmap_missing", (count, index))]:
        compiled, python = (getattr(module, name) for module in (COMPILED, PYTHON))
        assert outcome(compiled, content, *arguments) == outcome(python, content, *arguments)
    bitmaps = [bytearray(content), bytearray(content)]
    results = [
        outcome(module.bitmap_set, bitmap, index)
        for module, bitmap in zip((COMPILED, PYTHON), bitmaps, strict=True)
    ]
    assert results[0] == results[1]
    assert bitmaps[0] == bitmaps[1]


@given(st.lists(U32, max_size=60), st.binary(max_size=60), st.integers(-1, 2**33))
def test_runs(chunks: list[int], data: bytes, count: int) -> None:
    for wanted in (chunks, sorted(set(chunks)), sorted({chunk % 100 for chunk in chunks})):
        indices = np.array(wanted, np.uint32)
        encoded = outcome(PYTHON.encode_runs, indices)
        assert outcome(COMPILED.encode_runs, indices) == encoded
        if encoded is not ValueError:
            assert COMPILED.decode_runs(encoded, 2**32).tolist() == wanted
            assert PYTHON.decode_runs(encoded, 2**32).tolist() == wanted
    for most in (min(count, 10**6), 300):  # indices that are allocated
        compiled, python = (outcome(m.decode_runs, data, most) for m in (COMPILED, PYTHON))
        assert compiled == python


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(-10, 45), st.binary(max_size=12))
def test_classes(order: list[int], count: int, classes: bytes) -> None:
    runs = sorted(set(order[:20])) + sorted(set(order[20:]) - set(order[:20]))
    for wanted in (order, runs):
        indices = np.array(wanted, np.uint32)
        packed = outcome(PYTHON.pack_classes, indices, count)
        assert outcome(COMPILED.pack_classes, indices, count) == packed
        for given_ in (packed, classes):
            if given_ is not ValueError:
                python = outcome(PYTHON.order_of_classes, given_, count)
                assert outcome(COMPILED.order_of_classes, given_, count) == python


@given(
    st.integers(0, 3000),
    st.binary(max_size=60),
    st.integers(-1, 200),
    st.sampled_from([0, 8, 16, 64]),
)
def test_zero_missing(nbytes: int, bitmap: bytes, count: int, chunk_bytes: int) -> None:
    buffers = [bytearray(b"\xaa" * nbytes) for _ in range(2)]
    for wanted in (count, -(-nbytes // max(1, chunk_bytes))):
        results = [
            outcome(module.zero_missing, buffer, bitmap, wanted, chunk_bytes)
            for module, buffer in zip((COMPILED, PYTHON), buffers, strict=True)
        ]
        assert results[0] == results[1]
        assert buffers[0] == buffers[1]


@st.composite
def range_pairs(draw: Any) -> np.ndarray[Any, Any]:
    """Mostly ascending."""
    edges = draw(st.lists(st.integers(-1, 130), max_size=12))
    if draw(st.booleans()):
        edges = sorted(max(0, edge) for edge in edges)
    return np.array(edges[: len(edges) // 2 * 2], np.int64).reshape(-1, 2)


@given(
    st.binary(max_size=1040),
    range_pairs(),
    DTYPES,
    st.integers(-1, 1),
    st.sampled_from([1.0, 1024.0, 0.1, float("inf")]),
)
def test_ranges(content: bytes, ranges: Any, dtype: str, more: int, factor: float) -> None:
    itemsize = {"float32": 4, "float64": 8}.get(dtype, 2)
    total = max(0, int((ranges[:, 1] - ranges[:, 0]).sum()))
    packed = [bytearray(max(0, total * itemsize + more)) for _ in range(2)]
    gathered = [
        outcome(module.gather_ranges, content, ranges, out, dtype)
        for module, out in zip((COMPILED, PYTHON), packed, strict=True)
    ]
    assert gathered[0] == gathered[1]
    assert packed[0] == packed[1]
    sums = [bytearray(content[::-1]) for _ in range(2)]
    added = [
        outcome(module.add_ranges, target, ranges, packed[0], dtype, factor)
        for module, target in zip((COMPILED, PYTHON), sums, strict=True)
    ]
    assert added[0] == added[1]
    if dtype in ("float32", "float64"):  # a NaN may have any bits
        whole = len(content) // itemsize * itemsize
        np.testing.assert_array_equal(*(np.frombuffer(item[:whole], dtype) for item in sums))


SAMPLES = st.none() | st.tuples(st.sampled_from([0, 128, 384]), st.sampled_from([0, 128, 512]))
CHUNKS = st.none() | st.lists(st.integers(0, 4), max_size=4)


@given(st.binary(max_size=2000), DTYPES, st.sampled_from([0, 4, 8, 64, 1448]), SAMPLES, CHUNKS)
def test_norms(
    content: bytes,
    dtype: str,
    chunk_bytes: int,
    sample: tuple[int, int] | None,
    chunks: list[int] | None,
) -> None:
    norms = [outcome(module.squared_norm, content, dtype) for module in (COMPILED, PYTHON)]
    if ValueError in norms:
        assert norms[0] == norms[1]
    else:
        np.testing.assert_allclose(norms[0], norms[1], rtol=1e-12)
    energies = [
        outcome(module.chunk_energy, content, dtype, chunk_bytes, chunks=chunks, sample=sample)
        for module in (COMPILED, PYTHON)
    ]
    if ValueError in energies:
        assert energies[0] == energies[1]
    else:
        assert energies[0][1] == energies[1][1] == np.float32
        np.testing.assert_allclose(energies[0][0], energies[1][0], rtol=1e-6)


def without_nan_payloads(content: bytes, dtype: str) -> bytes:
    """Which NaN comes out of a sum of two is up to the processor; that one comes out is not."""
    if dtype == "bfloat16":
        stored = np.frombuffer(content, np.uint16).copy()
        stored[np.isnan((stored.astype(np.uint32) << 16).view(np.float32))] = 0x7FC0
        return stored.tobytes()
    values = np.frombuffer(content, dtype).copy()
    values[np.isnan(values)] = np.nan
    return values.tobytes()


@given(
    st.integers(1, 8),
    st.integers(0, 60),
    DTYPES,
    st.booleans(),
    st.sampled_from([8, 16, 64]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_reducers(
    world: int,
    elements: int,
    dtype: str,
    contributors: bool,
    chunk_bytes: int,
    seed: int,
    any_bits: bool,
) -> None:
    rng = np.random.default_rng(seed)
    itemsize = {"float32": 4, "float64": 8}.get(dtype, 2)
    if any_bits or dtype == "bfloat16":
        sources = [rng.bytes(elements * itemsize) for _ in range(world)]
    else:
        sources = [rng.standard_normal(elements).astype(dtype).tobytes() for _ in range(world)]
    count = -(-elements * itemsize // chunk_bytes)
    delivered = rng.random((world, count)) < 0.7
    arrivals = [(rank, chunk) for rank in range(world) for chunk in np.flatnonzero(delivered[rank])]
    rng.shuffle(arrivals)
    bitmaps = [np.packbits(row, bitorder="little").tobytes() for row in delivered]
    ahead = rng.permutation(count)[: count // 2].astype(np.uint32)
    results = []
    for module in (COMPILED, PYTHON):
        out = bytearray(elements * itemsize)
        reducer = module.Reducer(out, sources, chunk_bytes, dtype, contributors)
        for rank, chunk in arrivals:
            reducer.arrive(int(rank), np.array([chunk], np.uint32))
        early = reducer.ready
        reducer.finish(bitmaps, ahead)
        order = reducer.ready_indices()[: reducer.ready].tolist()
        results.append((early, order, without_nan_payloads(bytes(out), dtype)))
    assert results[0] == results[1]


# --- channels ---


STEPS = st.tuples(
    st.sampled_from([*OPERATIONS, "collect", "ingest", "queue", "grant"]), U16, U16, U16
)


def compare(script: list[tuple[str, int, int, int]]) -> None:
    compiled, python = Machine(COMPILED), Machine(PYTHON)
    for number, step in enumerate(script):
        results = [machine.run(step) for machine in (compiled, python)]
        assert results[0] == results[1], (number, step)
        states = [machine.state() for machine in (compiled, python)]
        assert states[0] == states[1], (number, step)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_any_script_gives_the_same_datagrams_bytes_and_counters(
    script: list[tuple[str, int, int, int]],
) -> None:
    compare(script)


@pytest.mark.parametrize("seed", range(8))
def test_long_scripts_with_traffic(seed: int) -> None:
    """Seeded: slots open on both sides first, then mostly traffic."""
    rng = random.Random(seed)
    script: list[tuple[str, int, int, int]] = []
    for stream in range(3):
        for side in range(2):
            number = 6 * rng.randrange(100) + side + 2 * ((stream - side) * 2 % 3)
            script.append(("open_transmit", number, 4 + seed % 2, 1))
            script.append(("open_receive", number, 4 + seed % 2, 1 + 5 * rng.randrange(3)))
    traffic = [*OPERATIONS, *["collect", "ingest", "queue", "grant"] * 12]
    for _ in range(400):
        script.append((rng.choice(traffic), *(rng.getrandbits(16) for _ in range(3))))
    compare(script)
