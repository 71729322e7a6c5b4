"""A few hundred seeds, on both fast paths; `python -m dblp.sim` runs as many as you like."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dblp.fastpath import IS_COMPILED
from dblp.sim.__main__ import main
from dblp.sim.options import Options, draw
from dblp.sim.scenario import liveness_bound_s, run_options, run_seed

ROOT = Path(__file__).parents[2]

BLOCK = 30

BLOCKS = 10

TWIN_SEEDS = range(25)


@pytest.mark.parametrize("first", range(0, BLOCK * BLOCKS, BLOCK))
def test_every_invariant_holds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        try:
            run_seed(seed)
        except Exception as error:
            error.add_note(f"python -m dblp.sim --seed {seed} --count 1 --verbose")
            raise


def test_the_same_seed_gives_the_same_run() -> None:
    assert [run_seed(seed) for seed in range(8)] == [run_seed(seed) for seed in range(8)]


@pytest.mark.skipif(not IS_COMPILED, reason="both runs would be those of the Python twin")
def test_both_fast_paths_give_the_same_run() -> None:
    """Not only do the invariants hold: every event comes at the same time."""
    program = (
        "import sys; from dblp.sim.scenario import run_seed\n"
        f"for seed in range({TWIN_SEEDS.start}, {TWIN_SEEDS.stop}):\n"
        "    outcome = run_seed(seed)\n"
        "    print(seed, outcome.events, outcome.rounds, outcome.virtual_s)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"DBLP_FASTPATH": "python"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    here = [(seed, run_seed(seed)) for seed in TWIN_SEEDS]
    lines = [f"{seed} {one.events} {one.rounds} {one.virtual_s}" for seed, one in here]
    assert done.stdout.splitlines() == lines


def test_options_are_drawn_from_the_seed_alone() -> None:
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def drawn(count: int = 2000) -> list[Options]:
    return [draw(seed) for seed in range(count)]


def test_seeds_reach_what_they_are_to_reach() -> None:
    """A sample of the options must hold the rare ones."""
    sample = drawn()
    assert {one.kind for one in sample} == {"cluster", "pair"}
    assert {one.world for one in sample if one.kind == "cluster"} == {1, 2, 3, 4, 5}
    assert {one.stop for one in sample} == {"eager", "patient"}
    assert {one.blocked for one in sample} == {"", "up", "down", "both"}
    troubles = {"", "crash", "server crash", "leave", "freeze", "mismatch"}
    assert {one.trouble for one in sample} == troubles
    kinds = {None if one.deadline is None else one.deadline.seconds is None for one in sample}
    assert kinds == {None, True, False}
    plans = [plan for one in sample for stream in one.streams for plan in stream]
    assert {plan.dtype for plan in plans} == {"float16", "bfloat16", "float32", "float64"}
    assert {0, 1} <= {plan.elements for plan in plans}
    chunks = [plan.nbytes // one.chunk_bytes for one in sample for plan in one.streams[0]]
    assert max(chunks) >= 200
    changes = [stream for one in sample for stream in one.streams if len(set(stream)) > 1]
    assert len(changes) > len(sample) // 20
    assert any(one.first_round + len(one.streams[0]) > 1 << 32 for one in sample)


def test_the_bound_of_a_round_is_seconds_not_hours() -> None:
    bounds = sorted(liveness_bound_s(one) for one in drawn(400))
    assert bounds[len(bounds) // 2] < 30


def test_the_command_line_reports_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--count", "3"]) == 0
    out = capsys.readouterr().out
    assert "3 seeds from 7" in out and "every invariant held" in out and out.count("\n") == 1


def test_the_command_line_shows_seed_options_and_invariant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblp.sim.scenario.liveness_bound_s", lambda options: -1.0)
    assert main(["--seed", "7", "--count", "20"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "first_round = " in out and "Violation: L1: " in out


def test_verbose_tells_every_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--count", "2", "--verbose", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "seed 3: " in out and "seed 4: " in out and "chunk_bytes = " in out


def test_run_options_is_what_a_seed_runs() -> None:
    assert run_options(draw(11)) == run_seed(11)
