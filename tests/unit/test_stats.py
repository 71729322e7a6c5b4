"""Reports of finished rounds."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields

import pytest

from dblp.stats import REPORTED_COUNTERS, RoundReport, counter_deltas


def report(**changes: object) -> RoundReport:
    """A plausible report with `changes`."""
    plausible: dict[str, object] = {"stream": 2, "round_id": 7, "direction": "uplink"}
    return RoundReport(**{**plausible, **changes})


def test_delivered_share() -> None:
    assert report(chunks=625, missing=255).delivered == 370
    assert report(chunks=625, missing=255).delivered_share == 0.592
    assert report(chunks=0).delivered_share == 1.0


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        report().missing = 1  # type: ignore[misc]


def test_to_dict_is_json_ready_and_complete() -> None:
    finished = report(rank=1, regime="critical", rtt_s=float("nan"), elapsed_s=0.25, chunks=4)
    row = json.loads(json.dumps(finished.to_dict(), allow_nan=False))
    assert set(row) == {field.name for field in fields(RoundReport)} | {"delivered_share"}
    assert (row["stream"], row["round_id"], row["direction"]) == (2, 7, "uplink")
    assert (row["rank"], row["regime"], row["elapsed_s"]) == (1, "critical", 0.25)
    assert row["rtt_s"] is None
    assert row["delivered_share"] == 1.0


def test_counter_deltas_are_the_keywords_of_a_report() -> None:
    start = dict.fromkeys(REPORTED_COUNTERS, 5) | {"datagrams_sent": 100}
    end = start | {"stale": 8, "kernel_drops": 6, "datagrams_sent": 200}
    deltas = counter_deltas(start, end)
    assert deltas["stale"] == 3
    assert set(deltas) == set(REPORTED_COUNTERS)
    finished = report(**deltas)
    assert (finished.stale, finished.kernel_drops, finished.corrupt) == (3, 1, 0)
