from __future__ import annotations

import dataclasses

import pytest

from dblp.demo.assignment import Assignment
from dblp.demo.settings import RECIPES, DemoSettings
from dblp.errors import ConfigError


def test_settings_and_assignments_survive_json() -> None:
    settings = DemoSettings(workers=5, seed=9, downlink="lossy")
    assert DemoSettings.from_json(settings.to_json()) == settings
    assignment = Assignment("baseline", settings, (3, 17), rank=2, address="127.0.0.1:9")
    assert "\n" not in assignment.to_json()
    assert Assignment.from_json(assignment.to_json()) == assignment


def test_bursts_follow_the_seed_and_spare_the_first_interval() -> None:
    interval = RECIPES["digits"].interval
    drawn = [DemoSettings(seed=seed).burst_rounds(240) for seed in range(50)]
    assert DemoSettings(seed=7).burst_rounds(240) == drawn[7]
    assert len({tuple(rounds) for rounds in drawn}) > 45
    for rounds in drawn:
        assert len(set(rounds)) == 3
        assert interval < min(rounds) and max(rounds) < 240
        assert rounds == sorted(rounds)


def test_too_many_bursts_are_refused() -> None:
    with pytest.raises(ConfigError, match="only 4 of the 15 steps"):
        DemoSettings(bursts=5).burst_rounds(15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": 0}, "--workers is 0"),
        ({"bursts": -1}, "--bursts is -1"),
        ({"timeout_s": 0.0}, "--timeout is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"low": "50%"}, "low tolerance"),
        ({"high": "much"}, "much"),
        ({"recipe": dataclasses.replace(RECIPES["digits"], epochs=0)}, "--epochs is 0"),
        ({"recipe": dataclasses.replace(RECIPES["digits"], interval=0)}, "--interval is 0"),
        ({"recipe": dataclasses.replace(RECIPES["digits"], batch=2)}, "fewer workers"),
    ],
)
def test_a_bad_setting_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DemoSettings(**change)  # type: ignore[arg-type]


def test_the_sides_differ_in_the_policy_only() -> None:
    dblp, baseline = (Assignment(side, DemoSettings(), (5,)) for side in ("dblp", "baseline"))
    assert dblp.config == baseline.config
    assert "40.8%" in dblp.policy.describe()
    assert baseline.policy.describe() == "fixed tolerance of 0.8%"
