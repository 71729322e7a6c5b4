"""DDP over DBLP gives the same training as DDP over gloo, and the same replicas on all ranks."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dblp
import dblp.torch
from dblp.torch.consistency import parameter_hash
from tests.train.models import (
    SMALL_CHUNKS,
    batches,
    flat,
    gradients,
    loss_of,
    perceptron,
    sgd,
    wrapped,
)
from tests.train.ranks import Job, Ranks

STEPS = 20


def losses(job: Job, options: dict[str, Any] | None, **ddp: Any) -> tuple[list[float], list[int]]:
    """(loss of every step, hash of the parameters after it)."""
    model = wrapped(perceptron(), job, **ddp)
    state = None if options is None else dblp.torch.register(model, **options)
    optimizer = sgd(model)
    seen, hashes = [], []
    for batch in batches(job.rank, STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        hashes.append(parameter_hash(model.parameters()))
    if state is not None:
        assert state.step == STEPS
        state.close()
    return seen, hashes


@pytest.mark.parametrize("world", [2, 3, 4])
def test_losses_are_those_of_gloo(ranks: Ranks, world: int) -> None:
    plain = ranks.run(losses, world, options=None)
    exact = ranks.run(losses, world, options={"tolerance": 0})
    for (seen, _), (wanted, _) in zip(exact, plain, strict=True):
        assert seen == pytest.approx(wanted, rel=1e-5)
        assert wanted[-1] < wanted[0]
    assert all(hashes == exact[0][1] for _, hashes in exact)


@pytest.mark.parametrize("variant", ["gradient_as_bucket_view", "static_graph"])
def test_ddp_variants_give_the_same(ranks: Ranks, variant: str) -> None:
    ddp = {variant: True}
    plain = ranks.run(losses, 2, options=None)
    exact = ranks.run(losses, 2, options={"tolerance": 0}, **ddp)
    for (seen, hashes), (wanted, _) in zip(exact, plain, strict=True):
        assert seen == pytest.approx(wanted, rel=1e-5)
        assert hashes == exact[0][1]


def steps_against_the_reference(job: Job, servers: int | None) -> int:
    """Number of steps whose parameters are, bit for bit, those of means in rank order."""
    model = wrapped(perceptron(), job)
    mirror = copy.deepcopy(model.module)
    optimizer, mirror_optimizer = sgd(model), sgd(mirror)
    equal = 0
    with dblp.torch.register(model, tolerance=0, servers=servers):
        for batch in batches(job.rank, STEPS):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            mirror_optimizer.zero_grad()
            loss_of(mirror, batch).backward()
            rank_order_means(mirror, job)
            mirror_optimizer.step()
            equal += torch.equal(flat(model), flat(mirror))
    return equal


def rank_order_means(model: torch.nn.Module, job: Job) -> None:
    for parameter in model.parameters():
        parts = [torch.empty_like(parameter) for _ in range(job.world)]
        dist.all_gather(parts, parameter.grad, group=job.group)
        total = parts[0]
        for part in parts[1:]:
            total += part
        parameter.grad = total / job.world


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("servers", [None, 1], ids=["sharded", "server"])
def test_parameters_are_those_of_the_rank_order_mean(
    ranks: Ranks, world: int, servers: int | None
) -> None:
    assert ranks.run(steps_against_the_reference, world, servers=servers) == [STEPS] * world


LOSS = dblp.Impairment(uniform=0.3, seed=5)


@pytest.mark.parametrize("downlink", ["exact", "common"])
@pytest.mark.parametrize("world", [2, 4])
def test_replicas_are_equal_with_loss(ranks: Ranks, world: int, downlink: str) -> None:
    """30 % of what arrives is lost, 40.8 % may be missing: replicas agree after every step."""
    options = {
        "tolerance": "40.8%",
        "downlink": downlink,
        "impairment": LOSS,
        "config": SMALL_CHUNKS,
        "exact_below_bytes": 0,
    }
    results = ranks.run(losses, world, options=options)
    assert all(hashes == results[0][1] for _, hashes in results)
    assert results[0][0][-1] < results[0][0][0]


def drifts(job: Job) -> tuple[list[float | None], list[int]]:
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    measured, hashes = [], []
    with dblp.torch.register(
        model,
        tolerance="40.8%",
        downlink="lossy",
        check_every=5,
        exact_below_bytes=0,
        impairment=LOSS,
        config=SMALL_CHUNKS,
    ) as state:
        for batch in batches(job.rank, 11):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            assert state.last_report is not None
            measured.append(state.last_report.drift)
            if state.last_report.drift is not None:
                hashes.append(parameter_hash(model.parameters()))
            optimizer.step()
        before = state.resync(optimizer)
        hashes += [parameter_hash(model.parameters())]
        assert before > 0
    return measured, hashes


def test_field_18_replicas_drift(ranks: Ranks) -> None:
    """A lossy downlink makes replicas differ; every 5 steps they are measured and made equal."""
    results = ranks.run(drifts, 3)
    measured, hashes = results[0]
    assert [step for step, drift in enumerate(measured) if drift is not None] == [4, 9]
    assert all(drift > 0 for drift in measured if drift is not None)
    assert all(result == (measured, hashes) for result in results)


def compares(job: Job) -> str:
    """The error on this rank when rank 1 changes a parameter by itself."""
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    with dblp.torch.register(model, tolerance=0, check_every=2) as state:
        for step, batch in enumerate(batches(job.rank, 6)):
            optimizer.zero_grad()
            try:
                loss_of(model, batch).backward()
            except dblp.DBLPError as error:
                assert state.error is error
                return f"{step} {type(error).__name__}: {error}"
            optimizer.step()
            if step == 2 and job.rank == 1:
                next(model.parameters()).data[0, 0] += 1e-3
    return "nothing"


def test_field_18_a_difference_that_must_not_be_is_an_error(ranks: Ranks) -> None:
    for text in ranks.run(compares, 3):
        assert text.startswith("3 RemoteProtocolError: after 4 steps the parameters of rank 1 ")


def one_gradient(job: Job, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(own gradient, what came out) of one step."""
    model = wrapped(perceptron(), job)
    mirror = copy.deepcopy(model.module)
    batch = next(batches(job.rank, 1))
    with dblp.torch.register(model, **options):
        loss_of(model, batch).backward()
    loss_of(mirror, batch).backward()
    return gradients(mirror), gradients(model)


