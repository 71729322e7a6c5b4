"""Processes that are killed or interrupted: the others end with a named error, soon."""

from __future__ import annotations

import signal
import time

import pytest

from tests.integration.processes import Role, job

SOON_S = 5.0
"""The requirement: every other process has ended by then."""

both_loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
both_states = pytest.mark.parametrize("role", ["busy", "late"])


def assert_all_end(roles: list[Role], words: str) -> None:
    """Within `SOON_S` in all each of them has printed a PeerLostError with these words."""
    until = time.monotonic() + SOON_S
    for role in roles:
        out, problems = role.end(max(0.1, until - time.monotonic()))
        last = out.strip().splitlines()[-1]
        assert last.startswith("PeerLostError: "), (out, problems)
        assert words in last
        assert role.process.returncode == 3
        assert "Traceback" not in problems


@both_loops
@both_states
def test_a_worker_is_killed(loop: str, role: str) -> None:
    with job(3, role, loop) as (server, workers):
        workers[1].kill()
        assert_all_end([server, workers[0], workers[2]] if role == "busy" else [server, workers[2]],
                       "rank 1")  # fmt: skip


@both_loops
@both_states
def test_the_server_is_killed(loop: str, role: str) -> None:
    with job(2, role, loop) as (server, workers):
        server.kill()
        assert_all_end(workers if role == "busy" else workers[1:], "server")


@both_loops
@pytest.mark.parametrize("who", ["worker", "server"])
def test_ctrl_c(loop: str, who: str) -> None:
    """SIGINT to a process that waits in a round (rank 1) or for the workers (server)."""
    with job(2, "late", loop) as (server, workers):
        one = server if who == "server" else workers[1]
        one.kill(signal.SIGINT)
        out, problems = one.end(SOON_S)
        assert out.strip() == "interrupted"
        assert one.process.returncode == 130
        assert "Traceback" not in problems
        other = workers[1] if who == "server" else server
        out, _ = other.end(SOON_S)
        assert "Error: " in out


@both_loops
def test_ctrl_c_in_the_middle_of_rounds(loop: str) -> None:
    with job(2, "busy", loop) as (server, workers):
        workers[0].kill(signal.SIGINT)
        out, problems = workers[0].end(SOON_S)
        assert out.strip() == "interrupted"
        assert "Traceback" not in problems
        for other in (workers[1], server):
            out, _ = other.end(SOON_S)
            assert "rank 0" in out


def test_a_process_that_stops_without_a_word_is_noticed() -> None:
    """SIGSTOP: no connection breaks, nothing is heard (hazard 10)."""
    with job(2, "busy", "uvloop") as (server, workers):
        workers[1].kill(signal.SIGSTOP)
        silence_s = 5 + 5  # `TransportConfig.peer_silence_s` of the roles, and some
        try:
            out, _ = server.end(silence_s)
            assert out.startswith("PeerLostError: rank 1")
            out, _ = workers[0].end(SOON_S)
            assert "rank 1" in out
        finally:
            workers[1].kill(signal.SIGCONT)
