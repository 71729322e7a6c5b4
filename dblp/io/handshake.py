"""How two endpoints find each other: TCP for control, then one worker-initiated UDP flow bound by a token.

Only one TCP and one UDP port of the server need to be reachable, both of the same number where that is free (field
problem 27).  Addresses are those of the connected control socket, never a host name (field problem 1).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from dataclasses import dataclass

from .. import fastpath, wire
from ..config import TransportConfig
from ..errors import ConfigError, DBLPError, PeerLostError, RemoteProtocolError, RoundAbortedError
from ..errors import LocalProtocolError, RoundTimeoutError
from ..faults import Impairment, ImpairmentState
from ..wire import Abort, AnyFrame, Frame, Hello, UdpBound, Welcome
from .control import ControlConnection, format_address
from .udp import chunk_bytes_for, open_udp, receive_window, warn_about_buffers

HELLO_INTERVAL_S = 0.05
"""How often the worker's first datagram is repeated until the server has it."""

HELLO_TRIES = 40
"""After this many (2 s) the server goes on without datagrams (hazard 9)."""

CONNECT_RETRY_S = 0.1
"""Pause between attempts to reach a server that does not listen yet."""

_ERRORS: dict[str, type[DBLPError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError, LocalProtocolError, PeerLostError, RemoteProtocolError, RoundAbortedError, RoundTimeoutError,
    )
}  # fmt: skip


class ImpairedChannel(fastpath.Channel):
    """A channel that tells its fault injector which rounds open, so that bursts start with their round."""

    impairment: ImpairmentState | None = None

    def open_receive(self, stream, round, buffer, bitmap, **options):  # type: ignore[no-untyped-def]
        if self.impairment is not None:
            self.impairment.open_round(round)
        return super().open_receive(stream, round, buffer, bitmap, **options)

    def open_transmit(self, stream, round, buffer):  # type: ignore[no-untyped-def]
        if self.impairment is not None:
            self.impairment.open_round(round)
        return super().open_transmit(stream, round, buffer)


@dataclass(slots=True)
class Connection:
    """What a completed handshake yields."""

    rank: int
    control: ControlConnection
    sock: socket.socket
    channel: fastpath.Channel
    impairment: ImpairmentState | None
    datagrams: bool
    """False: no datagram arrived; everything travels on the control connection."""
    welcome: Welcome


def error_from(frame: Abort) -> DBLPError:
    """The error that an Abort frame stands for."""
    return _ERRORS.get(frame.kind, RoundAbortedError)(frame.reason)


def make_channel(
    sock: socket.socket,
    *,
    chunk_bytes: int,
    send_tag: int,
    recv_tag: int,
    peer_window: int,
    config: TransportConfig,
    impairment: Impairment | None,
    salt: int,
) -> tuple[fastpath.Channel, ImpairmentState | None]:
    """The channel on a connected socket, with windows of both sides set."""
    kind = fastpath.Channel if impairment is None else ImpairedChannel
    channel = kind(
        sock.fileno(),
        send_tag=send_tag,
        recv_tag=recv_tag,
        chunk_bytes=chunk_bytes,
        gso=config.offload,
        gro=config.offload,
    )
    granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    channel.window = receive_window(granted, chunk_bytes + wire.HEADER_BYTES)
    channel.grant(0, peer_window)
    state = None
    if impairment is not None:
        state = ImpairmentState(impairment, channel, salt=salt)
        channel.impairment = state  # type: ignore[attr-defined]
    return channel, state


class FrameQueue:
    """Frames of one connection, awaited one by one during the handshake."""

    def __init__(self, control: ControlConnection) -> None:
        self._control = control
        self._frames: asyncio.Queue[AnyFrame | DBLPError] = asyncio.Queue()
        control.listen(self._frames.put_nowait)
        control.on_lost = self._frames.put_nowait

    async def next(self, *kinds: type[Frame]) -> AnyFrame:
        """The next frame; raises what an Abort says, or RemoteProtocolError for another kind."""
        frame = await self._frames.get()
        if isinstance(frame, DBLPError):
            raise frame
        if isinstance(frame, Abort):
            raise error_from(frame)
        if not isinstance(frame, kinds):
            raise RemoteProtocolError(
                f"a {type(frame).__name__} frame came where {kinds[0].__name__} was due: is this a dblp peer of "
                "the same version?"
            )
        return frame

    def release(self) -> None:
        """Frames that came early go to whoever listens next."""
        rest = []
        while not self._frames.empty():
            item = self._frames.get_nowait()
            if isinstance(item, DBLPError):
                raise item
            rest.append(item)
        self._control.on_frame = self._control._keep
        for item in rest:
            self._control.on_frame(item)


