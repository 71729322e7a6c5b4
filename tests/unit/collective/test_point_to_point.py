"""DBLP_SEND and DBLP_RECV between two peers."""

from __future__ import annotations

import numpy as np
import pytest

from dblp.collective.point_to_point_core import FinishedTransfer, PointToPointCore
from dblp.config import TransportConfig
from dblp.errors import LocalProtocolError, PeerLostError, RemoteProtocolError, RoundTimeoutError
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import Bye

from .cluster import CHUNK_BYTES
from .virtual_net import Endpoint, LinkModel, VirtualNet, make_channel, make_session

LOSSY = LinkModel(loss=0.15, reorder=0.3)


class Pair:
    """Two cores, "ada" and "bob"."""

    def __init__(self, link: LinkModel | None = None, config: TransportConfig | None = None,
                 seed: int = 0, first_round: int = 0) -> None:  # fmt: skip
        self.net = VirtualNet(seed)
        self.finished: dict[str, list[FinishedTransfer]] = {"ada": [], "bob": []}
        self.cores: list[PointToPointCore] = []
        ends = [
            self._end(name, peer, link or LinkModel(), config or TransportConfig(), first_round)
            for name, peer in (("ada", "bob"), ("bob", "ada"))
        ]
        self.net.join(*ends)
        self.ada, self.bob = self.cores
        self.bob_end = ends[1]

    def _end(self, name: str, peer: str, link: LinkModel, config: TransportConfig, first: int
             ) -> Endpoint:  # fmt: skip
        channel = make_channel(77)
        session = make_session(channel, config, peer, seed=len(name))
        core = PointToPointCore(session=session, config=config, peer=peer, first_round=first)
        end: Endpoint

        def on_events(now: float) -> None:
            core.on_events(now=now)
            self.finished[name] += core.take_finished()
            for frame in core.take_broadcast():
                self.net.send_reliable(end, frame)

        end = Endpoint(name, session, channel, link, on_events)
        self.net.next_timeouts.append(core.next_timeout)
        self.net.on_timeouts.append(lambda now: core.on_timeout(now=now))
        self.cores.append(core)
        return end

    def run(self, ada: int, bob: int) -> None:
        self.net.run(lambda: len(self.finished["ada"]) >= ada and len(self.finished["bob"]) >= bob)

    def send(self, core: PointToPointCore, data: np.ndarray, stream: int = 0) -> None:
        core.send(memoryview(data), stream=stream, now=self.net.now)

    def recv(
        self, core: PointToPointCore, size: int, tolerance: Tolerance = EXACT, stream: int = 0
    ) -> np.ndarray:
        buffer = np.full(size, 255, np.uint8)
        core.recv(memoryview(buffer), tolerance, stream=stream, now=self.net.now)
        return buffer


def payload(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 255, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [0, 1, 1447, 1448, 1449, 100_001])
@pytest.mark.parametrize("receiver_first", [False, True])
@pytest.mark.parametrize("link", [LinkModel(), LOSSY])
def test_what_is_sent_is_received(size: int, receiver_first: bool, link: LinkModel) -> None:
    pair = Pair(link)
    data = payload(size)
    if receiver_first:
        got = pair.recv(pair.bob, size)
        pair.net.settle(0.5)
        pair.send(pair.ada, data)
    else:
        pair.send(pair.ada, data)
        pair.net.settle(0.5)
        assert not pair.finished["ada"]
        got = pair.recv(pair.bob, size)
    pair.run(1, 1)
    assert got.tobytes() == data.tobytes()
    assert pair.finished["ada"][0].report.direction == "send"
    report = pair.finished["bob"][0].report
    assert report.direction == "receive" and report.missing == 0


@pytest.mark.parametrize("percent", ["0.8%", "40.8%"])
def test_what_is_missing_is_zero_and_bounded(percent: str) -> None:
    pair = Pair(LOSSY)
    tolerance = Tolerance.of(percent)
    data = payload(200_000)
    got = pair.recv(pair.bob, data.size, tolerance)
    pair.send(pair.ada, data)
    pair.run(1, 1)
    chunks = -(-data.size // CHUNK_BYTES)
    missing = 0
    for index in range(chunks):
        span = slice(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES)
        if not got[span].any():
            missing += 1
        else:
            assert got[span].tobytes() == data[span].tobytes()
    assert missing <= tolerance.missing_max(chunks)
    assert pair.finished["bob"][0].report.missing == missing
    assert pair.finished["ada"][0].report.missing == missing


def test_transfers_follow_each_other_per_stream_and_direction() -> None:
    pair = Pair(LOSSY)
    sent: dict[tuple[str, int, int], np.ndarray] = {}
    got: dict[tuple[str, int, int], np.ndarray] = {}
    for step in range(4):
        for stream in (0, 3):
            for name, core, other in (("ada", pair.ada, pair.bob), ("bob", pair.bob, pair.ada)):
                key = (name, stream, step)
                sent[key] = payload(1000 * (step + 1) + stream, seed=len(sent))
                pair.send(core, sent[key], stream)
                got[key] = pair.recv(other, sent[key].size, stream=stream)
    pair.run(16, 16)
    for key, data in sent.items():
        assert got[key].tobytes() == data.tobytes(), key


def test_round_ids_wrap() -> None:
    pair = Pair(first_round=(1 << 32) - 1)
    for seed in range(3):
        data = payload(5000, seed)
        pair.send(pair.ada, data)
        got = pair.recv(pair.bob, 5000)
        pair.run(seed + 1, seed + 1)
        assert got.tobytes() == data.tobytes()


@pytest.mark.parametrize("receiver_first", [False, True])
def test_unequal_sizes_are_named_on_both_sides(receiver_first: bool) -> None:
    pair = Pair()
    if receiver_first:
        pair.recv(pair.bob, 1000)
    pair.send(pair.ada, payload(2000))
    if not receiver_first:
        pair.net.settle(0.1)
        pair.recv(pair.bob, 1000)
    pair.run(1, 1)
    here = pair.finished["bob"][0].error
    there = pair.finished["ada"][0].error
    assert isinstance(here, LocalProtocolError) and isinstance(there, RemoteProtocolError)
    for error in (here, there):
        assert "1,000 bytes" in str(error) and "2,000 bytes" in str(error)
    with pytest.raises(RemoteProtocolError):
        pair.send(pair.ada, payload(10))


def test_a_send_that_nobody_receives_times_out() -> None:
    pair = Pair(config=TransportConfig(timeout_s=2.0))
    pair.send(pair.ada, payload(100))
    pair.net.settle(0.5)
    assert pair.ada.stall() == "send of stream 0 round 0 with bob"
    pair.run(1, 0)
    error = pair.finished["ada"][0].error
    assert isinstance(error, RoundTimeoutError) and "bob has called recv" in str(error)


def test_bad_arguments() -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError, match="writable"):
        pair.ada.recv(memoryview(b"abc"), EXACT, now=0.0)
    with pytest.raises(LocalProtocolError, match="out of range"):
        pair.ada.send(memoryview(b"abc"), stream=-1, now=0.0)


def test_a_peer_that_closes_ends_what_is_open() -> None:
    pair = Pair()
    pair.recv(pair.ada, 100)
    pair.send(pair.ada, payload(100))
    pair.net.settle(0.1)
    pair.net.send_reliable(pair.bob_end, Bye())
    pair.run(2, 0)
    for finished in pair.finished["ada"]:
        assert isinstance(finished.error, PeerLostError) and "bob" in str(finished.error)
