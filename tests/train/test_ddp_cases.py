"""What DDP does besides the plain case, each compared with DDP over gloo."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import dblp
import dblp.torch
from tests.train.models import (
    SMALL_CHUNKS,
    WIDTH,
    batches,
    flat,
    gradients,
    loss_of,
    perceptron,
    sgd,
    wrapped,
)
from tests.train.ranks import Job, Ranks


def spied(state: dblp.torch.DBLPState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """`dblp_hook` that keeps the sizes of the buckets of every step."""
    if bucket.index() == 0:
        state.sizes.append([])  # type: ignore[attr-defined]
    state.sizes[-1].append(bucket.buffer().numel())  # type: ignore[attr-defined]
    return dblp.torch.dblp_hook(state, bucket)


spied.__annotations__ = {}


def rebuilds(job: Job) -> tuple[list[list[int]], bool]:
    model = wrapped(perceptron(), job)
    plain = wrapped(perceptron(), job)
    optimizer, plain_optimizer = sgd(model), sgd(plain)
    state = dblp.torch.DBLPState(job.group, tolerance=0)
    state.sizes = []  # type: ignore[attr-defined]
    model.register_comm_hook(state, spied)
    equal = True
    with state:
        for batch in batches(job.rank, 4):
            for one, step in ((model, optimizer), (plain, plain_optimizer)):
                step.zero_grad()
                loss_of(one, batch).backward()
                step.step()
            equal &= torch.allclose(flat(model), flat(plain), rtol=1e-4, atol=1e-6)
    return state.sizes, equal  # type: ignore[attr-defined]


def test_field_12_ddp_rebuilds_buckets(ranks: Ranks) -> None:
    """After the first step the buckets have other sizes, and another number."""
    for sizes, equal in ranks.run(rebuilds, 3):
        assert sizes[0] != sizes[1] == sizes[2]
        assert equal


class Mixed(nn.Module):
    """Parameters of many kinds: each dtype becomes a bucket of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        for name, dtype in KINDS.items():
            setattr(self, f"of_{name}", nn.Parameter(torch.randn(700, dtype=dtype)))
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, weight: float) -> torch.Tensor:
        total = self.empty.sum()
        for name in KINDS:
            part = getattr(self, f"of_{name}")
            total = total + (weight * part * part.conj()).real.sum().float()
        return total


KINDS = {
    "half": torch.float16,
    "brain": torch.bfloat16,
    "single": torch.float32,
    "double": torch.float64,
    "complex": torch.complex64,
}


def mixed(job: Job, over_dblp: bool) -> list[torch.Tensor]:
    model = wrapped(Mixed(), job)
    state = dblp.torch.register(model, tolerance=0) if over_dblp else None
    for _ in range(2):
        model.zero_grad()
        model(1.0 + job.rank).backward()
    if state is not None:
        state.close()
    return [item.grad for item in model.module.parameters()]


def mixed_with_loss(job: Job) -> tuple[bool, set[str]]:
    model = wrapped(Mixed(), job)
    with dblp.torch.register(
        model,
        tolerance="60%",
        residual=True,
        exact=["*half", "empty"],
        exact_below_bytes=0,
        impairment=dblp.Impairment(uniform=0.3, seed=3),
        config=SMALL_CHUNKS,
    ) as state:
        owed: set[str] = set()  # in any step: one whose chunks all came in time owes nothing
        for _ in range(6):
            model.zero_grad()
            model(1.0 + job.rank).backward()
            owed |= set(state.state_dict()["residuals"])
        finite = all(torch.isfinite(item.grad).all() for item in model.parameters())
        return finite, owed


def test_field_15_dtypes_with_loss_and_residuals(ranks: Ranks) -> None:
    owing: set[str] = set()
    for finite, owed in ranks.run(mixed_with_loss, 2):
        assert finite
        owing |= owed
    assert "of_half" not in owing
    assert owing & {"of_brain", "of_single", "of_double", "of_complex"}