# --- worker side ----------------------------------------------------------------------------------


async def connect(
    host: str,
    port: int,
    *,
    rank: int,
    world: int,
    config: TransportConfig,
    fingerprint: str,
    impairment: Impairment | None,
) -> Connection:
    """Connects to a server within `config.connect_timeout_s`."""
    loop = asyncio.get_running_loop()
    where = format_address(host, port)
    deadline = loop.time() + config.connect_timeout_s
    control = await _reach(host, port, deadline)
    try:
        async with asyncio.timeout_at(deadline):
            return await _shake_hands(control, rank, world, config, fingerprint, impairment)
    except TimeoutError as error:
        control.close()
        raise PeerLostError(
            f"the server at {where} did not finish the handshake within {config.connect_timeout_s:g} s: look at its "
            "log, or raise connect_timeout_s"
        ) from error
    except DBLPError:
        control.close()
        raise


async def _reach(host: str, port: int, deadline: float) -> ControlConnection:
    """A TCP connection; a server that does not listen yet is tried again until the deadline."""
    loop = asyncio.get_running_loop()
    where = format_address(host, port)
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                _, control = await loop.create_connection(ControlConnection, host, port)
            return control
        except socket.gaierror as error:
            raise ConfigError(f"the host name {host!r} cannot be resolved ({error.strerror}): check it") from error
        except (OSError, TimeoutError) as error:
            if loop.time() + CONNECT_RETRY_S >= deadline:
                raise PeerLostError(
                    f"the server at {where} cannot be reached ({error or 'timed out'}): is it running, and are its "
                    "TCP and UDP ports open?"
                ) from error
            await asyncio.sleep(CONNECT_RETRY_S)


async def _shake_hands(
    control: ControlConnection,
    rank: int,
    world: int,
    config: TransportConfig,
    fingerprint: str,
    impairment: Impairment | None,
) -> Connection:
    frames = FrameQueue(control)
    tcp: socket.socket = control._transport.get_extra_info("socket")  # type: ignore[union-attr]
    sock, buffers = open_udp(tcp.family, config.socket_buffer_bytes)
    try:
        warn_about_buffers(buffers)
        sock.bind((tcp.getsockname()[0], 0))
        chunk_bytes = chunk_bytes_for(sock, config.mtu)
        control.send(
            Hello(
                version=wire.PROTOCOL_VERSION,
                rank=rank,
                world=world,
                mtu=config.mtu,
                window=receive_window(buffers.receive, chunk_bytes + wire.HEADER_BYTES),
                fingerprint=fingerprint,
            )
        )
        welcome = await frames.next(Welcome)
        assert isinstance(welcome, Welcome)
        sock.connect((tcp.getpeername()[0], welcome.udp_port))
        datagrams = await _bind_datagrams(sock, frames, welcome)
        frames.release()
        channel, state = make_channel(
            sock,
            chunk_bytes=chunk_bytes_for(sock, welcome.mtu),
            send_tag=welcome.server_tag,
            recv_tag=welcome.worker_tag,
            peer_window=welcome.window,
            config=config,
            impairment=impairment,
            salt=2 * rank + 3,
        )
    except BaseException:
        sock.close()
        raise
    return Connection(rank, control, sock, channel, state, datagrams, welcome)


async def _bind_datagrams(sock: socket.socket, frames: FrameQueue, welcome: Welcome) -> bool:
    """Repeats the greeting until the server confirms; False when it gave up waiting for one."""
    greeting = fastpath.pack_datagram(
        wire.KIND_HELLO, 0, 0, 0, 0, 0, welcome.server_tag, welcome.token
    )

    async def greet() -> None:
        while True:
            with contextlib.suppress(OSError):
                sock.send(greeting)
            await asyncio.sleep(HELLO_INTERVAL_S)

    greeter = asyncio.ensure_future(greet())
    try:
        bound = await frames.next(UdpBound)
        assert isinstance(bound, UdpBound)
        return bound.datagrams
    finally:
        greeter.cancel()


