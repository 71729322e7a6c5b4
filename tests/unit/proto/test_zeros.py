"""Chunks that are named as zeros, and not sent."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dblp import fastpath as chosen_fastpath
from dblp.config import TransportConfig
from dblp.deadline import Deadline
from dblp.errors import RemoteProtocolError
from dblp.proto import Receiver, Sender, ZeroChunks
from dblp.proto.bitmap import decode_fragment
from dblp.proto.zeros import zero_frames
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import KIND_CONTROL, Stop, Zeros, decode_frame, encode_frame

from .pair import CHUNK_BYTES, Model, Pair, Side

CHUNKS = 300


def mean_with_zeros(share: float, count: int = CHUNKS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A buffer, its chunks that are zero, and those that are not."""
    rng = np.random.default_rng(0)
    is_zero = rng.random(count) < share
    data = rng.standard_normal(count * CHUNK_BYTES // 4).astype(np.float32)
    data[np.repeat(is_zero, CHUNK_BYTES // 4)] = 0
    zeros, carry = (np.flatnonzero(which).astype(np.uint32) for which in (is_zero, ~is_zero))
    return data, zeros, carry


def drop_zeros(side: Side, datagram: bytes) -> bool:
    return datagram[0] & 15 == KIND_CONTROL and b"zeros" in datagram


def exchange(
    pair: Pair,
    share: float,
    *,
    tolerance: Tolerance = EXACT,
    early: bool = False,
    round_id: int = 1,
    count: int = CHUNKS,
) -> tuple[Sender, Receiver, np.ndarray, np.ndarray]:
    """One round in which zeros are named; `early`: before anything else is."""
    data, zeros, carry = mean_with_zeros(share, count)
    out = np.full_like(data, 77)
    receiver = pair.arm(out, tolerance=tolerance, round_id=round_id)
    sender = pair.send(data, order=carry, round_id=round_id)
    if not early:
        pair.turn()
    sender.tell_zeros(ZeroChunks(zeros, count, 0, round_id))
    pair.run(lambda: sender.is_over and receiver.report is not None)
    return sender, receiver, data, out


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 1.0])
@pytest.mark.parametrize("early", [True, False])
def test_an_exact_round_sends_what_carries_something(
    fastpath: ModuleType, share: float, early: bool
) -> None:
    pair = Pair(fastpath)
    sender, receiver, data, out = exchange(pair, share, early=early)
    assert np.array_equal(data, out)
    carried = CHUNKS - len(mean_with_zeros(share)[1])
    assert receiver.report.missing == 0 and receiver.report.datagrams == carried
    assert sender.report.datagrams == carried and sender.report.missing == 0


@pytest.mark.parametrize("seed", range(5))
def test_lost_and_repeated_names_of_zeros_do_no_harm(fastpath: ModuleType, seed: int) -> None:
    pair = Pair(fastpath, model=Model(loss=0.3, reorder=0.3, duplicate=0.3), seed=seed)
    sender, _, data, out = exchange(pair, 0.4)
    assert np.array_equal(data, out) and not sender.fallback


def test_zeros_whose_names_are_lost_are_named_again(fastpath: ModuleType) -> None:
    """As a datagram at first, then by both ways, as the answer to a bitmap."""
    pair = Pair(fastpath, model=Model(drop=drop_zeros))
    sender, _, data, out = exchange(pair, 0.4)
    assert np.array_equal(data, out)
    assert len(pair.a.frames(Zeros)) >= 2 and not sender.fallback
    assert sender.report.retransmitted == 0


def test_zeros_are_named_on_tcp_where_everything_is(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, config=TransportConfig(control="tcp"))
    _, _, data, out = exchange(pair, 0.4)
    assert np.array_equal(data, out)
    pair = Pair(fastpath, model=Model(loss=1.0))
    sender, _, data, out = exchange(pair, 0.4)
    assert np.array_equal(data, out) and sender.fallback


def test_a_lossy_round_gets_as_many_chunks_as_without_zeros(fastpath: ModuleType) -> None:
    tolerance = Tolerance.of("40.8%")
    needed = tolerance.needed(CHUNKS)
    for share in (0.1, 0.7):
        _, receiver, data, out = exchange(Pair(fastpath), share, tolerance=tolerance, early=True)
        carried = CHUNKS - len(mean_with_zeros(share)[1])
        assert receiver.report.datagrams >= min(needed, carried)
        assert receiver.report.missing <= tolerance.missing_max(CHUNKS)
        here = np.repeat(~np.isin(np.arange(CHUNKS), receiver.bitmap.missing()), CHUNK_BYTES // 4)
        assert np.array_equal(out, np.where(here, data, np.float32(0)))


@pytest.mark.parametrize("stop", ["eager", "patient"])
def test_a_lossy_round_with_zeros_may_lose_what_carries_something(
    fastpath: ModuleType, stop: str
) -> None:
    """Where all ranks leave out the same chunks nothing but what is needed is sent."""
    tolerance = Tolerance.of("40.8%")
    pair = Pair(fastpath, config=TransportConfig(stop=stop), model=Model(loss=0.05), seed=3)
    missing = 0
    for round_id in range(1, 20):
        sender, receiver, _, _ = exchange(pair, 0.408, tolerance=tolerance, round_id=round_id)
        carried = CHUNKS - len(mean_with_zeros(0.408)[1])
        assert sender.report.passes == 1
        assert receiver.report.datagrams >= tolerance.needed(carried)
        assert not receiver.report.at_deadline
        missing += receiver.report.missing
    assert missing > 0


@pytest.mark.parametrize(("stop", "delay_s"), [("patient", 1e-3), ("eager", 4e-3)])
def test_chunks_that_a_probe_overtook_are_waited_for(
    fastpath: ModuleType, stop: str, delay_s: float
) -> None:
    """Nothing is lost, but TCP is faster, or chunks come for longer than a receiver waits."""
    model = Model(delay_s=delay_s, reliable_delay_s=50e-6)
    pair = Pair(fastpath, config=TransportConfig(stop=stop), model=model)
    tolerance = Tolerance.of("40.8%")
    _, receiver, data, out = exchange(pair, 0.45, tolerance=tolerance, early=True, count=2000)
    assert receiver.report.missing == 0 and np.array_equal(out, data)


@pytest.mark.parametrize("stop", ["eager", "patient"])
def test_over_tcp_a_part_of_the_pass_is_not_enough(fastpath: ModuleType, stop: str) -> None:
    pair = Pair(fastpath, config=TransportConfig(stop=stop))
    for side in (pair.a, pair.b):
        side.session.block_datagrams()
    tolerance = Tolerance.of("40.8%")
    _, receiver, data, out = exchange(pair, 0.45, tolerance=tolerance, count=20_000)
    assert receiver.report.missing == 0 and np.array_equal(out, data)


def test_zeros_may_come_before_the_announcement(fastpath: ModuleType) -> None:
    data, zeros, carry = mean_with_zeros(0.4)
    pair = Pair(fastpath)
    receiver = pair.arm(out := np.full_like(data, 77), tolerance=EXACT)
    for frame in ZeroChunks(zeros, CHUNKS, 0, 1).frames(1000):
        pair.b.session.on_frame(frame, now=pair.now)
    assert receiver.accepted == len(zeros) and not receiver.is_over
    sender = pair.send(data, order=carry)
    pair.run(lambda: sender.is_over and receiver.report is not None)
    assert np.array_equal(out, data)


def test_unknown_zeros_are_no_burst(fastpath: ModuleType) -> None:
    """A deadline takes a pass that lost much for one; what names the zeros is lost, no more."""
    deadline = Deadline(factor=1.5, floor="99%")
    pair = Pair(fastpath, config=TransportConfig(deadline=deadline))
    pair.a.session.trust_datagrams()  # names them in datagrams alone
    fields = {"tolerance": Tolerance.of("1%"), "count": 4000}
    for round_id in range(1, 7):
        exchange(pair, 0.4, round_id=round_id, **fields)
    pair.model.drop = drop_zeros
    sender, receiver, data, out = exchange(pair, 0.4, round_id=7, **fields)
    assert np.array_equal(out, data) and sender.epoch > 0
    assert not receiver.report.at_deadline and receiver.report.missing == 0
    assert pair.a.session._link.first_pass.chunks(Tolerance.of("1%"), 100) == 99  # nothing lost


def test_zeros_that_came_too_late_are_no_losses(fastpath: ModuleType) -> None:
    """The deadline is over before what names them comes; the STOP names them as missing."""
    config = TransportConfig(deadline=Deadline(seconds=6e-4))
    pair = Pair(fastpath, config=config, model=Model(drop=drop_zeros))
    _, receiver, data, out = exchange(pair, 0.5, tolerance=Tolerance.of("1%"))
    assert receiver.report.at_deadline
    assert np.array_equal(out, data)
    assert pair.a.session._link.first_pass.chunks(Tolerance.of("1%"), 100) == 99


@pytest.mark.parametrize(
    ("known", "named", "learnt"),
    [
        (True, True, 0.5),  # 50 of 150 came: a burst, of which no more than half is learnt
        (False, True, 0.5),
        (True, False, 0.0),  # too many to be named: how many zeros are among them is not known
    ],
)
def test_a_stop_at_a_deadline_tells_what_came_beside_the_zeros(
    known: bool, named: bool, learnt: float
) -> None:
    pair = Pair(chosen_fastpath, window=CHUNKS)
    data = np.ones(CHUNKS * CHUNK_BYTES // 4, np.float32)
    zeros, carry = np.arange(150, dtype=np.uint32), np.arange(150, CHUNKS, dtype=np.uint32)
    sender = pair.send(data, order=carry, expected_tolerance=Tolerance.of("1%"))
    sender.tell_zeros(ZeroChunks(zeros, CHUNKS, 0, 1))
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    assert sender.timer is not None
    pair.a.session.on_timeout(now=sender.timer)
    accepted = 50 + 150 * known
    missing = bytes([0xC8, 0x01, 100]) if known else bytes([0, 0x96, 0x01, 50, 100])
    stop = Stop(0, 1, accepted, CHUNKS, True, missing if named else None)
    pair.a.session.on_frame(stop, now=2.0)
    assert sender.is_over and pair.a.session.error is None
    first_pass, taught = pair.a.session._link.first_pass, Pair(chosen_fastpath).a.session._link
    taught.first_pass.learn(learnt)
    wanted = taught.first_pass.chunks(Tolerance.of("40.8%"), 1000)
    assert first_pass.chunks(Tolerance.of("40.8%"), 1000) == wanted


def test_at_the_deadline_the_floor_counts_what_carries_something(fastpath: ModuleType) -> None:
    config = TransportConfig(deadline=Deadline(floor="50%", seconds=1e-6))
    pair = Pair(fastpath, config=config, model=Model(loss=0.7))
    data, zeros, carry = mean_with_zeros(0.6)
    receiver = pair.arm(np.full_like(data, 77), tolerance=Tolerance.of("1%"))
    sender = pair.send(data, order=carry)
    sender.tell_zeros(ZeroChunks(zeros, CHUNKS, 0, 1))
    pair.run(lambda: sender.is_over and receiver.report is not None)
    assert receiver.report.at_deadline
    came = receiver.accepted - len(zeros)
    assert came >= Tolerance.of("50%").needed(len(carry))
    assert receiver.report.datagrams == came < len(carry)


def test_a_chunk_that_is_there_is_not_overwritten(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    data, _, _ = mean_with_zeros(0.0)
    out = np.full_like(data, 77)
    receiver = pair.arm(out, tolerance=EXACT)
    pair.send(data)
    pair.run(lambda: receiver.accepted > 0)
    for frame in zero_frames(np.arange(CHUNKS, dtype=np.uint32), CHUNKS, 1000, 0, 1):
        pair.b.session.on_frame(frame, now=pair.now)
    assert receiver.is_over and receiver.report is None
    pair.run(lambda: receiver.report is not None)
    blocks = out.reshape(CHUNKS, -1)
    came = receiver.report.datagrams
    assert 0 < came < CHUNKS
    assert [bool(block.any()) for block in blocks].count(True) == came


@pytest.mark.parametrize("share", [0.001, 0.5, 1.0])
@pytest.mark.parametrize("limit", [64, 1000])
def test_frames_name_all_of_them(share: float, limit: int) -> None:
    count = 20_000
    rng = np.random.default_rng(5)
    zeros = np.flatnonzero(rng.random(count) < share).astype(np.uint32)
    told = ZeroChunks(zeros, count, 3, 7)
    frames = told.frames(limit)
    assert frames is told.frames(limit) and len(told) == zeros.size
    assert all(decode_frame(encode_frame(frame)) == frame for frame in frames)
    assert all(len(frame.data) <= limit for frame in frames)
    assert all((frame.stream, frame.round) == (3, 7) for frame in frames)
    named = np.concatenate([decode_fragment(frame, count) for frame in frames])
    assert np.array_equal(named, zeros)
    asked = np.arange(0, count, 3, dtype=np.uint32)
    again = [decode_fragment(frame, count) for frame in told.frames_among(asked, limit)]
    assert np.array_equal(np.concatenate([*again, zeros[:0]]), np.intersect1d(asked, zeros))
    assert told.unknown_to(asked) == np.isin(asked, zeros).sum()


def test_no_zeros_need_no_frame() -> None:
    assert ZeroChunks(np.empty(0, np.uint32), 100, 0, 1).frames(1000) == []


@pytest.mark.parametrize(
    "frame",
    [
        Zeros(0, 1, 0, CHUNKS + 1, "bits", b"\x00" * 38),
        Zeros(0, 1, -1, 2, "bits", b"\x00"),
        Zeros(0, 1, 0, CHUNKS, "bits", b"\x00"),
        Zeros(0, 1, 0, 8, "ranges", b"\x00\x09"),
    ],
)
def test_a_frame_that_names_what_is_not_there_ends_the_session(frame: Zeros) -> None:
    pair = Pair(chosen_fastpath)
    pair.arm(mean_with_zeros(0.0)[0])
    pair.b.session.on_frame(frame, now=1.0)
    assert isinstance(pair.b.session.error, RemoteProtocolError)


def test_late_frames_are_counted() -> None:
    pair = Pair(chosen_fastpath)
    frame = Zeros(0, 1, 0, 8, "bits", b"\x00")
    pair.b.session.on_frame(frame, now=1.0)
    assert pair.b.session.late_frames == 1
    pair.exchange(mean_with_zeros(0.0)[0])
    pair.b.session.on_frame(frame, now=pair.now)
    assert pair.b.session.error is None
