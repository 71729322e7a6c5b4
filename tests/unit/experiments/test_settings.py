"""Cells: what decides a result, as JSON, and the same bursts for all that are compared."""

from __future__ import annotations

import dataclasses

import pytest

from dblp import ConfigError, FixedTolerance, GradientNormPolicy
from dblp.experiments.catalogue import EXPERIMENTS, cells_of, experiment_of
from dblp.experiments.settings import (
    SCALES,
    Bursts,
    Cell,
    Setting,
    Workload,
    burst_rounds,
    policy_of,
)


def cell(**changes: object) -> Cell:
    fields = {
        "kind": "train",
        "workload": Workload(model="densenet", interval=5),
        "setting": Setting(name="one", label="one"),
        "seed": 1,
    }
    return Cell(**{**fields, **changes})


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_survives_json_and_has_a_name_of_its_own(name: str, scale: str) -> None:
    cells = cells_of(experiment_of(name), scale, 2)
    for each in cells:
        back = Cell.from_dict(each.to_dict())
        assert back == each and back.digest == each.digest
    assert len({each.key for each in cells}) == len(cells)
    assert len({each.digest for each in cells}) == len(cells)


def test_anything_that_decides_the_result_changes_the_digest() -> None:
    digests = {
        cell().digest,
        cell(seed=2).digest,
        cell(bursts=Bursts(count=1)).digest,
        cell(workload=Workload(model="densenet", interval=6)).digest,
        cell(setting=Setting(name="one", label="one", order="random")).digest,
        cell(setting=Setting(name="one", label="one", rate_bit_per_s=1e8)).digest,
    }
    assert len(digests) == 6


def test_a_result_of_another_version_is_refused_with_what_to_do() -> None:
    fields = cell().to_dict()
    fields["workload"]["colour"] = "red"
    with pytest.raises(ConfigError, match="choose another --out"):
        Cell.from_dict(fields)


def test_bursts_are_the_same_for_all_settings_of_a_seed_and_behind_the_first_intervals() -> None:
    drawn = set()
    for seed in range(20):
        one = cell(seed=seed, bursts=Bursts(count=3))
        other = dataclasses.replace(one, setting=Setting(name="two", label="two"))
        rounds = burst_rounds(one, 40)
        assert rounds == burst_rounds(other, 40) == sorted(set(rounds))
        assert len(rounds) == 3 and min(rounds) > 10 and max(rounds) < 40
        drawn.add(tuple(rounds))
    assert len(drawn) > 10


def test_too_few_rounds_for_the_bursts_is_an_error() -> None:
    with pytest.raises(ConfigError, match="12 rounds, too few for 3 bursts"):
        burst_rounds(cell(bursts=Bursts(count=3)), 12)


def test_a_schedule_changes_at_its_share_of_the_training() -> None:
    early = Setting(name="e", label="e", policy="schedule", schedule=((0.0, "40%"), (1 / 3, "0%")))
    policy = policy_of(cell(setting=early), 90)
    # The decision of a step holds for the uplink of the next.
    uplinks = [policy.initial()]
    uplinks += [policy.observe(stream=0, step=step, norm=1.0) for step in range(89)]
    assert [str(uplink.tolerance) for uplink in uplinks] == ["40%"] * 30 + ["0%"] * 60


def test_policies_of_settings() -> None:
    assert isinstance(policy_of(cell(), 10), FixedTolerance)
    norm = policy_of(cell(setting=Setting(name="n", label="n", policy="norm", eta=0.25)), 10)
    assert isinstance(norm, GradientNormPolicy)
    assert (norm.eta, norm.interval) == (0.25, 5)
    slow = Setting(name="n", label="n", policy="norm", interval=7)
    assert policy_of(cell(setting=slow), 10).interval == 7
    with pytest.raises(ConfigError, match="choose fixed, norm or schedule"):
        policy_of(cell(setting=Setting(name="n", label="n", policy="hope")), 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("huge", 1), "choose one of smoke, small, paper"), (("small", 0), "choose 1 to 100")],
)
def test_wrong_scales_and_seeds_are_named(arguments: tuple[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cells_of(experiment_of("phase-drop"), *arguments)


def test_an_unknown_experiment_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'fig-1': choose one of phase-drop, efficientnet-b0"):
        experiment_of("fig-1")


def test_table_one_and_the_iterations_of_the_paper() -> None:
    for name, low, high, count in (
        ("efficientnet-b0", "0.8%", "40.8%", 930),
        ("resnet50", "2.4%", "42.4%", 1395),
    ):
        cells = cells_of(experiment_of(name), "paper", 1)
        (paper,) = [c for c in cells if c.column == "train-paper"]
        (baseline,) = [c for c in cells if c.column == "train-baseline"]
        assert (paper.setting.low, paper.setting.high) == (low, high)
        assert (baseline.setting.low, baseline.setting.policy) == (low, "fixed")
        assert 50_000 // paper.workload.batch * paper.workload.epochs == count
        assert paper.setting.norm == "received" and paper.setting.downlink == "lossy"


def test_smoke_needs_no_data() -> None:
    for experiment in EXPERIMENTS.values():
        for each in cells_of(experiment, "smoke", 1):
            assert each.kind == "traffic" or each.workload.data in ("digits", "source")
