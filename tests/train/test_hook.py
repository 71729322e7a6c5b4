"""What the hook promises DDP: it never raises, never waits, and knows when a join block is over."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import dblp
import dblp.torch
from dblp.phase import Decision
from dblp.torch.buffers import HostMemory
from dblp.torch.join import JoinWatch
from dblp.torch.options import ExchangeOptions
from dblp.torch.pipeline import EXACT_STREAMS, BucketPipeline
from dblp.torch.work import BucketWork
from tests.train.models import batches, loss_of, perceptron, wrapped
from tests.train.ranks import Job, Ranks

SOON = dblp.TransportConfig(timeout_s=1.0, connect_timeout_s=5.0)


class MoodError(Exception):
    """Of a policy that a user wrote."""


class Moody(dblp.TolerancePolicy):
    """Fails on rank 1 when it is asked about the second step, in one method or another: `observe`
    before the first bucket, `initial` about a bucket that there is only since DDP rebuilt them."""

    def __init__(self, rank: int, method: str) -> None:
        self._fails = rank == 1
        self._method = method
        self._asked = False

    def _ask(self, method: str) -> Decision:
        if self._fails and self._asked and method == self._method:
            raise MoodError(f"not today, says {method}")
        return dblp.FixedTolerance("10%").initial()

    def initial(self) -> Decision:
        return self._ask("initial")

    def observe(self, *, stream: int, step: int, norm: float) -> Decision:
        self._asked = True
        return self._ask("observe")


def moody(job: Job, method: str, on_error: str) -> tuple[list[str], bool]:
    """(how each of four steps ended, whether the last two raised the same object)."""
    model = wrapped(perceptron(), job)
    seen: list[str] = []
    raised: list[Exception | None] = []
    options = {"on_error": on_error, "per_bucket": method == "initial"}
    with dblp.torch.register(model, policy=Moody(job.rank, method), **options) as state:
        for batch in batches(job.rank, 4):
            try:
                loss_of(model, batch).backward()
                seen.append("fine")
                raised.append(None)
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
                raised.append(error)
        assert state.error is raised[-1]
    return seen, raised[-1] is raised[-2]


@pytest.mark.parametrize(
    ("method", "on_error"), [("observe", "raise"), ("initial", "raise"), ("observe", "skip")]
)
def test_a_policy_that_raises(ranks: Ranks, method: str, on_error: str) -> None:
    """backward() raises what the policy did, in later steps too, and DDP is none the worse for it.
    The other rank need not wait for a timeout: its own would be half an hour."""
    (other, same), (own, own_same) = ranks.run(moody, 2, method=method, on_error=on_error)
    assert own == ["fine", *[f"MoodError: not today, says {method}"] * 3]
    assert other[0] == "fine"
    # Which of the two depends on whether the other's round had been heard of.
    assert other[1].startswith(("PeerLostError: ", "RoundAbortedError: "))
    assert "rank 1" in other[1]
    assert other[1:] == [other[1]] * 3
    assert same
    assert own_same


def connects_again(job: Job) -> tuple[list[str], int]:
    """(how three steps ended between which the state is closed and connected again, steps)."""
    model = wrapped(perceptron(), job)
    seen: list[str] = []
    state = dblp.torch.register(model, tolerance=0)
    for change in (lambda: None, state.close, lambda: state.connect(job.group)):
        change()
        try:
            loss_of(model, next(batches(job.rank, 1))).backward()
            seen.append("fine")
        except dblp.DBLPError as error:
            seen.append(f"{type(error).__name__}: {error}")
    state.close()
    return seen, state.step


def test_a_state_without_a_connection_leaves_ddp_in_order(ranks: Ranks) -> None:
    for (first, second, third), steps in ranks.run(connects_again, 2):
        assert first == third == "fine"
        assert second.startswith("LocalProtocolError: this state is not connected")
        assert steps == 2


def test_a_bucket_cannot_take_the_stream_of_an_exact_part() -> None:
    pipeline = BucketPipeline(None, ExchangeOptions(), None)  # type: ignore[arg-type]
    memory = HostMemory()
    work = BucketWork(EXACT_STREAMS, torch.ones(5000), None, memory, memory.new_future())
    pipeline.launch(work)
    assert work.done.is_set()
    assert isinstance(work.error, dblp.LocalProtocolError)
    assert "bucket 32768" in str(work.error)
    assert "bucket_cap_mb" in str(work.error)


class Held:
    """A collective whose results are kept back until somebody lets go."""

    def __init__(self, collective: Any) -> None:
        self._collective = collective
        self.rank, self.world = collective.rank, collective.world
        self.let_go = threading.Event()
        self.waited_in_vain = False

    def all_reduce_async(self, *args: Any, **settings: Any) -> Any:
        future = self._collective.all_reduce_async(*args, **settings)
        add = future.add_done_callback

        def later(callback: Any) -> None:
            def wait() -> None:
                if not self.let_go.wait(20.0):
                    self.waited_in_vain = True
                add(callback)

            threading.Thread(target=wait, daemon=True).start()

        future.add_done_callback = later
        return future

    def close(self) -> None:
        self._collective.close()


def overlaps(job: Job) -> tuple[list[str], bool]:
    """(what happened in a backward pass, in order; whether anybody waited for the results too
    early)."""
    model = wrapped(perceptron(), job)
    events: list[str] = []
    state = dblp.torch.DBLPState(job.group, tolerance=0)
    held = Held(state.engine._pipeline.collective)

    def hook(state: Any, bucket: Any) -> Any:
        future = dblp.torch.dblp_hook(state, bucket)
        events.append("last bucket" if bucket.is_last() else "bucket")
        if bucket.is_last():
            held.let_go.set()  # not before the hooks of all buckets have returned
        return future

    hook.__annotations__ = {}
    model.register_comm_hook(state, hook)
    first, last = model.module[0].weight, model.module[4].weight
    with state:
        for step, batch in enumerate(batches(job.rank, 2)):
            if step == 1:  # DDP has rebuilt its buckets
                events.clear()
                held.let_go.clear()
                state.engine._pipeline.collective = held  # type: ignore[assignment]
                for name, weight in (("first", first), ("last", last)):
                    weight.register_hook(lambda _, name=name: events.append(f"{name} layer"))
            loss_of(model, batch).backward()
    return events, held.waited_in_vain


def test_buckets_leave_while_backward_computes_and_the_hook_never_waits(ranks: Ranks) -> None:
    """The last layer's gradients are on their way before the first layer's are computed, and no
    hook needs the result of any bucket to return."""
    for events, waited_in_vain in ranks.run(overlaps, 2):
        assert not waited_in_vain
        assert events[0] == "last layer"
        assert "bucket" in events[: events.index("first layer")]
        assert events[-1] == "last bucket"
        assert events.count("bucket") >= 2


def joins(job: Job) -> dict[str, Any]:
    """Two join blocks, and what is on after each of them."""
    model = wrapped(perceptron(), job)
    # Without momenta: a rank that has run out gets the parameters from torch, and nothing else.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: dict[str, Any] = {"inside": [], "after": [], "steps": []}

    def step(batch: torch.Tensor) -> dblp.torch.StepReport:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        report = state.last_report
        assert report is not None
        if report.recovered is None:
            optimizer.step()
        return report

    with dblp.torch.register(
        model, tolerance=0, on_error="skip", check_every=1, config=SOON
    ) as state:
        step(next(batches(job.rank, 1)))
        for block in range(2):
            with model.join():
                for batch in batches(job.rank, 2 + job.rank + block):
                    seen["inside"].append((state.is_joining, step(batch).drift))
            seen["steps"].append(state.step)
            seen["after"].append((state.is_joining, step(next(batches(job.rank, 1))).drift))
        if job.rank == 1:
            time.sleep(2.0)  # longer than timeout_s
        seen["recovered"] = step(next(batches(job.rank, 1))).recovered is not None
        seen["fine again"] = step(next(batches(job.rank, 1))).recovered is None
    return seen


def test_field_16_after_a_join_block_everything_is_on_again(ranks: Ranks) -> None:
    """torch leaves its flag on; on_error and check_every hold again all the same, and every rank
    has counted all steps when the block ends."""
    for seen in ranks.run(joins, 2):
        assert set(seen["inside"]) == {(True, None)}
        assert seen["after"] == [(False, 0.0)] * 2
        assert seen["steps"] == [4, 9]
        assert seen["recovered"]
        assert seen["fine again"]


def pickles(job: Job) -> tuple[bool, bool]:
    """Whether join blocks of (the model, its copy by way of a pickle) are looked at."""
    model = DistributedDataParallel(perceptron())
    with dblp.torch.register(model, tolerance=0):
        copied = pickle.loads(pickle.dumps(model))
        return isinstance(model.join_hook, JoinWatch), isinstance(copied.join_hook, JoinWatch)


def test_field_19_a_pickled_model_has_torchs_own_join_block(ranks: Ranks) -> None:
    """It has no hook of ours either."""
    assert ranks.run(pickles, 4) == [(True, False)] * 4


def leaves_a_block(job: Job) -> tuple[bool, bool]:
    """(whether a block that an exception left still counts, whether the next one ends it)."""
    model = wrapped(perceptron(), job)
    with dblp.torch.register(model, tolerance=0) as state:
        try:
            with model.join():
                raise KeyError
        except KeyError:
            still = state.is_joining
        with model.join():
            loss_of(model, next(batches(job.rank, 1))).backward()
        return still, state.is_joining


def test_field_16_a_join_block_that_an_exception_left(ranks: Ranks) -> None:
    assert ranks.run(leaves_a_block, 2) == [(True, False)] * 2
