"""What pairs and clusters have in common: connections, buffers, faults that stop, intruders."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from ..fastpath import pack_datagram
from ..faults import Impairment, ImpairmentState
from ..wire import HEADER_BYTES, KIND_DATA
from .checkers import CountedDatagrams
from .checkers_mean import STORED_AS, narrowed
from .link import DatagramPath, ImpairedChannel, ReliablePath
from .network import End, Network
from .options import Options
from .watch import Watch, WatchedSession

__all__ = ["GradientPool", "connect", "intrude", "stop_faults"]

POOL_ELEMENTS = 6007
"""A prime: slices of different ranks and rounds do not line up."""

UNUSED_STREAM = 60_000

UNKNOWN_KIND = 9


class GradientPool:
    """Finite random numbers of every dtype; cheap slices in place of fresh ones."""

    def __init__(self, seed: int) -> None:
        self._values = np.random.default_rng(seed).standard_normal(POOL_ELEMENTS)
        self._by_dtype: dict[str, bytes] = {}

    def take(self, elements: int, dtype: str, *, at: int) -> bytes:
        """The bytes of `elements` numbers, from position `at` on, around and around."""
        stored = self._by_dtype.get(dtype)
        if stored is None:
            wide = self._values.astype(np.float64 if dtype == "float64" else np.float32)
            stored = self._by_dtype[dtype] = narrowed(wide, dtype).tobytes()
        itemsize = STORED_AS[dtype].itemsize
        start, nbytes = at % POOL_ELEMENTS * itemsize, elements * itemsize
        while start + nbytes > len(stored):
            stored += stored
        return stored[start : start + nbytes]


def connect(
    options: Options, watch: Watch, *, roles: tuple[str, str], rank: int, peers: tuple[str, str]
) -> tuple[End, End]:
    """The two sides of one connection: worker and server, or a and b.

    `peers` are the names by which each side calls the other.
    """
    seed, config = options.seed, options.config
    tags = random.Random(f"{seed}/tags/{rank}")
    to_second, to_first = tags.getrandbits(32), tags.getrandbits(32)
    known = options.blocked_known and options.blocked and options.blocked_for_ever
    ends: list[End] = []
    for side, (send_tag, recv_tag) in enumerate(((to_second, to_first), (to_first, to_second))):
        channel = ImpairedChannel(
            -1, send_tag=send_tag, recv_tag=recv_tag, chunk_bytes=options.chunk_bytes
        )
        channel.recv_tag = recv_tag
        channel.window = options.window
        channel.grant(0, options.window)
        name = f"{roles[side]}-{rank}"
        session = WatchedSession(
            channel, config, rng=random.Random(f"{seed}/{name}"), peer=peers[side],
            watch=watch, role=roles[side], rank=rank,
        )  # fmt: skip
        if known:
            session.block_datagrams()
        model = options.down if side else options.up
        end = End(
            name,
            session,
            channel,
            datagrams=DatagramPath(model, random.Random(f"{seed}/datagrams/{name}")),
            reliable=ReliablePath(model, random.Random(f"{seed}/reliable/{name}")),
        )
        end.datagrams.blocked = options.blocked in ("both", "down" if side else "up")
        _impair(end, options.faults_up if side else options.faults_down, salt=2 * rank + side)
        ends.append(end)
    first, second = ends
    first.peer, second.peer = second, first
    assert isinstance(first.session, WatchedSession) and isinstance(second.session, WatchedSession)
    first.session.other, second.session.other = second.session, first.session
    return first, second


def _impair(end: End, plan: Impairment, *, salt: int) -> None:
    if plan == Impairment(seed=plan.seed):
        return
    end.impairment = ImpairmentState(plan, end.channel, salt)
    end.channel.impairment = end.impairment


def stop_faults(ends: Iterable[End], options: Options, network: Network) -> None:
    """The liveness phase begins: what was held back arrives, and nothing is lost any more."""
    for end in ends:
        if end.impairment is not None:
            end.inbox += end.impairment.due(now=float("inf"))
            end.impairment = end.channel.impairment = None
            end.channel.set_loss(0, 0, 0, 0)
        end.datagrams.blocked = end.datagrams.blocked and options.blocked_for_ever
        end.reliable.stalls = False
        if not end.host.dead:
            network.kick(end.host)


def intrude(checker: CountedDatagrams, end: End, rng: random.Random, now: float) -> None:
    """One crafted datagram that `end` must count and not take (R4)."""
    session, channel = end.session, end.channel
    assert isinstance(session, WatchedSession)
    receivers = list(session.receivers_armed.values())
    still_open = [receiver for receiver in receivers if not receiver.is_over]
    over = [receiver for receiver in receivers if receiver.is_over]
    kinds = ["foreign", "corrupt", "short", "version", "kind", "future"]
    kinds += ["index", "length"] * bool(still_open) + ["stale"] * bool(over)
    kind = rng.choice(kinds)
    target = rng.choice(still_open) if still_open else None
    stream, round_id = (target.stream, target.round_id) if target else (UNUSED_STREAM, 3)
    chunk, tag, payload, expected = 0, channel.recv_tag, bytes(channel.chunk_bytes), "malformed"
    if kind == "foreign":
        tag, expected = tag ^ 1, "foreign"
    elif kind == "future":
        stream, expected = UNUSED_STREAM, "future"
    elif kind == "stale":
        old = rng.choice(over)
        stream, round_id, expected = old.stream, old.round_id, "stale"
    elif kind == "index" and target is not None:
        chunk = target.layout.count + rng.choice((0, 1, 1 << 30))
    elif kind == "length" and target is not None:
        right = target.layout.span(0)[1] if target.layout.count else 0
        payload = bytes(right - 1) if right else b"!"
    # Not newer than what was seen: flow control is none of these datagrams' business.
    sequence = channel.received_sequence & 0xFFFF
    datagram = bytearray(
        pack_datagram(
            UNKNOWN_KIND if kind == "kind" else KIND_DATA,
            0, stream, sequence, round_id, chunk, tag, payload,
        )
    )  # fmt: skip
    if kind == "corrupt":
        datagram[HEADER_BYTES - 1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
        expected = "corrupt"
    elif kind == "short":
        del datagram[rng.randrange(len(datagram)) :]
    elif kind == "version":
        datagram[0] ^= 0x80
    checker.intrude(end, bytes(datagram), expected, now)
