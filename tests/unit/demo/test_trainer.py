"""The trainer on threads instead of a transport."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytest.importorskip("sklearn")

from dblp.demo import data, model, trainer  # noqa: E402 (needs torch)
from dblp.demo.settings import RECIPES, Recipe  # noqa: E402
from tests.unit.demo import stand_in  # noqa: E402

SHORT = dataclasses.replace(RECIPES["digits"], epochs=3)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(world: int, recipe: Recipe, *, high: float = 0.0) -> tuple[list[Any], float, list[Any]]:
    """Final parameters per rank, test accuracy and the events of rank 0."""
    digits = data.digits()
    replicas = [model.build("digits", seed=1) for _ in range(world)]
    cluster = stand_in.Cluster(world, low=min(high, 0.008), high=high, interval=recipe.interval)
    events: list[list[dict[str, Any]]] = [[] for _ in range(world)]
    stand_in.run(
        world,
        lambda rank: trainer.train(
            recipe,
            digits,
            replicas[rank],
            cluster.rank(rank),
            rank=rank,
            world=world,
            seed=1,
            emit=events[rank].append,
        ),
    )
    ends = [by_rank[-1] for by_rank in events]
    assert all(end["event"] == "epoch" for end in ends)
    accuracy = sum(end["correct"] for end in ends) / sum(end["seen"] for end in ends)
    parameters = [model.flat_parameters(replica).numpy() for replica in replicas]
    return parameters, accuracy, events[0]


def test_replicas_stay_identical_and_learn() -> None:
    parameters, accuracy, events = run(3, SHORT)
    assert np.array_equal(parameters[0], parameters[1])
    assert np.array_equal(parameters[0], parameters[2])
    assert accuracy > 0.6
    steps = [event["step"] for event in events if event["event"] == "round"]
    assert steps == list(range(45))


def test_three_workers_train_as_one_would() -> None:
    (three, *_), _, _ = run(3, SHORT)
    (one,), _, _ = run(1, SHORT)
    assert np.abs(three - one).max() < 1e-3


def test_gradients_are_views_into_one_buffer() -> None:
    network = model.build("digits", seed=1)
    buffer = trainer.attach_flat_gradient(network)
    assert buffer.shape == (model.parameter_count(network),)
    network(torch.zeros(2, 1, 8, 8)).sum().backward()
    first = next(network.parameters())
    assert first.grad is not None
    assert torch.equal(buffer[: first.numel()], first.grad.reshape(-1))
    assert float(buffer.square().sum()) > 0


def test_the_digits_network_fills_a_realistic_number_of_chunks() -> None:
    chunks = model.parameter_count(model.build("digits", seed=1)) / stand_in.CHUNK_ELEMENTS
    assert 1400 <= chunks <= 2800


def test_the_cifar_network_takes_a_step() -> None:
    network = model.build("cifar10", seed=1)
    images = trainer.random_crops(torch.randn(2, 3, 32, 32), torch.Generator().manual_seed(1))
    assert images.shape == (2, 3, 32, 32)
    assert network(images).shape == (2, 10)


def test_crops_hold_pixels_of_their_own_image() -> None:
    images = torch.arange(4.0)[:, None, None, None].expand(4, 3, 32, 32)
    cropped = trainer.random_crops(images, torch.Generator().manual_seed(1))
    assert torch.equal(cropped, images)


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    factors = [trainer.schedule(step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == 1.0
    assert factors[-1] < 0.01
    assert trainer.schedule(0, 1) == 1.0


@pytest.mark.slow
def test_losing_the_smallest_chunks_costs_little_accuracy() -> None:
    _, dblp, _ = run(3, RECIPES["digits"], high=0.408)
    _, baseline, _ = run(3, RECIPES["digits"], high=0.008)
    assert baseline >= 0.95
    assert dblp >= 0.95
    assert baseline - dblp <= 0.015
