"""How two endpoints find each other: TCP for control, then one UDP flow bound by a token.

The worker sends the first datagram, so only one TCP and one UDP port of the server need to be
reachable, both of the same number where that is free (field problem 27).  Addresses are those of
the connected control socket, never a host name (field problem 1).  Here is what both sides share,
and the worker's; the server's is in `acceptor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import fastpath, wire
from ..config import MTU_MIN, TransportConfig
from ..errors import (
    ConfigError,
    DBLPError,
    LocalProtocolError,
    PeerLostError,
    RemoteProtocolError,
    RoundAbortedError,
    RoundTimeoutError,
)
from ..faults import Impairment, ImpairmentState
from ..wire import Abort, AnyFrame, Frame, Hello, UdpBound, Welcome
from .control import ControlConnection, format_address
from .udp import (
    WINDOW_MAX,
    chunk_bytes_for,
    open_udp,
    receive_window,
    warn_about_buffers,
    with_port,
)

HELLO_INTERVAL_S = 0.05
"""How often the worker's first datagram is repeated until the server has it."""

HELLO_TRIES = 40
"""After so many (2 s) the server goes on without datagrams (hazard 9)."""

CONNECT_RETRY_S = 0.1
"""Pause between attempts to reach a server that does not listen yet."""

CANDIDATE_S = 3.0
"""How long one of several addresses of a server may take to answer before the next is tried."""

REFUSAL_PATIENCE_S = 3.0
"""An address may lead to somebody else while the right server is still starting."""

TOKEN_BYTES = 16
"""Length of the secret in the worker's first datagram."""

_ERRORS: dict[str, type[DBLPError]] = {
    kind.__name__: kind
    for kind in (
        ConfigError,
        LocalProtocolError,
        PeerLostError,
        RemoteProtocolError,
        RoundAbortedError,
        RoundTimeoutError,
    )
}


class ImpairedChannel(fastpath.Channel):
    """A channel that tells its fault injector which rounds open: bursts start with their round."""

    impairment: ImpairmentState | None = None

    def open_receive(
        self, stream: int, round: int, buffer: Any, bitmap: Any, **options: Any
    ) -> int:
        if self.impairment is not None:
            self.impairment.open_round(round)
        return super().open_receive(stream, round, buffer, bitmap, **options)

    def open_transmit(self, stream: int, round: int, buffer: Any) -> int:
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


def unresolved(host: str, error: socket.gaierror) -> ConfigError:
    """What to say about a host name that nobody knows."""
    return ConfigError(f"the host name {host!r} cannot be resolved ({error.strerror}): check it")


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
                f"a {type(frame).__name__} frame came where {kinds[0].__name__} was due: is this a "
                "dblp peer of the same version?"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a newcomer says about itself (`wire.Hello`)."""

    rank: int
    world: int
    fingerprint: str = ""
    servers: int = 0
    to: int = wire.NO_RANK


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
    identity = Identity(rank=rank, world=world, fingerprint=fingerprint)
    deadline = asyncio.get_running_loop().time() + config.connect_timeout_s
    control = await _reach(host, port, deadline)
    return await _greet(control, format_address(host, port), deadline, identity, config, impairment)


async def connect_any(
    candidates: Sequence[tuple[str, int]],
    identity: Identity,
    config: TransportConfig,
    impairment: Impairment | None,
) -> Connection:
    """Connects to the server that has one of these addresses, within `config.connect_timeout_s`.

    Addresses are tried in turn, again and again: a host may have several that not everyone can
    reach, and an address may lead to another rank.  A refusal counts once the server has had
    `REFUSAL_PATIENCE_S` to appear at another address.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = began + config.connect_timeout_s
    while True:
        failure: DBLPError | None = None
        for host, port in candidates:
            limit = min(deadline, loop.time() + CANDIDATE_S) if len(candidates) > 1 else deadline
            try:
                control = await _reach(host, port, limit, retry=False)
                where = format_address(host, port)
                return await _greet(control, where, deadline, identity, config, impairment)
            except DBLPError as error:
                if failure is None or isinstance(failure, PeerLostError):
                    failure = error
        assert failure is not None, "there is at least one address"
        is_refusal = not isinstance(failure, PeerLostError)
        patience = 0.0 if len(candidates) == 1 else REFUSAL_PATIENCE_S
        now = loop.time()
        if now + CONNECT_RETRY_S >= deadline or (is_refusal and now - began >= patience):
            raise failure
        await asyncio.sleep(CONNECT_RETRY_S)


