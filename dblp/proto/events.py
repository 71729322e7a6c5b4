"""What a session tells its owner, and by which way its frames travel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ..wire import Open

if TYPE_CHECKING:
    from .receiver import Receiver
    from .sender import Sender

__all__ = [
    "Event",
    "FallbackToReliable",
    "OpenMismatch",
    "Path",
    "ReceiveFinished",
    "RoundOffered",
    "SendFinished",
]


class Path(Enum):
    """How a control frame goes out (hazard 3: datagram first, TCP as the reliable fallback)."""

    DATAGRAM = "datagram"
    """As one UDP datagram only; a lost one is healed by the next probe."""
    RELIABLE = "reliable"
    """On the TCP connection only."""
    BOTH = "both"
    """Both ways; the receiver of a duplicate does nothing."""


@dataclass(frozen=True, slots=True)
class RoundOffered:
    """The peer announces a round; comes once per (stream, round).

    It comes for a round that is armed (with a layout that fits) as well as for one that is not:
    the latter waits until `Session.arm`.
    """

    open: Open


@dataclass(frozen=True, slots=True)
class OpenMismatch:
    """The peer announces a round whose layout or dtype is not the one armed (hazard 7).

    Comes once per armed receiver, in place of `RoundOffered`.  The announcement waits: `release`
    the receiver and `arm` the round anew with a buffer that fits.
    """

    open: Open
    receiver: Receiver


@dataclass(frozen=True, slots=True)
class ReceiveFinished:
    """The receiver decided STOP; its buffer is complete (missing chunks are zero) and reported."""

    receiver: Receiver


@dataclass(frozen=True, slots=True)
class SendFinished:
    """The sender's round is over: its buffer is not read any more."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class FallbackToReliable:
    """Datagrams of this sender do not get through; payload goes over TCP.  Once per session."""

    sender: Sender


Event = RoundOffered | OpenMismatch | ReceiveFinished | SendFinished | FallbackToReliable
