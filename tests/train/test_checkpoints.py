"""State that outlives the process: checkpoints, pickles, forks."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import torch

import dblp
import dblp.torch
from tests.train.models import SMALL_CHUNKS, batches, flat, loss_of, perceptron, sgd, wrapped
from tests.train.ranks import Job, Ranks

LOSS = dblp.Impairment(uniform=0.3, seed=5)
OPTIONS: dict[str, Any] = {
    "residual": True,
    "exact_below_bytes": 0,
    "impairment": LOSS,
    "config": SMALL_CHUNKS,
}


def policy() -> dblp.GradientNormPolicy:
    return dblp.GradientNormPolicy("10%", "40.8%", interval=3, eta=0.9)


def checkpoints(job: Job) -> dict[str, Any]:
    """Six steps, a checkpoint to a file, and a second job that goes on from it."""
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    inputs = list(batches(job.rank, 8))
    with dblp.torch.register(model, policy=policy(), **OPTIONS) as state:
        for batch in inputs[:6]:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        saved = state.state_dict()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoint.pt"
            torch.save({"hook": saved, "model": model.state_dict()}, file)
            loaded = torch.load(file, weights_only=True)
        state.close()
    other = wrapped(perceptron(), job)
    other.load_state_dict(loaded["model"])
    with dblp.torch.register(other, policy=policy(), **OPTIONS) as state:
        state.load_state_dict(loaded["hook"])
        again = state.state_dict()
        same = all(
            torch.equal(again["residuals"][name], part) for name, part in saved["residuals"].items()
        )
        loss_of(other, inputs[6]).backward()
        report = state.last_report
        assert report is not None
        # Other buckets than before, and the residuals of their parameters went along.
        loss_of(other, inputs[7]).backward()
    return {
        "clock": (saved["clock"], again["clock"]),
        "owed": sum(float(part.abs().sum()) for part in saved["residuals"].values()),
        "same": same,
        "step": report.step,
    }


def test_field_19_the_state_is_in_checkpoints(ranks: Ranks) -> None:
    for seen in ranks.run(checkpoints, 3):
        saved, again = seen["clock"]
        assert saved == again
        assert saved["step"] == 6
        assert seen["owed"] > 0
        assert seen["same"]
        assert seen["step"] == 6


def after_join(job: Job) -> tuple[dict[str, Any], int]:
    """(clock in a checkpoint, steps after it) when rank 0 has run out of inputs before rank 1."""
    model = wrapped(perceptron(), job)
    with dblp.torch.register(model, policy=policy()) as state:
        with model.join():
            for batch in batches(job.rank, 3 + 2 * job.rank):
                loss_of(model, batch).backward()
        saved = state.state_dict()
        state.load_state_dict(saved)
        loss_of(model, next(batches(job.rank, 1))).backward()
        return saved["clock"], state.step


def test_field_16_and_19_a_checkpoint_after_join_is_the_same_on_all_ranks(ranks: Ranks) -> None:
    results = ranks.run(after_join, 2)
    assert results[0] == results[1]
    assert results[0][0]["step"] == 5
    assert results[0][1] == 6


def pickles(job: Job) -> tuple[int, str, int]:
    model = wrapped(perceptron(), job)
    with dblp.torch.register(model, tolerance="10%", **OPTIONS) as state:
        loss_of(model, next(batches(job.rank, 1))).backward()
        back = pickle.loads(pickle.dumps(state))
        copied = copy.deepcopy(state)
        try:
            back.engine  # noqa: B018
            problem = ""
        except dblp.LocalProtocolError as error:
            problem = str(error)
    other = wrapped(perceptron(), job)
    try:
        back.connect(job.group)
    except dblp.ConfigError as error:
        problem += str(error)
    back.connect(job.group, other.module.named_parameters())
    other.register_comm_hook(back, dblp.torch.dblp_hook)
    with back:
        loss_of(other, next(batches(job.rank, 1))).backward()
        return back.step, problem, copied.step


def test_field_19_the_state_can_be_pickled_without_its_sockets(ranks: Ranks) -> None:
    for step, problem, copied in ranks.run(pickles, 2):
        assert step == 2
        assert "not connected" in problem
        assert "pass named_parameters=" in problem
        assert copied == 1


def forks(job: Job) -> tuple[str, bool]:
    """What a forked child gets, and whether the parent goes on."""
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    inputs = list(batches(job.rank, 3))
    with dblp.torch.register(model, tolerance=0) as state:
        loss_of(model, inputs[0]).backward()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                state.engine  # noqa: B018
                os.write(writing, b"nothing")
            except dblp.LocalProtocolError as error:
                os.write(writing, str(error).encode())
            state.close()
            os._exit(0)
        os.waitpid(child, 0)
        text = os.read(reading, 1000).decode()
        # The ranks of these tests are daemons, which may not have children; a script's are not.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        loader = torch.utils.data.DataLoader(
            [torch.zeros(2) for _ in range(4)], num_workers=1, multiprocessing_context="fork"
        )
        assert len(list(loader)) == 4
        optimizer.zero_grad()
        loss_of(model, inputs[1]).backward()
        return text, bool(torch.isfinite(flat(model)).all()) and state.step == 2


def test_field_25_a_forked_child_is_refused_and_harmless(ranks: Ranks) -> None:
    for text, goes_on in ranks.run(forks, 2):
        assert "fork()" in text
        assert goes_on
