"""One process of a cell: the parameter server or a rank.  `python -m dblp.experiments.process`.

As in the demo: an `Assignment` is a line of standard input, events leave as lines of JSON, and the
process ends when standard input closes.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import cast

import dblp

from ..collective.server_core import MissingRule
from ..collective.server_decisions import Downlink, NormSource
from ..demo.process import Events, run_process
from .assignment import Assignment
from .settings import policy_of

LOOK_S = 0.5


def serve(assignment: Assignment, emit: Events, lifeline: threading.Event) -> None:
    """Runs the parameter server until all workers have left and the lifeline is closed."""
    setting = assignment.cell.setting
    with dblp.ParameterServer(
        "127.0.0.1:0",
        workers=assignment.cell.workers,
        policy=policy_of(assignment.cell, assignment.steps),
        downlink=cast(Downlink, setting.downlink),
        rule=cast(MissingRule, setting.rule),
        norm=cast(NormSource, setting.norm),
        config=assignment.config,
        impairment=assignment.impairment,
    ) as server:
        emit({"event": "listening", "address": server.address})
        while not server.wait(LOOK_S) and not lifeline.is_set():
            pass  # wait() raises what ended the job
        lifeline.wait()
    emit({"event": "served"})


def work(assignment: Assignment, emit: Events) -> None:
    """Runs one rank; rank 0 tells the results."""
    import torch
    import torch.distributed as dist

    from .tasks import task_of
    from .training import run_rank

    assert assignment.rank is not None
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // assignment.cell.workers))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{assignment.store}",
        rank=assignment.rank,
        world_size=assignment.cell.workers,
    )
    task = task_of(assignment.cell, assignment.data, assignment.rank)
    result = run_rank(assignment, task, emit)
    dist.barrier()
    dist.destroy_process_group()
    emit({"event": "trained", "result": result})


if __name__ == "__main__":
    sys.exit(run_process(Assignment.from_json, serve, work))
