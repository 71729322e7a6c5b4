"""Fault injection where datagrams arrive: something happens to them after they crossed the wire.

Sans-IO and seeded: the same seed and the same arrivals give the same faults.  Sockets (`dblp.io`)
and the simulator (`dblp.sim`) use the same models.  The paper's microburst is
`Impairment(bursts={round: 0.7})` (Section V-B).
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from .errors import ConfigError
from .fastpath import Channel
from .wire import HEADER, HEADER_BYTES, KIND_DATA, ROUND_MODULUS

__all__ = ["GilbertElliott", "Impairment", "ImpairmentState"]

REMEMBERED_DATAGRAMS = 256
"""Old datagrams kept per endpoint to replay."""

REORDER_SPAN_MAX = 64
"""A reordered datagram arrives after up to this many later ones."""

REORDER_HOLD_S = 0.002
"""... or after this long, when nothing follows."""


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Two-state loss: probabilities per datagram of going from good to bad and back, and of loss in
    each state."""

    to_bad: float
    to_good: float
    loss_bad: float = 1.0
    loss_good: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            check_probability(item.name, getattr(self, item.name))


def check_probability(name: str, value: float) -> None:
    """ConfigError unless `value` is a probability."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value!r}: choose a probability from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """What shall go wrong; rates are probabilities per arriving datagram, data or control."""

    seed: int = 0
    uniform: float = 0.0
    """Loss of independent datagrams."""
    bursts: Mapping[int, float] = field(default_factory=dict)
    """Loss rate by round id: for that round this rate takes the place of `uniform`."""
    gilbert_elliott: GilbertElliott | None = None
    reorder: float = 0.0
    """A datagram is overtaken by up to 64 later ones."""
    duplicate: float = 0.0
    corrupt: float = 0.0
    """One bit is flipped."""
    stale: float = 0.0
    """An earlier data datagram, of this round or of one long over, arrives again."""
    delay: float = 0.0
    """A datagram is late by up to `delay_s`."""
    delay_s: float = 0.005

    def __post_init__(self) -> None:
        for name in ("uniform", "reorder", "duplicate", "corrupt", "stale", "delay"):
            check_probability(name, getattr(self, name))
        is_number = isinstance(self.delay_s, int | float)
        if not is_number or not 0 <= self.delay_s < math.inf:
            raise ConfigError(f"delay_s is {self.delay_s!r}: choose a number of seconds, 0 or more")
        for round_id, rate in self.bursts.items():
            check_probability(f"bursts[{round_id}]", rate)

    @property
    def loss_only(self) -> bool:
        """Only uniform loss and bursts: the fast path does it alone."""
        others = (self.reorder, self.duplicate, self.corrupt, self.stale, self.delay)
        return self.gilbert_elliott is None and not any(others)


class ImpairmentState:
    """The faults of one endpoint's arrivals.

    Commands: `open_round`.  Inputs and outputs: `apply` (arrivals in, arrivals out), `due`.
    Getter: `next_deadline`.
    """

    def __init__(self, plan: Impairment, channel: Channel, salt: int = 0) -> None:
        self.plan = plan
        self._channel = channel
        self._salt = salt
        self._rng = random.Random(f"{plan.seed}/{salt}")
        self._bad = False
        self._burst: int | None = None
        self._memory: deque[bytes] = deque(maxlen=REMEMBERED_DATAGRAMS)
        self._held: list[tuple[int, float, int, bytes]] = []
        """(release count, release time, order, datagram)"""
        self._late: list[tuple[float, int, bytes]] = []
        self._seen = 0
        self._order = 0
        self._set_uniform()

    def _set_uniform(self) -> None:
        ppm = round(self.plan.uniform * 1e6)
        self._channel.set_loss(ppm, 0, ROUND_MODULUS - 1, self._mix(ROUND_MODULUS))

    def _mix(self, round_id: int) -> int:
        return random.Random(f"{self.plan.seed}/{self._salt}/{round_id}").getrandbits(64)

    def open_round(self, round_id: int) -> None:
        """A round is about to be armed or sent: its burst, if it has one, starts to act."""
        rate = self.plan.bursts.get(round_id)
        if rate is not None and self._burst != round_id:
            self._channel.set_loss(round(rate * 1e6), round_id, round_id, self._mix(round_id))
            self._burst = round_id
        elif rate is None and self._burst is not None and self.plan.uniform:
            self._set_uniform()
            self._burst = None

    def apply(self, datagrams: Sequence[bytes], *, now: float) -> list[bytes]:
        """What arrives in place of `datagrams`."""
        out: list[bytes] = []
        for datagram in datagrams:
            self._one(datagram, out, now)
            self._seen += 1
            while self._held and self._held[0][0] <= self._seen:
                out.append(heapq.heappop(self._held)[3])
        out.extend(self.due(now=now))
        return out

    def _one(self, datagram: bytes, out: list[bytes], now: float) -> None:
        plan, rng = self.plan, self._rng
        if plan.gilbert_elliott is not None and self._lost(plan.gilbert_elliott):
            return
        is_data = len(datagram) >= HEADER_BYTES and datagram[0] & 15 == KIND_DATA
        if plan.stale and self._memory and rng.random() < plan.stale:
            out.append(rng.choice(self._memory))
        if is_data and plan.stale:
            self._memory.append(datagram)
        copies = 2 if plan.duplicate and rng.random() < plan.duplicate else 1
        if plan.corrupt and rng.random() < plan.corrupt and datagram:
            datagram = flip_bit(datagram, rng.randrange(8 * len(datagram)))
        for _ in range(copies):
            self._order += 1
            if plan.reorder and rng.random() < plan.reorder:
                behind = self._seen + rng.randint(1, REORDER_SPAN_MAX)
                heapq.heappush(self._held, (behind, now + REORDER_HOLD_S, self._order, datagram))
            elif plan.delay and rng.random() < plan.delay:
                late = now + rng.random() * plan.delay_s
                heapq.heappush(self._late, (late, self._order, datagram))
            else:
                out.append(datagram)

    def _lost(self, model: GilbertElliott) -> bool:
        if self._rng.random() < (model.to_good if self._bad else model.to_bad):
            self._bad = not self._bad
        return self._rng.random() < (model.loss_bad if self._bad else model.loss_good)

    def due(self, *, now: float) -> list[bytes]:
        """Datagrams held back until now."""
        out = []
        while self._late and self._late[0][0] <= now:
            out.append(heapq.heappop(self._late)[2])
        if self._held and min(item[1] for item in self._held) <= now:
            out.extend(item[3] for item in self._held if item[1] <= now)
            self._held = [item for item in self._held if item[1] > now]
            heapq.heapify(self._held)
        return out

    def next_deadline(self) -> float | None:
        """When `due` next has something, in the clock of `apply`; None: never."""
        times = [item[1] for item in self._held] + [item[0] for item in self._late[:1]]
        return min(times) if times else None


def flip_bit(datagram: bytes, bit: int) -> bytes:
    """`datagram` with one bit inverted."""
    changed = bytearray(datagram)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def round_of(datagram: bytes) -> int:
    """Round id in the header of a datagram."""
    return int(HEADER.unpack_from(datagram)[5])
