"""Channels on real UDP sockets: pump(), raw use, offload, errors."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dblp import wire
from tests.fastpath.channels import MS, TAG_A, TAG_B, Datagrams, bitmap_for, indices
from tests.fastpath.implementations import both
from tests.fastpath.sockets import channels_on, send_batch, settle, udp_pair

CHUNK_BYTES = 1448


def pump_until(fastpath: ModuleType, channel: Any, done: Any, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        fastpath.pump([channel], [], budget_ns=20 * MS, linger_ns=5 * MS)
        channel.take_events()
        assert time.monotonic() < deadline, channel.counters()


# --- transfers ---


@both
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("offload", [True, False])
def test_a_transfer_between_two_threads(fastpath: ModuleType, family: int, offload: bool) -> None:
    if family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    nbytes = 1_000_003
    count = -(-nbytes // CHUNK_BYTES)
    source = random.Random(1).randbytes(nbytes)
    buffer, bitmap = bytearray(nbytes), bitmap_for(nbytes, CHUNK_BYTES)
    with udp_pair(family) as sockets:
        a, b = channels_on(fastpath, sockets, CHUNK_BYTES, gso=offload, gro=offload)
        b.window = 64
        receiving = b.open_receive(0, 7, buffer, bitmap)
        sending = a.open_transmit(0, 7, source)
        a.queue(sending, np.arange(count, dtype=np.uint32))
        a.grant(0, 64)
        finished = threading.Event()
        sender = threading.Thread(target=pump_until, args=(fastpath, a, finished.is_set))
        sender.start()
        try:
            b.set_notify(receiving, count)
            pump_until(fastpath, b, lambda: b.accepted(receiving) == count)
        finally:
            finished.set()
            sender.join()
        assert bytes(buffer) == source
        sent, received = a.counters(), b.counters()
        assert sent["datagrams_sent"] == received["accepted"] == count
        assert sent["bytes_sent"] == nbytes + 24 * count
        assert received["credits_sent"] >= sent["credits_received"] > 0
        assert a.acknowledged > count - 64
        assert a.take_rtt_ns()[2] > 0
        if offload and fastpath.probe_offload(sockets[0].fileno())[0]:
            assert sent["send_calls"] < count / 4
        else:
            assert received["receive_calls"] > 0


@both
def test_both_directions_at_once(fastpath: ModuleType) -> None:
    nbytes = 200_000
    count = -(-nbytes // CHUNK_BYTES)
    sources = [random.Random(seed).randbytes(nbytes) for seed in (1, 2)]
    with udp_pair() as sockets:
        ends = channels_on(fastpath, sockets, CHUNK_BYTES)
        buffers, slots = [bytearray(nbytes), bytearray(nbytes)], []
        for end, channel in enumerate(ends):
            slots.append(channel.open_receive(0, 1, buffers[end], bitmap_for(nbytes, CHUNK_BYTES)))
            sending = channel.open_transmit(0, 1, sources[end])
            channel.queue(sending, np.arange(count, dtype=np.uint32))
            channel.grant(0, 32)
            channel.window = 32
        deadline = time.monotonic() + 20
        while any(
            channel.accepted(slot) < count for channel, slot in zip(ends, slots, strict=True)
        ):
            for channel in ends:
                channel.take_events()
            fastpath.pump(ends, [], budget_ns=20 * MS, linger_ns=2 * MS)
            assert time.monotonic() < deadline
        assert bytes(buffers[0]) == sources[1]
        assert bytes(buffers[1]) == sources[0]


@both
def test_the_impaired_path_reads_raw_and_sends_by_turns(fastpath: ModuleType) -> None:
    nbytes = 100_000
    count = -(-nbytes // CHUNK_BYTES)
    source = random.Random(4).randbytes(nbytes)
    buffer, bitmap = bytearray(nbytes), bitmap_for(nbytes, CHUNK_BYTES)
    rng = random.Random(5)
    with udp_pair() as sockets:
        a, b = channels_on(fastpath, sockets, CHUNK_BYTES)
        sending = a.open_transmit(0, 1, source)
        receiving = b.open_receive(0, 1, buffer, bitmap)
        a.grant(0, 40)
        b.window = 40
        deadline = time.monotonic() + 20
        while b.accepted(receiving) < count:
            now = time.monotonic_ns()
            if not a.pending(sending):
                a.queue(sending, fastpath.bitmap_missing(bitmap, count))
            a.send_pending(now)
            arrived = b.receive_raw()
            assert all(fastpath.parse_datagram(datagram) for datagram in arrived)
            kept = [datagram for datagram in arrived if rng.random() < 0.7]
            rng.shuffle(kept)
            b.ingest(kept, now)
            b.send_pending(now)
            a.ingest(a.receive_raw(), now)
            assert time.monotonic() < deadline
        assert bytes(buffer) == source
        # Raw reading handles nothing: only what was ingested is counted.
        assert b.counters()["datagrams_received"] < a.counters()["datagrams_sent"]


@both
def test_control_frames_over_the_socket(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, b = channels_on(fastpath, sockets, CHUNK_BYTES)
        assert a.send_control(b"hello", 1, 2)
        assert fastpath.pump([b], [], budget_ns=1000 * MS, linger_ns=500 * MS) == fastpath.EVENT
        assert b.take_control() == [b"hello"]
        assert a.counters()["control_sent"] == 1
        # Not taken yet, so pump returns at once.
        started = time.monotonic()
        assert fastpath.pump([b], [], budget_ns=5000 * MS, linger_ns=5000 * MS) == fastpath.EVENT
        assert time.monotonic() - started < 1


@both
def test_injected_loss_acts_in_the_pump(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        _, b = channels_on(fastpath, sockets, 64)
        bitmap = bytearray(25)
        b.open_receive(0, 7, bytearray(64 * 200), bitmap)
        b.set_loss(500_000, 7, 7, 42)
        datagrams = Datagrams(fastpath, TAG_B)
        for start in range(0, 200, 20):
            send_batch(
                sockets[0],
                [datagrams.data(bytes(64), chunk=chunk) for chunk in range(start, start + 20)],
            )
        settle(fastpath, b, 200)
        reference, _ = (fastpath.Channel(-1, send_tag=1, recv_tag=TAG_B, chunk_bytes=64), None)
        expected = bytearray(25)
        reference.open_receive(0, 7, bytearray(64 * 200), expected)
        reference.set_loss(500_000, 7, 7, 42)
        again = Datagrams(fastpath, TAG_B)
        reference.ingest([again.data(bytes(64), chunk=chunk) for chunk in range(200)], 0)
        assert bitmap == expected


# --- flags ---


@both
def test_quiet_after_linger(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, _ = channels_on(fastpath, sockets, CHUNK_BYTES)
        started = time.monotonic_ns()
        assert fastpath.pump([a], [], budget_ns=5000 * MS, linger_ns=30 * MS) == fastpath.QUIET
        assert 30 * MS <= time.monotonic_ns() - started < 1000 * MS
        assert fastpath.pump([a], [], budget_ns=5000 * MS, linger_ns=0) == fastpath.QUIET


@both
def test_budget(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, _ = channels_on(fastpath, sockets, CHUNK_BYTES)
        started = time.monotonic_ns()
        assert fastpath.pump([a], [], budget_ns=30 * MS, linger_ns=5000 * MS) == fastpath.BUDGET
        assert 30 * MS <= time.monotonic_ns() - started < 1000 * MS


@both
def test_wake(fastpath: ModuleType) -> None:
    reader, writer = os.pipe()
    try:
        with udp_pair() as sockets:
            a, _ = channels_on(fastpath, sockets, CHUNK_BYTES)
            timer = threading.Timer(0.03, os.write, (writer, b"x"))
            timer.start()
            started = time.monotonic()
            flags = fastpath.pump([a], [reader], budget_ns=5000 * MS, linger_ns=5000 * MS)
            timer.join()
            assert flags == fastpath.WAKE
            assert time.monotonic() - started < 2
    finally:
        os.close(reader)
        os.close(writer)


@both
def test_events_of_notify_and_of_a_dry_slot(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, b = channels_on(fastpath, sockets, 64)
        receiving = b.open_receive(0, 7, bytearray(640), bytearray(2))
        b.set_notify(receiving, 5)
        sending = a.open_transmit(0, 7, bytes(640))
        a.grant(0, 100)
        a.queue(sending, np.arange(5, dtype=np.uint32))
        assert fastpath.pump([a], [], budget_ns=1000 * MS, linger_ns=500 * MS) == fastpath.EVENT
        assert a.pending(sending) == 0
        assert fastpath.pump([b], [], budget_ns=1000 * MS, linger_ns=500 * MS) == fastpath.EVENT
        assert b.accepted(receiving) == 5


@both
def test_pump_refuses_channels_without_a_socket(fastpath: ModuleType) -> None:
    channel = fastpath.Channel(-1, send_tag=1, recv_tag=2, chunk_bytes=64)
    with pytest.raises(ValueError):
        fastpath.pump([channel], [], budget_ns=1, linger_ns=1)
    for call in (channel.receive_raw, lambda: channel.send_pending(0)):
        with pytest.raises(ValueError):
            call()
    assert fastpath.pump([], [], budget_ns=MS, linger_ns=0) == fastpath.QUIET


# --- credit, in the pump ---


@both
def test_credit_when_the_socket_runs_empty_and_on_request(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        _, b = channels_on(fastpath, sockets, 64)
        peer = sockets[0]
        b.open_receive(0, 7, bytearray(640), bytearray(2))
        datagrams = Datagrams(fastpath, TAG_B)
        peer.send(datagrams.data(bytes(64), chunk=1))
        settle(fastpath, b, 1)
        fastpath.pump([b], [], budget_ns=100 * MS, linger_ns=MS)
        assert fastpath.parse_datagram(peer.recv(100))[4:6] == (1, 65)
        fastpath.pump([b], [], budget_ns=100 * MS, linger_ns=MS)
        with pytest.raises(BlockingIOError):
            peer.recv(100)
        peer.send(datagrams.request(9))
        settle(fastpath, b, 2)
        fastpath.pump([b], [], budget_ns=100 * MS, linger_ns=MS)
        assert fastpath.parse_datagram(peer.recv(100))[4:6] == (9, 73)


@both
def test_credit_after_an_eighth_of_the_window(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        _, b = channels_on(fastpath, sockets, 64)
        b.window = 64
        b.open_receive(0, 7, bytearray(64 * 64), bytearray(8))
        datagrams = Datagrams(fastpath, TAG_B)
        for chunk in range(64):
            sockets[0].send(datagrams.data(bytes(64), chunk=chunk))
        settle(fastpath, b, 64)
        fastpath.pump([b], [], budget_ns=100 * MS, linger_ns=MS)
        credits = b.counters()["credits_sent"]
        assert 1 <= credits <= 9
        seen = [fastpath.parse_datagram(sockets[0].recv(100))[4] for _ in range(credits)]
        assert seen == sorted(seen)
        assert seen[-1] == 64


@both
def test_a_blocked_pump_asks_for_credit(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, _ = channels_on(fastpath, sockets, 64)
        a.request_interval_ns = 5 * MS
        slot = a.open_transmit(0, 7, bytes(640))
        a.queue(slot, indices(1))
        started = time.monotonic_ns()
        assert fastpath.pump([a], [], budget_ns=23 * MS, linger_ns=1000 * MS) == fastpath.BUDGET
        elapsed = time.monotonic_ns() - started
        sent = a.counters()["credit_requests_sent"]  # up to 8 copies of each
        assert 1 <= sent <= 8 * (elapsed // (5 * MS))
        assert fastpath.parse_datagram(sockets[1].recv(100))[:2] == (
            wire.KIND_CREDIT,
            wire.FLAG_CREDIT_REQUEST,
        )


@both
def test_pacing_in_the_pump(fastpath: ModuleType) -> None:
    with udp_pair(receive_buffer=1 << 20) as sockets:
        a, _ = channels_on(fastpath, sockets, CHUNK_BYTES)
        slot = a.open_transmit(0, 7, bytes(200 * CHUNK_BYTES))
        a.pacing_rate = 5e6
        a.grant(0, 1000)
        a.queue(slot, np.arange(200, dtype=np.uint32))
        started = time.monotonic_ns()
        assert fastpath.pump([a], [], budget_ns=5000 * MS, linger_ns=1000 * MS) == fastpath.EVENT
        elapsed_s = (time.monotonic_ns() - started) / 1e9
        assert elapsed_s >= (a.counters()["bytes_sent"] - 2 * 65536) / 5e6


# --- trouble ---


@both
def test_kernel_drops_are_counted_apart(fastpath: ModuleType) -> None:
    with udp_pair(receive_buffer=16 * 1024) as sockets:
        _, b = channels_on(fastpath, sockets, CHUNK_BYTES)
        receiving = b.open_receive(0, 7, bytearray(200 * CHUNK_BYTES), bytearray(25))
        datagrams = Datagrams(fastpath, TAG_B)
        for chunk in range(199):
            sockets[0].send(datagrams.data(bytes(CHUNK_BYTES), chunk=chunk))
        fastpath.pump([b], [], budget_ns=1000 * MS, linger_ns=10 * MS)
        sockets[0].send(datagrams.data(bytes(CHUNK_BYTES), chunk=199))
        fastpath.pump([b], [], budget_ns=1000 * MS, linger_ns=10 * MS)
        counters = b.counters()
        assert counters["kernel_drops"] > 0
        assert counters["kernel_drops"] + b.accepted(receiving) == 200


@both
def test_a_dead_peer_is_no_exception(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, _ = channels_on(fastpath, sockets, 64)
        sockets[1].close()
        slot = a.open_transmit(0, 7, bytes(640))
        a.grant(0, 100)
        for _ in range(10):
            a.queue(slot, indices(1))
            a.send_control(b"x")
            fastpath.pump([a], [], budget_ns=10 * MS, linger_ns=MS)
            a.take_events()
            a.receive_raw()


@both
def test_the_channel_leaves_the_descriptor_open(fastpath: ModuleType) -> None:
    with udp_pair() as sockets:
        a, b = channels_on(fastpath, sockets, 64)
        del a, b
        sockets[0].send(b"still works")
        sockets[1].setblocking(True)
        assert sockets[1].recv(100) == b"still works"


@both
def test_foreign_traffic_changes_only_counters(fastpath: ModuleType) -> None:
    rng = random.Random(8)
    with udp_pair() as sockets:
        _, b = channels_on(fastpath, sockets, 64)
        buffer, bitmap = bytearray(640), bytearray(2)
        b.open_receive(0, 7, buffer, bitmap, aim=False)
        foreign = Datagrams(fastpath, TAG_A)
        for length in [1, 23, 24, 25, 88, 89, 1000, 65000]:
            sockets[0].send(rng.randbytes(length))
        sockets[0].send(foreign.data(bytes(64), chunk=0))
        settle(fastpath, b, 9)
        counters = b.counters()
        assert counters["foreign"] == 1
        assert counters["malformed"] == 8
        assert buffer == bytes(640)
        assert bitmap == bytes(2)
