"""What one choice changes, from results with known numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblp.experiments.catalogue import cells_of, experiment_of
from dblp.experiments.effects import Effect, effects_of
from dblp.experiments.measures import columns_of
from dblp.experiments.report import write_report
from tests.unit.experiments.made_up import result_of, stored

ORDERS = {"sequential": 0.0, "rotate": 0.1, "random": 0.1, "magnitude": 0.2}


def ablation() -> dict[str, list[float]]:
    """Final scores by setting and seed: orders and feedback add up, and nothing else counts."""
    settings = {cell.setting for cell in cells_of(experiment_of("ablation"), "small", 1)}
    return {
        setting.name: [
            ORDERS.get(setting.order, 0.0) + 0.05 * setting.residual + noise
            for noise in (0.4, 0.5, 0.39)
        ]
        for setting in settings
    }


def effects(name: str, scores: dict[str, list[float]]) -> dict[tuple[str, str], Effect]:
    """By factor and value."""
    cells = cells_of(experiment_of(name), "small", 3)
    results = [result_of(cell, [0.1, scores[cell.setting.name][cell.seed - 1]]) for cell in cells]
    found = effects_of(list(columns_of(results).values()))
    return {(effect.factor, effect.value): effect for effect in found}


def test_pairs_differ_in_nothing_else() -> None:
    found = effects("ablation", ablation())
    feedback = found["error feedback", "on"]
    assert feedback.instead_of == "off" and feedback.pairs == 8
    assert feedback.scores.mean == pytest.approx(0.05) and feedback.scores.count == 3
    assert feedback.scores.is_clear
    order = found["order", "magnitude"]
    assert (order.instead_of, order.pairs) == ("sequential", 4)
    assert order.scores.mean == pytest.approx(0.2)
    rule = found["missing rule", "contributors"]
    assert rule.pairs == 8 and rule.scores.mean == pytest.approx(0) and not rule.scores.is_clear
    assert found["downlink", "common"].pairs == 1
    assert found["norm of Eq. 1", "received"].instead_of == "sent"
    assert len(found) == 3 + 1 + 1 + 2 + 1


def test_a_sweep_is_read_against_the_usual_value() -> None:
    names = {cell.setting.name for cell in cells_of(experiment_of("sensitivity"), "small", 1)}
    scores = {name: [0.5 - 0.1 * (name == "high-90")] * 3 for name in names}
    found = effects("sensitivity", scores)
    worst = found["P_high", "90%"]
    assert worst.instead_of == "40.8%" and worst.scores.mean == pytest.approx(-0.1)
    assert ("η", "0.5") not in found and found["η", "0.1"].pairs == 1
    assert found["interval", "50"].instead_of == "the usual"


def test_the_page_says_so_and_charts_what_does_best(tmp_path: Path) -> None:
    stored(tmp_path, "ablation", ablation(), seeds=3)
    _, markdown, _ = write_report(tmp_path)
    text = markdown.read_text()
    assert "error feedback on instead of off: 5.00 ± 0.00 points (n = 3, mean of 8 pairs)." in text
    assert "missing rule contributors instead of zero: 0.00 ± 0.00 points" in text
    assert "The 13 that do worse are in the table only." in text
    picture = (tmp_path / "ablation-small-learning.svg").read_text()
    assert "magnitude, feedback" in picture and "sequential" not in picture
