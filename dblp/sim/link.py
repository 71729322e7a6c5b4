"""What lies between two endpoints: a datagram path that loses, and a reliable one that stalls.

Loss, corruption, reordering and replay are `dblp.faults`, applied where datagrams arrive, as in the
product.  Here is what a wire does: delay, bandwidth, a queue that overflows, a direction that a
firewall blocks, and TCP's head-of-line blocking.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import fastpath
from ..faults import ImpairmentState

__all__ = ["DatagramPath", "ImpairedChannel", "PathModel", "ReliablePath"]

RTO_S = 0.2
"""Smallest retransmission timeout of TCP on Linux (hazard 3)."""


@dataclass(frozen=True, slots=True)
class PathModel:
    """How one direction between two hosts behaves."""

    delay_s: float = 50e-6
    """Propagation delay in seconds."""
    jitter_s: float = 0.0
    """Every arrival is late by up to this; late ones are overtaken."""
    bytes_per_s: float = 1.25e9
    """Rate of the narrowest hop; 1.25e9 is 10 Gb/s."""
    queue_bytes: int = 1 << 20
    """Room before that hop; what does not fit is lost (drop tail)."""
    coalesce: int = 16
    """Datagrams that arrive together (GRO, interrupt coalescing)."""
    stall: float = 0.0
    """Probability that a control frame waits for a TCP retransmission."""


class DatagramPath:
    """One direction of the datagrams.

    Commands: `send`.  Switches for faults: `blocked`.
    """

    __slots__ = ("_free_at", "_rng", "blocked", "dropped", "model")

    def __init__(self, model: PathModel, rng: random.Random) -> None:
        self.model = model
        self.blocked = False
        """Nothing gets through (hazard 9)."""
        self.dropped = 0
        """Datagrams lost by overflow and by `blocked`."""
        self._rng = rng
        self._free_at = 0.0

    def send(self, datagrams: Sequence[bytes], now: float) -> list[tuple[float, list[bytes]]]:
        """(arrival time in seconds, datagrams that arrive then) for what leaves now."""
        if self.blocked:
            self.dropped += len(datagrams)
            return []
        model = self.model
        arrivals: list[tuple[float, list[bytes]]] = []
        free_at = max(self._free_at, now)
        room = model.queue_bytes - (free_at - now) * model.bytes_per_s
        group: list[bytes] = []
        for datagram in datagrams:
            size = len(datagram)
            if size > room:
                self.dropped += 1
                continue
            room -= size
            free_at += size / model.bytes_per_s
            group.append(datagram)
            if len(group) >= model.coalesce:
                arrivals.append((self._arrival(free_at), group))
                group = []
        if group:
            arrivals.append((self._arrival(free_at), group))
        self._free_at = free_at
        return arrivals

    def _arrival(self, sent_at: float) -> float:
        model = self.model
        late = self._rng.random() * model.jitter_s if model.jitter_s else 0.0
        return sent_at + model.delay_s + late


class ReliablePath:
    """One direction of the control connection: ordered, nothing lost, now and then a stall."""

    __slots__ = ("_last", "_rng", "model", "stalls")

    def __init__(self, model: PathModel, rng: random.Random) -> None:
        self.model = model
        self.stalls = True
        """Whether `PathModel.stall` acts."""
        self._rng = rng
        self._last = 0.0

    def send(self, nbytes: int, now: float) -> float:
        """When a frame of `nbytes` bytes that leaves now has arrived, in seconds."""
        model = self.model
        due = max(now, self._last - model.delay_s) + model.delay_s + nbytes / model.bytes_per_s
        if self.stalls and model.stall and self._rng.random() < model.stall:
            due += RTO_S
        self._last = due
        return due


class ImpairedChannel(fastpath.Channel):
    """A channel without a socket that tells its fault injector which rounds open."""

    impairment: ImpairmentState | None = None
    recv_tag = 0
    """Session tag of the datagrams that are for this channel."""

    delivered = 0
    """Chunks accepted otherwise than from a datagram."""

    def deliver(self, slot: int, index: int, payload: Any) -> bool:
        """As `Channel.deliver`."""
        is_new = super().deliver(slot, index, payload)
        self.delivered += is_new
        return is_new

    def deliver_zeros(self, slot: int, indices: Any) -> int:
        """As `Channel.deliver_zeros`."""
        before = self.delivered
        new = super().deliver_zeros(slot, indices)
        self.delivered = before + new  # the twin delivers one by one
        return new

    def open_receive(
        self, stream: int, round: int, buffer: Any, bitmap: Any, **options: Any
    ) -> int:
        """As `Channel.open_receive`; a burst of this round starts to act."""
        if self.impairment is not None:
            self.impairment.open_round(round)
        return super().open_receive(stream, round, buffer, bitmap, **options)

    def open_transmit(self, stream: int, round: int, buffer: Any) -> int:
        """As `Channel.open_transmit`; a burst of this round starts to act."""
        if self.impairment is not None:
            self.impairment.open_round(round)
        return super().open_transmit(stream, round, buffer)
