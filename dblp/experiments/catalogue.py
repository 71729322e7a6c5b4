"""The experiments: which cells each has, at which scale.  All of it is data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from ..errors import ConfigError
from .network import Network
from .settings import SCALES, Bursts, Cell, Scale, Setting, Workload
from .workloads import SENSITIVITY_TRAINING, SHAPED, SMOKE, TRAFFIC, TRAINING

__all__ = ["EXPERIMENTS", "Experiment", "Study", "cells_of", "experiment_of"]

LOW = {"resnet50": "2.4%"}
HIGH = {"resnet50": "42.4%"}
"""Table I; the others have 0.8 % and 40.8 %."""

BEST_HIGH = "80%"
"""How much our best setting is to tolerate."""


DROP_RATE = 150e6
"""Sending rate of `phase-drop`, in bit/s.  A small gradient sent at full speed would have arrived
before its STOP could: what may be missing would not be."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Cells of one kind: every setting with every seed."""

    kind: str
    """"train" or "traffic"."""
    settings: tuple[Setting, ...]
    bursts: int = 0
    smoke: tuple[str, ...] = ()
    """Names of the settings that the smallest scale has."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A part of the evaluation that one command runs."""

    name: str
    title: str
    shows: str
    """Which tables and figures of the paper, and what question."""
    studies: tuple[Study, ...]


EXACT = Setting(name="exact", label="exact (nothing lost)")
GLOO = Setting(name="gloo", label="gloo (TCP)", transport="gloo")


def paper_pair(low: str, high: str) -> tuple[Setting, Setting]:
    """The two sides of the paper as its text has them: sequential order, zero fill, lossy
    downlink, Eq. 1 on the received mean."""
    baseline = Setting(
        name="baseline", label=f"baseline (fixed {low})", low=low,
        order="sequential", downlink="lossy",
    )  # fmt: skip
    dblp = replace(
        baseline, name="paper", label=f"DBLP as in the paper ({low} … {high})", policy="norm",
        high=high, norm="received",
    )  # fmt: skip
    return baseline, dblp


@dataclass(frozen=True)
class OurSettings:
    """What the paper's two sides are compared with."""

    ours: Setting
    """The defaults of `dblp.torch`."""
    forgetful: Setting
    """Without error feedback."""
    common: Setting
    """A mean that may lack chunks too, for all ranks the same: as few bytes as in the paper."""
    best: Setting
    """What did best on GPT-2 at a high tolerance (`high-loss`)."""

    @classmethod
    def between(cls, low: str, high: str) -> OurSettings:
        """With these tolerances."""
        span = f"({low} … {high})"
        ours = Setting(
            name="ours", label=f"our defaults {span}", transport="mesh", policy="norm", low=low,
            high=high, residual=True,
        )  # fmt: skip
        return cls(
            ours=ours,
            forgetful=replace(
                ours, name="forgetful", label=f"the same without feedback {span}", residual=False
            ),
            common=replace(
                ours, name="common", label=f"the same, common downlink {span}", downlink="common"
            ),
            best=warmed_up(low, rule="contributors", name="best"),
        )


def warmed_up(low: str, *, rule: str, name: str) -> Setting:
    """Much may be missing, but not at first: what the training needs most is there then."""
    divisor = ", ÷ contributors" if rule == "contributors" else ""
    return Setting(
        name=name, label=f"{low} for a third of the training, then {BEST_HIGH}{divisor}",
        transport="mesh", policy="schedule", schedule=((0.0, low), (1 / 3, BEST_HIGH)), rule=rule,
        residual=True, low=low,
    )  # fmt: skip


