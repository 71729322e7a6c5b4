"""What one experiment consists of: cells, each one training or one stretch of traffic.

Everything that decides a result is in a `Cell`, which travels to the processes and beside the
results as JSON.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from typing import Any, Literal

from ..errors import ConfigError
from ..phase import FixedTolerance, GradientNormPolicy, Schedule, TolerancePolicy

__all__ = ["SCALES", "Bursts", "Cell", "Scale", "Setting", "Workload", "burst_rounds", "policy_of"]

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained or sent; the same for all settings of an experiment."""

    model: str
    """Key of `models.MODELS`; for traffic only its name matters."""
    size: str = "small"
    """"small" or "paper": which configuration of the model."""
    data: str = "cifar10"
    """"digits", "cifar10", "cifar100", "wikitext2" or "source" (Python's own)."""
    samples: int | None = None
    """Training images or tokens that are used; None: all."""
    test_samples: int | None = None
    """Test images or tokens that are used; None: all."""
    epochs: int = 1
    batch: int = 96
    """Images or sequences per step, over all workers together."""
    sequence: int = 64
    """Tokens of a sequence, of language models."""
    vocabulary: int | None = None
    """Most frequent words that are kept, the others become <unk>; None: all."""
    optimizer: str = "sgd"
    """"sgd" (momentum 0.9, Nesterov) or "adamw"."""
    learning_rate: float = 0.1
    """Peak: linear warm-up over the first tenth, then a cosine to zero."""
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    augment: bool = False
    """Random crops and mirrors."""
    interval: int = 10
    """Steps between two looks at the gradient norm (DBLP_freq)."""
    elements: int = 0
    """Traffic: float32 elements of a gradient."""
    rounds: int = 0
    """Traffic: rounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """How gradients travel in one cell: what an experiment compares."""

    name: str
    """Short, for file names: letters, digits, "-" and "."."""
    label: str
    """For tables."""
    transport: str = "server"
    """"server": a parameter server and workers (paper); "mesh": each rank averages a shard, the
    default under PyTorch; "gloo": PyTorch's own all-reduce over TCP."""
    policy: str = "fixed"
    """"fixed": `low` always; "norm": Eq. 1 between `low` and `high`; "schedule": `schedule`."""
    low: str = "0%"
    high: str = "40.8%"
    eta: float = 0.5
    interval: int | None = None
    """Overrides the workload's."""
    schedule: tuple[tuple[float, str], ...] = ()
    """(share of the training from which it holds, tolerance)"""
    order: str = "auto"
    rule: str = "zero"
    downlink: str = "exact"
    norm: str = "sent"
    """What Eq. 1 looks at, "server" only: "sent", or "received" (paper)."""
    residual: bool = False
    """Error feedback, "mesh" only."""
    rate_bit_per_s: float | None = None
    """A fixed sending rate; None: the default congestion control."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bursts:
    """Microbursts: rounds that lose most of their datagrams (Section V-B)."""

    count: int = 0
    loss: float = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting with one seed."""

    kind: Literal["train", "traffic"]
    workload: Workload
    setting: Setting
    seed: int
    bursts: Bursts = Bursts()
    workers: int = 3
    timeout_s: float = 60.0
    """Longest a round may take."""

    @property
    def key(self) -> str:
        """Name of the result's file, unique within an experiment."""
        burst = f"-bursts{self.bursts.count}" if self.bursts.count else ""
        return f"{self.kind}-{self.setting.name}{burst}-s{self.seed}"

    @property
    def column(self) -> str:
        """What the cells of all seeds have in common."""
        return self.key.rpartition("-s")[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Cell:
        """The cell that `to_dict` wrote; ConfigError when it is not one of this version."""
        try:
            setting = dict(fields["setting"])
            setting["schedule"] = tuple((share, p) for share, p in setting["schedule"])
            return cls(
                **{
                    **fields,
                    "workload": Workload(**fields["workload"]),
                    "setting": Setting(**setting),
                    "bursts": Bursts(**fields["bursts"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"a result's configuration cannot be read ({error}): it was written by another "
                "version of dblp, so choose another --out"
            ) from error

    @property
    def digest(self) -> str:
        """Changes with anything that decides the result."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def burst_rounds(cell: Cell, steps: int) -> list[int]:
    """The rounds that a burst hits: the same for all settings of a seed, ascending.

    None falls in the first two intervals, where training is critical under every policy.
    """
    candidates = range(2 * cell.workload.interval + 1, steps)
    if cell.bursts.count > len(candidates):
        raise ConfigError(
            f"{cell.key} has {steps} rounds, too few for {cell.bursts.count} bursts behind the "
            "first two intervals: choose a larger scale"
        )
    drawn = random.Random(f"bursts {cell.seed}").sample(candidates, cell.bursts.count)
    return sorted(drawn)


def policy_of(cell: Cell, steps: int) -> TolerancePolicy:
    """The policy of a cell whose training has `steps` steps."""
    setting = cell.setting
    if setting.policy == "fixed":
        return FixedTolerance(setting.low)
    if setting.policy == "norm":
        interval = setting.interval or cell.workload.interval
        return GradientNormPolicy(setting.low, setting.high, setting.eta, interval)
    if setting.policy == "schedule":
        # An entry holds for the uplinks after its step, and the first one for the first uplink too.
        entries = [
            (max(0, round(share * steps) - 1) if share else 0, tolerance)
            for share, tolerance in setting.schedule
        ]
        return Schedule(entries)
    raise ConfigError(f"policy is {setting.policy!r}: choose fixed, norm or schedule")
