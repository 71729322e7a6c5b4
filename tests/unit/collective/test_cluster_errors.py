"""What goes wrong ends with a named error at every rank, in bounded time."""

from __future__ import annotations

import numpy as np
import pytest

from dblp.config import TransportConfig
from dblp.errors import (
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    RemoteProtocolError,
    RoundAbortedError,
    RoundTimeoutError,
)
from dblp.phase import FixedTolerance
from dblp.wire import Abort, Bye, Open

from .cluster import CHUNK_BYTES, Cluster, gradient
from .virtual_net import LinkModel

SAME_SHAPE = "every rank must pass a buffer of the same shape and dtype"


def errors_of(cluster: Cluster, count: int) -> list[DBLPError]:
    ended = cluster.finish_any(count)
    errors = [one.error for one in ended]
    assert all(error is not None for error in errors)
    return errors


def one_good_round(cluster: Cluster, count: int = 5000) -> None:
    cluster.all_reduce([gradient(rank, count) for rank in range(cluster.world)])


@pytest.mark.parametrize("rounds_before", [0, 1, 3])
@pytest.mark.parametrize("odd_rank", [0, 1, 2])
def test_unequal_sizes(rounds_before: int, odd_rank: int) -> None:
    cluster = Cluster(3)
    for _ in range(rounds_before):
        one_good_round(cluster)
    sizes = [5000, 5000, 5000]
    sizes[odd_rank] = 4096
    for rank, size in enumerate(sizes):
        cluster.start(rank, gradient(rank, size))
    errors = errors_of(cluster, 3)
    assert {type(error) for error in errors} == {RemoteProtocolError}
    assert len({str(error) for error in errors}) == 1
    text = str(errors[0])
    assert text.startswith(f"stream 0 round {rounds_before}: rank ")
    assert f"rank {odd_rank} offers 4,096 float32 elements" in text
    assert "offers 5,000 float32 elements" in text and SAME_SHAPE in text
    assert str(cluster.server.error) == text


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_unequal_dtypes_of_equal_size(rounds_before: int) -> None:
    cluster = Cluster(2)
    for _ in range(rounds_before):
        one_good_round(cluster)
    cluster.start(0, gradient(0, 5000))
    cluster.start(1, gradient(1, 10_000, "float16"), "float16")
    for error in errors_of(cluster, 2):
        assert "rank 0 offers 5,000 float32 elements, rank 1 offers 10,000 float16" in str(error)


def test_a_mismatch_reaches_ranks_that_are_not_in_the_round() -> None:
    cluster = Cluster(3)
    cluster.start(2, gradient(2, 10), stream=5)
    cluster.start(0, gradient(0, 5000))
    cluster.start(1, gradient(1, 4999))
    errors = errors_of(cluster, 3)
    assert all(isinstance(error, RemoteProtocolError) for error in errors)


@pytest.mark.parametrize("rounds_before", [0, 2])
def test_a_lost_peer_is_named_at_every_other_rank(rounds_before: int) -> None:
    cluster = Cluster(3)
    for _ in range(rounds_before):
        one_good_round(cluster)
    for rank in (0, 2):
        cluster.start(rank, gradient(rank, 5000))
    cluster.net.settle(0.1)
    cluster.worker_ends[1].dead = True
    cluster.server.peer_lost(1, PeerLostError("the connection broke"), now=cluster.net.now)
    errors = errors_of(cluster, 2)
    assert all(isinstance(error, PeerLostError) for error in errors)
    assert all("rank 1" in str(error) for error in errors)
    assert isinstance(cluster.server.error, PeerLostError)


def test_a_peer_lost_in_the_middle_of_a_round() -> None:
    cluster = Cluster(3)
    for rank in range(3):
        cluster.start(rank, gradient(rank, 100_000))
    cluster.net.settle(400e-6)
    assert cluster.server.stall().startswith("stream 0 round 0 (receiving and sending)")
    cluster.worker_ends[2].dead = True
    cluster.server.peer_lost(2, PeerLostError("rank 2 at 10.0.0.3 is silent"), now=cluster.net.now)
    for error in errors_of(cluster, 2):
        assert str(error) == "rank 2 at 10.0.0.3 is silent"
    assert cluster.server.pool.in_use == 0
    assert all(end.session.next_timeout() is None for end in cluster.server_ends)


