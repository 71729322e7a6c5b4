"""When a round that may lose chunks ends early (hazard 11)."""

from __future__ import annotations

from typing import Protocol

from ..deadline import DeadlineClock
from ..tolerance import Tolerance

__all__ = ["TimeLimit"]

BURST_SHARE = 0.5
"""Of its usual time, all that a round in a burst may take, by its pace at the end of a pass.  What
waits for it, such as the mean's way down, usually goes on beside it; in a burst it comes after."""


class Arrivals(Protocol):
    """What a channel knows of datagrams from its peer."""

    received_sequence: int
    drained: int


class TimeLimit:
    """The deadline of one round at its receiver.

    At the deadline the floor becomes the bound: what is there is taken if it is the floor, else the
    round goes on until it is.  An adaptive one has two earlier looks, for bursts: at the time that
    such a round usually takes, and whenever the sender is through with a pass.  When so many
    datagrams were lost that the bound cannot be met in time at this pace, waiting would gain
    nothing but more of what is not enough, and the result would have to wait too.  At the end of a
    pass the pace must leave room for that result.  Without such losses a round has all of its time:
    that it is behind may be its turn among others.

    *Commands*: `start`, `stop`.  *Inputs*: `look`, `remember`.  *Getters*: `due`.
    """

    __slots__ = (
        "_began", "_clock", "_count", "_deadline", "_drained", "_path", "_sent", "_stream",
        "_usual_s", "due",
    )  # fmt: skip

    def __init__(self, clock: DeadlineClock, path: Arrivals, stream: int, count: int) -> None:
        self.due: float | None = None
        """When `look` wants to be called, in seconds; None: never, there is no deadline (left)."""
        self._clock = clock
        self._path = path
        self._stream = stream
        self._count = count
        self._began = self._deadline = 0.0
        self._usual_s: float | None = None  # None: the deadline is fixed
        self._sent = self._drained = 0  # by the peer, and from the socket, when the limit was set

    def start(self, *, began: float, needed: int) -> None:
        """The round began at `began` seconds and ends with `needed` chunks; without a deadline
        nothing happens.  That some turn out to be zeros later gives it no less time: what names
        them comes late."""
        limit = self._clock.limit_s(self._stream, self._count, needed)
        if limit is None:
            return
        self._began, self._deadline = began, began + limit
        self._usual_s = self._clock.usual_s(self._stream, self._count, needed)
        self.due = began + (limit if self._usual_s is None else self._usual_s)
        self._sent, self._drained = self._path.received_sequence, self._path.drained

    def stop(self) -> None:
        """The round is over."""
        self.due = None

    def look(
        self, now: float, accepted: int, needed: int, *, pass_over: bool = False
    ) -> Tolerance | None:
        """The tolerance that ends the round from now on; None if nothing changes.

        Args:
            accepted, needed: chunks that have come with their bytes, of those that must.
            pass_over: what the sender has sent so far has arrived or is lost.
        """
        if self.due is None:
            return None
        plan = self._clock.plan
        assert plan is not None
        if now < self._deadline and not self._is_hopeless(
            now, accepted, needed, plan.factor, pass_over
        ):
            if now >= self.due:
                self.due = self._deadline
            return None
        self.due = None
        assert isinstance(plan.floor, Tolerance)
        return plan.floor

    def _is_hopeless(
        self, now: float, accepted: int, needed: int, factor: float, pass_over: bool
    ) -> bool:
        """Whether more is lost than the factor has room for, and the pace does not make up for
        it."""
        if self._usual_s is None:
            return False
        share = factor
        if pass_over:  # it had as many chunks as are needed, or stood still for long
            share, sent, came = BURST_SHARE, needed, accepted
        else:  # other rounds of the session count too: they take the same path
            sent = self._path.received_sequence - self._sent
            came = self._path.drained - self._drained
        late = (now - self._began) * needed > share * self._usual_s * accepted
        return late and came * factor < sent

    def remember(self, elapsed_s: float, needed: int, share: float) -> None:
        """The round is over: how long it took, for the deadlines of later ones.

        Args:
            elapsed_s: seconds.
            needed: chunks that the tolerance needs, of all.
            share: of what was waited for, what has come.
        """
        got = round(share * needed)
        self._clock.observe(self._stream, self._count, elapsed_s, needed=needed, got=got)
