"""Waits for peers (`peer.Peer`) and hands them out."""

from __future__ import annotations

import asyncio
import queue
import sys

from .. import wire
from ..config import TransportConfig
from ..errors import RemoteProtocolError, RoundTimeoutError
from ..faults import Impairment
from ..io.acceptor import Acceptor, Terms
from ..io.control import ControlConnection, parse_address
from ..io.loop import LoopThread
from ..wire import Hello
from .endpoint import CLOSE_TIMEOUT_S, Endpoint, EndpointGroup
from .peer import Peer, make_endpoint
from .worker import CALL_MARGIN_S

__all__ = ["Listener"]


class _ListenerOwner:
    """Lives on the loop thread; knows nothing of the `Listener`, which may be forgotten."""

    def __init__(
        self,
        thread: LoopThread,
        acceptor: Acceptor,
        config: TransportConfig,
        accepted: queue.SimpleQueue[Endpoint],
    ) -> None:
        self.group = EndpointGroup(thread, config)
        self._acceptor = acceptor
        self._config = config
        self._accepted = accepted
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._acceptor.start(loop)
        self._server = await loop.create_server(self._new_connection, sock=self._acceptor.tcp)
        self.group.driver.extra_fds = [self._acceptor.tcp.fileno(), self._acceptor.udp.fileno()]

    def _new_connection(self) -> ControlConnection:
        control = ControlConnection()
        task = asyncio.get_running_loop().create_task(self._join(control))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return control

    async def _join(self, control: ControlConnection) -> None:
        terms = Terms(
            world=1,
            downlink="exact",
            rule="zero",
            tolerance="0",
            order=self._config.order,
            timeout_s=self._config.timeout_s,
        )
        connection = await self._acceptor.admit(control, terms, _check)
        if connection is not None:
            self._accepted.put(make_endpoint(self.group, "the peer", connection, self._config))

    async def shut_down(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        self._acceptor.close()
        await self.group.shut_down()


class Listener:
    """Waits for peers.

    ```python
    with dblp.Listener("0.0.0.0:5000") as listener, listener.accept() as peer:
        report = peer.recv(buffer, tolerance="0.8%")
    ```
    """

    def __init__(
        self,
        address: str | tuple[str, int] = "127.0.0.1:0",
        *,
        config: TransportConfig | None = None,
        impairment: Impairment | None = None,
    ) -> None:
        """Listens; raises ConfigError when the address cannot be used."""
        self.config = config if config is not None else TransportConfig()
        self._accepted: queue.SimpleQueue[Endpoint] = queue.SimpleQueue()
        acceptor = Acceptor(*parse_address(address), self.config, impairment)
        self.address = acceptor.address
        """Where it listens, as "host:port"."""
        try:
            self._thread = LoopThread(self.config.loop, "dblp-listener")
        except BaseException:
            acceptor.close()
            raise
        try:
            self._owner = self._thread.call(self._start(acceptor), CALL_MARGIN_S)
        except BaseException:
            self._thread.close()
            acceptor.close()
            raise

    async def _start(self, acceptor: Acceptor) -> _ListenerOwner:
        owner = _ListenerOwner(self._thread, acceptor, self.config, self._accepted)
        await owner.start()
        return owner

    def accept(self, timeout_s: float | None = None) -> Peer:
        """The next peer; RoundTimeoutError when none comes within `timeout_s` seconds (default:
        `connect_timeout_s`)."""
        self._thread.check_usable()
        wait_s = self.config.connect_timeout_s if timeout_s is None else timeout_s
        try:
            endpoint = self._accepted.get(timeout=wait_s)
        except queue.Empty:
            raise RoundTimeoutError(
                f"no peer has connected to {self.address} within {wait_s:g} s: start it, or wait "
                "longer"
            ) from None
        return Peer(self._thread, self._owner.group, endpoint, listener=self)

    def close(self) -> None:
        """Stops listening and closes all accepted peers; idempotent."""
        self._thread.finish(self._owner.shut_down(), CLOSE_TIMEOUT_S)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_owner") and not sys.is_finalizing():
            self.close()


def _check(hello: Hello) -> None:
    """Refuses a worker."""
    if hello.rank != wire.NO_RANK:
        raise RemoteProtocolError(
            "this is a Listener, and a Worker has connected: use a Peer, or a ParameterServer on "
            "the other side"
        )
