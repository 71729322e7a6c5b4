"""Every checker catches a planted violation, and lets a clean run pass.  Mostly: run a clean
scenario, doctor the evidence, and ask the checker again."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dblp import Deadline, fastpath
from dblp.collective.server_core import ServerCore
from dblp.collective.server_round import Stage
from dblp.collective.worker_round import OpenRound
from dblp.fastpath import pack_datagram
from dblp.faults import Impairment
from dblp.proto import ReceiveFinished, Receiver, Sender, SendFinished
from dblp.proto.bound import Bound
from dblp.sim import joint
from dblp.sim.checkers import (
    AcceptedBytes,
    BitmapAndCount,
    CountedDatagrams,
    OneStop,
    OneTolerance,
    QuietAfterEnd,
    SilentAfterStop,
    SourceUnchanged,
)
from dblp.sim.checkers_mean import ExactMean
from dblp.sim.link import ImpairedChannel, PathModel
from dblp.sim.options import RoundPlan
from dblp.sim.scenario import Scenario
from dblp.sim.watch import Observer, Violation, Watch, WatchedSession
from dblp.tolerance import EXACT, Tolerance
from dblp.wire import KIND_DATA, Stop

from .scenes import lost_control, scene

SLOW = PathModel(bytes_per_s=1e7, coalesce=1)
"""An early stop finds most of a pass not yet sent."""


class Evidence:
    """A scenario that has run without trouble, and what is left of it."""

    def __init__(self, **changes: Any) -> None:
        self.scenario = Scenario(scene(**changes))
        self.scenario.run()
        self.ends = self.scenario.subject.ends

    def session(self, role: str) -> WatchedSession:
        sessions = [end.session for end in self.ends]
        return next(one for one in sessions if isinstance(one, WatchedSession) and one.role == role)

    def receiver(self, role: str) -> Receiver:
        """The first finished receiver of `role`."""
        return next(one for one in self.session(role).all_receivers if one.report is not None)

    def checker(self, kind: type[Observer]) -> Any:
        return next(one for one in self.scenario.watch.observers if type(one) is kind)


@pytest.fixture
def pair() -> Evidence:
    return Evidence(kind="pair")


@pytest.fixture
def cluster() -> Evidence:
    return Evidence()


def violates(invariant: str) -> Any:
    return pytest.raises(Violation, match=f"^{invariant}: ")


def test_t1_an_ended_round_with_a_timer(pair: Evidence) -> None:
    sender = pair.session("a").all_senders[0]
    QuietAfterEnd().event(pair.session("a"), SendFinished(sender))
    sender.timer = 7.0
    with violates("T1"):
        QuietAfterEnd().event(pair.session("a"), SendFinished(sender))


def test_t1_an_idle_session_that_still_sends(pair: Evidence) -> None:
    QuietAfterEnd().run_over(pair.ends)
    end = pair.ends[0]
    slot = end.channel.open_transmit(9, 9, bytes(256))
    end.channel.queue(slot, [0])
    with violates("T1"):
        QuietAfterEnd().run_over(pair.ends)


def test_t1_a_round_that_never_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the run itself: the receiver forgets the STOP, and the probes go on for ever."""
    monkeypatch.setattr("dblp.proto.finished.FinishedRounds.recall", lambda self, key: None)
    lossy = scene(kind="pair", **lost_control("down", 0, 1), safety_s=0.001, order="sequential")
    with pytest.raises(Violation, match=r"^(T1|L1): "):
        Scenario(lossy).run()


def test_s1_a_late_transmit(pair: Evidence) -> None:
    checker, end = SilentAfterStop(), pair.ends[0]
    session = pair.session("a")
    sender = session.all_senders[0]
    late = pack_datagram(KIND_DATA, 0, sender.stream, 1, sender.round_id, 3, 1, bytes(256))
    checker.datagrams_out(end, [late])
    checker.stopping(session, sender)
    other = pack_datagram(KIND_DATA, 0, sender.stream, 1, sender.round_id + 1, 3, 1, bytes(256))
    checker.datagrams_out(end, [other])
    with violates("S1"):
        checker.datagrams_out(end, [other, late])


