"""Roles in processes of their own, for tests that kill them.

`python tests/integration/processes.py ROLE ADDRESS [RANK]` prints what happens to it, line by line;
the role `server` takes the number of workers as ADDRESS and prints its address first; the role
`mesh` takes WORLD,SERVERS, prints its address and reads those of all ranks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 60.0


class Role:
    """A running role."""

    def __init__(self, *arguments: str, loop: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DBLP_TEST_LOOP": loop},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str) -> None:
        """Gives it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def end(self, limit_s: float) -> tuple[str, str]:
        """(the rest of its output, its errors) once it has ended, at most `limit_s` from now."""
        try:
            return self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def job(workers: int, role: str, loop: str) -> Iterator[tuple[Role, list[Role]]]:
    """(server, workers), all connected; what still runs in the end is killed."""
    server = Role("server", str(workers), loop=loop)
    started = [server]
    try:
        address = server.line()
        for rank in range(workers):
            started.append(Role(role, address, str(rank), loop=loop))
        for worker in started[1:]:
            assert worker.line() == "ready"
        yield server, started[1:]
    finally:
        for one in started:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate(timeout=START_LIMIT_S)


@contextmanager
def mesh_job(world: int, servers: int, loop: str) -> Iterator[list[Role]]:
    """The ranks of a mesh in the middle of their rounds; what still runs in the end is killed."""
    ranks = [Role("mesh", f"{world},{servers}", str(rank), loop=loop) for rank in range(world)]
    try:
        addresses = " ".join(role.line() for role in ranks)
        for role in ranks:
            role.tell(addresses)
        for role in ranks:
            assert role.line() == "ready"
        yield ranks
    finally:
        for one in ranks:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate(timeout=START_LIMIT_S)


# --- the roles themselves


def serve(workers: int) -> None:
    import dblp

    config = dblp.TransportConfig(loop=os.environ["DBLP_TEST_LOOP"], timeout_s=15)
    with dblp.ParameterServer("127.0.0.1:0", workers=workers, config=config) as server:
        print(server.address, flush=True)
        server.wait(START_LIMIT_S)


def work(address: str, rank: int, role: str) -> None:
    """`busy` runs rounds; `late` takes part in one and then waits in the next alone, but rank 0
    never joins."""
    import numpy as np

    import dblp

    config = dblp.TransportConfig(loop=os.environ["DBLP_TEST_LOOP"], timeout_s=15)
    with dblp.Worker(address, rank=rank, config=config) as worker:
        grad = np.ones(500_000, np.float32)
        worker.all_reduce(grad)
        if role == "late" and rank == 0:
            print("ready", flush=True)
            time.sleep(START_LIMIT_S)
        worker.all_reduce_async(grad)
        print("ready", flush=True)
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            worker.all_reduce(grad)


def mesh(world: int, servers: int, rank: int) -> None:
    """Prints its address, reads those of all, and runs rounds until something happens."""
    import numpy as np

    import dblp

    config = dblp.TransportConfig(loop=os.environ["DBLP_TEST_LOOP"], timeout_s=15)
    with dblp.Mesh(
        rank=rank, world=world, servers=servers, listen="127.0.0.1:0", config=config
    ) as one:
        print(one.address, flush=True)
        one.connect(sys.stdin.readline().split())
        grad = np.ones(500_000, np.float32)
        one.all_reduce(grad)
        print("ready", flush=True)
        until = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until:
            one.all_reduce(grad)


def main(role: str, where: str, rank: str = "0") -> None:
    try:
        if role == "server":
            serve(int(where))
        elif role == "mesh":
            world, servers = where.split(",")
            mesh(int(world), int(servers), int(rank))
        else:
            work(where, int(rank), role)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(130)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
