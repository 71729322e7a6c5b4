"""Rounds beside a trainer thread that runs pure Python, 20 MB.

The hog holds the interpreter lock whenever it can. Beside it, the same loop as a process of its own
shows how much of the difference is the lock, and how much just the processor it uses.
"""

from __future__ import annotations

import contextlib

from bench.harness import CaseResult, Chart, Settings, ratio
from bench.interleave import Plan, Side, interleave
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import DblpStar, hog_process, star_missing

_NBYTES = 20_000_000
_ROUNDS = 1000
_BUDGET_S = 110.0


def run(settings: Settings, result: CaseResult) -> None:
    """One star; turns without a hog, with one in worker 0, with one beside it, with one in each."""
    result.summary["hog_p99_ratio"] = None
    missing = star_missing()
    if missing:
        result.notes.append(f"not run: {missing}")
        return
    nbytes = settings.pick(_NBYTES, 200_000)
    plan = Plan(settings.pick(_ROUNDS, 5), settings.pick(_BUDGET_S, 5.0))
    with network.lab_or_loopback(result, 4) as lab, contextlib.ExitStack() as stack:
        star = stack.enter_context(DblpStar(lab, network.SERVER_HOST, network.WORKER_HOSTS))

        def beside(count: int, limit_s: float) -> list[float]:
            hog = hog_process(lab, network.WORKER_HOSTS[0])
            try:
                return star.rounds(nbytes, count, warmup=1, limit_s=limit_s).elapsed_s
            finally:
                hog.close(patience_s=0.0)

        every = range(len(network.WORKER_HOSTS))
        sides = [
            network.star_side("no hog", star, nbytes, plan),
            network.star_side("hog in one trainer", star, nbytes, plan, hogs=[0]),
            Side("hog as a process", beside, plan),
            network.star_side("hog in every trainer", star, nbytes, plan, hogs=every),
        ]
        interleave(sides)
    seen = {side.name: network.record(result, side, mb=nbytes / 1e6) for side in sides}
    free = seen["no hog"]
    for key, name in (
        ("hog_p99_ratio", "hog in one trainer"),
        ("hog_process_p99_ratio", "hog as a process"),
        ("hog_everywhere_p99_ratio", "hog in every trainer"),
    ):
        hogged = seen[name]
        result.summary[key] = ratio(hogged.tail if hogged else None, free.tail if free else None)
    series = {side.name: [s * 1e3 for s in side.samples] for side in sides}
    result.charts.append(
        Chart("cdf", "all-reduce, 20 MB, 3 workers", "share of rounds", series, "cdf", x_label="ms")
    )
