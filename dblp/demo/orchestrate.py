"""Starts one server and N workers as processes on loopback, follows them, and cleans up.

Every wait is bounded: by the silence limit while events flow, by seconds while processes end.
Nothing survives this module: children die with their lifeline, and `ProcessGroup` ends the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import DBLPError
from .assignment import START_UP_S, Assignment
from .record import RoundRecord, SideRecord
from .settings import DemoSettings, Side

SERVER = "server"
ENDING_S = 5.0
"""How long processes may take to end by themselves, and after a failure to say what they saw."""
EVALUATION_S = 60.0
"""Longest silence that a test-set evaluation may cause, on top of the round timeout."""

OnRound = Callable[[Side, int, float], None]
"""Called after each round with the side, the step and the training loss of rank 0."""


PROCESS = (sys.executable, "-m", "dblp.demo.process")
"""The command of every process; its assignment comes on standard input."""


class DemoFailedError(DBLPError):
    """A process of the demo or of an experiment failed; the message names it and its log."""


def run_side(
    side: Side,
    settings: DemoSettings,
    burst_rounds: Sequence[int],
    on_round: OnRound,
    command: Sequence[str] = PROCESS,
) -> SideRecord:
    """Trains once, with DBLP or with the baseline, and returns what happened.

    Raises DemoFailedError when a process fails or falls silent; all processes are gone by then.
    """
    logs = settings.out_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    limit_s = settings.timeout_s + EVALUATION_S
    with (
        tempfile.TemporaryDirectory(prefix="dblp-demo-") as scratch,
        ProcessGroup(command) as group,
    ):
        server = Assignment(side, settings, tuple(burst_rounds))
        group.start(SERVER, server, logs / f"{side}-server.log")
        address = group.next_event(START_UP_S)[1]["address"]
        paths = [Path(scratch) / f"parameters-{rank}.npy" for rank in range(settings.workers)]
        for rank, path in enumerate(paths):
            worker = dataclasses.replace(
                server, rank=rank, address=address, parameters_path=str(path)
            )
            group.start(f"worker {rank}", worker, logs / f"{side}-worker-{rank}.log")
        events = Events(settings.workers)
        while events.trained < settings.workers:
            waited_s = limit_s if events.rounds else START_UP_S + limit_s
            name, event = group.next_event(waited_s)
            events.take(name, event)
            if name == "worker 0" and event["event"] == "round":
                on_round(side, event["step"], event["loss"])
        served = group.finish(SERVER)
        drift = replica_drift([np.load(path) for path in paths])
    return events.record(side, burst_rounds, drift, served["datagrams"])


def replica_drift(replicas: Sequence[np.ndarray]) -> float:
    """Largest absolute difference of any parameter between any two replicas."""
    stacked = np.stack(replicas)
    return float((stacked.max(axis=0) - stacked.min(axis=0)).max(initial=0.0))


class Events:
    """The workers' events, sorted by step and rank."""

    def __init__(self, workers: int) -> None:
        self.trained = 0
        self.rounds: dict[int, dict[int, dict[str, Any]]] = {}
        self._workers = workers
        self._epochs: dict[int, list[dict[str, Any]]] = {}

    def take(self, name: str, event: dict[str, Any]) -> None:
        """One event of the process called `name`."""
        if event["event"] == "trained":
            self.trained += 1
        elif event["event"] == "round":
            rank = int(name.removeprefix("worker "))
            self.rounds.setdefault(event["step"], {})[rank] = event
        elif event["event"] == "epoch":
            self._epochs.setdefault(event["epoch"], []).append(event)

    def record(
        self, side: Side, burst_rounds: Sequence[int], drift: float, downlink_datagrams: int
    ) -> SideRecord:
        """Everything about the side, once all workers are done."""
        rounds = [
            RoundRecord.of(side, by_rank, burst=step in burst_rounds)
            for step, by_rank in sorted(self.rounds.items())
        ]
        epochs = [self._epochs[epoch] for epoch in sorted(self._epochs)]
        assert all(len(record.workers) == self._workers for record in rounds)
        return SideRecord(
            side=side,
            rounds=rounds,
            accuracy=[sum(e["correct"] for e in ev) / sum(e["seen"] for e in ev) for ev in epochs],
            train_time_s=max(event["train_time_s"] for event in epochs[-1]),
            replica_drift=drift,
            downlink_datagrams=downlink_datagrams,
        )


