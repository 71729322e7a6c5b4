"""What workers and point-to-point peers share: a core, its link, and the callers' futures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from ..config import TransportConfig
from ..errors import DBLPError, LocalProtocolError, RoundAbortedError
from ..io.driver import Driver, PeerLink, make_link
from ..io.gil import hold_short_interval, release_short_interval
from ..io.handshake import Connection
from ..io.loop import LoopThread
from ..proto import Session
from ..wire import Abort, Bye, Frame

__all__ = ["CLOSE_TIMEOUT_S", "Endpoint", "EndpointGroup"]

CLOSE_TIMEOUT_S = 10.0
"""How long closing waits for the loop thread: it only has to flush what the kernel takes."""

log = logging.getLogger("dblp")


class Core(Protocol):
    """The sans-IO core of an endpoint with one peer: `WorkerCore` or `PointToPointCore`."""

    error: DBLPError | None

    def fail(self, error: DBLPError) -> None: ...
    def on_events(self, *, now: float) -> None: ...
    def on_timeout(self, *, now: float) -> None: ...
    def take_finished(self) -> list[Any]: ...
    def take_notices(self) -> list[str]: ...
    def take_broadcast(self) -> list[Frame]: ...
    def next_timeout(self) -> float | None: ...
    def stall(self) -> str: ...


class Endpoint:
    """One peer.  Everything but `submit` happens on the loop thread."""

    def __init__(
        self,
        group: EndpointGroup,
        name: str,
        connection: Connection,
        config: TransportConfig,
        make_core: Callable[[Session], Core],
        convert: Callable[[Any, float], Any],
    ) -> None:
        """`convert` makes what a call returns, from finished work of the core and the seconds that
        it took."""
        self._group = group
        self._convert = convert
        self._interval_s = config.gil_switch_interval_s
        self._futures: dict[int, tuple[Future[Any], float]] = {}
        self.link: PeerLink = make_link(name, connection, config, self._on_events)
        self.core = make_core(self.link.session)
        group.endpoints.append(self)
        group.driver.add(self.link)

    def submit(self, start: Callable[[float], object]) -> Future[Any]:
        """From any thread: runs `start(now)`, a command of the core; the future is done at its
        end."""
        thread, driver = self._group.thread, self._group.driver
        thread.check_usable()
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # the buffer is the transport's: no way back
        called = driver.now()
        thread.submit(lambda: self._begin(future, start, called))
        return future

    def _begin(self, future: Future[Any], start: Callable[[float], object], called: float) -> None:
        try:
            work = start(self._group.driver.now())
        except DBLPError as error:
            future.set_exception(error)
            return
        except Exception as error:
            future.set_exception(
                DBLPError(f"internal error ({type(error).__name__}: {error}): please report it")
            )
            log.exception("internal error in a command")
            return
        self._futures[id(work)] = (future, called)
        hold_short_interval(self._interval_s)
        self._group.driver.kick()

    def _on_events(self, now: float) -> None:
        self.core.on_events(now=now)

    def tick(self, now: float) -> None:
        """Timers of the core, then its outputs."""
        core = self.core
        due = core.next_timeout()
        if due is not None and due <= now:
            core.on_timeout(now=now)
        for notice in core.take_notices():
            log.warning("%s", notice)
        for frame in core.take_broadcast():
            self.link.control.send(frame)
        for finished in core.take_finished():
            future, called = self._futures.pop(id(finished.work))
            release_short_interval(self._interval_s)
            if finished.error is not None:
                future.set_exception(finished.error)
            else:
                future.set_result(self._convert(finished, now - called))

    def close(self) -> None:
        """Ends open work with RoundAbortedError and says goodbye, or that work was left undone:
        others may wait for it."""
        undone = self.core.stall()
        self.core.fail(RoundAbortedError("this endpoint was closed while work was open"))
        self.tick(self._group.driver.now())
        if not self.link.failed:
            self.link.control.send(_undone(undone) if undone else Bye())
        self._group.driver.remove(self.link)
        if self in self._group.endpoints:
            self._group.endpoints.remove(self)


def _undone(work: str) -> Abort:
    return Abort(
        kind="RoundAbortedError",
        reason=f"closed while work was open ({work}): wait for the calls to return before closing",
    )


class EndpointGroup:
    """The owner of a driver whose links are independent of each other."""

    def __init__(self, thread: LoopThread, config: TransportConfig) -> None:
        """On the loop thread."""
        self.thread = thread
        self.endpoints: list[Endpoint] = []
        self.driver = Driver(thread.loop, thread.wake_fd, config, self)

    def on_tick(self, now: float) -> None:
        for endpoint in list(self.endpoints):
            endpoint.tick(now)

    def next_timeout(self) -> float | None:
        times = [endpoint.core.next_timeout() for endpoint in self.endpoints]
        return min((time for time in times if time is not None), default=None)

    def on_link_failed(self, link: PeerLink, error: DBLPError) -> None:
        for endpoint in self.endpoints:
            if endpoint.link is link:
                endpoint.core.fail(error)

    def stall(self) -> str:
        return "; ".join(text for text in (e.core.stall() for e in self.endpoints) if text)

    async def close_endpoint(self, endpoint: Endpoint) -> None:
        """Closes one endpoint."""
        endpoint.close()

    async def shut_down(self) -> None:
        """Closes all endpoints and the driver."""
        for endpoint in list(self.endpoints):
            endpoint.close()
        self.driver.close()


def wait_for(thread: LoopThread, future: Future[Any], what: str) -> Any:
    """The future's result; refuses to wait where that would deadlock."""
    if thread.on_loop_thread:
        raise LocalProtocolError(
            f"{what} was called from a callback of the transport, where waiting would block it for "
            "ever: use the variant that returns a future"
        )
    return thread.wait(future)


def close_thread(thread: LoopThread, group: EndpointGroup) -> None:
    """Shuts the group down and ends its thread; harmless when closed already or in a forked
    child."""
    thread.finish(group.shut_down(), CLOSE_TIMEOUT_S)
