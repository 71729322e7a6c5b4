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
from dblp.proto.order import BLOCKS_WANTED, rotation_step
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


def large_order(values: np.ndarray, round_id: int, *, seed: int = 0) -> np.ndarray:
    """Of a gradient that is ranked by a sample, at 40 % and MTU 1500."""
    layout = ChunkLayout(values.nbytes, 1448)
    expected = Tolerance.of("40%")
    order = send_order(
        "magnitude", layout, round_id=round_id, seed=seed,
        buffer=values.reshape(-1), dtype="float32", expected=expected,
    )  # fmt: skip
    assert np.array_equal(np.sort(order), np.arange(layout.count))
    return order[: expected.needed(layout.count)]


def test_a_sample_finds_the_strong_rows_of_an_embedding() -> None:
    """A tenth of the rows has a gradient, as in a batch of words."""
    rng = np.random.default_rng(3)
    values = np.zeros((8000, 768), np.float32)
    rows = rng.permutation(8000)[:800]
    values[rows] = rng.standard_normal((800, 768), np.float32)
    sent = np.zeros(values.size, bool)
    for chunk in large_order(values, 0):
        sent[chunk * 362 : chunk * 362 + 362] = True
    energy = values.reshape(-1).astype(np.float64) ** 2
    assert energy[sent].sum() > 0.97 * energy.sum()


def test_what_is_strong_in_one_place_only_has_its_turn() -> None:
    """Samples move from round to round: what one misses another one finds."""
    values = np.ones((16 * 800, 362), np.float32)
    values[160:176] = 1e-3
    values[161, 40:60] = 30
    found = sum(161 in large_order(values, round_id) for round_id in range(24))
    assert found >= 3


def test_ranks_agree_whatever_their_seeds_and_the_last_chunks_have_their_turn() -> None:
    values = np.ones(33_000 * 362 - 100, np.float32)
    kept = np.zeros(33_000, int)
    for round_id in range(40):
        order = large_order(values, round_id)
        assert np.array_equal(order, large_order(values, round_id, seed=round_id + 2**70))
        kept[order] += 1
    assert kept.min() >= 0.4 * 40 and kept.max() <= 0.8 * 40


def test_levels_of_what_is_huge_or_broken() -> None:
    values = np.full((20, 16), 4e18, np.float32)  # the sum of its squares is near the largest float
    values[3] = 8e18
    values[5] = np.nan
    values[7] = 0
    order = send_order(
        "magnitude", ChunkLayout(values.nbytes, 64), round_id=0, seed=0,
        buffer=values.ravel(), dtype="float32", expected=Tolerance.of("10%"),
    )  # fmt: skip
    assert {3, 5} <= set(order[:9].tolist()) and 7 in order[18:]


def test_an_unknown_order() -> None:
    with pytest.raises(LocalProtocolError, match="zigzag"):
        order_of("zigzag", 3)
