"""Which rounds end at their deadline, and when, in virtual time."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from dblp import Deadline
from dblp.faults import Impairment
from dblp.proto import Session
from dblp.proto.time_limit import TimeLimit
from dblp.sim.cluster import Cluster
from dblp.sim.link import PathModel
from dblp.sim.options import RoundPlan
from dblp.sim.pair import Pair
from dblp.sim.scenario import Scenario
from dblp.stats import RoundReport
from dblp.tolerance import Tolerance

from .scenes import scene

ROUNDS, BURST = 16, 12
STREAMS = ((RoundPlan(25_600, "float32", "40.8%"),) * ROUNDS,)
"""400 chunks, of which 237 are needed."""
PATH = PathModel(bytes_per_s=1.25e8)


def ran(**changes: Any) -> Scenario:
    """A scenario with an adaptive deadline that has run."""
    plain: dict[str, Any] = {
        "streams": STREAMS, "queued": False, "safety_s": 30.0, "up": PATH, "down": PATH,
        "downlink": "lossy", "policy": ("fixed", "40.8%"), "deadline": Deadline(),
    }  # fmt: skip
    scenario = Scenario(scene(**(plain | changes)))
    scenario.run()
    return scenario


def reports(scenario: Scenario, direction: str, rank: int = 0) -> list[RoundReport]:
    """Of all rounds of a rank, in their order."""
    assert isinstance(scenario.subject, Cluster)
    finished = scenario.subject.workers[rank].finished
    found = [getattr(one, direction) for one in finished]
    assert len(found) == ROUNDS and None not in found
    return found


def test_calm_rounds_keep_their_bound() -> None:
    scenario = ran()
    for direction in ("uplink", "downlink"):
        assert not any(one.at_deadline for one in reports(scenario, direction))


def test_an_uplink_in_a_burst_ends_after_its_first_pass() -> None:
    """Rounds usually take two here, so that it does not have to wait for their usual time."""
    lossy = {number: 0.3 for number in range(ROUNDS) if number % 4} | {BURST: 0.75}
    far = PathModel(bytes_per_s=1.25e8, delay_s=3e-4)
    scenario = ran(faults_up=Impairment(bursts=lossy, seed=1), up=far, down=far)
    for rank in (0, 1):
        uplinks = reports(scenario, "uplink", rank)
        burst = uplinks.pop(BURST)
        assert burst.at_deadline and burst.passes == 1
        assert burst.elapsed_s < 0.9 * statistics.median(one.elapsed_s for one in uplinks)


def test_a_downlink_in_a_burst_ends_at_its_deadline() -> None:
    scenario = ran(faults_down=Impairment(bursts={BURST: 0.7}))
    downlinks = reports(scenario, "downlink")
    assert downlinks.pop(BURST).at_deadline
    assert not any(one.at_deadline for one in downlinks)
    assert not any(one.at_deadline for one in reports(scenario, "uplink"))


def test_critical_rounds_have_none() -> None:
    """The policy has no norm to compare with before its second interval: all rounds are
    critical."""
    scenario = ran(
        policy=("norm", "40%", "40.8%", 0.5, ROUNDS), faults_up=Impairment(bursts={BURST: 0.7}),
        faults_down=Impairment(bursts={BURST: 0.7}),
    )  # fmt: skip
    for direction in ("uplink", "downlink"):
        assert not any(one.at_deadline for one in reports(scenario, direction))


def test_a_fixed_deadline_is_waited_for() -> None:
    """Three of 40 chunks come with the first pass: no reason to stop at the floor of six, 10 s
    early."""
    scenario = ran(
        kind="pair", world=1, streams=((RoundPlan(2560, "float32", "40.8%"),) * ROUNDS,),
        faults_up=Impairment(uniform=0.9), deadline=Deadline(seconds=10.0),
    )  # fmt: skip
    assert isinstance(scenario.subject, Pair)
    taken = [one.report for one in scenario.subject.peers[1].finished]
    assert len(taken) == ROUNDS and not any(one.at_deadline for one in taken if one is not None)


def test_what_a_probe_over_tcp_does_not_find_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a probe follows every megabyte, and the rest is still to come."""
    looks: list[bool] = []
    real = TimeLimit.look

    def noted(self: TimeLimit, *args: Any, pass_over: bool = False) -> int:
        looks.append(pass_over)
        return real(self, *args, pass_over=pass_over)

    monkeypatch.setattr(TimeLimit, "look", noted)
    scenario = ran(
        kind="pair", world=1, streams=((RoundPlan(1_200_000, "float32", "40.8%"),) * 7,),
        chunk_bytes=1448, blocked="up", blocked_for_ever=True, blocked_known=True,
    )  # fmt: skip
    assert isinstance(scenario.subject, Pair)
    taken = [one.report for one in scenario.subject.peers[1].finished]
    assert all(one is not None and one.fallback for one in taken)
    assert looks and not any(looks)


def test_a_patient_receiver_that_has_met_its_bound_is_not_at_a_deadline() -> None:
    """It waits for the rest until the deadline lowers what it waits for."""
    scenario = ran(stop="patient", faults_up=Impairment(uniform=0.1), deadline=Deadline(factor=1.0))
    for one in reports(scenario, "uplink"):
        assert one.at_deadline == (one.chunks - one.missing < 237)


def test_a_sender_learns_from_a_stop_at_the_deadline() -> None:
    """It comes in place of the bitmap that would have told what the first pass has lost."""
    scenario = ran(faults_up=Impairment(bursts={ROUNDS - 1: 0.7}))
    assert reports(scenario, "uplink")[-1].at_deadline
    session = next(end.session for end in scenario.subject.ends if end.host.name != "server")
    assert isinstance(session, Session)
    assert session._link.first_pass.chunks(Tolerance.of("40.8%"), 400) > 237
