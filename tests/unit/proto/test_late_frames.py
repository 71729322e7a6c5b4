"""Late, duplicate, early and illegal control frames."""

from __future__ import annotations

import random
from dataclasses import replace
from types import ModuleType

import msgspec
import numpy as np
import pytest

from dblp import fastpath
from dblp.errors import LocalProtocolError, RemoteProtocolError
from dblp.proto import Path, RoundOffered
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import Bitmap, ChunkData, Frame, Heartbeat, Hello, Open, Probe, Ready, Stop

from .pair import CHUNK_BYTES, Model, Pair, numbers

P = Tolerance.of("40.8%")
CHUNKS = 40
DATA = numbers(CHUNKS * CHUNK_BYTES)


def an_open(**changes: object) -> Open:
    plain = Open(0, 1, DATA.nbytes, CHUNK_BYTES, "float32", False, 1.0, None, False, None)
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize("seed", range(20))
def test_replaying_every_frame_at_any_time_changes_nothing(seed: int) -> None:
    """Every control frame of the last rounds comes again, and again, at random moments."""
    pair = Pair(fastpath, model=Model(loss=0.1, reorder=0.3, duplicate=0.2), seed=seed)
    rng = random.Random(seed)
    data = numbers(200 * CHUNK_BYTES, seed)
    for round_id in range(6):
        tolerance = P if round_id % 2 else EXACT
        out = np.full_like(data, 77)
        receiver = pair.arm(out, tolerance=tolerance, round_id=round_id)
        sender = pair.send(data, round_id=round_id, wait_ready=round_id == 0)
        for side in (pair.a, pair.b):
            for frame, _ in side.sent_frames[-40:]:
                if rng.random() < 0.5:
                    pair.push(side, frame, pair.now + rng.random() * 0.003)
        pair.run(lambda s=sender, r=receiver: s.is_over and r.report is not None)
        assert pair.a.session.error is None and pair.b.session.error is None
        assert receiver.accepted >= tolerance.needed(200)
    pair.settle(0.2)
    assert len(pair.b.finished(RoundOffered)) == 6
    assert pair.a.session.next_timeout() is None and pair.b.session.next_timeout() is None
    assert not pair.a.session.busy and not pair.b.session.busy


def test_a_late_probe_gets_the_same_stop_again() -> None:
    pair = Pair(fastpath)
    sender, receiver, _ = pair.exchange(DATA)
    pair.settle()
    probe = Probe(sender.plan.open, 9, 40)
    paths = []
    for _ in range(3):
        pair.b.session.on_frame(probe, now=pair.now)
        ((stop, path),) = pair.b.session.take_frames()
        assert stop == receiver.stop
        paths.append(path)
    assert paths[-1] is Path.BOTH
    pair.b.session.release(0, 1)
    pair.b.session.on_frame(sender.plan.open, now=pair.now)
    assert len(pair.b.session.take_frames()) == 1 and pair.b.session.take_events() == []


def test_frames_of_forgotten_rounds_are_counted() -> None:
    """Beyond the memory of 64 rounds nothing is offered anew, across the wrap of round ids."""
    pair = Pair(fastpath, chunk_bytes=64)
    first = 2**32 - 40
    for n in range(80):
        pair.exchange(numbers(64), round_id=(first + n) % 2**32)
    pair.settle()
    late = pair.b.session.late_frames
    old = an_open(round=first, nbytes=64, chunk_bytes=64)
    pair.b.session.on_frame(old, now=pair.now)
    pair.b.session.on_frame(Probe(old, 1, 1), now=pair.now)
    assert pair.b.session.take_frames() == [] and pair.b.session.take_events() == []
    assert pair.b.session.late_frames == late + 2
    with pytest.raises(LocalProtocolError, match="or over"):
        pair.arm(np.zeros(16, np.float32), round_id=39)


def test_frames_for_no_round_are_harmless() -> None:
    pair = Pair(fastpath)
    session = pair.a.session
    for frame in (
        Ready(0, 1),
        Stop(0, 1, 3, 4, False, None),
        Bitmap(0, 1, 1, 0, 0, 4, 1, "bits", b"\x00", 0, 0),
        ChunkData(0, 1, 0, b"x" * 64),
        Heartbeat("waits"),
    ):
        session.on_frame(frame, now=1.0)
    assert session.error is None and session.take_frames() == [] and session.late_frames == 4


