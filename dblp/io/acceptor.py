"""The server's side of the handshake: listening sockets, and who is let in (see `handshake`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import fastpath, wire
from ..config import MTU_MAX, MTU_MIN, MTU_WITHIN_HOST, TransportConfig
from ..errors import (
    ConfigError,
    DBLPError,
    PeerLostError,
    RemoteProtocolError,
    RoundAbortedError,
)
from ..faults import Impairment
from ..wire import Abort, Hello, UdpBound, Welcome
from .control import ControlConnection, format_address
from .handshake import (
    HELLO_INTERVAL_S,
    HELLO_TRIES,
    TOKEN_BYTES,
    Connection,
    FrameQueue,
    make_channel,
    unresolved,
)
from .udp import (
    WINDOW_MAX,
    chunk_bytes_for,
    open_udp,
    receive_window,
    same_host,
    warn_about_buffers,
    with_port,
)

DATAGRAMS_PER_WAKE = 64
"""Greetings handled before the loop gets a turn; a flood of garbage must not hold it up."""

log = logging.getLogger("dblp")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server tells every worker that may join."""

    world: int
    downlink: str
    rule: str
    tolerance: str
    order: str
    timeout_s: float


FULL_GREETING_TRIES = 4
"""A greeting of full size that has not come after this many more repetitions does not fit."""


@dataclass(slots=True)
class _Greetings:
    """What has arrived of one newcomer's greetings."""

    first: asyncio.Future[Any]
    """Address that the first came from."""
    largest: int = 0
    """Longest payload, in bytes: greetings come in full size and in the smallest."""


