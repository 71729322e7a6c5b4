"""The settings of the transport: one frozen object, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .congestion import AdaptiveWindow, Congestion
from .deadline import Deadline
from .errors import ConfigError

__all__ = [
    "CONTROLS",
    "FLOAT_DTYPES",
    "LOOPS",
    "MTU_MAX",
    "MTU_MIN",
    "MTU_USUAL",
    "MTU_WITHIN_HOST",
    "ORDERS",
    "STOPS",
    "TransportConfig",
]

ORDERS = ("auto", "sequential", "rotate", "random", "magnitude")
STOPS = ("eager", "patient")
LOOPS = ("auto", "uvloop", "asyncio")
CONTROLS = ("datagram", "tcp")

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
"""dtypes whose chunks can be ranked by energy."""

MTU_MIN = 1280
"""Smallest MTU an IPv6 path may have; a control frame of 1,200 bytes must fit one datagram."""

MTU_MAX = 65535
"""Largest IPv4 packet."""

MTU_USUAL = 1500
"""What nearly every path takes."""

MTU_WITHIN_HOST = 9000
"""Loopback takes 65,536, but a chunk is what may be lost, and must not be a whole shard."""

SOCKET_BUFFER_BYTES_MIN = 64 * 1024
"""One GSO batch."""

PEER_SILENCE_S_MIN = 5.0
"""A trainer may keep its process busy for seconds (a GC pause, a checkpoint) and still be alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """How bytes travel.  What may be missing is not here: that is the `TolerancePolicy`'s decision.

    Raises ConfigError when a value cannot be used.
    """

    mtu: int | None = None
    """Largest IP packet in bytes, 1280 … 65535; the two ends use the smaller of their values.  None
    is 1500, and 9000 in a `Mesh` whose ranks are all on one host."""

    timeout_s: float = 30.0
    """Longest a round may take, in seconds, before it ends with RoundTimeoutError."""

    straggler_timeout_s: float | None = None
    """Longest a round waits for a rank that has not started it, in seconds, at least `timeout_s`:
    one that evaluates or saves a checkpoint is no fault.  `timeout_s` counts from the moment when
    all ranks are in.  None: both together within `timeout_s`."""

    connect_timeout_s: float = 30.0
    """Longest a worker tries to reach the server and waits for the other ranks, in seconds."""

    socket_buffer_bytes: int = 4 << 20
    """Wanted size of the UDP socket's buffers, in bytes; the kernel may grant less.  4 MiB hold
    what 10 Gb/s bring while a process waits 3 ms for its turn."""

    order: str = "auto"
    """In which order chunks are sent: auto, sequential (paper), rotate, random or magnitude."""

    stop: str = "eager"
    """eager: STOP as soon as the bound is met (the paper's early stop).  patient: STOP at
    completion, or at a probe with the bound met."""

    loop: str = "auto"
    """Event loop: auto (uvloop where it is installed), uvloop or asyncio."""

    control: str = "datagram"
    """How control signals travel: datagram (UDP first, TCP as the reliable fallback) or tcp (TCP
    only, as in the paper)."""

    congestion: Congestion = field(default_factory=AdaptiveWindow)
    """How fast to send: `AdaptiveWindow()` keeps the path's queue short, `FixedRate(bits_per_s)`
    and `Unpaced()` do what they say.  Each side decides for what it sends."""

    deadline: Deadline | None = None
    """Time limit of rounds that may lose chunks, outside critical regimes; `Deadline()` adapts to
    recent rounds, None waits for the bound.  The receiver's setting counts."""

    seed: int = 0
    """Seed of the send orders and of the jitter; the same on all ranks or not, as you like."""

    offload: bool = True
    """Use UDP segmentation and receive offload (GSO, GRO) where the kernel has them."""

    probe_quiet_s: float | None = None
    """After a probe, how long no new chunk must arrive before the bitmap goes out, in seconds; None
    is a quarter of the round-trip time (protocol hazard 2)."""

    gil_switch_interval_s: float = 0.0005
    """While a call of this process is under way, threads hand over the GIL after this many seconds
    (`sys.setswitchinterval`, process-wide; CPython's own value is 0.005); 0 leaves it alone.  A
    trainer thread that runs pure Python would hold up the transport otherwise."""

    heartbeat_s: float = 1.0
    """Interval of heartbeats while nothing else travels, in seconds."""

    def __post_init__(self) -> None:
        if self.mtu is not None:
            self._check_integer("mtu", MTU_MIN, MTU_MAX)
        self._check_integer("socket_buffer_bytes", SOCKET_BUFFER_BYTES_MIN, (1 << 31) - 1)
        self._check_integer("seed", 0, (1 << 64) - 1)
        self._check_choice("order", ORDERS)
        self._check_choice("stop", STOPS)
        self._check_choice("loop", LOOPS)
        self._check_choice("control", CONTROLS)
        for name in ("timeout_s", "connect_timeout_s", "heartbeat_s"):
            self._check_seconds(name, zero=False)
        self._check_seconds("gil_switch_interval_s", zero=True)
        if self.straggler_timeout_s is not None:
            self._check_seconds("straggler_timeout_s", zero=False)
            if self.straggler_timeout_s < self.timeout_s:
                raise ConfigError(
                    f"straggler_timeout_s is {self.straggler_timeout_s:g}, less than timeout_s "
                    f"({self.timeout_s:g}): choose more, or None"
                )
        if self.probe_quiet_s is not None:
            self._check_seconds("probe_quiet_s", zero=True)
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            raise ConfigError(f"deadline is {self.deadline!r}: choose dblp.Deadline(...) or None")
        if not callable(getattr(self.congestion, "new_control", None)):
            raise ConfigError(
                f"congestion is {self.congestion!r}: choose AdaptiveWindow(), "
                "FixedRate(bits_per_s) or Unpaced()"
            )
        if not isinstance(self.offload, bool):
            raise ConfigError(f"offload is {self.offload!r}: choose True or False")
        if self.heartbeat_s >= self.peer_silence_s:
            raise ConfigError(
                f"heartbeat_s is {self.heartbeat_s}, but a peer counts as lost after "
                f"{self.peer_silence_s:g} s of silence: choose a shorter heartbeat"
            )

    @property
    def packet_bytes(self) -> int:
        """Largest IP packet in bytes: `mtu` with its default filled in."""
        return MTU_USUAL if self.mtu is None else self.mtu

    @property
    def peer_silence_s(self) -> float:
        """How long a peer may be silent before it counts as lost, in seconds."""
        return max(PEER_SILENCE_S_MIN, self.timeout_s / 3)

    @property
    def announce_timeout_s(self) -> float:
        """How long a round waits for ranks that have not started it, in seconds."""
        return self.timeout_s if self.straggler_timeout_s is None else self.straggler_timeout_s

    @property
    def longest_round_s(self) -> float:
        """How long a round may take in all, from the first rank's call to its end, in seconds."""
        return self.timeout_s + (self.straggler_timeout_s or 0.0)

    def order_for(self, *, exact: bool, dtype: str) -> str:
        """The send order of one round, with "auto" resolved.

        When every chunk is needed the order costs nothing, so memory order wins.  Else large chunks
        go first where they can be ranked, and no part of the buffer is always last where not.

        Args:
            exact: the round's tolerance is 0.
            dtype: element type of the buffer, such as "float32".
        """
        if self.order != "auto":
            return self.order
        if exact:
            return "sequential"
        return "magnitude" if dtype in FLOAT_DTYPES else "rotate"

    def _check_integer(self, name: str, lowest: int, highest: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise ConfigError(f"{name} is {value!r}: choose an integer from {lowest} to {highest}")

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(choices)}")

    def _check_seconds(self, name: str, *, zero: bool) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            bound = "0 or more" if zero else "more than 0"
            raise ConfigError(f"{name} is {value!r}: choose a number of seconds, {bound}")