def _phase_drop() -> Experiment:
    """Fig. 1.  Drops are tolerances that a schedule sets; a random order makes them random."""

    none = replace(EXACT, name="none", label="no drop", order="random", rate_bit_per_s=DROP_RATE)
    settings = [none]

    def drop(name: str, label: str, *schedule: tuple[float, str]) -> Setting:
        return replace(none, name=name, label=label, policy="schedule", schedule=schedule)

    for share in ("40%", "80%"):
        short = share.rstrip("%")
        settings += [
            drop(f"early-{short}", f"{share} early", (0.0, share), (1 / 3, "0%")),
            drop(f"late-{short}", f"{share} middle and late", (0.0, "0%"), (1 / 3, share)),
        ]
    return Experiment(
        name="phase-drop",
        title="Drops in the early phase against drops later",
        shows="Fig. 1: does it matter when gradients are lost?",
        studies=(Study(kind="train", settings=tuple(settings), smoke=("none", "early-80")),),
    )


def _model(name: str, title: str, shows: str, bursts: int) -> Experiment:
    """One model of Section V: all settings without bursts, the paper's two and ours with them, and
    traffic of the real model's size."""
    pair = paper_pair(LOW.get(name, "0.8%"), HIGH.get(name, "40.8%"))
    mine = OurSettings.between(LOW.get(name, "0.8%"), HIGH.get(name, "40.8%"))
    studies = [
        Study(
            kind="train",
            settings=(EXACT, *pair, mine.ours, mine.forgetful, mine.common, mine.best, GLOO),
            smoke=("exact", "paper", "best"),
        )
    ]
    if bursts:
        studies.append(Study(kind="train", settings=(*pair, mine.ours), bursts=bursts))
    studies += [
        Study(kind="traffic", settings=(*pair, mine.ours, mine.common, GLOO)),
        Study(
            kind="traffic",
            settings=(*pair, mine.ours, mine.common),
            bursts=bursts or 2,
            smoke=("baseline", "paper"),
        ),
    ]
    return Experiment(name=name, title=title, shows=shows, studies=tuple(studies))


def _sensitivity() -> Experiment:
    """What the paper leaves to future work, one number at a time."""
    base = Setting(name="base", label="", policy="norm", low="0.8%", high="40.8%")
    settings = [EXACT]
    settings += [
        replace(base, name=f"high-{share}", label=f"P_high {share} %", high=f"{share}%")
        for share in range(20, 100, 10)
    ]
    settings += [
        replace(base, name=f"eta-{eta:g}", label=f"η {eta:g}", eta=eta)
        for eta in (0.1, 0.25, 0.5, 1.0)
    ]
    settings += [
        replace(base, name=f"interval-{steps}", label=f"interval {steps}", interval=steps)
        for steps in (2, 5, 20, 50)
    ]
    return Experiment(
        name="sensitivity",
        title="How much P_high, η and the interval matter",
        shows="Section VI-C leaves it to future work.",
        studies=(
            Study(kind="train", settings=tuple(settings), smoke=("exact", "high-80", "eta-0.1")),
        ),
    )


def _ablation() -> Experiment:
    """Order × feedback × missing rule; then downlink and norm source one at a time."""
    base = Setting(
        name="base", label="", transport="mesh", policy="norm", low="0.8%", high=BEST_HIGH
    )
    settings = [EXACT]
    for order in ("sequential", "rotate", "random", "magnitude"):
        for residual in (False, True):
            for rule in ("zero", "contributors"):
                name = f"{order}{'-feedback' if residual else ''}-{rule}"
                label = f"{order}{', feedback' if residual else ''}, ÷ {rule}"
                settings.append(
                    replace(
                        base,
                        name=name,
                        label=label.replace("÷ zero", "÷ N"),
                        order=order,
                        rule=rule,
                        residual=residual,
                    )
                )
    magnitude = replace(base, order="magnitude", residual=True)
    settings += [
        replace(
            magnitude,
            name=f"down-{down}",
            label=f"magnitude, feedback, {down} downlink",
            downlink=down,
        )
        for down in ("common", "lossy")
    ]
    server = replace(base, transport="server", order="magnitude")
    settings += [
        replace(server, name=f"norm-{norm}", label=f"magnitude, server, norm {norm}", norm=norm)
        for norm in ("sent", "received")
    ]
    return Experiment(
        name="ablation",
        title=f"Order, missing rule, feedback, downlink and norm source at P_high {BEST_HIGH}",
        shows="Which of our extensions help.",
        studies=(
            Study(
                kind="train",
                settings=tuple(settings),
                smoke=("exact", "magnitude-feedback-zero", "norm-received"),
            ),
        ),
    )


