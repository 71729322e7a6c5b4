"""In which order the chunks of a pass are sent (hazard 1).

An early stop drops whatever comes last.  In index order that is always the same tail of the
tensor, 40.8 % of it in every non-critical round, without any loss on the network.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .. import fastpath
from ..errors import LocalProtocolError
from ..tolerance import Tolerance
from .bitmap import Indices
from .layout import Bytes, ChunkLayout

__all__ = ["as_given", "energy_of", "rotation_step", "send_order", "subset_mask"]

_GOLDEN = (math.sqrt(5) - 1) / 2

BLOCKS_WANTED = 2048
"""Energies are told apart this finely at least: a small round by chunk, a large one by block."""

BLOCK_CHUNKS_MAX = 16
"""23 KB: as much as it takes for memory to be read at full speed."""

SAMPLED_BYTES_MIN = 4 << 20
"""From this size on a pass over a gradient takes time that a round feels: a part of it must do."""

SAMPLED_CHUNK_BYTES_MIN = 8192
"""2,048 float32.  The energy of 256 of them, if independent and normal, differs from that of all by
9 % (the square root of 2 / 256)."""

PIECE = 128
"""Bytes that a sample reads at a time: two cache lines."""

SAMPLE_STRIDE = 8 * PIECE
"""From one piece to the next: an eighth is read.  Pieces that lie close miss no row of an embedding
from 256 float32 on."""

RUNS_WANTED = 64
"""What is equally strong is sent or left out in about so many pieces, spread over the gradient.
With more of them all sides take longer: whatever names chunks names runs of them."""

LEVELS_PER_OCTAVE = 2
"""Levels of energy: within 19 % of the middle of one, two standard deviations of a sample."""

LEVEL_MAX = 2000
"""More than the range of float32; zero and infinity end there."""


def send_order(
    kind: str,
    layout: ChunkLayout,
    *,
    round_id: int,
    seed: int,
    buffer: Bytes,
    dtype: str,
    expected: Tolerance | None = None,
) -> Indices:
    """A permutation of the chunk indices, uint32.

    Args:
        kind: "sequential" (paper, Algorithm 1 line 4), "rotate" (index order from a start that
            moves every round), "random" (a fresh permutation every round) or "magnitude"
            (chunks of the largest energy first).
        layout: the chunks.
        round_id: of the round, modulo 2**32.
        seed: of "rotate" and "random"; give every stream its own.
        buffer: contiguous, `layout.nbytes` bytes; read by "magnitude" only.
        dtype: element type of the buffer; "magnitude" needs a float.
        expected: tolerance with which the round will end, where that is known: "magnitude" then
            sends in classes, see `_by_class`; else in descending order, equal ones by index.

    Raises LocalProtocolError for an unknown kind.
    """
    count = layout.count
    if kind == "sequential" or count <= 1:
        return np.arange(count, dtype=np.uint32)
    if kind == "rotate":
        start = (seed + round_id * rotation_step(count)) % count
        order = np.arange(start, start + count, dtype=np.int64)
        order[count - start :] -= count
        return order.astype(np.uint32)
    if kind == "random":
        generator = np.random.Generator(np.random.PCG64([seed, round_id]))
        return generator.permutation(count).astype(np.uint32)
    if kind == "magnitude":
        if expected is None:
            return _descending(energy_of(buffer, dtype, layout.chunk_bytes, turn=round_id))
        # Chunks of a block stay together in large rounds: memory is read forwards, at full speed.
        block = min(BLOCK_CHUNKS_MAX, max(1, count // BLOCKS_WANTED))
        energy = energy_of(buffer, dtype, block * layout.chunk_bytes, turn=round_id)
        return _by_class(energy, block, count, expected.needed(count), turn=round_id)
    raise LocalProtocolError(
        f"there is no send order {kind!r}: choose sequential, rotate, random or magnitude"
    )


def as_given(order: Indices, exact: bool) -> Indices:
    """`order`, whether or not the receiver wants every chunk."""
    return order


def subset_mask(order: Indices, count: int) -> npt.NDArray[np.bool_] | None:
    """By chunk, whether `order` sends it; None: it sends all `count`."""
    if len(order) >= count:
        return None
    mask = np.zeros(count, np.bool_)
    mask[order] = True
    return mask


def rotation_step(count: int) -> int:
    """Chunks by which "rotate" moves its start from round to round.

    Coprime to `count`, so that every chunk is first, second … last equally often, and near the
    golden section, so that already a few rounds spread evenly.
    """
    wanted = max(1, round(count * _GOLDEN))
    distance = 0
    while True:
        for step in (wanted - distance, wanted + distance):
            if step >= 1 and math.gcd(step, count) == 1:
                return step
        distance += 1


def energy_of(
    buffer: Bytes, dtype: str, chunk_bytes: int, *, turn: int, chunks: Indices | None = None
) -> npt.NDArray[np.float32]:
    """What chunks are ranked by: their sums of squares, of large ones by a sample.

    The last chunk counts as if it were as long as the others: how many chunks arrive is what is
    bounded, and a short one would be the weakest of equals for ever.

    Args:
        buffer: contiguous floats.
        dtype: their type.
        chunk_bytes: a multiple of 8.
        turn: changes with every round, and with it what a sample reads.
        chunks: indices of those that are asked for; None: all.
    """
    nbytes = memoryview(buffer).nbytes
    sample = None
    if nbytes >= SAMPLED_BYTES_MIN and chunk_bytes >= SAMPLED_CHUNK_BYTES_MIN:
        sample = (turn * PIECE % SAMPLE_STRIDE, SAMPLE_STRIDE)
    energy = fastpath.chunk_energy(buffer, dtype, chunk_bytes, chunks=chunks, sample=sample)
    short = nbytes % chunk_bytes
    with np.errstate(over="ignore"):
        if sample is not None:
            energy *= SAMPLE_STRIDE // PIECE
        if short:
            last = np.array([nbytes // chunk_bytes], np.uint32)
            whole = fastpath.chunk_energy(buffer, dtype, chunk_bytes, chunks=last)
            where = slice(-1, None) if chunks is None else chunks == last
            energy[where] = whole * np.float32(chunk_bytes / short)
    energy[np.isnan(energy)] = np.inf  # a broken chunk is worth telling
    return energy


def _by_class(energy: np.ndarray, block: int, count: int, needed: int, *, turn: int) -> Indices:
    """The stronger half of the needed chunks, the other half, the rest; by index within each.

    An early stop drops what a full sort by level would drop, and what a burst leaves by a deadline
    is mostly of the stronger half.  But neighbours stay together: sender, receiver and reduction
    read memory forwards.

    Energies count by level.  Those of a level differ by no more than their estimates do, and
    `turn` decides among them, which is the same for all ranks whatever their seeds: they drop the
    same chunks of what is equally strong, and the others are complete everywhere.

    Args:
        energy: of each block of `block` chunks.
        count: number of chunks.
        needed: how many of them the receiver waits for.
        turn: changes with every round, so that all of a level have their turn.
    """
    blocks = len(energy)
    runs = -(-blocks // max(1, blocks // RUNS_WANTED))
    run = np.arange(blocks) // max(1, blocks // RUNS_WANTED)
    by_turn = np.argsort((run + turn % runs) * rotation_step(runs) % runs, kind="stable")
    strongest = by_turn[np.argsort(-_levels(energy)[by_turn], kind="stable")]
    rank = np.empty(blocks, np.int64)
    rank[strongest] = np.arange(blocks)
    edges = [needed // (2 * block), needed // block]
    if needed % block:  # one block is cut, another one every round: it comes last of the needed
        edges.append(edges[1] + 1)
    classes = np.repeat(np.digitize(rank, edges).astype(np.uint8), block)[:count]
    return np.argsort(classes, kind="stable").astype(np.uint32)


def _levels(energy: np.ndarray) -> npt.NDArray[np.int16]:
    """Steps of the square root of 2 around the median, so that a gradient that is equally strong
    everywhere has one level in spite of the noise of its chunks."""
    exact = energy.astype(np.float64)
    usual = _middle(exact)
    if not 0 < usual < math.inf:  # over half are zero, say: then what there is is told by itself
        there = exact[(exact > 0) & (exact < np.inf)]
        usual = _middle(there) if there.size else 1.0
    with np.errstate(divide="ignore"):
        steps = np.rint(LEVELS_PER_OCTAVE * np.log2(exact / usual))
    levels: npt.NDArray[np.int16] = np.clip(steps, -LEVEL_MAX, LEVEL_MAX).astype(np.int16)
    return levels


def _middle(values: npt.NDArray[np.float64]) -> float:
    """The larger median.  `np.median` imports another module first, 10 ms in the first round."""
    half = len(values) // 2
    return float(np.partition(values, half)[half])


def _descending(energy: np.ndarray) -> Indices:
    """Indices by descending energy."""
    # Bits of non-negative floats sort like the floats.  Two stable passes over 16 bits each are a
    # radix sort, several times faster than a stable argsort of floats; ties stay in index order.
    descending = ~energy.view(np.uint32)
    order = np.argsort(descending.astype(np.uint16), kind="stable")
    high = (descending >> np.uint32(16)).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")].astype(np.uint32)
