"""Whole rounds between two sessions over real channels, both fast paths."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dblp.config import TransportConfig
from dblp.proto import Path, ReceiveFinished, RoundOffered, SendFinished, ZeroChunks
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import Bitmap, Open, Probe, Ready, Stop

from .pair import CHUNK_BYTES, Model, Pair, is_data, numbers

P = Tolerance.of("40.8%")


@pytest.mark.parametrize("nbytes", [0, 4, CHUNK_BYTES, CHUNK_BYTES + 4, 100 * CHUNK_BYTES - 8])
@pytest.mark.parametrize("control", ["datagram", "tcp"])
def test_a_clean_round(fastpath: ModuleType, nbytes: int, control: str) -> None:
    pair = Pair(fastpath, config=TransportConfig(control=control))
    sender, receiver, _ = pair.exchange(numbers(nbytes))
    assert receiver.report.missing == sender.report.missing == 0
    assert sender.report.passes == 1 and sender.report.retransmitted == 0
    assert sender.final_missing is not None and sender.final_missing.size == 0
    pair.settle()
    assert pair.a.session.next_timeout() is None and pair.b.session.next_timeout() is None
    assert not pair.a.session.busy and not pair.b.session.busy
    paths = {path for side in (pair.a, pair.b) for _, path in side.sent_frames}
    assert paths == {Path.DATAGRAM if control == "datagram" else Path.RELIABLE}


def test_events_of_a_round(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    pair.exchange(numbers(1000))
    assert [type(e) for e in pair.b.events] == [RoundOffered, ReceiveFinished]
    assert [type(e) for e in pair.a.events] == [SendFinished]


@pytest.mark.parametrize("order", ["sequential", "rotate", "random", "magnitude"])
@pytest.mark.parametrize("stop", ["eager", "patient"])
@pytest.mark.parametrize("tolerance", [EXACT, Tolerance.of("2.4%"), P])
@pytest.mark.parametrize("seed", range(3))
def test_rough_links(
    fastpath: ModuleType, order: str, stop: str, tolerance: Tolerance, seed: int
) -> None:
    """30 % reorder, 10 % duplicate and 10 % loss of everything, control datagrams included."""
    config = TransportConfig(order=order, stop=stop)
    pair = Pair(
        fastpath, model=Model(loss=0.1, reorder=0.3, duplicate=0.1), config=config, seed=seed
    )
    for round_id in range(3):
        data = numbers(80 * CHUNK_BYTES + 12, seed)
        sender, receiver, _ = pair.exchange(data, tolerance=tolerance, round_id=round_id)
        assert not sender.fallback
        if stop == "eager" and receiver.report.passes == 1:
            assert receiver.accepted >= tolerance.needed(81)
    pair.settle()
    assert pair.a.session.next_timeout() is None and pair.b.session.next_timeout() is None
    assert len(pair.b.finished(ReceiveFinished)) == len(pair.a.finished(SendFinished)) == 3


@pytest.mark.parametrize("loss", [0.5, 0.7, 0.9])
def test_heavy_loss_ends(fastpath: ModuleType, loss: float) -> None:
    pair = Pair(fastpath, model=Model(loss=loss), seed=3)
    sender, _, _ = pair.exchange(numbers(50 * CHUNK_BYTES))
    assert sender.report.passes > 1


def test_early_stop_is_exact_without_loss(fastpath: ModuleType) -> None:
    """Algorithm 2, lines 18-23: STOP as soon as the bound is met; the tail is dropped, and zero."""
    pair = Pair(fastpath, config=TransportConfig(order="sequential"))
    sender, receiver, _ = pair.exchange(numbers(1000 * CHUNK_BYTES), tolerance=P)
    assert receiver.accepted >= P.needed(1000) and receiver.report.missing > 300
    assert sender.report.datagrams < 1000 and not pair.a.frames(Probe)
    assert sender.report.missing == receiver.report.missing


def test_patient_takes_everything_when_nothing_is_lost(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, config=TransportConfig(stop="patient"))
    _, receiver, _ = pair.exchange(numbers(100 * CHUNK_BYTES), tolerance=P)
    assert receiver.report.missing == 0


def test_patient_stops_at_the_probe(fastpath: ModuleType) -> None:
    """Algorithm 2, lines 10-14."""
    count = 0

    def every_fifth(side: object, datagram: bytes) -> bool:
        nonlocal count
        count += is_data(datagram)
        return is_data(datagram) and count % 5 == 0

    pair = Pair(fastpath, model=Model(drop=every_fifth), config=TransportConfig(stop="patient"))
    sender, receiver, _ = pair.exchange(numbers(100 * CHUNK_BYTES), tolerance=P)
    assert receiver.report.missing == 20 and sender.report.passes == 1


def test_only_missing_chunks_are_sent_again(fastpath: ModuleType) -> None:
    """Algorithm 1, lines 4 and 12."""
    pair = Pair(fastpath, model=Model(loss=0.05), seed=5)
    sender, receiver, _ = pair.exchange(numbers(400 * CHUNK_BYTES))
    assert sender.report.datagrams < 1.3 * 400 and receiver.report.duplicate <= 4
    assert sender.report.retransmitted == sender.report.datagrams - 400


def test_tolerance_from_the_announcement(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    out = np.zeros(200 * CHUNK_BYTES // 4, np.float32)
    receiver = pair.arm(out, tolerance=None)
    sender = pair.send(numbers(out.nbytes), tolerance=P, critical=True)
    pair.run(lambda: sender.is_over and receiver.report is not None)
    assert receiver.tolerance == P and receiver.report.missing > 0
    assert receiver.report.regime == "critical" and receiver.report.tolerance == "40.8%"
    assert receiver.open is not None and receiver.open.critical


def test_an_announcement_without_tolerance_means_exact(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    out = np.zeros(1000, np.float32)
    receiver = pair.arm(out, tolerance=None)
    pair.send(numbers(4000))
    pair.run(lambda: receiver.is_over)
    assert receiver.tolerance == EXACT


@pytest.mark.parametrize("chunks", [1, 2, 5, 99, 100, 625, 1999])
@pytest.mark.parametrize("p", ["0%", "0.8%", "2.4%", "40.8%", "42.4%"])
def test_the_bound_is_exact(chunks: int, p: str) -> None:
    """Hazard 8, Table I: STOP comes with exactly the needed chunk, in one-by-one arrival."""
    from dblp import fastpath

    tolerance = Tolerance.of(p)
    pair = Pair(fastpath, chunk_bytes=64)
    out = np.zeros(chunks * 16, np.float32)
    receiver = pair.arm(out, tolerance=tolerance)
    pair.b.session.on_frame(
        Open(0, 1, out.nbytes, 64, "float32", False, 1.0, None, False, None), now=1.0
    )
    needed = tolerance.needed(chunks)
    assert needed * 1000 >= (1000 - round(10 * float(p[:-1]))) * chunks
    for index in range(needed):
        assert not receiver.is_over
        datagram = fastpath.pack_datagram(0, 0, 0, index + 1, 1, index, 7, bytes(64))
        pair.b.channel.ingest([datagram], 0)
        pair.b.session.on_progress(now=1.0)
    assert receiver.is_over and receiver.accepted == needed


def test_several_rounds_and_streams_at_once(fastpath: ModuleType) -> None:
    """Rounds 7 and 8 of three streams, both ways round the wrap of round ids."""
    pair = Pair(fastpath, model=Model(loss=0.1, reorder=0.3), seed=9)
    keys = [(stream, round_id) for stream in range(3) for round_id in (2**32 - 1, 0)]
    datas = {key: numbers(40 * CHUNK_BYTES, seed) for seed, key in enumerate(keys)}
    outs = {key: np.zeros(40 * CHUNK_BYTES // 4, np.float32) for key in keys}
    receivers = [pair.arm(outs[s, r], stream=s, round_id=r) for s, r in keys]
    senders = [pair.send(datas[s, r], stream=s, round_id=r) for s, r in keys]
    pair.run(lambda: all(x.is_over for x in receivers + senders))
    pair.settle()
    assert all(np.array_equal(datas[key], outs[key]) for key in keys)
    assert pair.b.session.stall() == "" and pair.a.session.stall() == ""


def test_both_directions_share_a_round_id(fastpath: ModuleType) -> None:
    """Uplink and downlink of a round have the same (stream, round)."""
    pair = Pair(fastpath, model=Model(loss=0.1), seed=2)
    up, down = numbers(30 * CHUNK_BYTES, 1), numbers(30 * CHUNK_BYTES, 2)
    up_out, down_out = np.zeros_like(up), np.zeros_like(down)
    ends = [pair.arm(up_out), pair.send(up)]
    fields = {"stream": 0, "round_id": 1, "dtype": "float32", "now": pair.now}
    ends.append(pair.a.session.arm(buffer=down_out, tolerance=EXACT, **fields))
    ends.append(pair.b.session.send(buffer=down, wait_ready=False, **fields))
    pair.run(lambda: all(end.is_over for end in ends))
    pair.settle()
    assert np.array_equal(up, up_out) and np.array_equal(down, down_out)


def test_a_reducer_feeds_a_sender(fastpath: ModuleType) -> None:
    """Chunks flow on as soon as all sources have delivered them; missing ones count as nothing."""
    pair = Pair(fastpath, model=Model(loss=0.1, reorder=0.3), seed=4)
    data = numbers(60 * CHUNK_BYTES)
    got, mean, out = np.zeros_like(data), np.zeros_like(data), np.zeros_like(data)
    reducer = fastpath.Reducer(mean, [got], CHUNK_BYTES, "float32")
    up = pair.arm(got, tolerance=P, reducer=reducer, source=0)
    up_sender = pair.send(data)
    fields = {"stream": 0, "round_id": 1, "dtype": "float32", "now": pair.now}
    down = pair.a.session.arm(buffer=out, tolerance=None, **fields)
    down_sender = pair.b.session.send(
        buffer=mean, wait_ready=False, reducer=reducer, tolerance=EXACT, **fields
    )
    pair.run(lambda: up.report is not None)
    assert not down_sender.is_over
    zeros = reducer.finish([up.bitmap.bits])
    assert np.array_equal(zeros, up.bitmap.missing())
    down_sender.tell_zeros(ZeroChunks(zeros, 60, 0, 1))
    pair.run(lambda: down.is_over and down_sender.is_over and up_sender.is_over)
    pair.settle()
    assert np.array_equal(mean, out) and up.report.missing > 0
    lost = np.repeat(np.isin(np.arange(60), up.bitmap.missing()), CHUNK_BYTES // 4)
    assert np.array_equal(mean, np.where(lost, np.float32(0), data))


def test_wait_ready_sends_nothing_before_ready(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    data = numbers(4000)
    sender = pair.send(data, wait_ready=True)
    pair.settle(1.0)
    assert sender.report is None and pair.a.channel.sent_sequence == 0
    assert pair.a.session.next_timeout() is None and not pair.a.session.busy
    assert [type(e) for e in pair.b.events] == [RoundOffered]
    assert "waits for Ready" in pair.a.session.stall()
    out = np.zeros_like(data)
    pair.arm(out)
    pair.run(lambda: sender.is_over)
    assert np.array_equal(out, data) and len(pair.b.frames(Ready)) == 1
    assert [path for frame, path in pair.b.sent_frames if isinstance(frame, Ready)] == [
        Path.RELIABLE
    ]


@pytest.mark.parametrize("trusted", [False, True])
def test_big_rounds_announce_and_stop_both_ways(fastpath: ModuleType, trusted: bool) -> None:
    """But not where no datagram is lost, as within a host."""
    pair = Pair(fastpath, chunk_bytes=64)
    if trusted:
        pair.a.session.trust_datagrams()
        pair.b.session.trust_datagrams()
    pair.exchange(numbers(1100 * 64))
    for side, kind in ((pair.a, Open), (pair.b, Stop)):
        paths = [path for frame, path in side.sent_frames if isinstance(frame, kind)]
        assert paths[0] is (Path.DATAGRAM if trusted else Path.BOTH)


def test_trust_ends_with_the_first_loss(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, chunk_bytes=64)
    pair.a.session.trust_datagrams()
    pair.a.channel.set_loss(0, 0, 0, 1)
    pair.b.channel.set_loss(300_000, 1, 1, 7)
    pair.exchange(numbers(1100 * 64))
    pair.exchange(numbers(1100 * 64), round_id=2)
    paths = {f.round: path for f, path in reversed(pair.a.sent_frames) if isinstance(f, Open)}
    assert paths == {1: Path.DATAGRAM, 2: Path.BOTH}


def test_a_long_stop_follows_on_tcp(fastpath: ModuleType) -> None:
    """The sender stops at the short STOP and learns later what was missing."""
    pair = Pair(fastpath, config=TransportConfig(order="random"), model=Model(reliable_delay_s=0.1))
    sender, receiver, _ = pair.exchange(numbers(1000 * CHUNK_BYTES), tolerance=P)
    assert sender.final_missing is None and sender.report.missing == receiver.report.missing
    pair.settle(0.5)
    assert np.array_equal(sender.final_missing, receiver.bitmap.missing())
    assert len(pair.a.finished(SendFinished)) == 1


def test_large_bitmaps_come_in_fragments(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, model=Model(loss=0.4), seed=1, window=4096)
    pair.exchange(numbers(2000 * CHUNK_BYTES))
    bitmaps = pair.b.frames(Bitmap)
    assert max(bitmap.total_fragments for bitmap in bitmaps) > 1
    assert all(len(bitmap.data) <= 166 for bitmap in bitmaps)


def test_reports_add_up_to_the_counters(fastpath: ModuleType) -> None:
    """Stale replays of earlier rounds show once, whichever report they fall into."""
    pair = Pair(fastpath, model=Model(duplicate=0.3, reorder=0.3), seed=6)
    for round_id in range(5):
        pair.exchange(numbers(30 * CHUNK_BYTES), round_id=round_id, tolerance=P)
    pair.settle()
    pair.model = Model()
    pair.exchange(numbers(CHUNK_BYTES), round_id=5)
    reports = [event.receiver.report for event in pair.b.finished(ReceiveFinished)]
    counters = pair.b.channel.counters()
    assert counters["stale"] > 0
    assert sum(report.stale for report in reports) == counters["stale"]
    assert all(report.to_dict()["round_id"] == n for n, report in enumerate(reports))
