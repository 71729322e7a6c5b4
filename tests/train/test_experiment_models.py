"""The models of the experiments: sizes, shapes, and the same weights for the same seed."""

from __future__ import annotations

import pytest
import torch

from dblp.experiments.models import MODELS, build

PARAMETERS_M = {"densenet": (12, 14), "efficientnet": (4, 5.5), "resnet": (23, 26),
                "alexnet": (55, 62), "gpt2": (110, 126)}  # fmt: skip
"""What the published models have, in millions; the paper's Table I says 5, 25, 61, 125."""


@pytest.mark.parametrize("name", MODELS)
def test_paper_sizes_are_those_of_the_published_models(name: str) -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        model = MODELS[name](33_278 if name == "gpt2" else 100, "paper")
    low, high = PARAMETERS_M[name]
    assert low < sum(p.numel() for p in model.parameters()) / 1e6 < high


@pytest.mark.parametrize("name", MODELS)
def test_small_models_learn_and_start_equal_everywhere(name: str) -> None:
    pytest.importorskip("transformers")
    model, twin, other = (build(name, 10, "small", seed) for seed in (1, 1, 2))
    weights = [torch.nn.utils.parameters_to_vector(m.parameters()) for m in (model, twin, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    if name == "gpt2":
        tokens = torch.randint(10, (2, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
    else:
        logits = model(torch.randn(2, 3, 32, 32))
        assert logits.shape == (2, 10)
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2]))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_a_few_steps_on_one_batch_learn_it(name: str) -> None:
    """A model whose signals vanish at the start trains without an error, and learns nothing."""
    pytest.importorskip("transformers")
    model = build(name, 10, "small", 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(16, 3, 32, 32, generator=generator)
    labels = torch.arange(16) % 10
    tokens = torch.randint(10, (4, 16), generator=generator)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        if name == "gpt2":
            loss = model(input_ids=tokens, labels=tokens).loss
        else:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0], losses