# --- server side ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server tells every worker that may join."""

    world: int
    downlink: str
    rule: str
    tolerance: str
    order: str
    timeout_s: float


class Acceptor:
    """The listening sockets of a server: one TCP port, and the UDP port of the same number if it is free."""

    def __init__(
        self, host: str, port: int, config: TransportConfig, impairment: Impairment | None
    ) -> None:
        self._config = config
        self._impairment = impairment
        self._waiting: dict[bytes, asyncio.Future[tuple[str, int]]] = {}
        info = _resolve(host, port)
        self._family = info[0]
        self.tcp = _listen(info[0], info[4][:2])
        bound = self.tcp.getsockname()
        self.udp, self._buffers = open_udp(self._family, config.socket_buffer_bytes)
        warn_about_buffers(self._buffers)
        try:
            self.udp.bind((bound[0], bound[1]))
        except OSError:
            self.udp.bind((bound[0], 0))
        # Set after bind: another server on this port was refused, our own connected sockets are not.
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.address = format_address(bound[0], bound[1])
        self.host, self.port = bound[0], bound[1]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watches for the workers' first datagrams."""
        self._loop = loop
        loop.add_reader(self.udp.fileno(), self._on_datagram)

    def close(self) -> None:
        """Stops listening."""
        with contextlib.suppress(Exception):
            self._loop.remove_reader(self.udp.fileno())
        self.udp.close()
        self.tcp.close()

    def _on_datagram(self) -> None:
        """Greetings; anything else that comes to the unconnected socket is not ours."""
        for _ in range(64):
            try:
                data, peer = self.udp.recvfrom(2048)
            except (BlockingIOError, ConnectionError):
                return
            parsed = fastpath.parse_datagram(data)
            if parsed is None or parsed[0] != wire.KIND_HELLO:
                continue
            waiting = self._waiting.get(parsed[7])
            if waiting is not None and not waiting.done():
                waiting.set_result(peer)

    async def welcome(self, control: ControlConnection, hello: Hello, terms: Terms) -> Connection:
        """Answers a Hello that was found good; returns when the worker's datagrams are bound."""
        config = self._config
        mtu = min(hello.mtu, config.mtu)
        token = secrets.token_bytes(16)
        chunk_bytes = chunk_bytes_for(self.udp, mtu)
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
        arrived: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._waiting[token] = arrived
        control.send(frame)
        try:
            sock, datagrams = await self._bind_peer(control, arrived)
        finally:
            del self._waiting[token]
        control.send(UdpBound(datagrams=datagrams))
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
        self, control: ControlConnection, arrived: asyncio.Future[tuple[str, int]]
    ) -> tuple[socket.socket, bool]:
        """A socket of its own for this worker, connected to where its greeting came from."""
        tcp: socket.socket = control._transport.get_extra_info("socket")  # type: ignore[union-attr]
        sock, _ = open_udp(self._family, self._config.socket_buffer_bytes)
        try:
            peer = await asyncio.wait_for(arrived, HELLO_INTERVAL_S * HELLO_TRIES)
        except TimeoutError:
            sock.bind((tcp.getsockname()[0], 0))
            sock.connect(sock.getsockname()[:2])  # talks to itself: every datagram is foreign
            return sock, False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((tcp.getsockname()[0], self.udp.getsockname()[1]))
        sock.connect(peer)
        return sock, True


def _resolve(host: str, port: int) -> tuple:  # type: ignore[type-arg]
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ConfigError(f"the host name {host!r} cannot be resolved ({error.strerror}): check it") from error


def _listen(family: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    try:
        sock.bind(address)
        sock.listen(256)
    except OSError as error:
        sock.close()
        where = format_address(*address)
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"the address {where} is in use: choose another port, or 0 for a free one") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"this host has no address {address[0]}: choose one of its own, or 0.0.0.0 for all of them"
            ) from error
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from error
    return sock
