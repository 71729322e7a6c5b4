"""DBLP_SEND and DBLP_RECV over real sockets."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.errors import (
    ConfigError,
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    RemoteProtocolError,
    RoundTimeoutError,
)
from dblp.faults import Impairment
from tests.integration.cluster import CHUNK_BYTES, LIMIT_S, results, sent_or_zero
from tests.integration.pairs import peers


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 100_000, 5_000_000])
def test_bytes_arrive(size: int, config: TransportConfig) -> None:
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with peers(config) as (here, there):
        for _ in range(2):
            for source, target in ((here, there), (there, here)):
                got = np.full(size, 7, np.uint8)
                mine, theirs = results([source.send_async(sent), target.recv_async(got)])
                assert got.tobytes() == sent.tobytes()
                assert mine.missing == theirs.missing == 0
                assert mine.nbytes == theirs.nbytes == size
                assert (mine.direction, theirs.direction) == ("send", "receive")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "complex128"])
def test_every_dtype(dtype: str, config: TransportConfig) -> None:
    sent = np.arange(5000).astype(dtype)
    with peers(config) as (here, there):
        got = np.empty_like(sent)
        results([here.send_async(sent), there.recv_async(got)])
        assert (got == sent).all()


def test_tensors_and_buffers(config: TransportConfig) -> None:
    torch = pytest.importorskip("torch")
    with peers(config) as (here, there):
        for sent, got in (
            (torch.arange(1000, dtype=torch.bfloat16), torch.empty(1000, dtype=torch.bfloat16)),
            (torch.ones(10, 10, dtype=torch.bool), torch.zeros(10, 10, dtype=torch.bool)),
            (torch.ones(30), np.empty(30, np.float32)),
        ):
            results([here.send_async(sent), there.recv_async(got)])
            assert torch.equal(sent, torch.as_tensor(got))
        memory = bytearray(5)
        results([here.send_async(b"12345"), there.recv_async(memoryview(memory))])
        assert memory == b"12345"


def test_the_source_is_left_alone(config: TransportConfig) -> None:
    sent = np.arange(20_000, dtype=np.float32)
    sent.setflags(write=False)
    with peers(config, listener_impairment=Impairment(uniform=0.3)) as (here, there):
        got = np.empty_like(sent)
        results([here.send_async(sent), there.recv_async(got, "40.8%")])
    assert (sent == np.arange(20_000)).all()


@pytest.mark.parametrize("first", ["send", "recv"])
def test_either_call_may_come_first(first: str, config: TransportConfig) -> None:
    with peers(config) as (here, there):
        for _ in range(5):
            got = bytearray(3000)
            calls = [
                lambda: here.send_async(b"x" * 3000),
                lambda got=got: there.recv_async(got),
            ]
            futures = [call() for call in (calls if first == "send" else calls[::-1])]
            results(futures)
            assert got == b"x" * 3000


def test_both_directions_and_many_streams_at_once(config: TransportConfig) -> None:
    loss = Impairment(seed=5, uniform=0.1)
    rng = np.random.default_rng(3)
    with peers(config, impairment=loss, listener_impairment=loss) as (here, there):
        sent, got, futures = [], [], []
        for number in range(60):
            size = int(rng.integers(0, 60_000))
            sent.append(rng.integers(1, 256, size, np.uint8))
            got.append(np.full(size, 255, np.uint8))
            source, target = (here, there) if number % 2 else (there, here)
            futures.append(source.send_async(sent[-1], stream=number % 7))
            futures.append(target.recv_async(got[-1], "2.4%", stream=number % 7))
        reports = results(futures)
        for mine, theirs, report in zip(sent, got, reports[1::2], strict=True):
            assert sent_or_zero(theirs, mine) == report.missing


def test_several_peers_on_one_listener(config: TransportConfig) -> None:
    count = 5
    with dblp.Listener(config=config) as listener:
        near, far = [], []
        for _ in range(count):
            near.append(dblp.Peer.connect(listener.address, config=config))
            far.append(listener.accept())
        for step in range(10):
            got = [np.zeros(7000, np.int32) for _ in range(count)]
            futures: list[Any] = []
            for number in range(count):
                futures.append(far[number].recv_async(got[number]))
                futures.append(near[number].send_async(np.full(7000, 100 * step + number, "i4")))
            results(futures)
            assert [int(buffer[-1]) for buffer in got] == [100 * step + n for n in range(count)]
        near[0].close()
        with pytest.raises(PeerLostError):
            far[0].recv(bytearray(5))
        results([near[1].send_async(b"abc"), far[1].recv_async(bytearray(3))])
        for peer in near:
            peer.close()


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (np.ones(100, np.float32), np.ones(101, np.float32)),
        (np.ones(100, np.float32), np.ones(50, np.float64)),
        (np.ones(0, np.float32), np.ones(1, np.float32)),
        (np.ones(5000, np.uint8), np.ones(1, np.uint8)),
    ],
    ids=["longer", "dtype", "empty", "shorter"],
)
@pytest.mark.parametrize("after_a_good_one", [False, True])
def test_buffers_that_do_not_match(
    sent: Any, got: Any, after_a_good_one: bool, config: TransportConfig
) -> None:
    with peers(config) as (here, there):
        if after_a_good_one:
            results([here.send_async(sent), there.recv_async(np.empty_like(sent))])
        sending = here.send_async(sent)
        with pytest.raises(LocalProtocolError, match="recv was called with"):
            there.recv(got.copy())
        error = sending.exception(LIMIT_S)
        assert isinstance(error, RemoteProtocolError)
        assert "this side sends" in str(error)
        for call in (lambda: here.send(sent), lambda: there.recv(got.copy())):
            with pytest.raises(DBLPError):
                call()


def test_arguments_that_cannot_be(config: TransportConfig) -> None:
    with peers(config) as (here, there):
        for call, kind, words in (
            (lambda: here.recv(b"abc"), LocalProtocolError, "read-only"),
            (lambda: here.send(np.ones(10)[::2]), LocalProtocolError, "contiguous"),
            (lambda: here.send("text"), LocalProtocolError, "str"),
            (lambda: here.send(b"", stream=-1), LocalProtocolError, "-1"),
            (lambda: here.recv(bytearray(3), 0.408), ConfigError, "40.8%"),
            (lambda: here.recv(bytearray(3), "100%"), ConfigError, "100%"),
        ):
            with pytest.raises(kind, match=words):
                call()
        results([here.send_async(b"abc"), there.recv_async(bytearray(3))])


def test_nobody_calls_recv() -> None:
    with peers(TransportConfig(timeout_s=0.4)) as (here, there):
        with pytest.raises(RoundTimeoutError, match="recv"):
            here.send(bytes(100))
        del there


def test_a_peer_that_closes(config: TransportConfig) -> None:
    with peers(config) as (here, there):
        waiting = here.recv_async(bytearray(100))
        there.close()
        assert isinstance(waiting.exception(LIMIT_S), PeerLostError)
        with pytest.raises(PeerLostError):
            here.send(b"abc")


def test_close_after_send_loses_nothing(config: TransportConfig) -> None:
    for _ in range(10):
        with dblp.Listener(config=config) as listener:
            got = bytearray(300_000)

            def receive(listener: dblp.Listener = listener, got: bytearray = got) -> None:
                with listener.accept() as peer:
                    peer.recv(got)

            thread = threading.Thread(target=receive)
            thread.start()
            with dblp.Peer.connect(listener.address, config=config) as peer:
                peer.send(b"z" * len(got))
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            assert got == b"z" * len(got)


def test_nobody_comes() -> None:
    with (
        dblp.Listener() as listener,
        pytest.raises(RoundTimeoutError, match=listener.address),
    ):
        listener.accept(timeout_s=0.05)


def test_a_listener_closed_before_its_peers(config: TransportConfig) -> None:
    with dblp.Listener(config=config) as listener:
        here = dblp.Peer.connect(listener.address, config=config)
        there = listener.accept()
    there.close()
    with pytest.raises(DBLPError):
        here.send(b"abc")
    here.close()


def test_a_peer_keeps_its_listener(config: TransportConfig) -> None:
    def meet() -> tuple[dblp.Peer, dblp.Peer]:
        listener = dblp.Listener(config=config)
        return dblp.Peer.connect(listener.address, config=config), listener.accept()

    here, there = meet()
    got = bytearray(3)
    results([here.send_async(b"abc"), there.recv_async(got)])
    assert got == b"abc"
    here.close()
    there.close()


def test_counters_and_round_trip_time(config: TransportConfig) -> None:
    with peers(config) as (here, there):
        for _ in range(5):
            results([here.send_async(bytes(50_000)), there.recv_async(bytearray(50_000))])
        assert here.counters()["datagrams_sent"] >= 5 * 35
        assert there.counters()["accepted"] == 5 * 35
        assert here.rtt_s is not None
        assert here.rtt_s > 0
