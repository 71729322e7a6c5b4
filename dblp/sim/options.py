"""What a seed means: everything that a scenario needs, drawn from one random source."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ..config import FLOAT_DTYPES, ORDERS, TransportConfig
from ..congestion import AdaptiveWindow, Congestion, FixedRate, Unpaced
from ..deadline import Deadline
from ..faults import GilbertElliott, Impairment
from ..phase import (
    AccordionPolicy,
    FixedTolerance,
    GradientNormPolicy,
    Schedule,
    TolerancePolicy,
)
from ..wire import ROUND_MODULUS
from .checkers_mean import STORED_AS
from .link import PathModel

__all__ = ["Options", "RoundPlan", "draw"]

TOLERANCES = ("0%", "0.8%", "2.4%", "40.8%", "42.4%", "1/3", "99%")
"""Those of Table I, and others."""

CHUNK_BYTES = (64, 64, 128, 256, 256, 512, 1448)

DELAYS_S = (5e-6, 50e-6, 50e-6, 1e-3, 20e-3)

RATES_BYTES_PER_S = (1e7, 1.25e8, 1.25e9, 1.25e9)
"""80 Mb/s to 10 Gb/s."""

QUEUE_DATAGRAMS = (8, 64, 1024, 1024)

WINDOWS = (1, 2, 7, 32, 256, 4096, 4096)

CONGESTIONS: tuple[Congestion, ...] = (
    AdaptiveWindow(),
    AdaptiveWindow(),
    AdaptiveWindow(step_datagrams=1, initial_datagrams=1, minimum_datagrams=1),
    AdaptiveWindow(queue_delay_s=1e-5, minimum_datagrams=2),
    FixedRate(8e6),
    FixedRate(1e9),
    Unpaced(),
)

FLIGHTS = 8
"""Windows per round, at most: more of the same costs time and finds nothing."""

BUDGETS_CHUNKS = (30, 100, 300, 800, 2000)
"""Chunks of one run, about, over all ranks, streams and rounds: bounds its cost."""

TIMEOUT_S = 10_000.0
"""Longer than any run: no round may need it."""

FREEZE_TIMEOUT_S = 1.0
"""... except where a peer falls silent for ever."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round of one stream."""

    elements: int
    dtype: str
    tolerance: str = "0%"
    """Point to point: the receiver's.  In a cluster: what the ranks announce, if they do."""
    backwards: bool = False
    """Point to point: from b to a."""

    @property
    def nbytes(self) -> int:
        """Size of the buffer in bytes."""
        return self.elements * STORED_AS[self.dtype].itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One scenario as data.  Workers are `a` in a pair and the server is `b`."""

    seed: int
    kind: str
    """"cluster": a parameter server and its workers.  "pair": two point-to-point peers."""
    world: int
    streams: tuple[tuple[RoundPlan, ...], ...]
    """The rounds of every stream, in order."""
    first_round: int
    chunk_bytes: int
    window: int
    congestion: Congestion
    order: str
    stop: str
    control: str
    probe_quiet_s: float | None
    timeout_s: float
    policy: tuple[object, ...]
    downlink: str
    rule: str
    norm: str
    norm_known: bool
    """Workers tell the norm of their gradients; else NaN."""
    queued: bool
    """Workers submit all rounds at once; else each after the one before, after `think_s`."""
    think_s: float
    skew_s: float
    """Workers start up to this far apart."""
    lags_s: tuple[float, float]
    """How long a turn of Python takes at a worker, at the server."""
    late_turns: bool
    """That time passes before a turn, and not after it: the peers are ahead of Python."""
    up: PathModel
    """Worker to server; a to b."""
    down: PathModel
    faults_up: Impairment
    """What happens to datagrams where they arrive, at the server."""
    faults_down: Impairment
    blocked: str
    """"", "up", "down" or "both": datagrams do not get through (hazard 9)."""
    blocked_for_ever: bool
    """A firewall; else the direction is free again when the faults stop."""
    blocked_known: bool
    """The handshake has noticed."""
    intruders: int
    """Datagrams that nobody must take."""
    trouble: str
    """"", "crash", "server crash", "leave", "freeze" or "mismatch"."""
    trouble_rank: int
    trouble_at_s: float
    leave_when_done: bool
    """A worker closes as soon as its own rounds are over."""
    safety_s: float
    """When the faults stop, in seconds."""
    announced: bool = False
    """The ranks announce the tolerance of every round, as in a mesh; else the policy decides."""
    local: int | None = None
    """The rank that lives with the server, as in a mesh; it has no connection."""
    deadline: Deadline | None = None
    """Of rounds that may lose chunks, on all hosts."""

    @property
    def config(self) -> TransportConfig:
        """The transport's settings of all hosts."""
        return TransportConfig(
            order=self.order,
            stop=self.stop,
            control=self.control,
            probe_quiet_s=self.probe_quiet_s,
            congestion=self.congestion,
            deadline=self.deadline,
            timeout_s=self.timeout_s,
            seed=self.seed % 1000,
        )

    def make_policy(self) -> TolerancePolicy:
        """A fresh policy."""
        kind, *arguments = self.policy
        if kind == "fixed":
            return FixedTolerance(str(arguments[0]))
        if kind in ("norm", "accordion"):
            low, high, eta, steps = arguments
            assert isinstance(eta, float) and isinstance(steps, int)
            of_kind = GradientNormPolicy if kind == "norm" else AccordionPolicy
            return of_kind(str(low), str(high), eta, steps)
        return Schedule([(step, str(tolerance)) for step, tolerance in enumerate(arguments)])