def test_s1_a_sender_that_goes_on_after_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot is not closed: what is queued leaves."""
    monkeypatch.setattr(ImpairedChannel, "cancel", lambda self, slot: 0, raising=False)
    monkeypatch.setattr(ImpairedChannel, "close_transmit", lambda self, slot: None, raising=False)
    long = ((RoundPlan(12_000, "float32"),),)
    with violates("S1"):
        Scenario(scene(policy=("fixed", "42.4%"), streams=long, up=SLOW)).run()


def test_s2_a_source_that_changes_on_the_way() -> None:
    scenario = Scenario(scene())
    cluster: Any = scenario.subject

    def change() -> None:
        cluster.workers[0].buffers[0][0] ^= 1

    scenario.network.call_at(1e-6, change)
    with pytest.raises(Violation, match=r"^(S2|R3): "):
        scenario.run()


def test_s2_compares_with_the_bytes_at_the_start(pair: Evidence) -> None:
    class Plan:
        reducer = None
        source = memoryview(bytearray(b"before"))

    class FakeSender:
        plan = Plan
        stream, round_id = 9, 9

    checker, fake = SourceUnchanged(eager=True), FakeSender()
    checker.sending(pair.session("a"), fake)  # type: ignore[arg-type]
    checker.stopping(pair.session("a"), fake)  # type: ignore[arg-type]
    checker.sending(pair.session("a"), fake)  # type: ignore[arg-type]
    Plan.source[0] = 0
    with violates("S2"):
        checker.stopping(pair.session("a"), fake)  # type: ignore[arg-type]


def test_r1_a_bit_without_a_chunk(pair: Evidence) -> None:
    receiver = pair.receiver("b")
    event = ReceiveFinished(receiver)
    BitmapAndCount().event(pair.session("b"), event)
    BitmapAndCount().run_over(pair.ends)
    receiver.bitmap.bits[0] ^= 1
    with violates("R1"):
        BitmapAndCount().event(pair.session("b"), event)
    with violates("R1"):
        BitmapAndCount().run_over(pair.ends)


def test_r2_one_chunk_below_the_exact_bound(pair: Evidence) -> None:
    """40.8 % of 8 chunks is 3.264: three may be missing, four may not."""
    receiver = pair.receiver("b")
    assert receiver.layout.count == 8 and receiver.tolerance == Tolerance.of("40.8%")
    receiver.bitmap.bits[0] = 0b11111
    OneStop().event(pair.session("b"), ReceiveFinished(receiver))
    receiver.bitmap.bits[0] = 0b1111
    with violates("R2"):
        OneStop().event(pair.session("b"), ReceiveFinished(receiver))


def test_r2_two_decisions(pair: Evidence) -> None:
    checker, session = OneStop(), pair.session("b")
    event = ReceiveFinished(pair.receiver("b"))
    checker.event(session, event)
    with violates("R2"):
        checker.event(session, event)
    checker.frame_out(session, Stop(0, 5, 7, 8, False, b"\0\1"))
    checker.frame_out(session, Stop(0, 5, 7, 8, False, None))
    with violates("R2"):
        checker.frame_out(session, Stop(0, 5, 8, 8, False, b""))


def test_r2_a_receiver_that_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the code: the bound is off by one chunk."""
    right = Tolerance.needed
    monkeypatch.setattr(Tolerance, "needed", lambda self, n: max(0, right(self, n) - 1))
    with violates("R2"):
        Scenario(scene(policy=("fixed", "40.8%"), up=SLOW)).run()


def test_r2_a_deadline_that_no_one_has_set(pair: Evidence) -> None:
    receiver = pair.receiver("b")
    assert receiver.stop is not None
    receiver.stop = msgspec.structs.replace(receiver.stop, at_deadline=True)
    OneStop(Deadline(floor="50%")).event(pair.session("b"), ReceiveFinished(receiver))
    with violates("R2"):
        OneStop().event(pair.session("b"), ReceiveFinished(receiver))


