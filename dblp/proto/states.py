"""The states of a round at both ends, what can happen to it, and the transitions as data.

A (state, input) pair acts (`*_TRANSITIONS`), is harmless (`*_HARMLESS`: what late and duplicate
frames may cause) or cannot happen; a test draws every pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = [
    "RECEIVER_HARMLESS",
    "RECEIVER_TRANSITIONS",
    "SENDER_HARMLESS",
    "SENDER_TRANSITIONS",
    "ReceiverInput",
    "ReceiverState",
    "SenderInput",
    "SenderState",
]


class SenderState(Enum):
    """States of Algorithm 1."""

    IDLE = "idle"
    """Announced; waits for Ready before the first datagram."""
    SENDING = "sending"
    """A pass is under way (Algorithm 1, lines 4-9)."""
    PROBED = "probed"
    """The pass is over and the probe is out (lines 10-15)."""
    STOPPED = "stopped"
    """The receiver has what it wants (or a later exchange implies it)."""
    FAILED = "failed"
    """The session ended before the round did."""


class SenderInput(Enum):
    """What can happen to a sender."""

    BEGIN = "begin"
    """Ready arrived, or the round needs none."""
    PASS_OVER = "pass over"
    """All of the pass is with the kernel."""
    STALL = "stall"
    """Blocked without progress: the pass ends early."""
    PROBE_DUE = "probe due"
    """The probe was not answered in time."""
    MISSING = "missing"
    """A bitmap fragment of the current epoch that names missing chunks (signal B)."""
    STOP = "stop"
    """Signal S, or an implied stop (hazard 4)."""
    FAIL = "fail"
    """The session is aborted."""


SENDER_TRANSITIONS: Mapping[tuple[SenderState, SenderInput], SenderState] = {
    (SenderState.IDLE, SenderInput.BEGIN): SenderState.SENDING,
    (SenderState.SENDING, SenderInput.PASS_OVER): SenderState.PROBED,
    (SenderState.SENDING, SenderInput.STALL): SenderState.PROBED,
    (SenderState.SENDING, SenderInput.MISSING): SenderState.SENDING,
    (SenderState.PROBED, SenderInput.MISSING): SenderState.SENDING,
    (SenderState.PROBED, SenderInput.PROBE_DUE): SenderState.PROBED,
    **{
        (state, SenderInput.STOP): SenderState.STOPPED
        for state in (SenderState.IDLE, SenderState.SENDING, SenderState.PROBED)
    },
    **{
        (state, SenderInput.FAIL): SenderState.FAILED
        for state in (SenderState.IDLE, SenderState.SENDING, SenderState.PROBED)
    },
}

SENDER_HARMLESS: frozenset[tuple[SenderState, SenderInput]] = frozenset(
    {
        (SenderState.IDLE, SenderInput.MISSING),
        (SenderState.SENDING, SenderInput.BEGIN),
        (SenderState.PROBED, SenderInput.BEGIN),
    }
    | {
        (state, input_)
        for state in (SenderState.STOPPED, SenderState.FAILED)
        for input_ in (SenderInput.BEGIN, SenderInput.MISSING, SenderInput.STOP, SenderInput.FAIL)
    }
)
"""What late and duplicate frames may cause.  Pairs in neither table are our own bugs."""


class ReceiverState(Enum):
    """States of Algorithm 2."""

    IDLE = "idle"
    """Armed, not announced; chunks are accepted already."""
    RECEIVING = "receiving"
    """Announced with a layout that fits."""
    STOPPED = "stopped"
    """The STOP decision is made, once (R2)."""
    FAILED = "failed"
    """The session ended, or the owner gave the round up."""


class ReceiverInput(Enum):
    """What can happen to a receiver."""

    ANNOUNCEMENT = "announcement"
    """Open, or a probe that carries it."""
    NEWS = "news"
    """Chunks arrived, whichever way."""
    SATISFIED = "satisfied"
    """The bound is met and the stop mode lets it count (Algorithm 2, lines 11 and 19)."""
    PROBE = "probe"
    """Signal P."""
    ANSWER_DUE = "answer due"
    """The quiet period after a probe is over."""
    FAIL = "fail"
    """The session is aborted or the round released."""


RECEIVER_TRANSITIONS: Mapping[tuple[ReceiverState, ReceiverInput], ReceiverState] = {
    (ReceiverState.IDLE, ReceiverInput.ANNOUNCEMENT): ReceiverState.RECEIVING,
    (ReceiverState.IDLE, ReceiverInput.NEWS): ReceiverState.IDLE,
    (ReceiverState.RECEIVING, ReceiverInput.NEWS): ReceiverState.RECEIVING,
    (ReceiverState.RECEIVING, ReceiverInput.PROBE): ReceiverState.RECEIVING,
    (ReceiverState.RECEIVING, ReceiverInput.ANSWER_DUE): ReceiverState.RECEIVING,
    (ReceiverState.RECEIVING, ReceiverInput.SATISFIED): ReceiverState.STOPPED,
    (ReceiverState.IDLE, ReceiverInput.FAIL): ReceiverState.FAILED,
    (ReceiverState.RECEIVING, ReceiverInput.FAIL): ReceiverState.FAILED,
}

RECEIVER_HARMLESS: frozenset[tuple[ReceiverState, ReceiverInput]] = frozenset(
    {
        (ReceiverState.RECEIVING, ReceiverInput.ANNOUNCEMENT),
        (ReceiverState.IDLE, ReceiverInput.PROBE),
    }
    | {
        (state, input_)
        for state in (ReceiverState.STOPPED, ReceiverState.FAILED)
        for input_ in (
            ReceiverInput.ANNOUNCEMENT,
            ReceiverInput.NEWS,
            ReceiverInput.PROBE,
            ReceiverInput.FAIL,
        )
    }
)
"""What late and duplicate frames may cause.  Pairs in neither table are our own bugs."""
