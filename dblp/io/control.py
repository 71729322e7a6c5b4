"""The reliable channel: length-prefixed typed frames over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import cast

from ..errors import ConfigError, DBLPError, PeerLostError
from ..wire import AnyFrame, Frame, FrameReader, frame_with_prefix

MAX_UNSENT_BYTES = 256 << 20
"""A peer that leaves this much unread is as good as dead; bounds the memory of a stuck
connection."""


class ControlConnection(asyncio.Protocol):
    """One TCP connection: `on_frame` gets every frame; `on_lost` once gets the reason."""

    def __init__(self) -> None:
        self.on_frame: Callable[[AnyFrame], None] = self._keep
        self.on_lost: Callable[[DBLPError], None] = lambda error: None
        self.lost: DBLPError | None = None
        self.last_heard_s = 0.0
        self._reader = FrameReader()
        self._early: list[AnyFrame] = []
        self._transport: asyncio.Transport | None = None
        self.fd = -1

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self.fd = sock.fileno()
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last_heard_s = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self.last_heard_s = time.monotonic()
        try:
            for frame in self._reader.feed(data):
                self.on_frame(frame)
        except DBLPError as error:
            self.fail(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.lost is None:
            self._read_the_rest()
        self.fail(PeerLostError(f"the connection was closed{f' ({exc})' if exc else ''}"))

    # --- ours

    def _read_the_rest(self) -> None:
        """A write that failed must not hide what had come before, such as a goodbye."""
        with contextlib.suppress(OSError):  # BlockingIOError: nothing is left
            fd = self.sock.fileno()
            while self.lost is None and (data := os.read(fd, 1 << 16)):
                self.data_received(data)

    def _keep(self, frame: AnyFrame) -> None:
        self._early.append(frame)

    def listen(self, on_frame: Callable[[AnyFrame], None]) -> None:
        """Sets the handler and hands over what came before."""
        self.on_frame = on_frame
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)

    def send(self, frame: Frame) -> None:
        """Queues a frame; silently nothing once the connection is lost (`on_lost` has told)."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(frame_with_prefix(frame))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.fail(
                PeerLostError(f"the peer left {MAX_UNSENT_BYTES >> 20} MiB of control data unread")
            )

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        return transport.get_write_buffer_size()

    @property
    def sock(self) -> socket.socket:
        """The connected TCP socket, for its addresses."""
        assert self._transport is not None
        return cast(socket.socket, self._transport.get_extra_info("socket"))

    def fail(self, error: DBLPError) -> None:
        """Ends the connection; the first reason counts."""
        if self.lost is None:
            self.lost = error
            self.close()
            self.on_lost(error)

    def close(self) -> None:
        """Closes after what is queued has been sent."""
        self.fd = -1
        if self._transport is not None:
            self._transport.close()


def parse_address(address: str | tuple[str, int]) -> tuple[str, int]:
    """(host, port) from "host:port", "[v6]:port" or a pair; ConfigError when it is neither."""
    host: object
    port: object
    if isinstance(address, str):
        host, colon, digits = address.rpartition(":")
        port = int(digits) if colon and digits.isascii() and digits.isdigit() else None
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            port = None  # which of the colons starts the port?
    else:
        try:
            host, port = address
        except (TypeError, ValueError):
            host = port = None
    is_port = isinstance(port, int) and not isinstance(port, bool) and 0 <= port < 1 << 16
    if not isinstance(host, str) or not isinstance(port, int) or not is_port:
        raise ConfigError(
            f"the address {address!r} is not HOST:PORT, such as 10.0.0.1:5000 or [::1]:5000"
        )
    return host or "0.0.0.0", port


def format_address(host: str, port: int) -> str:
    """ "host:port", with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