def draw(seed: int) -> Options:
    """The options of `seed`."""
    rng = random.Random(seed)
    kind = "cluster" if rng.random() < 0.75 else "pair"
    world = rng.choice((1, 2, 2, 3, 3, 4, 5)) if kind == "cluster" else 1
    chunk_bytes = rng.choice(CHUNK_BYTES)
    first_round = rng.choice((0, 0, 1, ROUND_MODULUS - 1, ROUND_MODULUS - 2, (1 << 31) - 2))
    window, congestion = rng.choice(WINDOWS), rng.choice(CONGESTIONS)
    in_flight = min(window, congestion.new_control(chunk_bytes).window)
    streams = _streams(rng, kind, world, chunk_bytes, in_flight)
    trouble = _trouble(rng, kind, world)
    local = rng.randrange(world) if world > 1 and rng.random() < 0.4 else None
    announced = kind == "cluster" and rng.random() < 0.4
    remote = [rank for rank in range(world) if rank != local]
    blocked = rng.choice(("up", "down", "both")) if rng.random() < 0.12 else ""
    return Options(
        seed=seed,
        kind=kind,
        world=world,
        streams=streams,
        first_round=first_round,
        chunk_bytes=chunk_bytes,
        window=window,
        congestion=congestion,
        order=rng.choice(("auto", *ORDERS)),
        stop=rng.choice(("eager", "eager", "patient")),
        control=rng.choice(("datagram", "datagram", "datagram", "tcp")),
        probe_quiet_s=rng.choice((None, None, 0.0, 1e-3)),
        timeout_s=FREEZE_TIMEOUT_S if trouble == "freeze" else TIMEOUT_S,
        policy=_policy(rng),
        downlink=rng.choice(("exact", "exact", "common", "lossy")),
        rule=rng.choice(("zero", "contributors")),
        norm=rng.choice(("sent", "sent", "received")),
        norm_known=rng.random() < 0.9,
        queued=rng.random() < 0.5,
        think_s=rng.choice((0.0, 1e-4, 5e-3)),
        skew_s=rng.choice((0.0, 1e-4, 0.03)),
        lags_s=(_lag(rng), _lag(rng)),
        up=_path(rng, chunk_bytes),
        down=_path(rng, chunk_bytes),
        faults_up=_faults(rng, first_round),
        faults_down=_faults(rng, first_round),
        blocked=blocked,
        blocked_for_ever=rng.random() < 0.5,
        blocked_known=rng.random() < 0.2,
        intruders=rng.choice((0, 0, 4)),
        trouble=trouble,
        trouble_rank=rng.choice(remote),
        trouble_at_s=10 ** rng.uniform(-4.5, -1.0),
        leave_when_done=rng.random() < 0.3,
        safety_s=10 ** rng.uniform(-3.0, 0.3),
        late_turns=rng.random() < 0.4,
        announced=announced,
        local=local,
        deadline=_deadline(rng),
    )


