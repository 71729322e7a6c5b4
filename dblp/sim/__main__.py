"""`python -m dblp.sim --seed 7 --count 1000`: exits with 1 when an invariant breaks."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields

from ..fastpath import FASTPATH
from .options import Options, draw
from .scenario import run_options

__all__ = ["main"]

BLOCK_SEEDS = 50
"""Seeds per piece of work of a process."""


@dataclass(frozen=True, slots=True)
class Result:
    """What is told about one seed."""

    seed: int
    failure: str
    """Empty when every invariant held."""
    trace: str
    """Where it failed, for people."""
    line: str
    """One line about the run, for --verbose."""
    rounds: int
    events: int
    virtual_s: float
    liveness_share: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the seeds; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dblp.sim",
        description="Simulates dblp sessions and whole clusters in virtual time and checks their "
        "invariants.  The same seed gives the same run.",
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--count", type=int, default=1000, help="how many seeds (default 1000)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--verbose", action="store_true", help="one line per seed, and its options")
    chosen = parser.parse_args(arguments)
    if chosen.seed < 0 or chosen.count < 1 or chosen.jobs < 1:
        parser.error("--seed must be 0 or more, --count and --jobs 1 or more")
    failed: list[int] = []
    seeds = rounds = events = 0
    virtual_s = share = 0.0
    for result in _results(chosen.seed, chosen.count, chosen.jobs):
        seeds += 1
        rounds += result.rounds
        events += result.events
        virtual_s += result.virtual_s
        share = max(share, result.liveness_share)
        if chosen.verbose:
            print(result.line, flush=True)
            print(describe(draw(result.seed)), flush=True)
        if result.failure:
            failed.append(result.seed)
            print(f"seed {result.seed} FAILED\n{describe(draw(result.seed))}\n{result.trace}")
            print(f"seed {result.seed}: {result.failure}", flush=True)
    verdict = f"{len(failed)} FAILED: {failed[:20]}" if failed else "every invariant held"
    print(
        f"{seeds} seeds from {chosen.seed} ({FASTPATH} fast path): {rounds} rounds, {events} "
        f"events, {virtual_s:.0f} s of virtual time, slowest recovery {share:.0%} of its bound: "
        f"{verdict}"
    )
    return 1 if failed else 0


def describe(options: Options) -> str:
    """The options, one per line."""
    lines = [f"    {item.name} = {getattr(options, item.name)!r}" for item in fields(options)]
    return "\n".join(lines)


def _results(first: int, count: int, jobs: int) -> Iterator[Result]:
    """In the order of the seeds."""
    if jobs == 1:
        yield from map(_run, range(first, first + count))
        return
    blocks = [
        range(start, min(start + BLOCK_SEEDS, first + count))
        for start in range(first, first + count, BLOCK_SEEDS)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(_run_block, blocks):
            yield from results


def _run_block(seeds: range) -> list[Result]:
    return [_run(seed) for seed in seeds]


def _run(seed: int) -> Result:
    """One seed; whatever it raises is a failure: an invariant, or an assertion of the code."""
    options = draw(seed)
    try:
        outcome = run_options(options)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        return Result(seed, failure, traceback.format_exc(), f"seed {seed}: FAILED", 0, 0, 0.0, 0.0)
    line = (
        f"seed {seed}: {options.kind} of {options.world}, {outcome.rounds} rounds, "
        f"{outcome.virtual_s:.4f} s, {outcome.events} events"
        f"{', ended early by ' + options.trouble if outcome.error else ''}"
    )
    return Result(
        seed, "", "", line, outcome.rounds, outcome.events, outcome.virtual_s,
        outcome.liveness_share,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
