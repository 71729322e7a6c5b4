"""The statistics and records of the benches say what they claim."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.goals import GOALS
from bench.harness import CaseResult, Chart, Distribution, Settings, holds, ratio, write_result
from bench.interleave import Plan, Side, interleave
from bench.kernel import parse_udp_counters
from bench.transport.peers.role import PeerError, PeerTimeoutError

_SNMP = """Ip: Forwarding
Ip: 1
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
Udp: 10 0 3 7 2 1 0
UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors
UdpLite: 99 99 99 99 99 99 99
"""
_SNMP6 = "Udp6InDatagrams                 5\nUdp6RcvbufErrors 4\nUdpLite6InDatagrams 9\n"


def test_distribution_agrees_with_numpy() -> None:
    samples = list(np.random.default_rng(3).exponential(size=1234))
    seen = Distribution.of(samples)
    assert seen.p50 == pytest.approx(np.percentile(samples, 50))
    assert seen.p95 == pytest.approx(np.percentile(samples, 95))
    assert seen.p99 == pytest.approx(np.percentile(samples, 99))
    assert (seen.n, seen.max) == (1234, max(samples))


def test_no_p99_under_a_thousand_samples() -> None:
    assert Distribution.of([1.0] * 999).p99 is None
    assert Distribution.of([1.0] * 1000).p99 == 1.0
    few = Distribution.of([1.0, 5.0])
    assert few.tail == few.max == 5.0
    assert few.columns("ms")["p99_ms"] is None


def test_a_distribution_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Distribution.of([])


def test_ratio_of_something_unmeasured_is_none() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is ratio(3.0, None) is ratio(1.0, 0.0) is None


@pytest.mark.parametrize(
    ("value", "sign", "met"), [(2, ">=", True), (2, "<=", True), (3, "<=", False), (0, "==", False)]
)
def test_goals_hold_or_not(value: float, sign: str, met: bool) -> None:
    assert holds(value, sign, 2) is met
    assert all(known in (">=", "<=", "==") for known, _ in GOALS.values())


def test_the_record_of_a_run_names_what_it_needs(tmp_path: Path) -> None:
    result = CaseResult(summary={"some_ratio": None})
    result.add([0.001, 0.002], "ms", scale=1e3, side="a")
    result.charts.append(Chart("c", "t", "ms", {"a": [1.0, 2.0]}, "cdf"))
    write_result(tmp_path / "case.json", "case", result, Settings(smoke=True))
    record = json.loads((tmp_path / "case.json").read_text())
    assert record["n"] == 2
    assert record["rows"][0]["p50_ms"] == 1.5
    assert {"summary", "rows", "commit", "machine", "n"} <= set(record)
    assert (tmp_path / "case-c.png").stat().st_size > 1000


def test_sides_take_turns_until_each_has_its_samples() -> None:
    log: list[str] = []

    def side(name: str) -> Side:
        def measure(count: int, limit_s: float) -> list[float]:
            log.append(name)
            return [0.5] * count

        return Side(name, measure, Plan(rounds=4, budget_s=100.0))

    sides = [side("a"), side("b")]
    interleave(sides)
    assert [len(s.samples) for s in sides] == [4, 4]
    assert log[:4] == ["a", "b", "b", "a"]


def test_the_last_turn_is_short_and_may_end() -> None:
    """A side that is given up has to be ended, and cannot take part in what comes next."""
    asked: list[tuple[int, float]] = []

    def measure(count: int, limit_s: float) -> list[float]:
        asked.append((count, limit_s))
        side.spent_s += 0.4 * count
        return [0.4] * count

    side = Side("slow", measure, Plan(rounds=100, budget_s=2.0))
    interleave([side])
    assert [count for count, _ in asked] == [1, 2, 1, 1]
    assert all(limit_s >= 2 for _, limit_s in asked)


def test_a_side_that_hangs_or_breaks_stops_taking_turns_and_the_others_go_on() -> None:
    def hangs(count: int, limit_s: float) -> list[float]:
        raise PeerTimeoutError("no answer", limit_s)

    def breaks(count: int, limit_s: float) -> list[float]:
        raise PeerError("no disk")

    stuck = Side("stuck", hangs, Plan(rounds=3, budget_s=2.0))
    fine = Side("fine", lambda count, limit_s: [0.1] * count, Plan(rounds=3, budget_s=2.0))
    broken = Side("broken", breaks, Plan(rounds=3, budget_s=2.0))
    interleave([stuck, broken, fine])
    assert stuck.gave_up_s is not None
    assert not stuck.samples and not broken.samples
    assert broken.failure == "no disk"
    assert len(fine.samples) == 3


def test_udp_counters_add_both_families_and_leave_out_the_others() -> None:
    seen = parse_udp_counters(_SNMP, _SNMP6)
    assert (seen.in_datagrams, seen.rcvbuf_errors, seen.in_errors) == (15, 6, 3)
    assert parse_udp_counters("", "").in_datagrams == 0
