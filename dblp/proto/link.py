"""What all rounds of one session share: the channel, the outbox, timing and counters."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from ..config import TransportConfig
from ..deadline import DeadlineClock
from ..fastpath import Channel
from ..stats import counter_deltas
from ..tolerance import EXACT, Tolerance
from ..wire import MAX_UDP_CONTROL_BYTES, Frame, encode_frame
from .events import Event, Path
from .first_pass import FirstPass
from .probing import ProbePolicy, RttEstimate

__all__ = ["DatagramHealth", "Link", "Outbox", "RoundLabel", "tolerance_text"]

BIG_ROUND_CHUNKS = 1024
"""From this size on (1.5 MB at MTU 1500) Open, Stop and the first Probe also go over TCP: one small
frame costs little beside the round, and a lost one would cost a pass.  Not within a host, where
none is lost and a turn for each of them on both sides is time that is lacking elsewhere."""

FRAGMENT_BYTES_MAX = 1000
"""Data bytes of one bitmap fragment, so that the frame fits `MAX_UDP_CONTROL_BYTES`."""

FRAGMENT_OVERHEAD_BYTES = 90
"""Room for the other fields of a Bitmap or Stop frame (tag, 10 integers of at most 9 bytes, at
realistic sizes); a frame that is too long all the same goes over TCP."""

DEAD_ROUNDS_MAX = 3
"""Rounds in a row that had to fall back before the next ones start on TCP at once."""

RETRY_ROUNDS = 64
"""Every so many rounds datagrams are tried again."""


@dataclass(frozen=True, slots=True)
class RoundLabel:
    """How a report names the round."""

    direction: str
    rank: int | None
    regime: str | None


class Outbox:
    """Control frames on their way out, with the path each of them takes."""

    __slots__ = ("_entries", "datagram_bytes", "reliable_only")

    def __init__(self, *, datagram_bytes: int, reliable_only: bool) -> None:
        self.datagram_bytes = min(MAX_UDP_CONTROL_BYTES, datagram_bytes)
        """Longest encoded frame that goes out as a datagram."""
        self.reliable_only = reliable_only
        """Everything goes over TCP, as in the paper, or because datagrams are blocked."""
        self._entries: list[tuple[Frame, Path, object]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, frame: Frame, path: Path, owner: object) -> None:
        """Adds `frame`; one that is too long for a datagram goes over TCP."""
        if path is not Path.RELIABLE and (
            self.reliable_only or len(encode_frame(frame)) > self.datagram_bytes
        ):
            path = Path.RELIABLE
        self._entries.append((frame, path, owner))

    def drop(self, owner: object) -> None:
        """Forgets what `owner` has pending (T1)."""
        if self._entries:
            self._entries = [entry for entry in self._entries if entry[2] is not owner]

    def take(self) -> list[tuple[Frame, Path]]:
        """All frames since the last call, in order."""
        if not self._entries:
            return []
        entries, self._entries = self._entries, []
        return [(frame, path) for frame, path, _ in entries]

    def clear(self) -> None:
        """Forgets everything."""
        self._entries = []


class DatagramHealth:
    """Whether datagrams get through towards the peer (hazard 9).

    Falling back costs several empty passes.  So when no datagram ever arrived, or
    `DEAD_ROUNDS_MAX` rounds in a row fell back (one direction is blocked, say), rounds start on
    TCP, with a fresh try now and then.
    """

    __slots__ = ("_dead_rounds", "_ever_worked", "_since_blocked", "_warned", "forced", "trusted")

    def __init__(self) -> None:
        self.forced = False
        """The handshake found that no datagram arrives: never try."""
        self.trusted = False
        """None has been lost nor should be: frames of large rounds need not go over TCP as well."""
        self._ever_worked = False
        self._dead_rounds = 0
        self._since_blocked = 0
        self._warned = False

    def worked(self) -> None:
        """A round ended without TCP."""
        self._ever_worked = True
        self._dead_rounds = 0
        self._since_blocked = 0

    def gave_up(self, *, any_delivered: bool) -> bool:
        """A round fell back; True the first time (a warning is due)."""
        hopeless = not any_delivered and not self._ever_worked
        self._dead_rounds += DEAD_ROUNDS_MAX if hopeless else 1
        first = not self._warned
        self._warned = True
        return first

    def next_round_tries(self) -> bool:
        """Whether a new round starts with datagrams."""
        if self.forced:
            return False
        if self._dead_rounds < DEAD_ROUNDS_MAX:
            return True
        self._since_blocked += 1
        return self._since_blocked % RETRY_ROUNDS == 0


class Link:
    """The session's side of its rounds; no round reaches further than this."""

    __slots__ = (
        "_counters",
        "_rng",
        "channel",
        "config",
        "datagrams",
        "deadlines",
        "events",
        "first_pass",
        "outbox",
        "policy",
        "rtt",
    )

    def __init__(self, channel: Channel, config: TransportConfig, rng: random.Random) -> None:
        self.channel = channel
        self.config = config
        self.rtt = RttEstimate()
        self.policy = ProbePolicy(self.rtt, config.probe_quiet_s)
        self.outbox = Outbox(
            datagram_bytes=channel.chunk_bytes, reliable_only=config.control == "tcp"
        )
        self.datagrams = DatagramHealth()
        self.deadlines = DeadlineClock(config.deadline)
        self.first_pass = FirstPass(channel, eager=config.stop == "eager")
        self.events: list[Event] = []
        self._rng = rng
        self._counters = channel.counters()

    @property
    def fragment_bytes(self) -> int:
        """Most data bytes of a bitmap fragment or of a STOP that still fits a datagram."""
        room = self.outbox.datagram_bytes - FRAGMENT_OVERHEAD_BYTES
        return max(64, min(FRAGMENT_BYTES_MAX, room))

    def signal_path(self, chunks: int) -> Path:
        """How Open and Stop of a round of this size travel."""
        doubled = chunks > BIG_ROUND_CHUNKS and not self.datagrams.trusted
        return Path.BOTH if doubled else Path.DATAGRAM

    def jitter(self) -> float:
        """A factor of 1.0 … 1.1: probes of several senders must not stay in step."""
        return 1.0 + 0.1 * self._rng.random()

    def take_counter_deltas(self) -> dict[str, int]:
        """What the channel counted since the last report of this session.

        So the reports of a session add up to the channel's counters, each event shows exactly
        once, and a round costs one snapshot.
        """
        start, self._counters = self._counters, self.channel.counters()
        return counter_deltas(start, self._counters)


@lru_cache(maxsize=64)
def tolerance_text(tolerance: Tolerance | None) -> str:
    """The tolerance as reports show it; exact where none is known."""
    return str(tolerance or EXACT)
