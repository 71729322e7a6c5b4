"""An interrupt that comes while a condition takes its lock back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dblp.io.signals import signals_come_through


class InterruptedLock:
    """A lock whose second acquisition is interrupted, as by Ctrl-C."""

    def __init__(self, interrupt: type[BaseException]) -> None:
        self._lock = threading.Lock()
        self._interrupt = interrupt
        self._acquired = 0

    def acquire(self, *args: Any) -> bool:
        self._acquired += 1
        if self._acquired > 1 and not args:  # not the probe of `Condition._is_owned`
            raise self._interrupt
        return self._lock.acquire(*args)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


def wait_on(interrupt: type[BaseException]) -> None:
    condition = threading.Condition(InterruptedLock(interrupt))  # type: ignore[arg-type]
    with condition:
        condition.wait(0.001)


def test_threading_itself_hides_the_interrupt() -> None:
    with pytest.raises(RuntimeError):
        wait_on(KeyboardInterrupt)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_comes_through(interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), signals_come_through():
        wait_on(interrupt)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="something else"), signals_come_through():
        raise RuntimeError("something else")
    with pytest.raises(ValueError), signals_come_through():
        raise ValueError
