"""One daemon thread with an event loop: it owns all sockets and sessions of an endpoint.

Trainer threads have one door: `LoopThread.submit`.  The door is an eventfd of our own, so that it
also wakes the compiled pump, which polls descriptors itself while rounds are in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from ..errors import ConfigError, LocalProtocolError
from .signals import signals_come_through

START_TIMEOUT_S = 10.0
"""A thread that has not started its loop by then never will."""

ALIVE_CHECK_S = 2.0
"""How often a waiting call looks whether the thread is still there."""

JOIN_TIMEOUT_S = 5.0
"""How long close() waits for the loop to run its last callbacks."""


def new_event_loop(kind: str) -> asyncio.AbstractEventLoop:
    """A fresh loop; kind: auto, uvloop or asyncio."""
    if kind == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError as error:
        if kind == "uvloop":
            raise ConfigError(
                "loop is 'uvloop', but uvloop is not installed: pip install uvloop"
            ) from error
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A daemon thread that runs an event loop until `close`."""

    def __init__(self, kind: str, name: str) -> None:
        self.loop = new_event_loop(kind)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._work: deque[Callable[[], None]] = deque()
        self._pid = os.getpid()
        self._lock = threading.Lock()  # around the door: nobody writes to a closed descriptor
        self._closed = False
        self._ending = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        with signals_come_through():
            is_there = started.wait(START_TIMEOUT_S)
        if not is_there:
            raise ConfigError("the event loop thread did not start")

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.add_reader(self.wake_fd, self._drain)
        self.loop.call_soon(started.set)
        try:
            self.loop.run_forever()
        finally:
            with self._lock:
                self._closed = True
                os.close(self.wake_fd)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        while self._work:
            self._work.popleft()()

    def submit(self, work: Callable[[], None]) -> None:
        """Runs `work` on the loop thread, soon; it must not raise and must not block."""
        self.check_usable()
        with self._lock:
            if self._closed:
                self.check_usable()
            self._work.append(work)
            os.eventfd_write(self.wake_fd, 1)

    def call(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        """Runs a coroutine on the loop thread and waits for its result, at most `timeout_s`."""
        future: Future[Any] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                future.set_result(await coroutine)
            except BaseException as error:
                future.set_exception(error)

        def start() -> None:
            tasks.append(self.loop.create_task(run()))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        try:
            if self.on_loop_thread:
                raise LocalProtocolError(
                    "a call that waits was made from a callback of the transport, which would "
                    "block for ever: make it from another thread"
                )
            self.submit(start)
        except BaseException:
            coroutine.close()
            raise
        try:
            with signals_come_through():
                return future.result(timeout_s)
        except BaseException:
            if not future.done() and not self._closed:
                self.submit(cancel)
            raise

    def wait(self, future: Future[Any]) -> Any:
        """The result of `future`, which the loop thread completes; its timers bound the wait.

        Raises what the future raises, or LocalProtocolError when the thread has ended meanwhile.
        """
        while True:
            try:
                with signals_come_through():
                    return future.result(ALIVE_CHECK_S)
            except TimeoutError as error:
                if future.done():  # the error of the future itself
                    raise error from None
                if not self._thread.is_alive():
                    raise LocalProtocolError(
                        "this endpoint was closed while a call was waiting"
                    ) from None

    def check_usable(self) -> None:
        """LocalProtocolError when the thread is not there: closed, or this is a forked child."""
        if os.getpid() != self._pid:
            raise LocalProtocolError(
                "this endpoint was created before fork(), and its sockets and thread stayed in the "
                "parent process: create it in the process that uses it"
            )
        if self._closed:
            raise LocalProtocolError("this endpoint is closed: create a new one")

    @property
    def on_loop_thread(self) -> bool:
        """Whether the caller runs on the loop thread, where waiting would deadlock."""
        return threading.current_thread() is self._thread

    def finish(self, last_words: Coroutine[Any, Any, None], timeout_s: float) -> None:
        """Runs `last_words` on the loop thread, then ends it; only the first call does.

        Waits at most `timeout_s` and a little, but not on the loop thread itself (a callback, or
        the garbage collector there): then it ends by itself, soon.
        """
        if os.getpid() != self._pid:
            last_words.close()
            return
        with self._lock:
            first = not self._ending and not self._closed
            self._ending = True
        if not first:
            last_words.close()
            if not self.on_loop_thread:
                self._thread.join(timeout_s)
        elif self.on_loop_thread:
            task = self.loop.create_task(last_words)
            task.add_done_callback(lambda _: self.close())
        else:
            try:
                self.call(last_words, timeout_s)
            finally:
                self.close()

    def close(self) -> None:
        """Stops the loop and joins the thread; harmless when called again or in a forked child."""
        if self._closed or os.getpid() != self._pid:
            return
        self.submit(self.loop.stop)
        self._closed = True
        if not self.on_loop_thread:
            self._thread.join(JOIN_TIMEOUT_S)