class Acceptor:
    """The listening sockets of a server: one TCP port, and the UDP port of the same number if it
    is free."""

    def __init__(
        self,
        host: str,
        port: int,
        config: TransportConfig,
        impairment: Impairment | None,
        *,
        large_within_host: bool = False,
    ) -> None:
        """Listens; ConfigError when the address cannot be used.

        Args:
            large_within_host: `config.mtu` None lets newcomers of this host choose larger packets.
        """
        self._config = config
        self._large_within_host = large_within_host and config.mtu is None
        self._impairment = impairment
        self._waiting: dict[bytes, _Greetings] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        family, address = _resolve(host, port)
        self.tcp = _listen(family, address)
        try:
            bound = self.tcp.getsockname()
            self.udp, self._buffers = open_udp(family, config.socket_buffer_bytes)
            warn_about_buffers(self._buffers)
            try:
                self.udp.bind(bound)
            except OSError:
                self.udp.bind(with_port(bound, 0))
        except BaseException:
            self.tcp.close()
            raise
        # Set after bind: another server on this port was refused, our own sockets are not.
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.address = format_address(bound[0], bound[1])
        """Where it listens, as "host:port"."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches for the workers' first datagrams."""
        self._loop = loop
        loop.add_reader(self.udp.fileno(), self._on_datagram)

    def close(self) -> None:
        """Stops listening."""
        if self._loop is not None and self.udp.fileno() >= 0:
            self._loop.remove_reader(self.udp.fileno())
        self.udp.close()
        with contextlib.suppress(OSError):  # uvloop closes the descriptor of its server itself
            self.tcp.close()

    async def admit(
        self, control: ControlConnection, terms: Terms, check: Callable[[Hello], None]
    ) -> Connection | None:
        """From a TCP connection to an endpoint with datagrams bound; None: refused, with a reason
        that the newcomer is told.

        `check` raises a DBLPError for a Hello that cannot be part of this job.
        """
        limit_s = self._config.connect_timeout_s
        frames = FrameQueue(control)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(limit_s):
                hello = await frames.next(Hello)
                assert isinstance(hello, Hello)
                _check_numbers(hello)
                check(hello)
                connection = await self._welcome(control, hello, terms)
            frames.release()
            return connection
        except DBLPError as error:
            reason = error
        except TimeoutError:
            reason = PeerLostError(f"the handshake was not finished within {limit_s:g} s")
        except OSError as error:
            reason = RoundAbortedError(f"the server cannot open a socket for it ({error})")
        except asyncio.CancelledError:
            _refuse(control, RoundAbortedError("the server was closed during the handshake"))
            raise
        if connection is not None:
            connection.sock.close()
        log.info("a peer was refused: %s", reason)
        _refuse(control, reason)
        return None

    def _on_datagram(self) -> None:
        """Greetings; anything else that comes to the unconnected socket is not ours."""
        for _ in range(DATAGRAMS_PER_WAKE):
            try:
                data, peer = self.udp.recvfrom(1 << 16)
            except OSError:
                return
            parsed = fastpath.parse_datagram(data)
            if parsed is None or parsed[0] != wire.KIND_HELLO:
                continue
            waiting = self._waiting.get(parsed[7][:TOKEN_BYTES])
            if waiting is not None:
                waiting.largest = max(waiting.largest, len(parsed[7]))
                if not waiting.first.done():
                    waiting.first.set_result(peer)

    def _packet_bytes(self, control: ControlConnection) -> int:
        """Largest packet towards this newcomer."""
        if self._large_within_host and same_host(control.sock):
            return MTU_WITHIN_HOST
        return self._config.packet_bytes

    async def _welcome(self, control: ControlConnection, hello: Hello, terms: Terms) -> Connection:
        """Answers a Hello that was found good; returns when the worker's datagrams are bound."""
        config = self._config
        mtu = min(hello.mtu, self._packet_bytes(control))
        token = secrets.token_bytes(TOKEN_BYTES)
        chunk_bytes = chunk_bytes_for(control.sock, mtu)
        frame = Welcome(
            world=terms.world,
            mtu=mtu,
            window=receive_window(self._buffers.receive, chunk_bytes + wire.HEADER_BYTES),
            udp_port=self.udp.getsockname()[1],
            server_tag=secrets.randbits(32),
            worker_tag=secrets.randbits(32),
            token=token,
            downlink=terms.downlink,
            rule=terms.rule,
            tolerance=terms.tolerance,
            order=terms.order,
            timeout_s=terms.timeout_s,
        )
        greetings = self._waiting[token] = _Greetings(asyncio.get_running_loop().create_future())
        note_loss = control.on_lost

        def lost(error: DBLPError) -> None:
            note_loss(error)
            if not greetings.first.done():  # nobody is there to greet
                greetings.first.set_exception(error)

        control.on_lost = lost
        control.send(frame)
        try:
            sock, datagrams = await self._bind_peer(control, greetings, chunk_bytes)
        finally:
            del self._waiting[token]
        if greetings.largest < chunk_bytes:  # full datagrams do not get through (field problem 6)
            mtu = min(mtu, MTU_MIN)
            chunk_bytes = chunk_bytes_for(control.sock, mtu)
        control.send(UdpBound(datagrams=datagrams, mtu=mtu))
        channel, state = make_channel(
            sock,
            chunk_bytes=chunk_bytes,
            send_tag=frame.worker_tag,
            recv_tag=frame.server_tag,
            peer_window=hello.window,
            config=config,
            impairment=self._impairment,
            salt=2 * hello.rank + 2,
        )
        return Connection(hello.rank, control, sock, channel, state, datagrams, frame)

    async def _bind_peer(
        self, control: ControlConnection, greetings: _Greetings, full_bytes: int
    ) -> tuple[socket.socket, bool]:
        """A socket of its own for this worker, connected to where its greeting came from."""
        here = control.sock.getsockname()
        sock, _ = open_udp(self.udp.family, self._config.socket_buffer_bytes)
        try:
            try:
                peer = await asyncio.wait_for(greetings.first, HELLO_INTERVAL_S * HELLO_TRIES)
                for _ in range(FULL_GREETING_TRIES):
                    if greetings.largest >= full_bytes:
                        break
                    await asyncio.sleep(HELLO_INTERVAL_S)
            except TimeoutError:
                sock.bind(with_port(here, 0))
                sock.connect(sock.getsockname())  # talks to itself: every datagram is foreign
                return sock, False
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(with_port(here, self.udp.getsockname()[1]))
            sock.connect(peer)
        except BaseException:
            sock.close()
            raise
        return sock, True


def _refuse(control: ControlConnection, reason: DBLPError) -> None:
    control.send(Abort(kind=type(reason).__name__, reason=str(reason)))
    control.close()


def _check_numbers(hello: Hello) -> None:
    """RemoteProtocolError unless this version could have sent the Hello."""
    if hello.version != wire.PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"the newcomer speaks protocol version {hello.version}, this side "
            f"{wire.PROTOCOL_VERSION}: install the same version of dblp on both"
        )
    if not MTU_MIN <= hello.mtu <= MTU_MAX or not 0 < hello.window <= WINDOW_MAX:
        raise RemoteProtocolError(
            f"the newcomer asks for an MTU of {hello.mtu} and a window of {hello.window} "
            "datagrams, which cannot be: use the same version of dblp on both sides"
        )


def _resolve(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """(family, socket address) to listen on."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise unresolved(host, error) from error
    return found[0][0], found[0][4]


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    where = format_address(address[0], address[1])
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    try:
        sock.bind(address)
        sock.listen(256)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"the address {where} is in use: choose another port, or 0 for a free one"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"this host has no address {address[0]}: choose one of its own, or 0.0.0.0 for all "
                "of them"
            ) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    return sock
