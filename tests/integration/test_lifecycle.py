"""Beginning and end: closing early, twice, from odd places; forks; forgotten endpoints."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.errors import (
    ConfigError,
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    RoundAbortedError,
    RoundTimeoutError,
)
from tests.integration.cluster import LIMIT_S, Cluster, errors, gradients, results
from tests.integration.pairs import peers

ROOT = Path(__file__).parents[2]


def run_python(program: str, limit_s: float = LIMIT_S) -> str:
    """What a fresh interpreter prints; it must end with status 0."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_close_is_idempotent_for_all_of_them(config: TransportConfig) -> None:
    server = dblp.ParameterServer.serve_in_thread(workers=1, config=config)
    worker = dblp.Worker(server.address, rank=0, config=config)
    listener = dblp.Listener(config=config)
    here = dblp.Peer.connect(listener.address, config=config)
    there = listener.accept()
    for _ in range(3):
        for endpoint in (here, worker, server, listener, there):
            endpoint.close()


def test_calls_on_what_is_closed_say_so(config: TransportConfig) -> None:
    with Cluster(1, config) as cluster, peers(config) as (here, there):
        pass
    array = np.ones(3, np.float32)
    for call in (
        lambda: cluster.workers[0].all_reduce(array),
        lambda: here.send(array),
        lambda: there.recv(array),
    ):
        with pytest.raises(LocalProtocolError, match="closed"):
            call()


