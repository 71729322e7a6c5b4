"""What the simulation has found, each as the smallest scenario that shows it.

A seed means something else whenever `options.draw` changes, so every find is kept as a scenario of
its own.  `SEEDS` are those that see a rule of the protocol when it is taken out.
"""

from __future__ import annotations

from typing import Any

import pytest

from dblp import Deadline
from dblp.faults import Impairment
from dblp.sim.link import PathModel
from dblp.sim.options import RoundPlan
from dblp.sim.scenario import Outcome, run_options, run_seed

from .scenes import lost_control, scene

SLOW = PathModel(bytes_per_s=1e7, coalesce=1)
"""An early stop finds most of a pass not yet sent."""

EMPTY = RoundPlan(0, "float32", "40.8%")
TEN = RoundPlan(10, "float32")
LOSSY = RoundPlan(12_000, "float32", "40.8%")
LONG = RoundPlan(3000, "float32")
LONGER = RoundPlan(12_000, "float32")


def run(**changes: Any) -> Outcome:
    return run_options(scene(**changes))


def test_the_stop_of_an_empty_round_is_lost() -> None:
    """The receiver of an empty round answers an Open that wants Ready with STOP, as a datagram.
    When that was lost the sender waited for ever: without Ready it has no timer and never probes.
    """
    outcome = run(kind="pair", streams=((EMPTY,),), **lost_control("down", 0), safety_s=0.01)
    assert outcome.rounds == 2


def test_a_worker_leaves_in_the_middle_of_its_uplink() -> None:
    """The server took a goodbye for harmless when the rank had announced the round: the others
    waited until timeout_s, and the error did not say that the rank had left."""
    outcome = run(
        streams=((LONGER,),), up=SLOW, trouble="leave", trouble_rank=0, trouble_at_s=0.0005
    )
    assert outcome.error and outcome.virtual_s < 0.1


def test_an_abort_comes_in_the_turn_in_which_a_mean_is_complete() -> None:
    """The worker started its next round in a session that was over: an internal error in place of
    the server's reason."""
    outcome = run(
        seed=72, streams=((LONG,) * 6,) * 2, trouble="mismatch", control="tcp",
        lags_s=(5e-4, 5e-4), late_turns=True, skew_s=1e-3,
    )  # fmt: skip
    assert outcome.error


def test_an_abort_comes_in_the_turn_in_which_a_transfer_ends() -> None:
    """The same, point to point."""
    outcome = run(
        seed=22, kind="pair", world=1, streams=((TEN,) * 2, (LONG,) * 2, (TEN,) * 2),
        trouble="mismatch", control="tcp", lags_s=(2e-5, 5e-3), late_turns=True, skew_s=1e-3,
    )  # fmt: skip
    assert outcome.error


def test_a_receiver_closes_and_its_last_stop_is_lost() -> None:
    """An early stop ends the sender's only pass; the STOP is lost and nobody is there to repeat it.
    The sender took what had arrived for lost: whoever closes now repeats it on TCP."""
    outcome = run(
        kind="pair", streams=((LOSSY,),), up=SLOW, leave_when_done=True,
        **lost_control("down", 0), safety_s=0.01,
    )  # fmt: skip
    assert outcome.rounds == 2 and not outcome.error


def test_a_stop_and_the_goodbye_come_in_one_turn() -> None:
    """The goodbye was seen first, and the send counted as failed though its STOP was there."""
    outcome = run(
        kind="pair", streams=((LOSSY,),), up=SLOW, leave_when_done=True, lags_s=(5e-3, 0.0),
        late_turns=True,
    )  # fmt: skip
    assert outcome.rounds == 2 and not outcome.error


def test_a_downlink_on_tcp_waits_for_the_whole_mean() -> None:
    """Chunks that no rank delivered are ready when the reduction ends, without any event: a sender
    on TCP was not told (the driver's idle turn came to the rescue, 50 ms later).  Here the first
    downlink loses everything, so that the next ones start on TCP."""
    outcome = run(
        world=1, streams=((LONG,) * 4,), policy=("fixed", "40.8%"), stop="patient",
        faults_up=Impairment(uniform=0.2), **lost_control("down", 0), safety_s=2.0,
    )  # fmt: skip
    assert outcome.rounds == 4 and outcome.virtual_s < 0.04


def test_the_deadline_of_a_downlink_passes_before_its_uplink_is_over() -> None:
    """The worker zeroed what was missing of the mean in the buffer that it still sent from, and
    took its uplink for stopped: the others got zeros, or the server waited for chunks in vain."""
    outcome = run(
        seed=1, streams=((LOSSY,) * 5,), up=SLOW, downlink="lossy",
        policy=("norm", "0.8%", "40.8%", 0.5, 1),
        faults_up=Impairment(bursts={3: 0.9}, seed=1),
        deadline=Deadline(floor="90%", factor=1.0, warm_up=1),
    )  # fmt: skip
    assert outcome.rounds == 10 and not outcome.error


SEEDS = {
    13: "a result buffer is reused while a downlink still reads it",
    17: "a worker leaves in the middle of its uplink",
    20: "datagrams are blocked for ever: resends, fallback, remembered STOPs, stalls",
    79: "chunks go down though the end of a downlink does not imply that of the uplinks",
    80: "round ids wrap",
    124: "a receiver closes and its last STOP is lost",
    154: "a worker announces the next round before the server knows that this one is complete",
    259: "a downlink whose STOP was overtaken by the next round (hazard 4)",
    482: "a lossy downlink ends before the server's turn that stops the uplink (no fault: the "
    "checker of S2 did not know)",
    654: "the deadline of a downlink passes before its uplink is over",
    1515: "a STOP and the goodbye come in one turn",
    2309: "a downlink on TCP waits for the whole mean",
}
"""Seed → what it sees (2,500 seeds searched per rule)."""


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_that_saw_something(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_local_rank_comes_last(rank: int) -> None:
    """All uplinks had ended before the rank that lives with the server announced its round: an
    assertion took that for impossible."""
    outcome = run(world=3, local=rank, skew_s=0.03, think_s=5e-3, queued=False,
                  streams=((LONG, LONG, TEN, LONG),))  # fmt: skip
    assert outcome.rounds == 12


def test_the_stop_of_an_uplink_that_lost_nothing_is_lost() -> None:
    """A worker that announced a tolerance waited for ever for the list of its missing chunks: the
    mean had ended its uplink, and only a STOP with a list went over TCP too."""
    small = RoundPlan(10, "float32", "40.8%")
    for seed in range(20):
        outcome = run(
            seed=seed, announced=True, streams=((small,) * 6,),
            faults_down=Impairment(bursts=dict.fromkeys(range(6), 0.7), seed=seed), safety_s=0.01,
        )  # fmt: skip
        assert outcome.rounds == 12