def _streams(
    rng: random.Random, kind: str, world: int, chunk_bytes: int, in_flight: int
) -> tuple[tuple[RoundPlan, ...], ...]:
    """Layouts mostly stay the same within a stream, as a model's buckets do."""
    streams = rng.choice((1, 1, 1, 1, 2, 3))
    rounds = rng.choice((1, 2, 2, 3, 3, 6))
    budget = rng.choice(BUDGETS_CHUNKS) // (world * streams * rounds)
    chunks_max = max(1, min(budget, FLIGHTS * in_flight))
    float_only = rng.random() < 0.5
    plans = []
    for _ in range(streams):
        plan: list[RoundPlan] = []
        for _ in range(rounds):
            if plan and rng.random() < 0.8:
                plan.append(plan[-1])
                continue
            dtype = "float32" if float_only else rng.choice(sorted(FLOAT_DTYPES))
            elements = _elements(rng, chunk_bytes // STORED_AS[dtype].itemsize, chunks_max)
            tolerance = rng.choice(TOLERANCES)
            backwards = kind == "pair" and rng.random() < 0.5
            plan.append(RoundPlan(elements, dtype, tolerance, backwards))
        plans.append(tuple(plan))
    return tuple(plans)


def _elements(rng: random.Random, per_chunk: int, chunks_max: int) -> int:
    """From nothing to `chunks_max` chunks; small ones more often, the last chunk often shorter."""
    if rng.random() < 0.05:
        return 0
    if rng.random() < 0.1:
        return 1
    chunks: int = round(min(chunks_max, 400) ** rng.random())
    return max(1, chunks * per_chunk - (rng.randrange(per_chunk) if rng.random() < 0.5 else 0))


def _policy(rng: random.Random) -> tuple[object, ...]:
    kind = rng.choice(("fixed", "norm", "accordion", "schedule"))
    if kind == "fixed":
        return (kind, rng.choice(TOLERANCES))
    if kind in ("norm", "accordion"):
        low, high = rng.choice((("0.8%", "40.8%"), ("2.4%", "42.4%"), ("0%", "50%")))
        return (kind, low, high, rng.choice((0.01, 0.5)), rng.choice((1, 2, 10)))
    return (kind, *(rng.choice(TOLERANCES) for _ in range(4)))


def _lag(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.0, 20e-6, 20e-6, 500e-6, 5e-3))


def _path(rng: random.Random, chunk_bytes: int) -> PathModel:
    delay_s = rng.choice(DELAYS_S)
    return PathModel(
        delay_s=delay_s,
        jitter_s=delay_s * rng.choice((0.0, 0.0, 1.0, 3.0)),
        bytes_per_s=rng.choice(RATES_BYTES_PER_S),
        queue_bytes=rng.choice(QUEUE_DATAGRAMS) * (chunk_bytes + 64),
        coalesce=rng.choice((1, 4, 16, 64, 64)),
        stall=rng.choice((0.0, 0.0, 0.02, 0.3)),
    )


def _faults(rng: random.Random, first_round: int) -> Impairment:
    """A third is clean, a third loses only, a third does everything."""
    seed = rng.randrange(1 << 32)
    severity = rng.random()
    uniform = rng.choice((0.0, 0.0, 0.01, 0.1, 0.5, 0.9))
    bursts = {
        (first_round + ahead) % ROUND_MODULUS: rng.choice((0.7, 0.7, 1.0))
        for ahead in range(8)
        if rng.random() < 0.2
    }
    model = GilbertElliott(rng.choice((0.01, 0.1)), rng.choice((0.05, 0.3)), rng.choice((0.7, 1.0)))
    rates = [rng.choice((0.0, 0.05, 0.3)) for _ in range(5)]
    if severity < 0.33:
        return Impairment(seed=seed)
    if severity < 0.66:
        return Impairment(seed=seed, uniform=uniform, bursts=bursts)
    reorder, duplicate, corrupt, stale, delay = rates
    return Impairment(
        seed=seed,
        uniform=uniform,
        bursts=bursts,
        gilbert_elliott=model if rng.random() < 0.5 else None,
        reorder=reorder,
        duplicate=duplicate,
        corrupt=corrupt,
        stale=stale,
        delay=delay,
    )


def _deadline(rng: random.Random) -> Deadline | None:
    if rng.random() < 0.6:
        return None
    floor = rng.choice(("85%", "85%", "50%", "99.9%"))
    if rng.random() < 0.5:
        return Deadline(floor=floor, seconds=10 ** rng.uniform(-4.0, -1.0))
    return Deadline(floor=floor, factor=rng.choice((1.0, 1.25, 3.0)), warm_up=rng.choice((1, 2)))


def _trouble(rng: random.Random, kind: str, world: int) -> str:
    if rng.random() < 0.75:
        return ""
    choices = ["crash", "server crash", "leave", "freeze", "mismatch"]
    if kind == "cluster" and world == 1:
        choices.remove("mismatch")
    return rng.choice(choices)