def test_field_15_dtypes_and_empty_parameters(ranks: Ranks) -> None:
    plain, seen = (ranks.run(mixed, 2, over_dblp=over) for over in (False, True))
    for one, other in zip(seen, plain, strict=True):
        for ours, theirs in zip(one, other, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.allclose(ours, theirs, rtol=1e-2 if ours.itemsize == 2 else 1e-6)


def sparse(job: Job) -> list[str]:
    """Errors of an embedding with `register`, and in backward() with the hook by itself."""
    seen = []
    model = wrapped(nn.Embedding(50, 8, sparse=True), job)
    try:
        dblp.torch.register(model)
    except dblp.DBLPError as error:
        seen.append(f"{type(error).__name__}: {error}")
    with dblp.torch.DBLPState(
        job.group, named_parameters=model.module.named_parameters(), tolerance=0
    ) as state:
        model.register_comm_hook(state, dblp.torch.dblp_hook)
        for _ in range(2):  # again: the error stays
            try:
                model(torch.arange(5)).sum().backward()
            except dblp.DBLPError as error:
                seen.append(f"{type(error).__name__}: {error}")
    return seen


def test_field_15_sparse_gradients_are_refused_by_name(ranks: Ranks) -> None:
    for first, second, third in ranks.run(sparse, 2):
        assert first.startswith("ConfigError: the gradient of the module.weight is sparse")
        assert second.startswith("LocalProtocolError: the gradient of weight is sparse")
        assert third == second


def frozen(job: Job) -> int:
    model = nn.Sequential(nn.Embedding(50, 64, sparse=True), nn.Linear(64, 64))
    model[0].weight.requires_grad_(False)
    wrapper = wrapped(model, job)
    with dblp.torch.register(wrapper, tolerance=0) as state:
        wrapper(torch.arange(5)).sum().backward()
        return state.step


def test_field_15_a_sparse_module_without_a_gradient_is_welcome(ranks: Ranks) -> None:
    assert ranks.run(frozen, 2) == [1, 1]


def uneven(job: Job, over_dblp: bool) -> tuple[torch.Tensor, int]:
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    state = dblp.torch.register(model, tolerance=0, check_every=0) if over_dblp else None
    steps = 0
    with model.join():
        for batch in batches(job.rank, 3 + 2 * job.rank):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            steps += 1
    if state is not None:
        state.close()
    return flat(model), steps


def test_field_16_uneven_inputs_and_join(ranks: Ranks) -> None:
    """Ranks that have run out take part with zeros; the divisor stays the number of ranks, which is
    DDP's own default."""
    plain, seen = (ranks.run(uneven, 3, over_dblp=over) for over in (False, True))
    for (one, _), (other, _) in zip(seen, plain, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
        assert torch.equal(one, seen[0][0])
    assert [steps for _, steps in seen] == [3, 5, 7]


def waits_in_a_callback(job: Job) -> list[str]:
    """A hook around ours whose callback calls back into the exchange, on the transport's thread."""
    seen: list[str] = []
    model = wrapped(perceptron(), job)
    state = dblp.torch.DBLPState(job.group, tolerance=0)
    mesh = state.engine._pipeline.collective

    def hook(state: Any, bucket: Any) -> Any:
        def after(future: Any) -> torch.Tensor:
            try:
                mesh.all_reduce(torch.ones(5000))  # type: ignore[attr-defined]
            except dblp.DBLPError as error:
                seen.append(type(error).__name__)
            return future.value()

        return dblp.torch.dblp_hook(state, bucket).then(after)

    hook.__annotations__ = {}
    model.register_comm_hook(state, hook)
    with state:
        loss_of(model, next(batches(job.rank, 1))).backward()
        assert torch.isfinite(gradients(model)).all()
    return seen


def test_field_17_waiting_in_a_callback_is_refused(ranks: Ranks) -> None:
    for seen in ranks.run(waits_in_a_callback, 2):
        assert set(seen) <= {"LocalProtocolError"}  # none where the callback came on our thread


def misuses(job: Job) -> list[str]:
    seen = []

    def expect(call: Any) -> None:
        try:
            call()
        except dblp.DBLPError as error:
            seen.append(f"{type(error).__name__}: {error}")

    model = wrapped(perceptron(), job)
    expect(lambda: dblp.torch.register(model.module))
    with dblp.torch.register(model, tolerance=0) as state:
        expect(lambda: dblp.torch.register(model))
        loss_of(model, next(batches(job.rank, 1))).backward()
    state.close()
    expect(lambda: loss_of(model, next(batches(job.rank, 1))).backward())
    other = wrapped(perceptron(), job)
    expect(lambda: dblp.torch.register(other, toleranse="1%"))
    expect(lambda: dblp.torch.register(other, tolerance="1%", policy=dblp.FixedTolerance(0)))
    expect(lambda: dblp.torch.register(other, exact=["no.such"]))
    expect(lambda: dblp.torch.register(other, servers=9))
    expect(lambda: dblp.torch.register(other, downlink="lousy"))
    return seen


def test_field_28_a_second_registration_and_other_misuse(ranks: Ranks) -> None:
    for seen in ranks.run(misuses, 2):
        assert [text.partition(":")[0] for text in seen] == [
            *("ConfigError", "ConfigError", "LocalProtocolError"),
            *["ConfigError"] * 5,
        ]
        assert "not a DistributedDataParallel" in seen[0]
        assert "dblp_hook already" in seen[1]
        assert "not connected" in seen[2]
        assert "'toleranse'" in seen[3]
        assert "'no.such'" in seen[5]
        assert "0.weight" in seen[5]


def disagrees(job: Job) -> str:
    model = wrapped(perceptron(), job)
    options = {"downlink": "common" if job.rank == 1 else "exact"}
    try:
        dblp.torch.register(model, **options)
    except dblp.ConfigError as error:
        return str(error)
    return "nothing"


def test_field_29_options_that_differ_are_an_error_on_all_ranks(ranks: Ranks) -> None:
    wanted = "rank 1 has downlink 'common', rank 0 has 'exact': give all ranks the same"
    assert ranks.run(disagrees, 3) == [wanted] * 3


def untuned(job: Job) -> tuple[int, bool, float]:
    model = wrapped(perceptron(), job)
    optimizer = sgd(model)
    losses = []
    with dblp.torch.register(model) as state:
        for batch in batches(job.rank, 15):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert state.last_report is not None
    return state.step, state.last_report.finite, losses[-1] - losses[0]


def test_field_30_defaults_run_untuned(ranks: Ranks) -> None:
    for steps, finite, change in ranks.run(untuned, 3):
        assert (steps, finite) == (15, True)
        assert change < 0


def exact_parts(job: Job) -> tuple[bool, bool]:
    """Whether (the biases, all gradients) are the exact mean although a tolerance of 60 % was
    used."""
    import copy

    import torch.distributed as dist

    model = wrapped(perceptron(), job, bucket_cap_mb=25)
    mirror = copy.deepcopy(model.module)
    batch = next(batches(job.rank, 1))
    with dblp.torch.register(
        model,
        tolerance="60%",
        exact=["*.bias"],
        exact_below_bytes=0,
        impairment=dblp.Impairment(uniform=0.3, seed=5),
        config=SMALL_CHUNKS,
    ):
        loss_of(model, batch).backward()
    loss_of(mirror, batch).backward()
    equal = {}
    for (name, ours), theirs in zip(
        model.module.named_parameters(), mirror.parameters(), strict=True
    ):
        dist.all_reduce(theirs.grad, group=job.group)
        equal[name] = torch.allclose(ours.grad, theirs.grad / job.world, rtol=1e-5, atol=1e-8)
    assert WIDTH > 64
    return all(same for name, same in equal.items() if "bias" in name), all(equal.values())


def test_parameters_named_by_a_pattern_are_exact(ranks: Ranks) -> None:
    assert ranks.run(exact_parts, 3) == [(True, False)] * 3