async def _reach(host: str, port: int, deadline: float, *, retry: bool = True) -> ControlConnection:
    """A TCP connection; with `retry` a server that does not listen yet is tried again until the
    deadline."""
    loop = asyncio.get_running_loop()
    where = format_address(host, port)
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                _, control = await loop.create_connection(ControlConnection, host, port)
            return control
        except socket.gaierror as error:
            raise unresolved(host, error) from error
        except OSError as error:  # TimeoutError is one
            if not retry or loop.time() + CONNECT_RETRY_S >= deadline:
                raise PeerLostError(
                    f"the server at {where} cannot be reached ({str(error) or 'timed out'}): is it "
                    "running, and are its TCP and UDP ports open?"
                ) from error
            await asyncio.sleep(CONNECT_RETRY_S)


async def _greet(
    control: ControlConnection,
    where: str,
    deadline: float,
    identity: Identity,
    config: TransportConfig,
    impairment: Impairment | None,
) -> Connection:
    """The handshake on a TCP connection, which is closed when that fails."""
    try:
        async with asyncio.timeout_at(deadline):
            return await _shake_hands(control, identity, config, impairment)
    except TimeoutError as error:
        control.close()
        raise PeerLostError(
            f"the server at {where} did not finish the handshake within "
            f"{config.connect_timeout_s:g} s: look at its log, or raise connect_timeout_s"
        ) from error
    except BaseException:
        control.close()
        raise


async def _shake_hands(
    control: ControlConnection,
    identity: Identity,
    config: TransportConfig,
    impairment: Impairment | None,
) -> Connection:
    frames = FrameQueue(control)
    tcp = control.sock
    sock, buffers = open_udp(tcp.family, config.socket_buffer_bytes)
    try:
        warn_about_buffers(buffers)
        sock.bind(with_port(tcp.getsockname(), 0))
        chunk_bytes = chunk_bytes_for(tcp, config.packet_bytes)
        control.send(
            Hello(
                version=wire.PROTOCOL_VERSION,
                rank=identity.rank,
                world=identity.world,
                mtu=config.packet_bytes,
                window=receive_window(buffers.receive, chunk_bytes + wire.HEADER_BYTES),
                fingerprint=identity.fingerprint,
                servers=identity.servers,
                to=identity.to,
            )
        )
        welcome = await frames.next(Welcome)
        assert isinstance(welcome, Welcome)
        _check_welcome(welcome, config.packet_bytes)
        sock.connect(with_port(tcp.getpeername(), welcome.udp_port))
        bound = await _bind_datagrams(sock, frames, welcome)
        if not MTU_MIN <= bound.mtu <= welcome.mtu:
            raise RemoteProtocolError(
                f"the server chose an MTU of {bound.mtu}, of at most {welcome.mtu}: use the same "
                "version of dblp on both sides"
            )
        frames.release()
        channel, state = make_channel(
            sock,
            chunk_bytes=chunk_bytes_for(tcp, bound.mtu),
            send_tag=welcome.server_tag,
            recv_tag=welcome.worker_tag,
            peer_window=welcome.window,
            config=config,
            impairment=impairment,
            salt=2 * identity.rank + 3 + 512 * (identity.to + 1),
        )
    except BaseException:
        sock.close()
        raise
    return Connection(identity.rank, control, sock, channel, state, bound.datagrams, welcome)


def _check_welcome(welcome: Welcome, mtu: int) -> None:
    """RemoteProtocolError unless the numbers can be meant; the server must not crash us."""
    sound = (
        MTU_MIN <= welcome.mtu <= mtu
        and 0 < welcome.window <= WINDOW_MAX
        and 0 < welcome.udp_port < 1 << 16
        and 0 <= welcome.server_tag < 1 << 32
        and 0 <= welcome.worker_tag < 1 << 32
        and 1 <= welcome.world < 256
        and len(welcome.token) == TOKEN_BYTES
    )
    if not sound:
        raise RemoteProtocolError(
            f"the server sent terms that make no sense (MTU {welcome.mtu}, window "
            f"{welcome.window}, {welcome.world} workers): use the same version of dblp on both"
        )


async def _bind_datagrams(sock: socket.socket, frames: FrameQueue, welcome: Welcome) -> UdpBound:
    """Repeats the greeting, long as a chunk and short as can be, until the server confirms."""
    padded = welcome.token.ljust(chunk_bytes_for(sock, welcome.mtu), b"\0")
    greetings = [
        fastpath.pack_datagram(wire.KIND_HELLO, 0, 0, 0, 0, 0, welcome.server_tag, payload)
        for payload in (padded, welcome.token)
    ]

    async def greet() -> None:
        while True:
            for greeting in greetings:
                with contextlib.suppress(OSError):  # EMSGSIZE: longer than the path takes
                    sock.send(greeting)
            await asyncio.sleep(HELLO_INTERVAL_S)

    greeter = asyncio.ensure_future(greet())
    try:
        bound = await frames.next(UdpBound)
        assert isinstance(bound, UdpBound)
        return bound
    finally:
        greeter.cancel()
