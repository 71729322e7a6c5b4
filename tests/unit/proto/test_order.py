"""Send orders, and hazard 1: which chunks an early stop drops."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp.errors import LocalProtocolError
from dblp.proto import ChunkLayout, send_order
from dblp.proto.order import BLOCKS_WANTED, energy_of, rotation_step
from dblp.tolerance import Tolerance

ROUNDS = 200
P = Tolerance.of("40.8%")


def order_of(kind: str, count: int, *, round_id: int = 0, seed: int = 0) -> np.ndarray:
    buffer = np.ones(count * 16, np.float32)
    layout = ChunkLayout(buffer.nbytes, 64)
    assert layout.count == count
    return send_order(kind, layout, round_id=round_id, seed=seed, buffer=buffer, dtype="float32")


@given(
    st.sampled_from(["sequential", "rotate", "random", "magnitude"]),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_every_order_is_a_permutation(kind: str, count: int, round_id: int, seed: int) -> None:
    order = order_of(kind, count, round_id=round_id, seed=seed)
    assert order.dtype == np.uint32
    assert np.array_equal(np.sort(order), np.arange(count))


@pytest.mark.parametrize("kind", ["rotate", "random"])
@pytest.mark.parametrize("count", [7, 100, 625, 2000])
def test_every_chunk_has_the_same_delivery_rate(kind: str, count: int) -> None:
    """Hazard 1: 200 rounds that stop early at p = 40.8 %."""
    needed = P.needed(count)
    delivered = np.zeros(count)
    for round_id in range(ROUNDS):
        delivered[order_of(kind, count, round_id=round_id)[:needed]] += 1
    rate = needed / count
    noise = math.sqrt(rate * (1 - rate) / ROUNDS)
    assert np.abs(delivered / ROUNDS - rate).max() < 4.5 * noise


def test_sequential_always_drops_the_same_tail() -> None:
    """The hazard itself, so that the test above is known to see it."""
    orders = [order_of("sequential", 100, round_id=r)[: P.needed(100)] for r in range(3)]
    assert all(np.array_equal(order, np.arange(60)) for order in orders)


@given(st.integers(1, 100_000))
def test_the_step_is_coprime(count: int) -> None:
    assert math.gcd(rotation_step(count), count) == 1


def test_rotation_survives_the_wrap_of_round_ids() -> None:
    starts = {int(order_of("rotate", 97, round_id=r)[0]) for r in (2**32 - 2, 2**32 - 1, 0, 1)}
    assert len(starts) >= 3


def test_magnitude_is_descending_and_ties_go_by_index() -> None:
    values = np.zeros((6, 16), np.float32)
    values[[1, 4]] = 5
    values[2] = 7
    values[3] = np.nan
    order = send_order(
        "magnitude", ChunkLayout(values.nbytes, 64), round_id=0, seed=0,
        buffer=values.ravel(), dtype="float32",
    )  # fmt: skip
    assert order.tolist() == [3, 2, 1, 4, 0, 5]


@given(st.lists(st.floats(0, 1e6, width=32), max_size=60), st.integers(0, 99))
def test_magnitude_with_a_known_bound_sends_the_strongest_chunks_in_two_classes(
    sizes: list[float], percent: int
) -> None:
    values = np.repeat(np.array(sizes, np.float32)[:, None], 16, axis=1)
    expected = Tolerance.of(f"{percent}%")
    needed = expected.needed(len(sizes))
    order = send_order(
        "magnitude", ChunkLayout(values.nbytes, 64), round_id=0, seed=0,
        buffer=values.ravel(), dtype="float32", expected=expected,
    )  # fmt: skip
    assert np.array_equal(np.sort(order), np.arange(len(sizes)))
    energy = (values.astype(np.float64) ** 2).sum(axis=1).astype(np.float32)
    classes = np.split(order, [needed // 2, needed])
    for stronger, weaker in pairwise(classes):
        if len(stronger) and len(weaker):
            assert energy[stronger].min() * 1.42 >= energy[weaker].max()  # levels: root of 2
    for chunks in classes:
        assert np.array_equal(chunks, np.sort(chunks))


def test_ranks_drop_the_same_of_what_is_equally_strong_and_each_chunk_has_its_turn() -> None:
    count, width = 400, 362
    layout = ChunkLayout(count * width * 4, width * 4)
    expected = Tolerance.of("40%")
    needed = expected.needed(count)
    kept = np.zeros(count)
    for round_id in range(50):
        sets = []
        for rank in range(3):
            rng = np.random.default_rng([round_id, rank])
            values = rng.standard_normal((count, width), np.float32)
            values[:20] *= 3  # always among the strongest
            order = send_order(
                "magnitude", layout, round_id=round_id, seed=5,
                buffer=values.ravel(), dtype="float32", expected=expected,
            )  # fmt: skip
            sets.append(set(order[:needed].tolist()))
            kept[order[:needed]] += 1
        assert len(sets[0] & sets[1] & sets[2]) > 0.9 * needed
    assert (kept[:20] == 150).all()
    share = kept[20:] / 150
    assert share.min() > 0.45 and share.max() < 0.7  # all but the strongest: 220 of 380


def test_a_large_round_is_ranked_by_block() -> None:
    count = 4 * BLOCKS_WANTED
    values = np.zeros((count, 16), np.float32)
    values[6] = 1  # of block 1
    values[-1] = 2  # of the last one
    expected = Tolerance.of(Fraction(count - 8, count))
    order = send_order(
        "magnitude", ChunkLayout(values.nbytes, 64), round_id=0, seed=0,
        buffer=values.ravel(), dtype="float32", expected=expected,
    )  # fmt: skip
    assert np.array_equal(np.sort(order), np.arange(count))
    first = order[: expected.needed(count)]
    assert {4, 5, 6, 7} <= set(first.tolist())


def test_a_gradient_of_megabytes_is_ranked_by_a_sample() -> None:
    """Blocks that differ by more than the sample's error come in the order of their energy."""
    rng = np.random.default_rng(3)
    chunk_bytes = 1448
    count = 2 * BLOCKS_WANTED
    blocks = -(-count // 16)
    layout = ChunkLayout(16 * blocks * chunk_bytes, chunk_bytes)
    values = rng.standard_normal((blocks, layout.nbytes // blocks // 4), np.float32)
    strong = rng.permutation(blocks)[: blocks // 2]
    values[strong] *= 1.5
    read = energy_of(memoryview(values.ravel()).cast("B"), "float32", 16 * chunk_bytes)
    assert set(np.argsort(-read)[: len(strong)].tolist()) == set(strong.tolist())
    assert read[strong].mean() < (values[strong].astype(np.float64) ** 2).sum(axis=1).mean() / 6
    chunks = np.array([7, 5], np.uint32)
    some = energy_of(memoryview(values.ravel()).cast("B"), "float32", 16 * chunk_bytes, chunks)
    assert np.array_equal(some, read[chunks])
    values[5, 0] = np.nan
    some = energy_of(memoryview(values.ravel()).cast("B"), "float32", 16 * chunk_bytes, chunks)
    assert some[1] == np.inf


def test_an_unknown_order() -> None:
    with pytest.raises(LocalProtocolError, match="zigzag"):
        order_of("zigzag", 3)