def test_a_late_bitmap_does_not_restart_a_pass() -> None:
    pair = Pair(fastpath)
    sender = pair.send(DATA)
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    assert sender.epoch == 1
    bitmap = Bitmap(0, 1, 1, 38, 0, CHUNKS, 1, "ranges", b"\x05\x02", 0, 0)
    pair.a.session.on_frame(bitmap, now=1.0)
    pair.a.session.on_frame(bitmap, now=1.0)  # the copy on TCP
    assert pair.a.channel.pending(sender.slot) == 2
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    assert sender.epoch == 2
    pair.a.session.on_frame(bitmap, now=1.0)
    pair.a.session.on_frame(msgspec.structs.replace(bitmap, epoch=3), now=1.0)
    assert pair.a.channel.pending(sender.slot) == 0 and sender.passes == 2


def test_fragments_that_overlap_are_acted_on_once() -> None:
    """The answer to a resent probe may be cut otherwise than the first."""
    pair = Pair(fastpath)
    sender = pair.send(DATA)
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    halves = [Bitmap(0, 1, 1, 0, first, 20, 2, "ranges", b"\x00\x14", 0, 0) for first in (0, 20)]
    pair.a.session.on_frame(halves[1], now=1.0)
    pair.a.session.on_frame(Bitmap(0, 1, 1, 0, 0, CHUNKS, 1, "ranges", b"\x00\x28", 0, 0), now=1.0)
    assert pair.a.channel.pending(sender.slot) % 20 == 0
    before = pair.a.channel.pending(sender.slot)
    pair.a.session.on_frame(halves[0], now=1.0)
    assert pair.a.channel.pending(sender.slot) == 2 * before


def test_a_bitmap_with_nothing_missing_starts_nothing() -> None:
    pair = Pair(fastpath)
    sender = pair.send(DATA)
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    timer = sender.timer
    pair.a.session.on_frame(Bitmap(0, 1, 1, 20, 0, 20, 2, "ranges", b"", 0, 0), now=1.0)
    assert sender.timer == timer and sender.state.value == "probed"


def test_a_probe_of_an_older_epoch_is_ignored() -> None:
    pair = Pair(fastpath)
    pair.arm(np.zeros_like(DATA))
    session = pair.b.session
    session.on_frame(Probe(an_open(), 2, 0), now=1.0)
    session.on_timeout(now=2.0)
    assert [frame.epoch for frame, _ in session.take_frames()] == [2]
    session.on_frame(Probe(an_open(), 1, 0), now=3.0)
    assert session.next_timeout() is None
    session.on_frame(Probe(an_open(), 2, 0), now=3.0)  # resent: answered again, both ways
    session.on_timeout(now=4.0)
    assert [path for _, path in session.take_frames()] == [Path.BOTH]


def test_a_bitmap_grants_credit() -> None:
    pair = Pair(fastpath, window=4)
    pair.send(DATA)
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_frame(Bitmap(0, 9, 1, 0, 0, 4, 1, "bits", b"\x00", 4, 12), now=1.0)
    assert pair.a.channel.limit == 12 and len(pair.a.channel.collect(1000, 0)) >= 8


def test_a_probe_that_waits_is_answered_when_the_round_is_armed() -> None:
    pair = Pair(fastpath)
    session = pair.b.session
    session.on_frame(an_open(wants_ready=True), now=1.0)
    session.on_frame(Probe(an_open(), 1, 0), now=1.0)
    session.on_frame(Probe(an_open(), 3, 0), now=1.0)
    session.on_frame(Probe(an_open(), 2, 0), now=1.0)
    assert [type(event) for event in session.take_events()] == [RoundOffered]
    pair.arm(np.zeros_like(DATA))
    assert [type(frame) for frame, _ in session.take_frames()] == [Ready]
    session.on_timeout(now=2.0)
    assert [frame.epoch for frame, _ in session.take_frames()] == [3]
    assert session.take_events() == []


def test_waiting_offers_are_bounded() -> None:
    pair = Pair(fastpath)
    session = pair.b.session
    for stream in range(64):
        session.on_frame(an_open(stream=stream), now=1.0)
        session.on_frame(an_open(stream=stream), now=1.0)
    assert session.error is None and len(session.take_events()) == 64
    session.on_frame(an_open(stream=64), now=1.0)
    assert isinstance(session.error, RemoteProtocolError)
    assert "peer of b: the peer announced more than 64 rounds" in str(session.error)
    assert session.next_timeout() is None and session.take_frames() == []


def test_offers_of_rounds_that_are_over_are_forgotten() -> None:
    pair = Pair(fastpath)
    session = pair.b.session
    session.on_frame(an_open(round=0), now=1.0)
    pair.exchange(DATA, round_id=1)
    for stream in range(1, 65):
        session.on_frame(an_open(stream=stream), now=2.0)
    assert session.error is None


