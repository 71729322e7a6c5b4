"""One process of the demo: the parameter server or one worker.  `python -m dblp.demo.process`.

The orchestrator writes the `Assignment` as the first line of standard input and reads one JSON
event per line from standard output.  Standard input stays open as a lifeline: when it closes, the
server shuts down in good order and a worker ends at once: nothing outlives the orchestrator.  A
worker that has trained takes the next line as its next assignment.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TextIO, TypeVar

import dblp

from ..errors import DBLPError
from .assignment import Assignment

LOOK_S = 0.5
"""How often the server looks whether its lifeline is closed, in seconds."""


class Events:
    """Writes events, one JSON object per line, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        line = json.dumps(event) + "\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def serve(assignment: Assignment, emit: Events, lifeline: threading.Event) -> None:
    """Runs the parameter server until all workers have left and the lifeline is closed."""
    settings = assignment.settings
    downlink_datagrams = 0

    def count(report: dblp.RoundReport) -> None:
        nonlocal downlink_datagrams
        if report.direction == "downlink":
            downlink_datagrams += report.datagrams

    with dblp.ParameterServer(
        assignment.address,
        workers=settings.workers,
        policy=assignment.policy,
        downlink=settings.downlink,
        config=assignment.config,
        impairment=assignment.impairment,
        on_report=count,
    ) as server:
        emit({"event": "listening", "address": server.address})
        while not server.wait(LOOK_S) and not lifeline.is_set():
            pass  # wait() raises what ended the job
        lifeline.wait()
    emit({"event": "served", "datagrams": downlink_datagrams})


def work(assignment: Assignment, emit: Events) -> None:
    """Trains one replica and leaves its parameters."""
    import numpy as np
    import torch

    from . import data, model, trainer

    settings, rank = assignment.settings, assignment.rank
    assert rank is not None
    torch.set_num_threads(1)  # the workers share the machine's cores among themselves
    dataset = data.load(settings.data)
    replica = model.build(dataset.name, settings.seed)
    emit({"event": "ready"})
    with dblp.Worker(
        assignment.address,
        rank=rank,
        config=assignment.config,
        impairment=assignment.impairment,
    ) as worker:
        trainer.train(
            settings.recipe,
            dataset,
            replica,
            worker,
            rank=rank,
            world=settings.workers,
            seed=settings.seed,
            emit=emit,
        )
    np.save(assignment.parameters_path, model.flat_parameters(replica).numpy())
    emit({"event": "trained"})


class Placed(Protocol):
    """What a process is told to do, with its place: the rank of a worker, None for the server."""

    @property
    def rank(self) -> int | None:
        """See the class."""


_Order = TypeVar("_Order", bound=Placed)


def run_process(
    read: Callable[[str], _Order],
    serve: Callable[[_Order, Events, threading.Event], None],
    work: Callable[[_Order, Events], None],
) -> int:
    """Runs one process as its lines of input, decoded by `read`, say; the exit status.

    The server has one order.  A worker serves one after the other until standard input closes:
    importing torch takes as long as a small training.
    """
    emit = Events(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # a stray print must not end up among the events
    order = read(sys.stdin.readline())
    lifeline = threading.Event()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def watch() -> None:
        for line in sys.stdin:
            lines.put(line)
        lifeline.set()
        if order.rank is not None:
            os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    try:
        if order.rank is None:
            serve(order, emit, lifeline)
            return 0
        while True:
            work(order, emit)
            order = read(lines.get())
    except Exception as error:
        if not isinstance(error, DBLPError):
            traceback.print_exc()  # goes to the log file that the orchestrator names
        emit({"event": "error", "kind": type(error).__name__, "message": str(error)})
        return 1


def main() -> int:
    """Entry point; the exit status."""
    return run_process(Assignment.from_json, serve, work)


if __name__ == "__main__":
    sys.exit(main())
