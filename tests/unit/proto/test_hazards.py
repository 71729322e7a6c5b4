"""The hazards of the design that the session answers, by number, and the timers (T1, L1)."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dblp.config import TransportConfig
from dblp.errors import LocalProtocolError, RoundAbortedError
from dblp.proto import FallbackToReliable, OpenMismatch, Path, RoundOffered, SendFinished
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import (
    FLAG_CREDIT_REQUEST,
    KIND_CONTROL,
    Abort,
    Bye,
    ChunkData,
    Probe,
    Ready,
    Stop,
)

from .pair import CHUNK_BYTES, Model, Pair, Side, is_data, numbers

P = Tolerance.of("40.8%")


def no_data(side: Side, datagram: bytes) -> bool:
    return is_data(datagram)


# --- hazard 2: probe grace ------------------------------------------------------------------------


def test_chunks_that_the_probe_overtook_are_not_asked_for_again(fastpath: ModuleType) -> None:
    """The paper's TCP probe, faster than the data."""
    config = TransportConfig(control="tcp", probe_quiet_s=0.0002)
    model = Model(delay_s=300e-6, reliable_delay_s=50e-6)
    pair = Pair(fastpath, model=model, config=config, window=4096)
    sender, receiver, _ = pair.exchange(numbers(500 * CHUNK_BYTES))
    assert len(pair.a.frames(Probe)) == 1
    assert receiver.report.duplicate == 0 and sender.report.retransmitted == 0