@dataclasses.dataclass
class Child:
    """A process, its log, and what it said last."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    error: dict[str, Any] | None = None
    finished: bool = False

    def fate(self) -> str:
        """How it ended, for an error message."""
        if self.error is not None:
            return f"{self.name} failed: {self.error['message'].rstrip('.')}"
        status = self.process.poll()
        if status is None:
            return f"{self.name} closed its output"
        if status < 0:
            return f"{self.name} was ended by {signal.Signals(-status).name}"
        return f"{self.name} ended with status {status}"

    @property
    def serves_again(self) -> bool:
        """Whether it waits for another order: a worker whose lifeline is open."""
        assert self.process.stdin is not None
        return not self.process.stdin.closed and self.process.poll() is None

    def bury(self) -> None:
        """Waits for the end of a process that was killed, and closes its input."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_S)
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()


class Order(Protocol):
    """What a process is told to do."""

    def to_json(self) -> str:
        """One line."""


class ProcessGroup:
    """Processes that belong together.  On leaving the context every one of them is gone."""

    def __init__(self, command: Sequence[str] = PROCESS) -> None:
        self._command = list(command)
        self._children: dict[str, Child] = {}
        self._events: queue.Queue[tuple[Child, dict[str, Any] | None]] = queue.Queue()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children.values():
            child.process.kill()
        for child in self._children.values():
            child.bury()

    def start(self, name: str, assignment: Order, log: Path) -> None:
        """Starts the process called `name`, or gives it its next order when it is done with one.

        A session of its own keeps Ctrl-C from reaching it before us.
        """
        child = self._children.get(name)
        if child is not None and child.finished and child.serves_again:
            child.finished = False
        else:
            if child is not None:
                child.process.kill()
                child.bury()
            child = self._children[name] = self._started(name, log)
        with contextlib.suppress(BrokenPipeError):  # it is dead already: next_event() says so
            assert child.process.stdin is not None
            child.process.stdin.write(assignment.to_json() + "\n")
            child.process.stdin.flush()

    def _started(self, name: str, log: Path) -> Child:
        with log.open("a") as file:  # a replacement must not erase why it is one
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                bufsize=1,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        child = Child(name, process, log)
        threading.Thread(target=self._read, args=(child,), daemon=True).start()
        return child

    def _read(self, child: Child) -> None:
        assert child.process.stdout is not None
        for line in child.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):  # cut off by a kill
                self._events.put((child, json.loads(line)))
        self._events.put((child, None))

    def next_event(self, limit_s: float) -> tuple[str, dict[str, Any]]:
        """The next event of any process within `limit_s` seconds.  A process that ends too early,
        an error event or silence raise DemoFailedError."""
        for child, event in self._stream(limit_s):
            if event is None:
                if child.finished:
                    continue
                raise self._failure(child)
            if event["event"] == "error":
                child.error = event
                raise self._failure(child)
            child.finished = event["event"] in ("trained", "served")
            return child.name, event
        logs = ", ".join(str(child.log) for child in self._children.values())
        raise DemoFailedError(
            f"no process has reported anything for {limit_s:.0f} s: look into {logs}"
        )

    def finish(self, name: str) -> dict[str, Any]:
        """Closes the lifeline of process `name` and returns its last event."""
        stdin = self._children[name].process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()
        while True:
            sender, event = self.next_event(ENDING_S)
            if sender == name:
                return event

    def _stream(self, limit_s: float) -> Iterator[tuple[Child, dict[str, Any] | None]]:
        """What the processes say until `limit_s` seconds have passed."""
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                # Short waits, so that Ctrl-C is noticed on every platform.
                yield self._events.get(timeout=min(left_s, 0.5))

    def _failure(self, first: Child) -> DemoFailedError:
        """Why the side failed.  The first to fail need not be the culprit: workers notice a lost
        peer before its pipe reports the end, so the others get a moment to say what they saw."""
        failed = [first]
        running = {n for n, c in self._children.items() if not c.finished and c is not first}
        for child, event in self._stream(ENDING_S if running - {SERVER} else 0.0):
            if event is not None and event["event"] == "error":
                child.error = event
            if child.name in running and (event is None or event["event"] == "error"):
                running.discard(child.name)
                failed.append(child)
            if not running - {SERVER}:  # the server need not say anything
                break
        for child in failed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(1.0)
        culprit = min(failed, key=_suspicion)
        witnesses = [child.fate() for child in failed if child is not culprit]
        noticed = f" ({'; '.join(witnesses)})" if witnesses else ""
        return DemoFailedError(f"{culprit.fate()}{noticed}; its log is {culprit.log}")


def _suspicion(child: Child) -> int:
    """Orders failed processes, the likeliest culprit first."""
    if child.error is None:
        return 0  # killed, or crashed without a word
    return 2 if child.error["kind"] in ("PeerLostError", "RoundAbortedError") else 1
