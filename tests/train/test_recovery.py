"""What happens when the network fails: raise, skip, or go on over the process group."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import dblp
import dblp.torch
from dblp.torch.consistency import parameter_hash
from tests.train.models import batches, flat, loss_of, perceptron, sgd, wrapped
from tests.train.ranks import Job, Ranks

SOON = dblp.TransportConfig(timeout_s=1.0, connect_timeout_s=5.0)


def late(job: Job) -> list[str]:
    """Rank 1 comes to the third step 3 s late, which is more than timeout_s.  In the second one DDP
    itself waits, to rebuild its buckets."""
    model = wrapped(perceptron(), job)
    seen = []
    with dblp.torch.register(model, tolerance=0, config=SOON) as state:
        for step, batch in enumerate(batches(job.rank, 4)):
            if step == 2 and job.rank == 1:
                time.sleep(3.0)
            began = time.monotonic()
            try:
                loss_of(model, batch).backward()
                seen.append("fine")
            except dblp.DBLPError as error:
                seen.append(f"{type(error).__name__}: {error}")
                assert state.error is error
                assert time.monotonic() - began < 2.5
    return seen


def test_field_10_timeouts_are_kept_and_11_say_who_is_waited_for(ranks: Ranks) -> None:
    first, second = ranks.run(late, 2)
    assert first[:2] == second[:2] == ["fine", "fine"]
    assert first[2].startswith("RoundTimeoutError: ")
    assert "rank 1" in first[2]
    assert "stream" in first[2]
    assert first[3] == first[2]  # the error stays, with its own type
    assert "rank" in second[2]


def recovers(job: Job, on_error: str) -> tuple[list[int], list[str | None], bool]:
    """(hash after every step, recovered errors, whether the parameters are those of gloo)."""
    model, plain = wrapped(perceptron(), job), wrapped(perceptron(), job)
    optimizer, plain_optimizer = sgd(model), sgd(plain)
    hashes, errors = [], []
    with dblp.torch.register(model, tolerance=0, on_error=on_error, config=SOON) as state:
        for step, batch in enumerate(batches(job.rank, 5)):
            plain_optimizer.zero_grad()
            loss_of(plain, batch).backward()
            if not (on_error == "skip" and step == 2):
                plain_optimizer.step()
            if step == 2 and job.rank == 1:
                time.sleep(2.0)
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            assert state.last_report is not None
            error = state.last_report.recovered
            errors.append(None if error is None else type(error).__name__)
            if error is not None and on_error == "skip":
                assert all(not item.grad.any() for item in model.parameters())
            else:
                optimizer.step()
            hashes.append(parameter_hash(model.parameters()))
        assert state.step == 5
    return hashes, errors, torch.allclose(flat(model), flat(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("on_error", ["gloo", "skip"])
def test_training_goes_on_after_an_error(ranks: Ranks, on_error: str) -> None:
    """The third step fails: it is repeated over gloo, or left out, on all ranks alike."""
    results = ranks.run(recovers, 3, on_error=on_error)
    for hashes, errors, equal in results:
        assert hashes == results[0][0]
        assert [error is None for error in errors] == [True, True, False, True, True]
        assert equal


def idle(job: Job) -> float:
    """CPU seconds of this process while nothing happens for half a second."""
    model = wrapped(perceptron(), job)
    with dblp.torch.register(model, tolerance=0):
        loss_of(model, next(batches(job.rank, 1))).backward()
        began = time.process_time()
        time.sleep(0.5)
        return time.process_time() - began


def test_field_26_nothing_spins_when_idle(ranks: Ranks) -> None:
    assert max(ranks.run(idle, 2)) < 0.1


def averages(job: Job, **options: Any) -> dict[str, Any]:
    """A plain loop, and pseudo-gradients."""
    model = perceptron()
    optimizer = sgd(model)
    seen: dict[str, Any] = {"hashes": []}
    with dblp.torch.GradientExchange(
        model.named_parameters(), process_group=job.group, bucket_bytes=40_000, **options
    ) as exchange:
        for batch in batches(job.rank, 5):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            report = exchange.step()
            optimizer.step()
            seen["hashes"].append(parameter_hash(model.parameters()))
        anchor = [item.detach().clone() for item in model.parameters()]
        for batch in batches(10 + job.rank, 3):  # inner steps of its own
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        deltas = [old - new.detach() for old, new in zip(anchor, model.parameters(), strict=True)]
        seen["own"] = torch.cat([item.reshape(-1) for item in deltas])
        report = exchange.average(deltas)
        seen["mean"] = torch.cat([item.reshape(-1) for item in deltas])
        seen["step"] = report.step
        try:
            exchange.average(deltas[1:])
        except dblp.LocalProtocolError as error:
            seen["error"] = str(error)
    return seen


def test_plain_loops_and_pseudo_gradients(ranks: Ranks) -> None:
    results = ranks.run(averages, 3, tolerance=0)
    mean = sum(result["own"] for result in results) / 3
    for result in results:
        assert result["hashes"] == results[0]["hashes"]
        assert torch.allclose(result["mean"], mean, rtol=1e-5, atol=1e-7)
        assert torch.equal(result["mean"], results[0]["mean"])
        assert result["step"] == 5
        assert "5 tensors were given for 6 parameters" in result["error"]