def test_an_idle_worker_learns_of_the_loss_too() -> None:
    cluster = Cluster(2)
    cluster.server.peer_lost(1, PeerLostError("gone"), now=0.0)
    cluster.net.settle(0.1)
    with pytest.raises(PeerLostError, match="rank 1"):
        cluster.start(0, gradient(0, 10))


def test_other_trouble_with_a_peer_keeps_its_class_and_gets_its_rank() -> None:
    cluster = Cluster(2)
    cluster.start(0, gradient(0, 10))
    cluster.server.peer_lost(1, RemoteProtocolError("an illegal control frame"), now=0.0)
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, RemoteProtocolError)
    assert str(error) == "rank 1: an illegal control frame"


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_a_rank_that_does_not_come(rounds_before: int) -> None:
    cluster = Cluster(3, config=TransportConfig(timeout_s=3.0))
    for _ in range(rounds_before):
        one_good_round(cluster)
    for rank in (0, 2):
        cluster.start(rank, gradient(rank, 5000))
    cluster.net.settle(0.5)
    assert "rank 1 to announce" in cluster.server.stall()
    errors = errors_of(cluster, 2)
    assert all(isinstance(error, RoundTimeoutError) for error in errors)
    assert all("waiting for rank 1 to announce it" in str(error) for error in errors)
    assert isinstance(cluster.server.error, RoundTimeoutError)
    assert (cluster.server.error.report is not None) == (rounds_before > 0)  # nothing is armed yet
    assert cluster.net.now == pytest.approx(3.0, abs=0.2)


def test_a_straggler_is_waited_for() -> None:
    """Rank 1 evaluates for a minute, and says so by its heartbeats only."""
    cluster = Cluster(2, config=TransportConfig(timeout_s=3.0, straggler_timeout_s=100.0))
    one_good_round(cluster)
    cluster.start(0, gradient(0, 5000))
    cluster.net.settle(60.0)
    assert cluster.server.error is None
    cluster.start(1, gradient(1, 5000))
    assert [one.error for one in cluster.finish_any(2)] == [None, None]


def test_a_straggler_is_not_waited_for_without_end() -> None:
    cluster = Cluster(2, config=TransportConfig(timeout_s=3.0, straggler_timeout_s=50.0))
    cluster.start(0, gradient(0, 5000))
    cluster.net.settle(49.0)
    (error,) = errors_of(cluster, 1)
    assert "after 50 s: waiting for rank 1 to announce it" in str(error)
    assert "raise straggler_timeout_s" in str(error)
    assert cluster.net.now == pytest.approx(50.0, abs=0.5)


def test_a_worker_gives_up_by_itself_when_the_server_is_silent() -> None:
    cluster = Cluster(1, config=TransportConfig(timeout_s=2.0))
    cluster.server_ends[0].dead = True
    cluster.start(0, gradient(0, 10))
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, RoundTimeoutError) and "stream 0 round 0" in str(error)
    assert error.report is not None and error.report.missing == 1


def test_queued_rounds_end_with_the_error_too() -> None:
    cluster = Cluster(2)
    for _ in range(3):
        cluster.start(0, gradient(0, 100))
    cluster.start(1, gradient(1, 99))
    assert len(errors_of(cluster, 4)) == 4
    for rank in range(2):
        with pytest.raises(RemoteProtocolError, match="same shape"):
            cluster.start(rank, gradient(rank, 100))


def test_a_worker_that_left_after_its_last_round_harms_nobody() -> None:
    cluster = Cluster(2)
    one_good_round(cluster)
    cluster.net.settle(0.01)
    for rank in range(2):
        cluster.net.send_reliable(cluster.worker_ends[rank], Bye())
        cluster.net.settle(0.01)
        assert cluster.server.error is None


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_round_without_a_worker_that_left(leaves_first: bool) -> None:
    cluster = Cluster(2)
    one_good_round(cluster)
    if not leaves_first:
        cluster.start(0, gradient(0, 5000))
        cluster.net.settle(0.01)
    cluster.net.send_reliable(cluster.worker_ends[1], Bye())
    if leaves_first:
        cluster.net.settle(0.01)
        cluster.start(0, gradient(0, 5000))
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, RoundAbortedError)
    assert "rank 0 waits for rank 1, which has closed its worker" in str(error)


