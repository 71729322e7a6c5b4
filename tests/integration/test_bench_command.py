"""`dblp bench` over real sockets on loopback, at sizes that measure nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import dblp
from dblp.cli import bench_server
from dblp.cli.bench_cards import (
    BENCH_VERSION,
    CARD_BYTES,
    Refused,
    Request,
    decode_card,
    encode_card,
)
from dblp.cli.bench_report import advice, both_ways, to_dict
from dblp.cli.bench_run import WARMUP_ROUNDS, Plan, run_bench
from dblp.cli.bench_server import CARD_STREAM, DATA_STREAM, BenchServer
from dblp.config import TransportConfig
from dblp.errors import ConfigError, DBLPError, PeerLostError, RoundTimeoutError
from dblp.faults import Impairment
from dblp.tolerance import Tolerance
from tests.integration.cluster import LIMIT_S

CONFIG = TransportConfig(timeout_s=LIMIT_S)
SMALL = Plan(nbytes=40_000, rounds=3, tolerance=Tolerance.of(0))


@contextmanager
def serving(
    *, config: TransportConfig = CONFIG, impairment: Impairment | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The address of a bench server in a thread, and what it has told so far."""
    told: list[str] = []
    server = BenchServer("127.0.0.1:0", config=config, impairment=impairment, tell=told.append)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server.address, told
    finally:
        server.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def wait_until_told(told: list[str], text: str) -> None:
    ends = time.monotonic() + LIMIT_S
    while not any(text in line for line in told):
        assert time.monotonic() < ends, told
        time.sleep(0.01)


