"""What each experiment trains and sends, by scale."""

from __future__ import annotations

from typing import Any

from .settings import Workload

__all__ = ["SENSITIVITY_TRAINING", "SHAPED", "SMOKE", "TRAFFIC", "TRAINING"]

SMOKE: dict[str, dict[str, Any]] = {
    "digits": {
        "samples": 12 * 24, "test_samples": 48, "batch": 24, "epochs": 1, "interval": 2,
        "augment": False,
    },
    "source": {
        "samples": 12 * 4 * 32, "test_samples": 8 * 32, "batch": 4, "sequence": 32, "epochs": 1,
        "interval": 2, "vocabulary": None,
    },
    "traffic": {"elements": 200_000, "rounds": 12, "interval": 2},
}  # fmt: skip
"""What makes a workload one of twelve steps: it shows that everything works, and nothing else."""

TRAINING: dict[str, dict[str, Workload]] = {
    "phase-drop": {
        "small": Workload(
            model="densenet", data="cifar10", samples=4800, test_samples=1500, epochs=9, batch=96,
            learning_rate=0.1, augment=True,
        ),
        "paper": Workload(
            model="densenet", size="paper", data="cifar10", epochs=9, batch=96, learning_rate=0.1,
            augment=True,
        ),
    },
    "efficientnet-b0": {
        "small": Workload(
            model="efficientnet", data="cifar10", samples=4800, test_samples=3000, epochs=6,
            batch=96, learning_rate=0.05, label_smoothing=0.1, augment=True,
        ),
        # 10 epochs of 93 steps: 930 iterations.
        "paper": Workload(
            model="efficientnet", size="paper", data="cifar10", epochs=10, batch=534,
            learning_rate=0.1, label_smoothing=0.1, augment=True,
        ),
    },
    "resnet50": {
        "small": Workload(
            model="resnet", data="cifar100", samples=19200, test_samples=6000, epochs=6, batch=192,
            learning_rate=0.1, augment=True,
        ),
        # 15 epochs of 93 steps: 1,395 iterations.
        "paper": Workload(
            model="resnet", size="paper", data="cifar100", epochs=15, batch=534,
            learning_rate=0.1, augment=True,
        ),
    },
    "alexnet": {
        "small": Workload(
            model="alexnet", data="cifar100", samples=14400, test_samples=6000, epochs=6,
            batch=192, learning_rate=0.05, augment=True,
        ),
        "paper": Workload(
            model="alexnet", size="paper", data="cifar100", epochs=15, batch=534,
            learning_rate=0.03, augment=True,
        ),
    },
    "gpt2": {
        "small": Workload(
            model="gpt2", data="wikitext2", samples=24 * 64 * 250, test_samples=40_000, epochs=3,
            batch=24, sequence=64, vocabulary=4000, optimizer="adamw", learning_rate=1e-3,
            weight_decay=0.01,
        ),
        "paper": Workload(
            model="gpt2", size="paper", data="wikitext2", epochs=10, batch=24, sequence=512,
            optimizer="adamw", learning_rate=3e-4, weight_decay=0.01,
        ),
    },
}  # fmt: skip

TRAINING["high-loss"] = TRAINING["gpt2"]

SENSITIVITY_TRAINING = {
    "small": Workload(
        model="resnet", data="cifar10", samples=9600, test_samples=6000, epochs=6, batch=96,
        learning_rate=0.1, augment=True,
    ),
    "paper": Workload(
        model="efficientnet", size="paper", data="cifar10", epochs=10, batch=534,
        learning_rate=0.1, label_smoothing=0.1, augment=True,
    ),
}  # fmt: skip
"""Of `sensitivity` and `ablation`: many cells, so at `small` the cheapest model."""

TRAFFIC = {
    "efficientnet-b0": Workload(model="EfficientNet-B0", elements=5_288_548, rounds=80),
    "resnet50": Workload(model="ResNet-50", elements=25_557_032, rounds=40, interval=5),
    "alexnet": Workload(model="AlexNet", elements=61_100_840, rounds=20, interval=3),
    "gpt2": Workload(model="GPT-2", elements=124_439_808, rounds=14, interval=2),
}
"""Gradients of the models' published sizes."""

SHAPED: dict[str, dict[str, Any]] = {
    "efficientnet-b0": {"rounds": 20, "interval": 2},
    "resnet50": {"rounds": 12, "interval": 2},
    "alexnet": {"rounds": 8, "interval": 1},
    "gpt2": {"rounds": 6, "interval": 1},
}
"""Fewer rounds for a shaped network at `small`: one of GPT-2 takes up to 25 s at 1 Gb/s."""