def test_r2_a_deadline_that_takes_less_than_its_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the code: the floor is off by one chunk."""
    right = Bound.needed.fget
    less = property(lambda self: right(self) - (self._floor is not None))
    monkeypatch.setattr(Bound, "needed", less)
    with violates("R2"):
        Scenario(scene(
            kind="pair", streams=((RoundPlan(500, "float32", "40.8%"),) * 6,), up=SLOW,
            faults_up=Impairment(uniform=0.8), deadline=Deadline(floor="50%", seconds=1e-5),
        )).run()  # fmt: skip


def test_r3_a_mutated_byte(pair: Evidence) -> None:
    receiver, checker = pair.receiver("b"), pair.checker(AcceptedBytes)
    event = ReceiveFinished(receiver)
    checker.event(pair.session("b"), event)
    receiver.plan.buffer[5] ^= 1
    with violates("R3"):
        checker.event(pair.session("b"), event)


def test_r3_a_missing_chunk_that_is_not_zero(pair: Evidence) -> None:
    receiver, checker = pair.receiver("b"), pair.checker(AcceptedBytes)
    receiver.bitmap.bits[0] &= ~1
    with violates("R3"):
        checker.event(pair.session("b"), ReceiveFinished(receiver))
    receiver.plan.buffer[:256] = bytes(256)
    checker.event(pair.session("b"), ReceiveFinished(receiver))


@pytest.mark.parametrize("field", ["result", "bits"])
def test_r3_a_wrong_mean(cluster: Evidence, field: str) -> None:
    checker = cluster.checker(ExactMean)
    checker.run_over(cluster.ends)
    results = next(iter(checker._results.values()))
    for rank, (result, bits, dtype, chunk_bytes) in list(results.items()):
        changed = bytearray(result)
        if field == "result":
            changed[3] ^= 1
        else:
            bits[0] = False  # says that it is missing, and it is not zero
        results[rank] = (bytes(changed), bits, dtype, chunk_bytes)
    with violates("R3"):
        checker.run_over(cluster.ends)


def test_r3_replicas_that_differ(cluster: Evidence) -> None:
    checker = cluster.checker(ExactMean)
    results = next(iter(checker._results.values()))
    result, *rest = results[1]
    results[1] = (bytes(len(result)), *rest)
    with pytest.raises(Violation, match="replicas differ"):
        checker.run_over(cluster.ends)


def test_r3_the_rank_that_lives_with_the_server_has_another_mean() -> None:
    cluster = Evidence(local=1)
    checker = cluster.checker(ExactMean)
    checker.run_over(cluster.ends)
    (key, (rank, result)), *_ = checker._local.items()
    assert rank == 1
    checker._local[key] = (rank, bytes(len(result)))
    with violates("R3"):
        checker.run_over(cluster.ends)


def test_s2_the_local_rank_gets_its_buffer_back_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the code: the downlinks still read it, and the training loop writes to it."""
    close = ServerCore._close_if_done

    def too_early(self: ServerCore, stream: Any, round_: Any) -> None:
        if round_.stage is Stage.REDUCED:
            round_.downlinks_open.clear()
        close(self, stream, round_)

    monkeypatch.setattr(ServerCore, "_close_if_done", too_early)
    with pytest.raises(Violation, match=r"^(S2|R3): "):
        Scenario(scene(local=1, down=SLOW, policy=("fixed", "40.8%"), downlink="common")).run()


def test_r1_a_worker_that_does_not_know_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenRound, "awaits_missing", False)
    monkeypatch.setattr(Receiver, "_is_awaited", lambda self: False)
    streams = ((RoundPlan(10, "float32", "40.8%"),) * 6,)
    with violates("R1"):
        for seed in range(20):
            lossy = Impairment(bursts=dict.fromkeys(range(6), 0.7), seed=seed)
            scenario = scene(
                seed=seed, announced=True, streams=streams, faults_down=lossy,
                safety_s=0.01,
            )  # fmt: skip
            Scenario(scenario).run()