def test_a_server_that_closes() -> None:
    cluster = Cluster(2)
    one_good_round(cluster)
    cluster.start(0, gradient(0, 5000))
    for end in cluster.server_ends:
        cluster.net.send_reliable(end, Bye())
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, PeerLostError) and "the server has closed" in str(error)
    cluster.net.settle(0.01)
    with pytest.raises(PeerLostError):
        cluster.start(1, gradient(1, 5000))


def test_a_worker_that_aborts_ends_the_job_by_name() -> None:
    cluster = Cluster(3)
    cluster.start(0, gradient(0, 100))
    cluster.net.send_reliable(cluster.worker_ends[2], Abort("RoundAbortedError", "out of disk"))
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, RoundAbortedError) and str(error) == "rank 2: out of disk"


@pytest.mark.parametrize("seed", range(8))
def test_a_peer_lost_at_any_time(seed: int) -> None:
    bad = LinkModel(loss=0.2, reorder=0.3)
    cluster = Cluster(3, seed=seed, uplink=bad, downlink_link=bad, downlink="lossy",
                      policy=FixedTolerance("40.8%"))  # fmt: skip
    for _ in range(4):
        for rank in range(3):
            cluster.start(rank, gradient(rank, 20_000))
    cluster.net.settle(1e-4 * 2**seed)
    ended = len(cluster.finished)
    cluster.worker_ends[1].dead = True
    cluster.server.peer_lost(1, PeerLostError("rank 1 is silent"), now=cluster.net.now)
    cluster.net.settle(0.1)
    # What was on its way when the peer died may still complete a round.
    errors = [one.error for one in cluster.finished[ended:] if one.error is not None]
    assert all(str(error) == "rank 1 is silent" for error in errors)
    assert all(worker.next_timeout() is None for worker in (cluster.workers[0], cluster.workers[2]))
    for end in (*cluster.server_ends, cluster.worker_ends[0], cluster.worker_ends[2]):
        assert end.session.next_timeout() is None and not end.session.take_frames()
        assert not end.channel.collect(10, int(cluster.net.now * 1e9))


def open_frame(**changes: object) -> Open:
    fields = {
        "stream": 0, "round": 0, "nbytes": 400, "chunk_bytes": CHUNK_BYTES, "dtype": "float32",
        "wants_ready": True, "squared_norm": 1.0, "tolerance": None, "critical": False,
        "next_tolerance": None,
    }  # fmt: skip
    return Open(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "int8"}, "can be averaged"),
        ({"nbytes": 401}, "a whole number of elements"),
        ({"nbytes": 1 << 60}, "at most"),
        ({"chunk_bytes": 1000}, "agreed on 1,448"),
        ({"round": 5}, "all ranks must run the same rounds"),
    ],
)
def test_an_impossible_announcement(changes: dict[str, object], text: str) -> None:
    cluster = Cluster(2)
    cluster.start(1, gradient(1, 100))
    cluster.server_ends[0].session.on_frame(open_frame(**changes), now=0.0)
    (error,) = errors_of(cluster, 1)
    assert isinstance(error, RemoteProtocolError)
    assert "rank 0" in str(error) and text in str(error)


def test_no_memory_for_the_receive_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(2)

    def no_memory(nbytes: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(cluster.server, "pool", type("Pool", (), {
        "acquire": staticmethod(no_memory), "clear": lambda self: None,
    })())  # fmt: skip
    for rank in range(2):
        cluster.start(rank, gradient(rank, 100))
    for error in errors_of(cluster, 2):
        assert isinstance(error, RoundAbortedError) and "memory" in str(error)


def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    cluster = Cluster(1)
    worker = cluster.workers[0]
    with pytest.raises(LocalProtocolError, match="cannot be averaged"):
        worker.all_reduce(memoryview(bytearray(8)), "int32", now=0.0)
    with pytest.raises(LocalProtocolError, match="writable"):
        worker.all_reduce(memoryview(bytes(8)), "float32", now=0.0)
    with pytest.raises(LocalProtocolError, match="whole elements"):
        worker.all_reduce(memoryview(bytearray(7)), "float32", now=0.0)
    with pytest.raises(LocalProtocolError, match="out of range"):
        worker.all_reduce(memoryview(bytearray(8)), "float32", stream=65536, now=0.0)
    one_good_round(cluster)
