"""What happens when the network fails: raise, skip, or go on over the process group."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch

import dblp
import dblp.torch
from dblp.torch.consistency import parameter_hash
from tests.train.models import batches, flat, loss_of, perceptron, sgd, wrapped
from tests.train.ranks import Job, Ranks, free_port

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


def recovers(job: Job, on_error: str, port: int) -> tuple[list[int], list[str | None], bool]:
    """(hash after every step, recovered errors, whether the parameters are those of gloo)."""
    os.environ["LOCAL_RANK"] = str(job.rank)
    model, plain = wrapped(perceptron(), job), wrapped(perceptron(), job)
    optimizer, plain_optimizer = sgd(model), sgd(plain)
    hashes, errors = [], []
    options: dict[str, Any] = {"on_error": on_error, "config": SOON, "port": port}
    with dblp.torch.register(model, tolerance=0, **options) as state:
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
    del os.environ["LOCAL_RANK"]
    return hashes, errors, torch.allclose(flat(model), flat(plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("on_error", "one_port"), [("gloo", False), ("skip", False), ("skip", True)]
)
def test_training_goes_on_after_an_error(ranks: Ranks, on_error: str, one_port: bool) -> None:
    """The third step fails: it is repeated over gloo, or left out, on all ranks alike.  The ranks
    may connect again on the ports that they had."""
    port = free_port(3) if one_port else 0
    results = ranks.run(recovers, 3, on_error=on_error, port=port)
    for hashes, errors, equal in results:
        assert hashes == results[0][0]
        assert [error is None for error in errors] == [True, True, False, True, True]
        assert equal


def cannot_recover(job: Job, on_error: str) -> list[str]:
    model = wrapped(torch.nn.Embedding(50, 8, sparse=True), job)
    seen = []
    names = model.module.named_parameters()
    with dblp.torch.DBLPState(job.group, named_parameters=names, on_error=on_error) as state:
        model.register_comm_hook(state, dblp.torch.dblp_hook)
        try:
            model(torch.arange(5)).sum().backward()
        except dblp.DBLPError as error:
            seen.append(f"{type(error).__name__}: {error}")
    return seen


@pytest.mark.parametrize("on_error", ["gloo", "skip"])
def test_a_wrong_use_is_not_got_over(ranks: Ranks, on_error: str) -> None:
    """It would be back in every step, and no step would ever be made."""
    for (text,) in ranks.run(cannot_recover, 2, on_error=on_error):
        assert text.startswith("LocalProtocolError: the gradient of weight is sparse")


def spread(job: Job, on_error: str) -> str:
    """The error for parameters on two devices."""
    parameters = [torch.zeros(4), torch.zeros(4, device="meta")]
    try:
        dblp.torch.GradientExchange(parameters, process_group=job.group, on_error=on_error).close()
    except dblp.ConfigError as error:
        return str(error)
    return ""


def test_going_on_over_gloo_takes_one_device(ranks: Ranks) -> None:
    """The buckets of two devices are handed over by two threads, in any order, and gloo averages
    what comes first with what comes first."""
    for text in ranks.run(spread, 2, on_error="gloo"):
        assert "parameters on one device, these are on cpu, meta" in text
        assert "'skip'" in text
    assert ranks.run(spread, 2, on_error="skip") == ["", ""]


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


def waits(job: Job) -> tuple[int, int]:
    """(buckets, futures of them that were waited for by the end of `average`)."""
    waited = []

    class Noted(torch.futures.Future):  # type: ignore[type-arg]
        def wait(self) -> Any:
            waited.append(self)
            return super().wait()

    model = perceptron()
    with dblp.torch.GradientExchange(
        model.named_parameters(), process_group=job.group, bucket_bytes=40_000, tolerance=0
    ) as exchange:
        memory = exchange.state.engine._parts.memories.of(torch.device("cpu"))
        memory.new_future = Noted  # type: ignore[method-assign]
        exchange.average([item.detach().clone() for item in model.parameters()])
        return len(exchange._buckets), len(waited)


def test_a_plain_loop_waits_for_the_copies_to_the_device(ranks: Ranks) -> None:
    """A bucket is done when the copy is queued; only its future makes the device wait for it."""
    for buckets, waited in ranks.run(waits, 2):
        assert buckets == waited > 1
