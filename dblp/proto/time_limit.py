"""When a round that may lose chunks ends early (hazard 11)."""

from __future__ import annotations

from ..deadline import DeadlineClock

__all__ = ["TimeLimit"]


class TimeLimit:
    """The deadline of one round at its receiver.

    There are two looks.  At the time that such a round usually takes: when so much is missing that
    the bound cannot be met by the deadline at this pace, waiting for it would gain nothing but more
    of what is not enough.  And at the deadline.  From such a look on the floor is the bound: what
    is there is taken if it is the floor, else the round goes on until it is.

    *Commands*: `start`, `stop`.  *Inputs*: `bound_at`, `remember`.  *Getters*: `due`, `is_past`.
    """

    __slots__ = ("_clock", "_count", "_deadline", "due", "is_past")

    def __init__(self, clock: DeadlineClock, count: int) -> None:
        self.due: float | None = None
        """When `bound_at` wants to be asked, in seconds; None: never."""
        self.is_past = False
        """The round has gone below its bound."""
        self._clock = clock
        self._count = count
        self._deadline = 0.0

    def start(self, stream: int, *, began: float, needed: int) -> None:
        """The round of `stream` began at `began` seconds and ends with `needed` chunks; without a
        deadline nothing happens."""
        limit = self._clock.limit_s(stream, self._count, needed)
        if limit is None:
            return
        self._deadline = began + limit
        self.due = began + min(limit, self._clock.usual_s(limit))

    def stop(self) -> None:
        """The round is over."""
        self.due = None

    def bound_at(self, now: float, *, accepted: int, needed: int) -> int:
        """Chunks that end the round from now on, at `due`; `needed` if nothing changes."""
        plan = self._clock.plan
        assert plan is not None and self.due is not None
        if now < self._deadline and accepted * plan.factor >= needed:
            self.due = self._deadline
            return needed
        self.due = None
        bound = min(needed, plan.floor_needed(self._count))
        self.is_past = bound < needed
        return bound

    def remember(self, stream: int, elapsed_s: float, *, needed: int, got: int) -> None:
        """The round is over: how long it took, for the deadlines of later ones."""
        self._clock.observe(stream, self._count, elapsed_s, needed=needed, got=got)
