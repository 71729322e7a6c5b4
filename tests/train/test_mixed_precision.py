"""Loss scales are no gradient events, and an overflow anywhere is seen everywhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import dblp
import dblp.torch
from tests.train.models import batches, gradients, loss_of, perceptron, sgd, wrapped
from tests.train.ranks import Job, Ranks


class Scaler:
    """As much of `torch.amp.GradScaler` as the exchange looks at, with a scale at will."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.reads = 0

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        self.reads += 1
        return self.scale


SCALES = [1.0, 1024.0, 1024.0, 65536.0, 2.0]


def scaled(job: Job, told: bool) -> tuple[list[float], list[str]]:
    """(norm, tolerance) of steps that differ in the loss scale alone."""
    model = wrapped(perceptron(), job)
    scaler = Scaler()
    policy = dblp.GradientNormPolicy("0.8%", "40.8%", interval=1)
    batch = next(batches(job.rank, 1))
    norms, tolerances = [], []
    with dblp.torch.register(
        model, policy=policy, grad_scaler=scaler if told else None, residual=True
    ) as state:
        for scale in SCALES:
            scaler.scale = scale
            model.zero_grad()
            (loss_of(model, batch) * scale).backward()
            assert state.last_report is not None
            norms.append(state.last_report.norm)
            tolerances.append(state.last_report.tolerance)
    return norms, tolerances


def test_field_20_a_change_of_the_loss_scale_is_no_event(ranks: Ranks) -> None:
    for norms, tolerances in ranks.run(scaled, 2, told=True):
        assert norms == pytest.approx([norms[0]] * len(SCALES), rel=1e-3)
        assert tolerances == ["0.8%", "0.8%", "40.8%", "40.8%", "40.8%"]
    for norms, tolerances in ranks.run(scaled, 2, told=False):  # the test would notice
        assert max(norms) > 1000 * min(norms)
        assert tolerances[3:] == ["40.8%", "0.8%"]


def reads(job: Job, **options: Any) -> int:
    """How often the scaler is asked in four steps of several buckets."""
    model, scaler = wrapped(perceptron(), job), Scaler()
    with dblp.torch.register(model, grad_scaler=scaler, exact_below_bytes=0, **options):
        for batch in batches(job.rank, 4):
            loss_of(model, batch).backward()
    return scaler.reads


def test_the_scaler_is_asked_once_in_a_step_and_only_if_need_be(ranks: Ranks) -> None:
    """On a GPU it waits for the device when it is asked."""
    assert ranks.run(reads, 2, tolerance=0) == [0, 0]
    assert ranks.run(reads, 2, tolerance="10%") == [4, 4]


def overflows(job: Job, options: dict[str, Any]) -> tuple[list[bool], list[str], int]:
    """(whether the step had a gradient that is not finite; tolerances; skipped steps by a real
    scaler) when rank 1 overflows in step 3."""
    model = wrapped(perceptron(), job, bucket_cap_mb=25)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    seen, tolerances, skipped = [], [], 0
    with dblp.torch.register(model, grad_scaler=scaler, exact_below_bytes=0, **options) as state:
        for step, batch in enumerate(batches(job.rank, 6)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if step == 3 and job.rank == 1:
                # One element of one chunk: the first to be lost in most rounds.
                loss = loss + model.module[4].bias[-1] * math.inf
            scaler.scale(loss).backward()
            assert state.last_report is not None
            finite = bool(torch.isfinite(gradients(model)).all())
            assert finite is state.last_report.finite
            seen.append(not finite)
            tolerances.append(state.last_report.tolerance)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
        assert all(torch.isfinite(item).all() for item in model.parameters())
        assert all(torch.isfinite(item).all() for item in state.state_dict()["residuals"].values())
    return seen, tolerances, skipped


@pytest.mark.parametrize("downlink", ["exact", "common", "lossy"])
def test_field_21_an_overflow_is_seen_by_all_ranks(ranks: Ranks, downlink: str) -> None:
    """80 % may be lost, in memory order, and what overflows is the last element."""
    options = {
        "tolerance": "80%",
        "downlink": downlink,
        "residual": True,
        "config": dblp.TransportConfig(order="sequential"),
    }
    for seen, _, skipped in ranks.run(overflows, 3, options=options):
        assert seen == [False, False, False, True, False, False]
        assert skipped == 1


def test_field_20_an_overflow_is_not_critical(ranks: Ranks) -> None:
    policy = dblp.GradientNormPolicy("0.8%", "40.8%", eta=50.0, interval=1)
    for seen, tolerances, _ in ranks.run(overflows, 2, options={"policy": policy}):
        assert seen[3]
        assert tolerances == ["0.8%", "0.8%"] + ["40.8%"] * 4


def halves(job: Job) -> tuple[float, bool]:
    """A model in bfloat16: (norm, all gradients finite)."""
    model = wrapped(perceptron().bfloat16(), job)
    with dblp.torch.register(model, tolerance="20%", residual=True, exact_below_bytes=0) as state:
        for batch in batches(job.rank, 3):
            model.zero_grad()
            loss_of(model, batch.bfloat16()).backward()
        assert state.last_report is not None
        return state.last_report.norm, bool(torch.isfinite(gradients(model)).all())


def test_bf16_gradients_with_tolerance_and_residual(ranks: Ranks) -> None:
    for norm, finite in ranks.run(halves, 2):
        assert norm > 0
        assert finite