def test_closing_from_many_threads_at_once(config: TransportConfig) -> None:
    with Cluster(1, config) as cluster:
        threads = [
            threading.Thread(target=endpoint.close)
            for endpoint in (cluster.workers[0], cluster.server)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_closing_in_a_callback_of_the_transport(config: TransportConfig) -> None:
    with Cluster(1, config) as cluster:
        worker = cluster.workers[0]
        closed = threading.Event()

        def close(_: object) -> None:
            worker.close()
            closed.set()

        future = worker.all_reduce_async(np.ones(10, np.float32))
        future.add_done_callback(close)
        future.result(LIMIT_S)
        assert closed.wait(LIMIT_S)
        with pytest.raises(DBLPError):
            worker.all_reduce(np.ones(10, np.float32))


def test_the_server_closed_in_its_own_report_sink(config: TransportConfig) -> None:
    servers: list[dblp.ParameterServer] = []
    server = dblp.ParameterServer.serve_in_thread(
        workers=1, config=config, on_report=lambda _: servers[0].close()
    )
    servers.append(server)
    with dblp.Worker(server.address, rank=0, config=config) as worker, pytest.raises(DBLPError):
        for _ in range(10_000):
            worker.all_reduce(np.ones(10, np.float32))
    server.close()


def test_a_report_sink_that_raises_does_no_harm(
    config: TransportConfig, caplog: pytest.LogCaptureFixture
) -> None:
    def sink(_: object) -> None:
        raise ValueError("no disk")

    with Cluster(1, config, on_report=sink) as cluster:
        cluster.all_reduce(gradients(1, 100))
        cluster.all_reduce(gradients(1, 100))
        assert cluster.server.error is None
    assert "no disk" in caplog.text


def test_a_policy_that_raises_ends_the_job_on_every_rank(config: TransportConfig) -> None:
    class Broken(dblp.FixedTolerance):
        def observe(self, *, stream: int, step: int, norm: float) -> dblp.Decision:
            raise ZeroDivisionError("eta")

    with Cluster(3, config, policy=Broken(0)) as cluster:
        for error in errors(cluster.start(gradients(3, 1000))):
            assert isinstance(error, DBLPError)
            assert "ZeroDivisionError" in str(error)


def test_a_worker_that_closes_in_the_middle_of_its_round(config: TransportConfig) -> None:
    """Its own call ends with RoundAbortedError; the others do not wait for it."""
    with Cluster(3, config) as cluster:
        arrays = gradients(3, 2_000_000)
        leaving, waiting = cluster.workers[0], cluster.workers[1:]
        mine = leaving.all_reduce_async(arrays[0])
        theirs = [waiting[0].all_reduce_async(arrays[1])]
        leaving.close()
        assert isinstance(mine.exception(LIMIT_S), RoundAbortedError)
        theirs.append(waiting[1].all_reduce_async(arrays[2]))
        for error in errors(theirs):
            assert isinstance(error, RoundAbortedError | PeerLostError)
            assert "rank 0" in str(error)
        with pytest.raises(DBLPError, match="rank 0"):
            cluster.server.wait(LIMIT_S)


def test_a_worker_that_leaves_before_the_round_of_the_others(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        cluster.all_reduce(gradients(2, 1000))
        cluster.workers[1].close()
        with pytest.raises(RoundAbortedError, match="rank 1"):
            cluster.workers[0].all_reduce(gradients(1, 1000)[0])


def test_workers_may_leave_one_after_the_other(config: TransportConfig) -> None:
    with Cluster(3, config) as cluster:
        for _ in range(20):
            cluster.all_reduce(gradients(3, 5000))
        for worker in cluster.workers:
            worker.close()
        assert cluster.server.wait(LIMIT_S)
        assert cluster.server.error is None


def test_the_server_closed_while_a_round_is_open(config: TransportConfig) -> None:
    with Cluster(2, config) as cluster:
        future = cluster.workers[0].all_reduce_async(np.ones(5000, np.float32))
        with pytest.raises(TimeoutError):
            future.result(0.05)
        cluster.server.close()
        assert isinstance(future.exception(LIMIT_S), RoundAbortedError | PeerLostError)
        with pytest.raises(DBLPError):
            cluster.workers[1].all_reduce(np.ones(5000, np.float32))


def test_the_server_closed_between_rounds(config: TransportConfig) -> None:
    with Cluster(1, config) as cluster:
        cluster.all_reduce(gradients(1, 10))
        cluster.server.close()
        for _ in range(2):
            with pytest.raises(PeerLostError, match="closed"):
                cluster.workers[0].all_reduce(np.ones(10, np.float32))


def test_a_rank_that_never_calls_is_named() -> None:
    config = TransportConfig(timeout_s=0.5)
    with Cluster(2, config) as cluster:
        with pytest.raises(RoundTimeoutError, match="rank 1"):
            cluster.workers[0].all_reduce(np.ones(10, np.float32))
        with pytest.raises(RoundTimeoutError, match="rank 1"):
            cluster.server.wait(LIMIT_S)
        with pytest.raises(RoundTimeoutError):
            cluster.workers[1].all_reduce(np.ones(10, np.float32))


def test_a_server_that_misses_a_worker_says_so(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=2, config=config) as server:
        with dblp.Worker(server.address, rank=1, config=config):
            assert not server.wait(0)
            assert "0" in server._owner.stall()
        assert not server.wait(0)


def test_nobody_listens() -> None:
    config = TransportConfig(connect_timeout_s=0.3)
    for connect in (
        lambda: dblp.Worker("127.0.0.1:1", rank=0, config=config),
        lambda: dblp.Peer.connect("127.0.0.1:1", config=config),
    ):
        with pytest.raises(PeerLostError, match=r"127\.0\.0\.1:1"):
            connect()


def test_a_worker_waits_for_a_server_that_starts_later(config: TransportConfig) -> None:
    with dblp.ParameterServer.serve_in_thread(workers=1, config=config) as server:
        address = server.address
    done = threading.Event()

    def work() -> None:
        with dblp.Worker(address, rank=0, config=config) as worker:
            worker.all_reduce(np.ones(10, np.float32))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    with dblp.ParameterServer.serve_in_thread(address, workers=1, config=config):
        assert done.wait(LIMIT_S)
    thread.join(LIMIT_S)


def test_a_new_server_on_the_port_of_the_old_one(config: TransportConfig) -> None:
    """Field problem 22: nothing of the last run gets into this one."""
    address = "127.0.0.1:0"
    for _ in range(5):
        with (
            dblp.ParameterServer.serve_in_thread(address, workers=1, config=config) as server,
            dblp.Worker(server.address, rank=0, config=config) as worker,
        ):
            address = server.address
            array = np.arange(5000, dtype=np.float32)
            worker.all_reduce(array)
            assert (array == np.arange(5000)).all()


def test_no_descriptor_is_left_behind(config: TransportConfig) -> None:
    def use() -> None:
        with Cluster(2, config) as cluster, peers(config) as (here, there):
            cluster.all_reduce(gradients(2, 1000))
            results([here.send_async(b"abc"), there.recv_async(bytearray(3))])
        with pytest.raises(ConfigError):
            dblp.ParameterServer.serve_in_thread("192.0.2.1:0", workers=1, config=config)

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_endpoints_that_are_forgotten_clean_up(config: TransportConfig) -> None:
    """The fixture that looks for threads is what fails otherwise."""
    server = dblp.ParameterServer.serve_in_thread(workers=1, config=config)
    worker = dblp.Worker(server.address, rank=0, config=config)
    worker.all_reduce(np.ones(10, np.float32))
    listener = dblp.Listener(config=config)
    here = dblp.Peer.connect(listener.address, config=config)
    del server, worker, listener, here
    gc.collect()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("state", ["idle", "in a round"])
def test_an_exit_without_close_does_not_hang(loop: str, state: str) -> None:
    out = run_python(f"""
import numpy as np, dblp
config = dblp.TransportConfig(loop={loop!r})
server = dblp.ParameterServer.serve_in_thread(workers=2, config=config)
workers = [dblp.Worker(server.address, rank=rank, config=config) for rank in range(2)]
listener = dblp.Listener(config=config)
peer = dblp.Peer.connect(listener.address, config=config)
futures = [w.all_reduce_async(np.ones(1000, np.float32)) for w in workers]
[future.result() for future in futures]
if {state!r} != "idle":
    workers[0].all_reduce_async(np.ones(100_000, np.float32))
    peer.recv_async(bytearray(10))
print("the end")
""")
    assert out == "the end\n"


def test_a_forked_child_is_told_where_its_endpoints_are() -> None:
    """Field problem 25: a DataLoader forks, with sockets and threads in the parent."""
    out = run_python("""
import os, numpy as np, dblp
server = dblp.ParameterServer.serve_in_thread(workers=1)
worker = dblp.Worker(server.address, rank=0)
listener = dblp.Listener()
peer = dblp.Peer.connect(listener.address)
array = np.ones(1000, np.float32)
worker.all_reduce(array)
pid = os.fork()
if pid == 0:
    for call in (lambda: worker.all_reduce(array), lambda: peer.send(array)):
        try:
            call()
        except dblp.LocalProtocolError as error:
            print("fork" in str(error), flush=True)
    for endpoint in (worker, server, peer, listener):
        endpoint.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
worker.all_reduce(array)  # the parent goes on
print(array.sum())
for endpoint in (worker, server, peer, listener):
    endpoint.close()
""")
    assert out.split() == ["True", "True", "1000.0"]