def test_a_bf16_wire_rounds_and_no_more(ranks: Ranks) -> None:
    results = ranks.run(one_gradient, 3, options={"tolerance": 0, "wire_dtype": "bf16"})
    wanted = sum(own.bfloat16().float() for own, _ in results) / 3
    for _, seen in results:
        assert torch.equal(seen, wanted.bfloat16().float())


def feeds_back(job: Job, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(own gradient less what is still owed at the end, sum of the results, least share delivered)
    over ten steps with the same gradient."""
    model = wrapped(perceptron(), job)
    batch = next(batches(job.rank, 1))
    mirror = copy.deepcopy(model.module)
    loss_of(mirror, batch).backward()
    total, least = torch.zeros_like(gradients(mirror)), 1.0
    with dblp.torch.register(
        model, residual=True, exact_below_bytes=0, impairment=LOSS, **options
    ) as state:
        for _ in range(10):
            model.zero_grad()
            loss_of(model, batch).backward()
            total += gradients(model)
            assert state.last_report is not None
            least = min(least, state.last_report.delivered_share)
        owed = state.state_dict()["residuals"]
    given = 10 * gradients(mirror)
    place = 0
    for name, parameter in mirror.named_parameters():
        if name in owed:
            given[place : place + parameter.numel()] -= owed[name]
        place += parameter.numel()
    return given, total, least


@pytest.mark.parametrize(
    ("wire", "order", "downlink"),
    [
        (None, "auto", "exact"),
        (None, "random", "exact"),
        ("bf16", "auto", "exact"),
        ("bf16", "random", "exact"),
        (None, "auto", "common"),
        (None, "random", "common"),
    ],
)
def test_error_feedback_loses_nothing(
    ranks: Ranks, wire: str | None, order: str, downlink: str
) -> None:
    """What came out of all steps is what went in, less what is still owed."""
    options = {
        "tolerance": "40.8%",
        "wire_dtype": wire,
        "downlink": downlink,
        "config": replace(SMALL_CHUNKS, order=order),
    }
    results = ranks.run(feeds_back, 3, options=options)
    mean = sum(given for given, _, _ in results) / 3
    for _, total, least in results:
        assert (0.59 if downlink == "exact" else 0.18) < least < 1
        scale = float(mean.abs().max())
        assert torch.allclose(total, mean, rtol=0, atol=scale * (0.02 if wire else 1e-5))
