"""The loop thread and its one door."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from dblp.errors import ConfigError, LocalProtocolError
from dblp.io.loop import LoopThread, new_event_loop

LIMIT_S = 30.0


@pytest.fixture(params=["uvloop", "asyncio"])
def thread(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip("uvloop is not installed")
    loop_thread = LoopThread(request.param, "dblp-test")
    yield loop_thread
    loop_thread.close()


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def nothing() -> None:
    pass


def test_the_kind_of_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = new_event_loop("asyncio")
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    with pytest.raises(ConfigError, match="uvloop is not installed"):
        new_event_loop("uvloop")
    loop = new_event_loop("auto")
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_work_runs_on_the_thread_in_order(thread: LoopThread) -> None:
    seen: list[int] = []
    done = threading.Event()
    for number in range(100):
        thread.submit(lambda number=number: seen.append(number))
    thread.submit(done.set)
    assert done.wait(LIMIT_S)
    assert seen == list(range(100))


def test_call_returns_and_raises(thread: LoopThread) -> None:
    assert thread.call(answer(7), LIMIT_S) == 7

    async def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        thread.call(broken(), LIMIT_S)


def test_call_that_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        thread.call(slow(), 0.01)
    assert cancelled.wait(LIMIT_S)


def test_where_we_are(thread: LoopThread) -> None:
    async def where() -> bool:
        return thread.on_loop_thread

    assert not thread.on_loop_thread
    assert thread.call(where(), LIMIT_S)


def test_a_call_from_the_thread_itself_is_refused(thread: LoopThread) -> None:
    async def nested() -> None:
        thread.call(answer(1), LIMIT_S)

    with pytest.raises(LocalProtocolError, match="callback"):
        thread.call(nested(), LIMIT_S)


def test_wait_gives_the_result_or_the_error_even_a_timeout(thread: LoopThread) -> None:
    good: Future[int] = Future()
    thread.submit(lambda: good.set_result(3))
    assert thread.wait(good) == 3
    bad: Future[int] = Future()
    thread.submit(lambda: bad.set_exception(TimeoutError("of the round")))
    with pytest.raises(TimeoutError, match="of the round"):
        thread.wait(bad)


def test_wait_ends_when_the_thread_ends(thread: LoopThread) -> None:
    waiting: Future[int] = Future()
    threading.Timer(0.05, thread.close).start()
    with pytest.raises(LocalProtocolError, match="closed while"):
        thread.wait(waiting)


@pytest.mark.filterwarnings("error")
def test_closed(thread: LoopThread) -> None:
    fd = thread.wake_fd
    for _ in range(3):
        thread.close()
    with pytest.raises(OSError):
        os.fstat(fd)
    for use in (
        lambda: thread.submit(lambda: None),
        lambda: thread.call(answer(1), LIMIT_S),
        thread.check_usable,
    ):
        with pytest.raises(LocalProtocolError, match="closed"):
            use()


@pytest.mark.filterwarnings("error")
def test_finish_says_the_last_words_once(thread: LoopThread) -> None:
    said: list[str] = []

    async def last_words(word: str) -> None:
        await asyncio.sleep(0)
        said.append(word)

    thread.finish(last_words("goodbye"), LIMIT_S)
    thread.finish(last_words("again"), LIMIT_S)
    assert said == ["goodbye"]
    assert not thread._thread.is_alive()


def test_finish_ends_the_thread_whatever_is_said(thread: LoopThread) -> None:
    async def last_words() -> None:
        raise ValueError("choked")

    with pytest.raises(ValueError, match="choked"):
        thread.finish(last_words(), LIMIT_S)
    assert not thread._thread.is_alive()


def test_finish_on_the_thread_itself_does_not_wait(thread: LoopThread) -> None:
    async def leave() -> None:
        thread.finish(nothing(), LIMIT_S)

    thread.call(leave(), LIMIT_S)
    thread._thread.join(LIMIT_S)
    assert not thread._thread.is_alive()
    with pytest.raises(LocalProtocolError):
        thread.check_usable()


def test_many_finish_at_once(thread: LoopThread) -> None:
    enders = [threading.Thread(target=lambda: thread.finish(nothing(), LIMIT_S)) for _ in range(8)]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join(LIMIT_S)
        assert not ender.is_alive()
    assert not thread._thread.is_alive()


def test_submit_while_closing_is_safe() -> None:
    """Nobody writes to a descriptor that is closed, or to another that got its number."""
    for _ in range(30):
        thread = LoopThread("asyncio", "dblp-test")
        stop = threading.Event()
        strange: list[BaseException] = []

        def knock(thread: LoopThread = thread, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                try:
                    thread.submit(lambda: None)
                except LocalProtocolError:
                    return
                except BaseException as error:
                    strange.append(error)  # noqa: B023
                    return

        knockers = [threading.Thread(target=knock) for _ in range(2)]
        for knocker in knockers:
            knocker.start()
        thread.close()
        stop.set()
        for knocker in knockers:
            knocker.join(LIMIT_S)
        assert not strange
