"""Ranks in processes of their own that run one check after the other, as torch takes seconds to
import.

A check is a function at the top of a module: `check(job, **settings)` runs on every rank; what it
returns is handed back, by rank.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, cast

START_LIMIT_S = 120.0
CHECK_LIMIT_S = 60.0


@dataclass(frozen=True)
class Job:
    """What a check knows about itself."""

    rank: int
    world: int
    group: Any
    """Gloo process group of the ranks that take part."""


class Ranks:
    """Processes 0 … most-1; a check may use fewer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        port = free_port()
        for rank in range(self._most):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self._most, port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        answers = self._answers(self._most, time.monotonic() + START_LIMIT_S)
        assert answers == ["ready"] * self._most

    def run(self, check: Callable[..., Any], world: int, **settings: Any) -> list[Any]:
        """What `check` returns on each of `world` ranks; AssertionError where it raises."""
        if not self._processes:
            self._start()
        try:
            until = time.monotonic() + CHECK_LIMIT_S
            for pipe in self._pipes[:world]:
                pipe.send((check, world, settings))
            return self._answers(world, until)
        except BaseException:
            self.close()  # whatever it left behind must not trouble the next
            raise

    def _answers(self, world: int, until: float) -> list[Any]:
        """By rank; read as they come, since a rank that failed is why the others wait."""
        rank_of = {pipe: rank for rank, pipe in enumerate(self._pipes[:world])}
        answers: dict[int, Any] = {}
        while len(answers) < world:
            waiting = [pipe for pipe, rank in rank_of.items() if rank not in answers]
            for pipe in wait(waiting, max(0.1, until - time.monotonic())) or waiting:
                rank = rank_of[cast(Connection, pipe)]
                answers[rank] = self._answer(rank, until)
        return [answers[rank] for rank in range(world)]

    def _answer(self, rank: int, until: float) -> Any:
        pipe = self._pipes[rank]
        if not pipe.poll(max(0.1, until - time.monotonic())):
            raise AssertionError(f"rank {rank} does not answer")
        try:
            kind, value = pipe.recv()
        except EOFError:
            raise AssertionError(f"rank {rank} has ended") from None
        if kind == "error":
            raise AssertionError(f"rank {rank}:\n{value}")
        return value

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


def free_port(count: int = 1) -> int:
    """The first of `count` free TCP ports in a row."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
            if all(_is_free(port + offset) for offset in range(1, count)):
                return port


@contextmanager
def busy_port_after_a_free_one() -> Iterator[int]:
    """A TCP port that is listened on meanwhile; the one before it is free.

    Taken here: nobody else can have it by the time a check wants it to be busy.
    """
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
            if _is_free(port - 1):
                sock.listen()
                yield port
                return


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _serve(rank: int, most: int, port: int, pipe: Connection) -> None:
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=most
    )
    groups = {size: dist.new_group(list(range(size))) for size in range(1, most + 1)}
    pipe.send(("ok", "ready"))
    while True:
        try:
            check, world, settings = pipe.recv()
        except EOFError:
            return
        torch.manual_seed(0)
        try:
            pipe.send(("ok", check(Job(rank, world, groups[world]), **settings)))
        except BaseException:
            pipe.send(("error", traceback.format_exc()))
