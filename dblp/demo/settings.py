"""What one demo run is: every number that decides it, in one frozen record that travels as JSON."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigError
from ..phase import GradientNormPolicy

Side = Literal["dblp", "baseline"]
SIDES: tuple[Side, Side] = ("dblp", "baseline")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a data set is trained; the same on both sides."""

    epochs: int
    """Passes over the training images."""
    batch: int
    """Images per step, over all workers together."""
    learning_rate: float
    """Peak of the learning rate (linear warm-up over the first tenth, then a cosine to zero)."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    """Softens the targets; also keeps the gradient norm off zero when the model fits the data."""
    interval: int = 10
    """Steps between two looks at the gradient norm (the paper's DBLP_freq)."""


RECIPES = {
    "digits": Recipe(epochs=16, batch=96, learning_rate=0.05),
    "cifar10": Recipe(epochs=10, batch=192, learning_rate=0.1, interval=26),
}


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """One demo: both sides share everything here but the policy."""

    workers: int = 3
    seed: int = 1
    data: str | None = None
    """Directory with CIFAR-10 in its standard python layout; None: scikit-learn's digits."""
    out: str = "runs/demo"
    """Directory for summary.json, rounds.jsonl, the plots and the logs."""
    recipe: Recipe = RECIPES["digits"]
    low: str = "0.8%"
    """Tolerance in the critical regime, and the baseline's everywhere (Section V-A)."""
    high: str = "40.8%"
    """Tolerance elsewhere, DBLP only."""
    downlink: Literal["exact", "lossy"] = "exact"
    bursts: int = 3
    """Rounds hit by a microburst."""
    burst_loss: float = 0.7
    """Share of the arriving datagrams that a burst destroys (Section V-B)."""
    timeout_s: float = 30.0
    """Longest a round may take, in seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 64:
            raise ConfigError(f"--workers is {self.workers}: choose 1 to 64")
        if self.recipe.epochs < 1:
            raise ConfigError(f"--epochs is {self.recipe.epochs}: choose 1 or more")
        if self.recipe.interval < 1:
            raise ConfigError(f"--interval is {self.recipe.interval}: choose 1 step or more")
        if self.recipe.batch < self.workers:
            raise ConfigError(
                f"--workers is {self.workers}, but a batch has {self.recipe.batch} images to share:"
                " choose fewer workers"
            )
        GradientNormPolicy(self.low, self.high, interval=self.recipe.interval)  # checks them
        if self.bursts < 0:
            raise ConfigError(f"--bursts is {self.bursts}: choose 0 or more")
        if not 0 < self.timeout_s <= 3600:
            raise ConfigError(f"--timeout is {self.timeout_s:g}: choose up to 3600 seconds")
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(f"--seed is {self.seed}: choose 0 to 4294967295")

    @property
    def dataset(self) -> str:
        """Name of the data set, a key of `RECIPES`."""
        return "digits" if self.data is None else "cifar10"

    def burst_rounds(self, steps: int) -> list[int]:
        """Rounds with a microburst, drawn once per seed, ascending.

        None falls in the first interval: training starts critical (Section IV-D) and stays so until
        the second check, so both sides would behave the same there.
        """
        candidates = range(self.recipe.interval + 1, steps)
        if self.bursts > len(candidates):
            raise ConfigError(
                f"--bursts is {self.bursts}, but only {len(candidates)} of the {steps} steps lie"
                " behind the first interval: choose fewer bursts or more --epochs"
            )
        return sorted(random.Random(f"bursts {self.seed}").sample(candidates, self.bursts))

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> DemoSettings:
        """The settings that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "recipe": Recipe(**fields["recipe"])})

    @property
    def out_dir(self) -> Path:
        """`out` as a path."""
        return Path(self.out)