# --- as a user runs it ---


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`dblp bench ARGUMENTS`; ended when the block is left."""
    started = subprocess.Popen(
        [sys.executable, "-m", "dblp", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def address_told(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("listening on "), line
    return line.split()[2].rstrip(";")


def test_two_processes_table_and_json_and_a_clean_end() -> None:
    with process("serve", "--listen", "127.0.0.1:0") as server:
        address = address_told(server)
        with process(address, "--size", "40KB", "--rounds", "3") as client:
            output, errors = client.communicate(timeout=LIMIT_S)
        assert (client.returncode, errors) == (0, "")
        for text in ("3 rounds of 40,000 bytes", "goodput", "p95", "sent again", "round trip"):
            assert text in output
        with process(address, "--size", "1", "--json") as client:
            output, errors = client.communicate(timeout=LIMIT_S)
        assert client.returncode == 1
        assert errors.startswith("dblp: error: --size is '1'") and errors.count("\n") == 1
        with process(address, "--size", "40KB", "--rounds", "3", "--json") as client:
            output, errors = client.communicate(timeout=LIMIT_S)
        assert (client.returncode, errors) == (0, "")
        content = json.loads(output)
        server.send_signal(signal.SIGINT)
        told, errors = server.communicate(timeout=LIMIT_S)
    assert content["round_s"]["n"] == content["rounds"] == 3
    assert content["up"]["missing"] == content["down"]["missing"] == 0
    assert content["up"]["datagrams"]["arrived"] >= 28 * (3 + WARMUP_ROUNDS)
    assert (server.returncode, errors) == (0, "")
    assert told.splitlines()[-2:] == ["client 2: done", "stopped"]


def test_ctrl_c_and_sigkill_of_a_client_leave_the_server_serving() -> None:
    with process("serve", "--listen", "127.0.0.1:0") as server:
        assert server.stdout is not None
        address = address_told(server)
        for number, ending, status in ((1, signal.SIGINT, 130), (2, signal.SIGKILL, -9)):
            with process(address, "--size", "40KB", "--rounds", "1000000") as client:
                assert server.stdout.readline().startswith(f"client {number}: 1,000,000 rounds")
                time.sleep(0.1)
                client.send_signal(ending)
                _, errors = client.communicate(timeout=LIMIT_S)
            assert client.returncode == status
            assert "Traceback" not in errors
            # Interrupted inside a call the client says Abort, between two calls goodbye.
            told = server.stdout.readline()
            assert told.startswith((f"client {number} left early: ", f"client {number} failed: "))
        found = run_bench(address, SMALL, CONFIG)
        assert len(found.up.elapsed_s) == SMALL.rounds


def test_no_server_is_one_sentence() -> None:
    with BenchServer("127.0.0.1:0", config=CONFIG) as server:
        address = server.address
    with process(address, "--connect-timeout", "0.2") as client:
        _, errors = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 1
    assert errors.startswith(f"dblp: error: the server at {address} cannot be reached")
    assert errors.count("\n") == 1


# --- what it finds ---


def test_a_clean_network_has_no_loss(config: TransportConfig) -> None:
    with serving(config=config) as (address, _):
        rounds: list[float] = []
        found = run_bench(
            address, SMALL, config, on_round=lambda up, down: rounds.append(up + down)
        )
    assert len(rounds) == SMALL.rounds
    for way in both_ways(found):
        assert way.lost == way.kernel_drops == way.corrupt == 0
        assert way.arrived >= 28 * (SMALL.rounds + WARMUP_ROUNDS)
    json.dumps(to_dict(found), allow_nan=False)


def test_loss_shows_where_it_is() -> None:
    plan = Plan(nbytes=1_000_000, rounds=3, tolerance=Tolerance.of(0))
    with serving(impairment=Impairment(seed=1, uniform=0.2)) as (address, _):
        found = run_bench(address, plan, CONFIG)
    up, down = both_ways(found)
    assert up.loss_share == pytest.approx(0.2, abs=0.05)
    assert up.retransmitted >= up.lost > down.lost
    assert found.up.missing == found.down.missing == 0
    assert any("of the datagrams to the server were lost" in line for line in advice(found))


def test_what_is_tolerated_is_missing_and_not_wrong() -> None:
    plan = Plan(nbytes=1_000_000, rounds=3, tolerance=Tolerance.of("30%"))
    with serving(impairment=Impairment(seed=1, uniform=0.2)) as (address, _):
        found = run_bench(address, plan, CONFIG)
    assert 0 < found.up.missing <= plan.rounds * plan.tolerance.missing_max(found.up.chunks // 3)
    assert found.up.delivered_bytes < plan.rounds * plan.nbytes


def test_blocked_datagrams_are_noticed() -> None:
    plan = Plan(nbytes=4_000, rounds=1, tolerance=Tolerance.of(0))
    with serving(impairment=Impairment(seed=1, uniform=1.0)) as (address, _):
        found = run_bench(address, plan, CONFIG)
    up, _ = both_ways(found)
    assert up.dead
    assert "do not get through" in advice(found)[0] or "no datagram gets" in advice(found)[0]


# --- sides that do not fit together ---


def talk(address: str, card: bytearray) -> bytearray:
    """What the server answers to `card`."""
    answer = bytearray(CARD_BYTES)
    with dblp.Peer.connect(address, config=CONFIG) as peer:
        peer.send(card, stream=CARD_STREAM)
        peer.recv(answer, stream=CARD_STREAM)
    return answer


def test_the_server_tells_other_versions_its_own() -> None:
    request = Request(nbytes=4, rounds=1, warmup=0, tolerance="0/1")
    with serving() as (address, told):
        for version in (BENCH_VERSION - 1, BENCH_VERSION + 1):
            answer = decode_card(talk(address, encode_card(request, version=version)))
            assert isinstance(answer, Refused)
            assert "install the same dblp on both hosts" in answer.reason
        wait_until_told(told, "client 2 failed")
        assert run_bench(address, SMALL, CONFIG).up.missing == 0


def test_a_client_names_the_version_of_another_server() -> None:
    with dblp.Listener(config=CONFIG) as listener:

        def answer() -> None:
            with listener.accept(LIMIT_S) as peer:
                peer.recv(bytearray(CARD_BYTES), stream=CARD_STREAM)
                peer.send(encode_card(Refused("no"), version=BENCH_VERSION + 6))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConfigError, match=r"speaks version 7 .* and this one version 1"):
            run_bench(listener.address, SMALL, CONFIG)
        thread.join(LIMIT_S)


def test_a_refusal_reaches_the_user() -> None:
    with serving() as (address, _):
        answer = decode_card(
            talk(address, encode_card(Request(nbytes=6, rounds=1, warmup=0, tolerance="0")))
        )
        assert isinstance(answer, Refused) and "nbytes" in answer.reason
        answer = decode_card(
            talk(address, encode_card(Request(nbytes=4, rounds=1, warmup=0, tolerance="x")))
        )
        assert isinstance(answer, Refused) and "tolerance" in answer.reason


@pytest.mark.parametrize("nbytes", [CARD_BYTES, 10])
def test_the_server_survives_a_stranger(nbytes: int) -> None:
    with serving() as (address, told):
        with dblp.Peer.connect(address, config=CONFIG) as peer, pytest.raises(DBLPError):
            peer.send(bytes(nbytes), stream=CARD_STREAM)
            peer.recv(bytearray(CARD_BYTES), stream=CARD_STREAM)
        wait_until_told(told, "client 1 ")
        assert run_bench(address, SMALL, CONFIG).up.missing == 0


def test_the_server_does_not_wait_for_a_silent_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_server, "REQUEST_WAIT_S", 0.1)
    with serving() as (address, told), dblp.Peer.connect(address, config=CONFIG):
        assert run_bench(address, SMALL, CONFIG).up.missing == 0
        assert told[0] == "client 1 left early: it asked for nothing within 0.1 s"


def test_the_server_does_not_wait_for_a_client_that_stops_in_the_middle() -> None:
    impatient = TransportConfig(timeout_s=0.5)
    with serving(config=impatient) as (address, told):
        with dblp.Peer.connect(address, config=CONFIG) as peer:
            peer.send(
                encode_card(Request(nbytes=400, rounds=9, warmup=0, tolerance="0")),
                stream=CARD_STREAM,
            )
            peer.recv(bytearray(CARD_BYTES), stream=CARD_STREAM)
            peer.send(np.zeros(100, np.float32), stream=DATA_STREAM)
            wait_until_told(told, "client 1 left early")
        assert run_bench(address, SMALL, CONFIG).up.missing == 0


def test_a_listener_that_is_no_bench_server() -> None:
    impatient = TransportConfig(timeout_s=0.3)
    with (
        dblp.Listener(config=CONFIG) as listener,
        pytest.raises(RoundTimeoutError, match=r"not answered within 0\.3 s: it may be busy"),
    ):
        run_bench(listener.address, SMALL, impatient)


def test_a_parameter_server_is_no_bench_server() -> None:
    impatient = TransportConfig(timeout_s=1.0, connect_timeout_s=1.0)
    with dblp.ParameterServer.serve_in_thread(
        "127.0.0.1:0", workers=3, policy=dblp.FixedTolerance(0), config=impatient
    ) as server:
        with pytest.raises(DBLPError) as failure:
            run_bench(server.address, SMALL, impatient)
        assert str(failure.value).count("\n") == 0


def test_a_server_that_ends_in_the_middle() -> None:
    plan = Plan(nbytes=40_000, rounds=1_000_000, tolerance=Tolerance.of(0))
    with BenchServer("127.0.0.1:0", config=CONFIG) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        with pytest.raises(PeerLostError, match="has gone away"):
            run_bench(server.address, plan, CONFIG, on_round=lambda up, down: server.close())
        thread.join(LIMIT_S)
        assert not thread.is_alive()
