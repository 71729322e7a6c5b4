"""summary.json, rounds.jsonl, the plots and the table, from made-up records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rich.console import Console

from dblp.demo import plots, record, summary, table
from dblp.demo.settings import DemoSettings, Side

BURSTS = (12, 25)


def uplink(elapsed_s: float, missing: int) -> dict[str, Any]:
    return {
        "chunks": 100,
        "missing": missing,
        "datagrams": 110,
        "nbytes": 100 * 1448,
        "elapsed_s": elapsed_s,
    }


def side(name: Side, burst_s: float, missing: int) -> record.SideRecord:
    rounds = []
    for step in range(40):
        elapsed_s = burst_s if step in BURSTS else 0.002 + 0.00001 * step
        events = {
            rank: {
                "step": step,
                "epoch": step // 20,
                "critical": name == "dblp" and step < 10,
                "tolerance": "0.8%",
                "loss": 2 - step / 40,
                "squared_norm": 1 + step / 10,
                "elapsed_s": elapsed_s + 0.001,
                "uplink": uplink(elapsed_s * (1 if rank else 0.5), missing),
                "downlink": uplink(elapsed_s, 0),
            }
            for rank in range(3)
        }
        rounds.append(record.RoundRecord.of(name, events, burst=step in BURSTS))
    return record.SideRecord(name, rounds, [0.8, 0.97], 4.0 if missing else 6.0, 0.0, 12000)


@pytest.fixture
def sides() -> tuple[record.SideRecord, record.SideRecord]:
    return side("dblp", 0.004, 40), side("baseline", 0.020, 0)


def test_the_summary_has_the_promised_schema(
    sides: tuple[record.SideRecord, record.SideRecord],
) -> None:
    content = json.loads(json.dumps(summary.summarize(DemoSettings(), BURSTS, *sides)))
    assert list(content) == ["machine", "config", "dblp", "baseline", "ratios"]
    keys = [
        "test_accuracy",
        "send_latency_s",
        "burst_latency_s",
        "train_time_s",
        "bytes_sent",
        "delivered_share",
        "critical_share",
        "replica_drift",
    ]
    for name in ("dblp", "baseline"):
        assert list(content[name]) == keys
        assert list(content[name]["send_latency_s"]) == ["mean", "p50", "p95", "max"]
        assert len(content[name]["burst_latency_s"]) == len(BURSTS)
    assert list(content["ratios"]) == ["burst", "tail", "mean", "train_time"]
    assert content["config"]["burst_rounds"] == list(BURSTS)
    assert content["config"]["steps"] == 40


def test_ratios_are_baseline_over_dblp(
    sides: tuple[record.SideRecord, record.SideRecord],
) -> None:
    content = summary.summarize(DemoSettings(), BURSTS, *sides)
    assert content["ratios"]["burst"] == pytest.approx([5.0, 5.0])
    assert content["ratios"]["tail"] == pytest.approx(5.0)
    assert content["ratios"]["train_time"] == pytest.approx(1.5)
    assert content["dblp"]["delivered_share"] == pytest.approx(0.6)
    assert content["dblp"]["critical_share"] == pytest.approx(0.25)
    assert content["dblp"]["bytes_sent"] == (40 * 3 * 110 + 12000) * (1448 + 24)


def test_a_ratio_without_a_denominator_is_none() -> None:
    assert summary.ratio(1.0, 0.0) is None
    assert summary.ratio(float("nan"), 1.0) is None


def test_rounds_are_one_json_object_per_line(
    tmp_path: Path, sides: tuple[record.SideRecord, record.SideRecord]
) -> None:
    record.write_rounds(tmp_path / "rounds.jsonl", sides)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 80
    assert [line["side"] for line in lines] == ["dblp"] * 40 + ["baseline"] * 40
    assert lines[12]["burst"] is True
    assert [worker["rank"] for worker in lines[0]["workers"]] == [0, 1, 2]


def test_four_plots_are_drawn(
    tmp_path: Path, sides: tuple[record.SideRecord, record.SideRecord]
) -> None:
    pytest.importorskip("matplotlib")
    paths = plots.draw_all(tmp_path, *sides)
    assert [path.name for path in paths] == [
        "send_latency.png",
        "latency_cdf.png",
        "accuracy.png",
        "gradient_norm.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_critical_spans_are_found(sides: tuple[record.SideRecord, record.SideRecord]) -> None:
    assert list(plots.critical_spans(sides[0].rounds)) == [(0, 9)]
    assert list(plots.critical_spans(sides[1].rounds)) == []
    assert list(plots.critical_spans(sides[0].rounds[5:8])) == [(5, 7)]


def test_the_table_names_every_number(
    sides: tuple[record.SideRecord, record.SideRecord],
) -> None:
    content = summary.summarize(DemoSettings(), BURSTS, *sides)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(table.comparison(content, [25]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "burst in round 12 ",
        "burst in round 25 *",
        "* In a critical",
        "p95",
        "5.00×",
        "97.0%",
        "25.0%",
        "Replica drift",
        "1.50×",
    ):
        assert part in text