def test_r3_a_reduction_of_chunks_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the code: the server takes the missing chunks of one rank for the other's."""

    class Backwards(fastpath.Reducer):
        def finish(self, bitmaps: Any, first: Any = ()) -> Any:
            return super().finish(bitmaps[::-1], first)

    monkeypatch.setattr(fastpath, "Reducer", Backwards)
    with violates("R3"):
        Scenario(scene(policy=("fixed", "40.8%"), order="magnitude", up=SLOW)).run()


def test_r4_a_datagram_that_is_taken(pair: Evidence) -> None:
    """A good chunk for an open round is no intruder: the checker sees that it changes things."""
    end, session = pair.ends[1], pair.session("b")
    end.host.dead = False
    receiver = session.arm(
        stream=9, round_id=0, buffer=bytearray(256), dtype="uint8", tolerance=EXACT, now=0.0
    )
    good = pack_datagram(
        KIND_DATA, 0, receiver.stream, end.channel.received_sequence & 0xFFFF,
        receiver.round_id, 0, end.channel.recv_tag, bytes(range(256)),
    )  # fmt: skip
    with violates("R4"):
        CountedDatagrams().intrude(end, good, "malformed", 0.0)
    with violates("R4"):  # a duplicate by now
        CountedDatagrams().intrude(end, good, "stale", 0.0)


def test_r4_counters_that_do_not_add_up(pair: Evidence) -> None:
    CountedDatagrams().run_over(pair.ends)
    pair.ends[0].channel.delivered += 1
    with violates("R4"):
        CountedDatagrams().run_over(pair.ends)


@pytest.mark.parametrize("seed", range(40))
def test_r4_intruders_show_in_their_counter(pair: Evidence, seed: int) -> None:
    rng = random.Random(seed)
    session = pair.session("b")
    session.arm(stream=9, round_id=0, buffer=bytearray(700), dtype="u1", tolerance=EXACT, now=0.0)
    joint.intrude(CountedDatagrams(), pair.ends[1], rng, 0.0)


def test_c1_ranks_with_different_tolerances(cluster: Evidence) -> None:
    checker, session = OneTolerance(), cluster.session("server")
    receiver = cluster.receiver("server")
    checker.armed(session, receiver)
    receiver.plan = replace(receiver.plan, tolerance=Tolerance.of("99%"))
    with violates("C1"):
        checker.armed(session, receiver)


def test_c1_ranks_that_announce_different_tolerances() -> None:
    cluster = Evidence(announced=True)
    checker, receiver = cluster.checker(OneTolerance), cluster.receiver("server")
    assert receiver.open is not None and receiver.open.tolerance == "51/125"
    checker.event(cluster.session("server"), ReceiveFinished(receiver))
    receiver.open = msgspec.structs.replace(receiver.open, tolerance="1/125")
    with violates("C1"):
        checker.event(cluster.session("server"), ReceiveFinished(receiver))


def test_c1_a_tolerance_that_changes(cluster: Evidence) -> None:
    for role in ("server", "worker"):
        checker, receiver = cluster.checker(OneTolerance), cluster.receiver(role)
        checker.event(cluster.session(role), ReceiveFinished(receiver))
        receiver.bound.fix(Tolerance.of("99%"))
        with violates("C1"):
            checker.event(cluster.session(role), ReceiveFinished(receiver))


def test_l1_a_sender_that_never_probes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the code: a lost probe is not resent."""
    monkeypatch.setattr(Sender, "on_timeout", lambda self, *, now: None)
    lossy = scene(**lost_control("up", 0), safety_s=0.001)
    with pytest.raises((Violation, AssertionError), match=r"^L1: |circles"):
        Scenario(lossy).run()


def test_l1_an_error_that_nobody_ordered() -> None:
    """Planted in the scenario: a time limit that no round can keep."""
    with violates("L1"):
        Scenario(scene(timeout_s=1e-5)).run()


def test_hooks_are_called_only_where_they_are() -> None:
    class Counter(Observer):
        turns = 0

        def turn_over(self, host: object) -> None:
            self.turns += 1

    watch = Watch(counter := Counter(), Observer())
    watch.tell("armed", None, None)
    watch.turn_over(None)  # type: ignore[arg-type]
    assert counter.turns == 1