def test_the_quiet_period_is_bounded(fastpath: ModuleType) -> None:
    """News extend it to four quiet periods at most."""
    pair = Pair(fastpath, config=TransportConfig(probe_quiet_s=0.001))
    data = numbers(100 * CHUNK_BYTES)
    pair.arm(np.zeros_like(data))
    sender = pair.send(data)
    session, channel = pair.b.session, pair.b.channel
    session.on_frame(Probe(sender.plan.open, 1, 0), now=1.0)
    raw, now = data.tobytes(), 1.0
    for index in range(50):
        chunk = raw[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        channel.ingest([fastpath.pack_datagram(0, 0, 0, index + 1, 1, index, 7, chunk)], 0)
        session.on_progress(now=now)
        if (due := session.next_timeout()) is None:
            break
        assert due <= 1.0 + 0.004 + 1e-9
        if due <= now:
            session.on_timeout(now=now)
        now += 0.0005
    assert 1.0035 < now < 1.006


# --- hazard 3: lost control signals ---------------------------------------------------------------


@pytest.mark.parametrize("lost", ["open", "probe", "bitmap", "stop"])
def test_a_lost_signal_costs_milliseconds(fastpath: ModuleType, lost: str) -> None:
    """The first copy of each signal is lost; TCP is as slow as a retransmission timeout."""
    dropped = 0
    seen = False

    def drop(side: Side, datagram: bytes) -> bool:
        nonlocal dropped, seen
        if is_data(datagram) and lost in ("probe", "bitmap") and not seen:
            seen = True
            return True  # without loss there is neither probe nor bitmap
        if datagram[0] & 15 == KIND_CONTROL and lost.encode() in datagram[24:34] and not dropped:
            dropped += 1
            return True
        return False

    pair = Pair(fastpath, model=Model(drop=drop, reliable_delay_s=0.2))
    start = pair.now
    pair.exchange(numbers(50 * CHUNK_BYTES))
    assert dropped == 1 and pair.now - start < 0.02


def test_a_probe_goes_both_ways_and_is_resent_with_backoff(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    pair.model.drop = lambda side, datagram: True
    pair.model.reliable_delay_s = 1000.0
    pair.send(numbers(1000))
    pair.settle(3.0)
    probes = [path for frame, path in pair.a.sent_frames if isinstance(frame, Probe)]
    assert probes[:4] == [Path.BOTH] * 4  # TCP is the fallback from the first on
    assert 8 <= len(probes) <= 20  # backoff, bounded by half a second


# --- hazard 4: implied stop -----------------------------------------------------------------------


def test_an_implied_stop_ends_the_sender_once(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    data = numbers(50 * CHUNK_BYTES)
    sender = pair.send(data, tolerance=P)
    pair.a.session.imply_stop(0, 1, now=pair.now)
    pair.a.session.imply_stop(0, 1, now=pair.now)
    pair.a.session.imply_stop(5, 1, now=pair.now)  # never sent: nothing happens
    assert pair.a.session.take_frames() == []  # the Open was still pending (T1)
    assert pair.a.channel.collect(100, 0) == []
    assert [type(event) for event in pair.a.session.take_events()] == [SendFinished]
    assert sender.report.missing == P.missing_max(50)  # not known: the most it may be
    pair.a.session.on_frame(Stop(0, 1, 49, 50, False, b"\x03\x01"), now=pair.now)
    assert sender.final_missing.tolist() == [3]
    assert pair.a.session.take_events() == []


def test_arm_before_or_after_the_announcement(fastpath: ModuleType) -> None:
    """Data that comes before the round is armed is lost, and asked for."""
    pair = Pair(fastpath)
    data = numbers(50 * CHUNK_BYTES)
    sender = pair.send(data)
    pair.settle(0.01)
    assert pair.b.channel.counters()["future"] >= 50 and not sender.is_over
    out = np.zeros_like(data)
    pair.arm(out)
    pair.run(lambda: sender.is_over)
    assert np.array_equal(out, data)
    assert [type(event) for event in pair.b.events[:1]] == [RoundOffered]
    assert len(pair.b.finished(RoundOffered)) == 1


# --- hazard 5: credit -----------------------------------------------------------------------------


def test_a_window_is_never_exceeded(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, window=16)
    sender = pair.send(numbers(200 * CHUNK_BYTES))
    assert len([d for d in pair.a.channel.collect(1000, 0) if is_data(d)]) == 16
    assert pair.a.channel.blocked() and not sender.is_over


def test_a_sender_whose_credit_is_lost_recovers(fastpath: ModuleType) -> None:
    """All data and all credit of the first 30 ms are lost: the stall ends the pass early."""
    pair = Pair(fastpath, window=16)
    pair.model.drop = lambda side, datagram: pair.now < 1.03
    pair.exchange(numbers(100 * CHUNK_BYTES))
    assert pair.now < 1.3


# --- hazard 7: layouts change ---------------------------------------------------------------------


@pytest.mark.parametrize("wait_ready", [True, False])
def test_a_changed_layout_is_armed_anew(fastpath: ModuleType, wait_ready: bool) -> None:
    pair = Pair(fastpath)
    wrong = pair.arm(np.zeros(10, np.float32))
    data = numbers(3000)
    sender = pair.send(data, wait_ready=wait_ready)
    pair.settle(0.01)
    (event,) = pair.b.events
    assert isinstance(event, OpenMismatch) and event.receiver is wrong
    assert event.open.nbytes == 3000 and not wrong.is_over
    pair.b.session.release(0, 1)
    out = np.zeros_like(data)
    pair.arm(out)
    pair.run(lambda: sender.is_over)
    assert np.array_equal(out, data)
    assert len(pair.b.frames(Ready)) == wait_ready
    assert len(pair.b.events) == 2  # and ReceiveFinished


def test_another_dtype_is_a_mismatch(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    pair.arm(np.zeros(10, np.int32), dtype="bfloat16")
    pair.send(numbers(40))
    pair.settle(0.01)
    assert [type(event) for event in pair.b.events] == [OpenMismatch]


# --- hazard 9: datagrams blocked ------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["data", "all", "forward", "backward"])
def test_blocked_datagrams_fall_back_to_tcp(fastpath: ModuleType, drop: str) -> None:
    pair = Pair(fastpath)
    pair.model.drop = {
        "data": no_data,
        "all": lambda side, datagram: True,
        "forward": lambda side, datagram: side is pair.a,
        "backward": lambda side, datagram: side is pair.b,
    }[drop]
    tries = 3 if drop == "backward" else 1  # chunks do arrive then, but no credit
    for round_id in range(6):
        start = pair.now
        sender, receiver, _ = pair.exchange(numbers(5000 * CHUNK_BYTES + 4), round_id=round_id)
        assert sender.report.fallback and receiver.report.fallback
        assert pair.now - start < (2.0 if round_id < tries else 0.05)
    assert len(pair.a.finished(FallbackToReliable)) == 1
    assert all(len(frame.payload) <= 65536 for frame in pair.a.frames(ChunkData))


def test_fallback_with_loss_tolerance_and_a_reducer(fastpath: ModuleType) -> None:
    """A sender that follows a reducer waits for it on TCP, too."""
    pair = Pair(fastpath)
    pair.a.session.block_datagrams()
    pair.b.session.block_datagrams()
    source, mean = numbers(20 * CHUNK_BYTES), np.zeros(20 * CHUNK_BYTES // 4, np.float32)
    reducer = fastpath.Reducer(mean, [source], CHUNK_BYTES, "float32")
    out = np.zeros_like(mean)
    pair.arm(out)
    sender = pair.send(mean, reducer=reducer)
    pair.settle()
    assert pair.a.frames(ChunkData) == [] and not sender.is_over
    reducer.finish([b"\xff" * 3])
    pair.run(lambda: sender.is_over)
    assert np.array_equal(out, source) and sender.report.fallback
    assert pair.a.finished(FallbackToReliable) == []  # the handshake knew, and said so
    assert {path for _, path in pair.a.sent_frames + pair.b.sent_frames} == {Path.RELIABLE}


def test_payload_on_tcp_is_bounded_between_probes(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, model=Model(drop=no_data))
    pair.exchange(numbers(3 << 20))
    outstanding = 0
    for frame, path in pair.a.sent_frames:
        if isinstance(frame, ChunkData):
            outstanding += len(frame.payload)
            assert outstanding <= 1 << 20 and path is Path.RELIABLE
        elif isinstance(frame, Probe):
            outstanding = 0


def test_datagrams_are_tried_again_when_the_network_is_back(fastpath: ModuleType) -> None:
    pair = Pair(fastpath, model=Model(drop=no_data))
    pair.exchange(numbers(3000), round_id=0)
    pair.model.drop = lambda side, datagram: False
    reports = [pair.exchange(numbers(3000), round_id=r)[0].report for r in range(1, 70)]
    assert reports[0].fallback and not reports[-1].fallback


def test_one_chunk_in_a_burst_does_not_look_like_blocked_datagrams(fastpath: ModuleType) -> None:
    """70 % loss (the paper's microburst): few rounds of one chunk may need TCP, not a third."""
    pair = Pair(fastpath, model=Model(loss=0.7), seed=8)
    fallbacks = [pair.exchange(numbers(64), round_id=r)[0].fallback for r in range(60)]
    assert sum(fallbacks) <= 6


def test_an_empty_round_that_waits_for_ready_survives_a_lost_stop(fastpath: ModuleType) -> None:
    """Ready comes in any case: a sender that waits for it has no timer that would probe."""
    pair = Pair(fastpath, model=Model(drop=lambda side, datagram: True))
    sender, _, _ = pair.exchange(numbers(0), wait_ready=True)
    assert sender.report.missing == 0


# --- T1, abort, bye -------------------------------------------------------------------------------


def test_after_an_abort_nothing_is_pending(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    data = numbers(100 * CHUNK_BYTES)
    receiver = pair.arm(np.zeros_like(data))
    sender = pair.send(data)
    pair.a.channel.collect(1000, 0)
    pair.a.session.on_progress(now=1.0)
    for session in (pair.a.session, pair.b.session):
        session.abort(RoundAbortedError("rank 1 is gone"))
        session.abort(RoundAbortedError("again"))
        assert session.next_timeout() is None and session.take_frames() == []
        assert str(session.error) == "rank 1 is gone" and not session.busy
    assert sender.error is receiver.error or sender.error is not None
    assert pair.a.channel.collect(1000, 10**10) == []
    pair.a.session.on_frame(Stop(0, 1, 100, 100, False, b""), now=2.0)
    pair.a.session.on_progress(now=2.0)
    pair.a.session.on_timeout(now=99.0)
    assert pair.a.session.take_events() == []
    with pytest.raises(RoundAbortedError, match="rank 1 is gone"):
        pair.send(data, round_id=2)
    with pytest.raises(RoundAbortedError, match="rank 1 is gone"):
        pair.arm(data, round_id=2)


def test_the_peers_abort_carries_its_error(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    pair.send(numbers(1000))
    pair.a.session.on_frame(Abort("PeerLostError", "rank 2 is gone"), now=1.0)
    assert type(pair.a.session.error).__name__ == "PeerLostError"
    assert str(pair.a.session.error) == "rank 2 is gone"
    pair.b.session.on_frame(Abort("KeyboardInterrupt", "no class of ours"), now=1.0)
    assert type(pair.b.session.error) is RoundAbortedError


def test_bye_stops_everything_towards_the_peer(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    senders = [pair.send(numbers(1000), round_id=r) for r in range(2)]
    pair.a.session.on_frame(Bye(), now=1.0)
    senders.append(pair.send(numbers(1000), round_id=2))
    assert all(sender.is_over for sender in senders) and pair.a.session.peer_left
    assert len(pair.a.session.take_events()) == 3 and pair.a.session.take_frames() == []
    assert pair.a.session.next_timeout() is None and pair.a.session.error is None


def test_credit_requests_exist(fastpath: ModuleType) -> None:
    """The stall test above relies on the channel's own recovery as well; here it is alone."""
    pair = Pair(fastpath, window=4)
    pair.send(numbers(100 * CHUNK_BYTES))
    pair.a.channel.collect(100, 0)
    later = pair.a.channel.collect(100, 10**9)
    assert any(datagram[1] & FLAG_CREDIT_REQUEST for datagram in later)


def test_rounds_end_soon_after_the_faults_do(fastpath: ModuleType) -> None:
    """L1: dead for a while in both directions, then clean."""
    pair = Pair(fastpath, window=32)
    data = numbers(300 * CHUNK_BYTES)
    out = np.zeros_like(data)
    pair.arm(out, tolerance=EXACT)
    sender = pair.send(data)
    pair.model.drop = lambda side, datagram: True
    pair.model.reliable_delay_s = 3.0
    pair.settle(2.0)
    pair.model.drop = lambda side, datagram: False
    start = pair.now
    pair.run(lambda: sender.is_over)
    assert np.array_equal(out, data) and pair.now - start < 1.0


def test_armed_twice_or_sent_twice(fastpath: ModuleType) -> None:
    pair = Pair(fastpath)
    data = numbers(1000)
    pair.arm(np.zeros_like(data))
    with pytest.raises(LocalProtocolError, match="armed already"):
        pair.arm(np.zeros_like(data))
    pair.send(data)
    with pytest.raises(LocalProtocolError, match="being sent already"):
        pair.send(data)
    frozen = np.zeros_like(data)
    frozen.flags.writeable = False
    with pytest.raises(LocalProtocolError, match="cannot arm round 2"):
        pair.arm(frozen, round_id=2)
