"""Waiting that Ctrl-C can end, whenever it comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["signals_come_through"]


@contextmanager
def signals_come_through() -> Iterator[None]:
    """Around a wait for a future, or an event or condition of `threading`.

    An interrupt that comes just while the condition takes its lock back leaves it without the lock.
    The end of its `with` block then raises RuntimeError ("cannot release un-acquired lock"), of
    which the interrupt is only the context.
    """
    interrupt: BaseException | None = None
    try:
        yield
    except RuntimeError as error:
        interrupt = error.__context__
        if not isinstance(interrupt, KeyboardInterrupt | SystemExit):
            raise
    if interrupt is not None:
        raise interrupt
