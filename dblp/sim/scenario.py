"""seed → options → run: a safety phase with faults, then a liveness phase without."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..proto.probing import PROBE_TIMEOUT_MAX_S, PROBE_TIMEOUT_MIN_S, STALL_MIN_S
from ..wire import HEADER_BYTES
from .checkers import (
    AcceptedBytes,
    BitmapAndCount,
    CountedDatagrams,
    OneStop,
    OneTolerance,
    QuietAfterEnd,
    SilentAfterStop,
    SourceUnchanged,
)
from .checkers_mean import ExactMean
from .cluster import Cluster
from .joint import intrude, stop_faults
from .link import RTO_S
from .network import PUMP_BUDGET_S, Network
from .options import Options, draw
from .pair import Pair
from .watch import Violation, Watch

__all__ = ["Outcome", "Scenario", "liveness_bound_s", "run_options", "run_seed"]

PASSES = 6
"""Passes of a direction of a round in which datagrams flow freely, or not at all: three empty ones
before the fallback, what a fault has left, and the last."""

REQUEST_S = 0.002
"""A sender that is blocked on credit asks this often."""

SETTLE_S = 5.0
"""After the last round: late probes, remembered STOPs and chunks on their way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run took; a run that violates an invariant has none."""

    options: Options
    virtual_s: float
    """Virtual time at the end of the last round."""
    liveness_share: float
    """Time that the liveness phase took, as a share of its bound."""
    events: int
    rounds: int
    """Rounds (transfers) that ended well, over all ranks."""
    error: bool
    """The scenario's trouble ended the job early."""


def liveness_bound_s(options: Options) -> float:
    """Longest time after the faults have stopped until every round has ended, in seconds (L1).

    What waited when the faults stopped may wait for the end of its backoff and for a stalled TCP
    frame.  After that every pass of every direction of every round takes a few trips, turns of
    Python and the time of its bytes; where datagrams are blocked for ever it is a stall, and probes
    until one goes over TCP.
    """
    up, down = options.up, options.down
    datagram = options.chunk_bytes + HEADER_BYTES
    rate = min(up.bytes_per_s, down.bytes_per_s)
    control = options.congestion.new_control(datagram)
    if control.pacing_bytes_per_s:
        rate = min(rate, control.pacing_bytes_per_s)
    trip_s = up.delay_s + up.jitter_s + down.delay_s + down.jitter_s
    trip_s += 4 * sum(options.lags_s) + PUMP_BUDGET_S
    in_flight = min(options.window, control.window)
    queue = min(up.queue_bytes, down.queue_bytes) // datagram
    probe_s = max(PROBE_TIMEOUT_MIN_S, 4 * trip_s)
    pass_s = 2 * trip_s + 1.1 * probe_s
    if options.blocked and options.blocked_for_ever:
        pass_s += 1.1 * (2 + 4) * probe_s + max(STALL_MIN_S, 8 * trip_s)
    bound = 1.0 + options.skew_s + RTO_S + 2 * 1.1 * PROBE_TIMEOUT_MAX_S
    for number in range(max(map(len, options.streams))):
        plans = [stream[number] for stream in options.streams if number < len(stream)]
        nbytes = sum(plan.nbytes for plan in plans)
        chunks = -(-nbytes // options.chunk_bytes) + len(plans)
        passes = PASSES + options.world * chunks // queue
        credit_s = chunks / in_flight * (trip_s + REQUEST_S)
        bytes_s = 2 * options.world * passes * chunks * datagram / rate
        bound += 2 * (passes * pass_s + credit_s + bytes_s) + options.think_s
    if options.trouble == "freeze":
        bound += options.timeout_s + 1.0
    return bound


class Scenario:
    """One run of one `Options`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sources: dict[tuple[str, int, int, int], bytes] = {}
        self.counted = CountedDatagrams()
        self.watch = Watch(
            QuietAfterEnd(),
            SilentAfterStop(),
            SourceUnchanged(eager=options.stop == "eager"),
            BitmapAndCount(),
            OneStop(options.deadline),
            AcceptedBytes(self.sources),
            self.counted,
            OneTolerance(),
            *self._mean_checkers(),
        )
        self.network = Network(self.watch)
        make = Cluster if options.kind == "cluster" else Pair
        self.subject: Cluster | Pair = make(options, self.network, self.watch, self.sources)

    def _mean_checkers(self) -> tuple[ExactMean, ...]:
        options = self.options
        if options.kind != "cluster":
            return ()
        return (
            ExactMean(
                self.sources,
                world=options.world,
                identical=options.downlink != "lossy",
                contributors=options.rule == "contributors",
            ),
        )

    def run(self) -> Outcome:
        """Raises `Violation` (or an assertion of the code itself) when an invariant breaks."""
        options, network, subject = self.options, self.network, self.subject
        subject.start()
        self._schedule()
        finished = network.run(subject.done, until=options.safety_s)
        bound = liveness_bound_s(options)
        faults_end = network.now
        stop_faults(subject.ends, options, network)
        subject.hurry()
        if not finished and not network.run(subject.done, until=faults_end + bound):
            raise Violation(
                "L1",
                f"rounds are open {network.now - faults_end:.3f} s after the faults stopped, the "
                f"bound is {bound:.3f} s: {subject.waiting()}",
            )
        ended = network.now
        network.run(lambda: False, until=ended + bound + SETTLE_S)
        if not network.idle:
            raise Violation("T1", f"there is no quiet after the last round: {subject.waiting()}")
        self.watch.tell("run_over", subject.ends)
        subject.check_end()
        return self._outcome(ended, (ended - faults_end) / bound)

    def _schedule(self) -> None:
        """What shall happen by time."""
        options, network, subject = self.options, self.network, self.subject
        if options.trouble not in ("", "mismatch"):
            network.call_at(options.trouble_at_s, subject.strike)
        rng = random.Random(f"{options.seed}/intruders")
        for _ in range(options.intruders):
            network.call_at(10 ** rng.uniform(-5, -2), self._intrude, rng.choice(subject.ends), rng)

    def _intrude(self, end: object, rng: random.Random) -> None:
        for candidate in self.subject.ends:
            if candidate is end and not candidate.host.dead:
                intrude(self.counted, candidate, rng, self.network.now)
                self.network.kick(candidate.host)

    def _outcome(self, ended: float, share: float) -> Outcome:
        subject = self.subject
        people = subject.workers if isinstance(subject, Cluster) else subject.peers
        results = [one for person in people for one in person.finished]
        return Outcome(
            options=self.options,
            virtual_s=ended,
            liveness_share=share,
            events=self.network.events,
            rounds=sum(1 for one in results if one.error is None),
            error=any(person.error is not None for person in people),
        )


def run_options(options: Options) -> Outcome:
    """Runs one scenario; raises `Violation` when an invariant breaks."""
    return Scenario(options).run()


def run_seed(seed: int) -> Outcome:
    """Draws the options of `seed` and runs them."""
    return run_options(draw(seed))
