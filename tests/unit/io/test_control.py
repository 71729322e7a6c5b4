"""The reliable channel and addresses, without sockets."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dblp import wire
from dblp.errors import ConfigError, DBLPError, PeerLostError, RemoteProtocolError
from dblp.io import control as control_module
from dblp.io.control import ControlConnection, format_address, parse_address
from dblp.wire import Heartbeat, Ready, frame_with_prefix


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.unsent = 0

    def get_extra_info(self, name: str) -> Any:
        class Sock:
            def fileno(self) -> int:
                return 99

            def setsockopt(self, *_: int) -> None:
                raise OSError("not TCP")

        assert name == "socket"
        return Sock()

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def connected() -> tuple[ControlConnection, Transport, list[DBLPError]]:
    control, transport = ControlConnection(), Transport()
    losses: list[DBLPError] = []
    control.connection_made(transport)  # type: ignore[arg-type]
    control.on_lost = losses.append
    return control, transport, losses


def test_frames_that_come_early_are_kept(connected: Any) -> None:
    control, _, _ = connected
    frames = [Ready(1, number) for number in range(4)]
    control.data_received(b"".join(map(frame_with_prefix, frames[:2])))
    seen: list[object] = []
    control.listen(seen.append)
    assert seen == frames[:2]
    tail = b"".join(map(frame_with_prefix, frames[2:]))
    for byte in tail:
        control.data_received(bytes([byte]))
    assert seen == frames


def test_sending(connected: Any) -> None:
    control, transport, losses = connected
    control.send(Heartbeat("x"))
    assert transport.written == frame_with_prefix(Heartbeat("x"))
    transport.unsent = 12
    assert control.unsent_bytes == 12
    control.close()
    assert transport.closed
    assert control.fd == -1
    assert control.unsent_bytes == 0
    control.send(Heartbeat())
    assert transport.written == frame_with_prefix(Heartbeat("x"))
    assert losses == []


def test_nothing_is_sent_before_there_is_a_connection() -> None:
    control = ControlConnection()
    control.send(Heartbeat())
    assert control.unsent_bytes == 0
    control.close()


def test_the_first_reason_counts(connected: Any) -> None:
    control, transport, losses = connected
    control.data_received(b"\xff" * 8)
    control.connection_lost(OSError("reset"))
    assert [type(loss) for loss in losses] == [RemoteProtocolError]
    assert control.lost is losses[0]
    assert transport.closed


@pytest.mark.parametrize("reason", [None, ConnectionResetError("reset by peer")])
def test_the_end_of_the_connection(connected: Any, reason: Exception | None) -> None:
    control, _, losses = connected
    assert control.eof_received() is False
    control.connection_lost(reason)
    assert isinstance(losses[0], PeerLostError)
    assert ("reset by peer" in str(losses[0])) == (reason is not None)


def test_a_failed_write_does_not_hide_what_had_come_before(
    connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker says goodbye and is gone; the server's next heartbeat meets a closed connection."""
    control, transport, losses = connected
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        monkeypatch.setattr(transport, "get_extra_info", lambda _: here)
        there.sendall(frame_with_prefix(Ready(0, 1)) + frame_with_prefix(wire.Bye()))
        seen: list[object] = []
        control.listen(lambda frame: seen.append((frame, list(losses))))
        control.connection_lost(BrokenPipeError("Broken pipe"))
    assert seen == [(Ready(0, 1), []), (wire.Bye(), [])]
    assert "Broken pipe" in str(losses[0])


def test_a_peer_that_reads_nothing(connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    control, transport, losses = connected
    monkeypatch.setattr(control_module, "MAX_UNSENT_BYTES", 1 << 20)
    transport.unsent = (1 << 20) + 1
    control.send(Heartbeat())
    assert "1 MiB" in str(losses[0])


def test_a_handler_that_objects_ends_the_connection(connected: Any) -> None:
    control, transport, losses = connected

    def refuse(_: object) -> None:
        raise RemoteProtocolError("not now")

    control.listen(refuse)
    control.data_received(frame_with_prefix(wire.Bye()))
    assert str(losses[0]) == "not now"
    assert transport.closed


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("10.0.0.1:5000", ("10.0.0.1", 5000)),
        ("host.example:0", ("host.example", 0)),
        ("[::1]:65535", ("::1", 65_535)),
        ("[fe80::1%eth0]:7", ("fe80::1%eth0", 7)),
        (":80", ("0.0.0.0", 80)),
        (("::1", 80), ("::1", 80)),
        (["h", 80], ("h", 80)),
        (("", 80), ("0.0.0.0", 80)),
    ],
)
def test_addresses(address: Any, parsed: tuple[str, int]) -> None:
    assert parse_address(address) == parsed
    assert parse_address(format_address(*parsed)) == parsed


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:x", "::1:80", "host:65536", "h:-1", ("h", "80"), None]
)
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(address)