ILLEGAL: list[Frame] = [
    Hello(1, 0, 3, 1500, 64),
    an_open(stream=1 << 16),
    an_open(round=-1),
    an_open(nbytes=-8),
    an_open(chunk_bytes=0),
    an_open(tolerance="100%"),
    an_open(tolerance="a lot"),
    an_open(nbytes=8, round=2),  # announced before with another layout
    Probe(an_open(), 1, -1),
    Probe(an_open(), 1, 1 << 62),
    Bitmap(0, 1, 1, 0, 0, CHUNKS + 1, 1, "bits", b"\x00" * 6, 0, 0),
    Bitmap(0, 1, 1, 0, -1, 2, 1, "bits", b"\x00", 0, 0),
    Bitmap(0, 1, 1, 0, 0, CHUNKS, 1, "bits", b"\x00", 0, 0),
    Bitmap(0, 1, 1, 0, 0, CHUNKS, 1, "ranges", b"\x00\x29", 0, 0),
    Bitmap(0, 1, 1, 0, 0, CHUNKS, 1, "ranges", b"\x00\x01", 5, 4),
    Bitmap(0, 1, 1, 0, 0, CHUNKS, 1, "ranges", b"\x00\x01", -5, 4),
    Stop(0, 1, CHUNKS, CHUNKS + 1, False, None),
    Stop(0, 1, CHUNKS + 1, CHUNKS, False, None),
    Stop(0, 1, CHUNKS - 1, CHUNKS, False, b""),
    Stop(0, 1, CHUNKS - 1, CHUNKS, False, b"\x28\x01"),
    ChunkData(0, 1, 0, b"x"),
    ChunkData(0, 1, 0, b""),
    ChunkData(0, 1, -1, b"x" * CHUNK_BYTES),
    ChunkData(0, 1, CHUNKS, b"x" * CHUNK_BYTES),
    ChunkData(0, 1, CHUNKS - 1, b"x" * CHUNK_BYTES * 2),
]


@pytest.mark.parametrize("frame", ILLEGAL, ids=lambda frame: repr(frame)[:60])
def test_illegal_frames_end_the_session_with_a_named_error(frame: Frame) -> None:
    pair = Pair(fastpath)
    session = pair.a.session
    fields = {"stream": 0, "dtype": "float32", "now": 1.0}
    session.arm(round_id=1, buffer=np.zeros_like(DATA), tolerance=None, **fields)
    session.arm(round_id=2, buffer=np.zeros_like(DATA), tolerance=None, **fields)
    session.on_frame(an_open(round=2), now=1.0)
    sender = pair.send(DATA)
    pair.a.channel.collect(1000, 0)
    session.on_progress(now=1.0)
    assert sender.epoch == 1
    session.on_frame(frame, now=1.0)
    assert isinstance(session.error, RemoteProtocolError)
    assert "peer of a" in str(session.error)
    assert session.take_frames() == [] and session.next_timeout() is None
    assert sender.state.value == "failed"


def test_rounds_of_a_stream_may_be_announced_out_of_order(fastpath: ModuleType) -> None:
    """Open 1 is lost, Open 2 arrives, round 2 ends first: round 1 is not taken for an old one."""
    pair = Pair(fastpath)
    outs = [np.zeros_like(DATA), np.zeros_like(DATA)]
    first = pair.arm(outs[0], round_id=1)
    second = pair.arm(outs[1], round_id=2)
    sender = pair.send(DATA, round_id=2)
    pair.run(lambda: second.is_over and sender.is_over)
    late = pair.send(DATA, round_id=1)
    pair.run(lambda: first.is_over and late.is_over)
    assert all(np.array_equal(out, DATA) for out in outs)


def test_the_label_of_a_report() -> None:
    pair = Pair(fastpath)
    out = np.zeros_like(DATA)
    receiver = pair.arm(out, direction="uplink", rank=2, regime="normal", tolerance=P)
    sender = pair.send(DATA, direction="uplink", rank=2, expected_tolerance=P)
    pair.run(lambda: sender.is_over and receiver.report is not None)
    for report in (sender.report, receiver.report):
        assert (report.direction, report.rank, report.tolerance) == ("uplink", 2, "40.8%")
    assert receiver.report.regime == "normal" and sender.report.regime is None
    assert replace(receiver.report, rank=3).rank == 3
    assert receiver.progress_report(now=9.0).chunks == CHUNKS
    assert sender.progress_report(now=9.0).direction == "uplink"
