"""The same endpoints for people who live in asyncio.

```python
async with dblp.aio.Worker("10.0.0.1:5000", rank=0) as worker:
    report = await worker.all_reduce(grad)
```

The transport keeps its own thread and loop; here its futures are only awaited, so nothing blocks
the caller's loop, and any loop will do.  Arguments, results and errors are those of `dblp.Worker`,
`dblp.Peer` and `dblp.Listener`.

Cancelling an `await` does not take a round back: its buffer belongs to the transport until the
round has ended, or the endpoint is closed.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from fractions import Fraction
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .collective import listener as _listener
from .collective import peer as _peer
from .collective import worker as _worker
from .collective.worker import AllReduceReport
from .config import TransportConfig
from .errors import LocalProtocolError, RoundTimeoutError
from .faults import Impairment
from .stats import RoundReport
from .tolerance import EXACT, Tolerance

__all__ = ["Listener", "Peer", "Worker"]

ACCEPT_POLL_S = 0.01
"""How often `Listener.accept` looks; a thread that waits could not be cancelled."""

Sync = TypeVar("Sync", _worker.Worker, _peer.Peer, _listener.Listener)
Result = TypeVar("Result")


class _Endpoint(Generic[Sync]):
    """`async with` opens in a worker thread, as opening waits for the other side."""

    def __init__(self) -> None:
        self._open: Sync | None = None

    def _make(self) -> Sync:
        raise NotImplementedError

    @property
    def sync(self) -> Sync:
        """The endpoint underneath; LocalProtocolError before `async with`."""
        if self._open is None:
            raise LocalProtocolError(
                f"this {type(self).__name__} is not open: use it in `async with`"
            )
        return self._open

    async def __aenter__(self) -> Self:
        if self._open is None:
            self._open = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Says goodbye; idempotent."""
        if self._open is not None:
            await asyncio.to_thread(self._open.close)


class Worker(_Endpoint[_worker.Worker]):
    """`dblp.Worker`, awaited."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        rank: int,
        world: int | None = None,
        config: TransportConfig | None = None,
        fingerprint: str = "",
        impairment: Impairment | None = None,
    ) -> None:
        """Connects in `async with`; arguments and errors as for `dblp.Worker`."""
        super().__init__()
        self._address = address
        self._options: dict[str, Any] = {
            "rank": rank,
            "world": world,
            "config": config,
            "fingerprint": fingerprint,
            "impairment": impairment,
        }

    def _make(self) -> _worker.Worker:
        return _worker.Worker(self._address, **self._options)

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self.sync.rank

    @property
    def world(self) -> int:
        """Number of workers in the job."""
        return self.sync.world

    async def all_reduce(self, grad: Any, *, stream: int = 0) -> AllReduceReport:
        """Replaces `grad` by its mean over all workers; see `dblp.Worker.all_reduce`."""
        return await _result(self.sync.all_reduce_async(grad, stream=stream))


class Peer(_Endpoint[_peer.Peer]):
    """`dblp.Peer`, awaited."""

    def __init__(
        self,
        address: str | tuple[str, int],
        *,
        config: TransportConfig | None = None,
        impairment: Impairment | None = None,
    ) -> None:
        """Connects in `async with`; arguments and errors as for `dblp.Peer.connect`."""
        super().__init__()
        self._address = address
        self._config = config
        self._impairment = impairment

    @classmethod
    def _of(cls, accepted: _peer.Peer) -> Peer:
        peer = cls("")
        peer._open = accepted
        return peer

    def _make(self) -> _peer.Peer:
        return _peer.Peer.connect(self._address, config=self._config, impairment=self._impairment)

    async def send(self, buffer: Any, *, stream: int = 0) -> RoundReport:
        """DBLP_SEND; see `dblp.Peer.send`."""
        return await _result(self.sync.send_async(buffer, stream=stream))

    async def recv(
        self,
        buffer: Any,
        tolerance: Tolerance | Fraction | str | int = EXACT,
        *,
        stream: int = 0,
    ) -> RoundReport:
        """DBLP_RECV; see `dblp.Peer.recv`."""
        return await _result(self.sync.recv_async(buffer, tolerance, stream=stream))


class Listener(_Endpoint[_listener.Listener]):
    """`dblp.Listener`, awaited."""

    def __init__(
        self,
        address: str | tuple[str, int] = "127.0.0.1:0",
        *,
        config: TransportConfig | None = None,
        impairment: Impairment | None = None,
    ) -> None:
        """Listens in `async with`; arguments and errors as for `dblp.Listener`."""
        super().__init__()
        self._wanted = address
        self._config = config
        self._impairment = impairment

    def _make(self) -> _listener.Listener:
        return _listener.Listener(self._wanted, config=self._config, impairment=self._impairment)

    @property
    def address(self) -> str:
        """Where it listens, as "host:port"."""
        return self.sync.address

    async def accept(self, timeout_s: float | None = None) -> Peer:
        """The next peer; RoundTimeoutError when none comes within `timeout_s` seconds (default:
        `connect_timeout_s`)."""
        wait_s = self.sync.config.connect_timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            try:
                return Peer._of(self.sync.accept(0))
            except RoundTimeoutError:
                if loop.time() >= until:
                    raise RoundTimeoutError(
                        f"no peer has connected to {self.address} within {wait_s:g} s: start it, "
                        "or wait longer"
                    ) from None
            await asyncio.sleep(ACCEPT_POLL_S)


async def _result(future: Future[Result]) -> Result:
    """Awaits a future of the transport; cancellation leaves that one alone."""
    return await asyncio.wrap_future(future)