def _high_loss() -> Experiment:
    """What may bring a language model closer to exact at a high tolerance."""
    mine = OurSettings.between("0.8%", "40.8%")
    more = replace(mine.ours, name="more-80", label=f"our defaults with more (0.8% … {BEST_HIGH})",
                   high=BEST_HIGH)  # fmt: skip
    settings = (
        EXACT,
        more,
        replace(more, name="more-60", label="our defaults with more (0.8% … 60%)", high="60%"),
        replace(more, name="contributors", label=f"0.8% … {BEST_HIGH}, ÷ contributors",
                rule="contributors"),
        warmed_up("0.8%", rule="zero", name="warm-up"),
        mine.best,
    )  # fmt: skip
    return Experiment(
        name="high-loss",
        title=f"How to lose {BEST_HIGH} of a language model's gradients",
        shows="Nothing in the paper, which stops at 42.4 %.",
        studies=(Study(kind="train", settings=settings, smoke=("exact", "warm-up")),),
    )


EXPERIMENTS: dict[str, Experiment] = {
    found.name: found
    for found in (
        _phase_drop(),
        _model("efficientnet-b0", "EfficientNet-B0 on CIFAR-10",
               "Tables II, IV, V, VI; Figs. 2, 3, 5, 6a", 2),
        _model("resnet50", "ResNet-50 on CIFAR-100",
               "Tables III, IV, V, VI; Figs. 2, 4, 5, 6b", 3),
        _model("alexnet", "AlexNet on CIFAR-100", "Tables V, VI; Figs. 5, 6c", 0),
        _model("gpt2", "GPT-2 on WikiText-2", "Tables V, VI; Figs. 5, 6d", 0),
        _sensitivity(),
        _ablation(),
        _high_loss(),
    )
}  # fmt: skip


def experiment_of(name: str) -> Experiment:
    """By name; ConfigError when there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(
            f"there is no experiment {name!r}: choose one of {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


def cells_of(
    experiment: Experiment, scale: Scale, seeds: int, network: Network = "loopback"
) -> list[Cell]:
    """All cells, seed after seed, so that an interrupted run has whole comparisons.

    At `smoke` a few settings, with two workers.  In a shaped network fewer rounds of traffic, and
    no trainings with bursts: what they learn is no other than on loopback.
    """
    if scale not in SCALES:
        raise ConfigError(f"--scale is {scale!r}: choose one of {', '.join(SCALES)}")
    if not 1 <= seeds <= 100:
        raise ConfigError(f"--seeds is {seeds}: choose 1 to 100")
    return [
        Cell(
            kind="traffic" if study.kind == "traffic" else "train",
            workload=_workload(experiment.name, study.kind, scale, network),
            setting=setting,
            seed=seed,
            bursts=Bursts(count=study.bursts),
            workers=2 if scale == "smoke" else 3,
        )
        for seed in range(1, seeds + 1)
        for study in experiment.studies
        if network == "loopback" or study.kind == "traffic" or not study.bursts
        for setting in study.settings
        if scale != "smoke" or setting.name in study.smoke
    ]


def _workload(name: str, kind: str, scale: Scale, network: Network) -> Workload:
    if kind == "traffic":
        found = TRAFFIC[name]
        if network != "loopback" and scale == "small":
            found = dataclasses.replace(found, **SHAPED[name])
        return dataclasses.replace(found, **SMOKE["traffic"]) if scale == "smoke" else found
    training = TRAINING.get(name, SENSITIVITY_TRAINING)
    if scale == "smoke":
        data = "source" if training["small"].data == "wikitext2" else "digits"
        return dataclasses.replace(training["small"], data=data, **SMOKE[data])
    return training[scale]
