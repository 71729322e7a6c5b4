"""One kernel TCP flow in two processes, as iperf3 measures it, cut into acknowledged rounds.

The sender writes one block over and over, the receiver reads into one block: nothing but the
kernel's work. With iperf3's block of 128 KiB it reaches what iperf3 reaches, for CUBIC and BBR,
with offloads and without. Larger blocks are faster on some machines; the goodput case shows both.
`place=True` makes both sides work on a buffer of the round's size, as a gradient exchange has to.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import time

from bench.netlab import NetworkLab
from bench.transport.peers.flow import FlowResult
from bench.transport.peers.role import PeerError, Role, address_of, python_command

_MODULE = "bench.transport.peers.tcp_flow"
# iperf3's default for TCP.
_BLOCK_BYTES = 128 << 10
LARGE_BLOCK_BYTES = 1 << 20
_TCP_CONGESTION = 13
_ACK = b"k"


def run_tcp_flow(
    lab: NetworkLab | None,
    src_host: int,
    dst_host: int,
    nbytes: int,
    rounds: int,
    congestion: str | None = "cubic",
    *,
    warmup: int = 1,
    place: bool = False,
    block_bytes: int = _BLOCK_BYTES,
    timeout_s: float = 120.0,
) -> FlowResult:
    """`warmup` + `rounds` rounds of `nbytes` bytes over one TCP connection.

    `congestion` is set on both sockets (TCP_CONGESTION); None keeps the default. Raises
    `PeerError` where the kernel refuses it, `PeerTimeoutError` after `timeout_s`.
    """
    shape = [f"--nbytes={nbytes}", f"--rounds={rounds}", f"--warmup={warmup}"]
    shape += [f"--block-bytes={block_bytes}", *(["--place"] if place else [])]
    shape += [f"--congestion={congestion}"] if congestion else []
    here = f"--address={address_of(lab, dst_host)}"
    with Role(lab, dst_host, python_command(_MODULE, "receive", here, *shape)) as receiver:
        port = receiver.hear(timeout_s)["port"]
        command = python_command(_MODULE, "send", here, f"--port={port}", *shape)
        with Role(lab, src_host, command) as sender:
            sent = sender.hear(timeout_s)
            received = receiver.hear(timeout_s)
    return FlowResult(
        name=f"tcp {sent['congestion']}{' into place' if place else ''}",
        nbytes=nbytes,
        elapsed_s=tuple(sent["elapsed_s"][warmup:]),
        cold_s=tuple(sent["elapsed_s"][:warmup]),
        sender_cpu_s=sent["cpu_s"],
        receiver_cpu_s=received["cpu_s"],
        congestion=sent["congestion"],
    )


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _set_up(connection: socket.socket, name: str | None) -> None:
    # Without it the last bytes of a round may wait for a delayed acknowledgement (40 ms).
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if name is None:
        return
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, name.encode())
    except OSError as error:
        raise PeerError(
            f"this kernel refuses congestion control {name!r} here: run as root or in a lab"
        ) from error


def _send(options: argparse.Namespace) -> None:
    size = options.nbytes if options.place else options.block_bytes
    block = memoryview(bytearray(b"\x5a") * size)
    elapsed = []
    cpu_before = 0.0
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        _set_up(connection, options.congestion)
        connection.connect((options.address, options.port))
        for index in range(options.warmup + options.rounds):
            if index == options.warmup:
                cpu_before = cpu_seconds()
            started = time.perf_counter()
            left = options.nbytes
            while left:
                start = options.nbytes - left if options.place else 0
                step = min(left, options.block_bytes)
                connection.sendall(block[start : start + step])
                left -= step
            if connection.recv(1) != _ACK:
                raise PeerError("the receiver closed the connection in the middle of a round")
            elapsed.append(time.perf_counter() - started)
        cpu = cpu_seconds() - cpu_before
        raw = connection.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16)
    _answer(elapsed_s=elapsed, cpu_s=cpu, congestion=raw.rstrip(b"\0").decode())


def _receive(options: argparse.Namespace) -> None:
    size = options.nbytes if options.place else options.block_bytes
    block = memoryview(bytearray(size))
    cpu_before = 0.0
    with socket.create_server((options.address, 0)) as listener:
        _answer(port=listener.getsockname()[1])
        connection, _ = listener.accept()
    with connection:
        _set_up(connection, options.congestion)
        for index in range(options.warmup + options.rounds):
            if index == options.warmup:
                cpu_before = cpu_seconds()
            left = options.nbytes
            while left:
                start = options.nbytes - left if options.place else 0
                step = min(left, options.block_bytes)
                got = connection.recv_into(block[start : start + step])
                if got == 0:
                    raise PeerError("the sender closed the connection in the middle of a round")
                left -= got
            connection.sendall(_ACK)
    _answer(cpu_s=cpu_seconds() - cpu_before)


def _answer(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=_MODULE)
    parser.add_argument("role", choices=["send", "receive"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--nbytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--block-bytes", type=int, default=_BLOCK_BYTES)
    parser.add_argument("--congestion")
    parser.add_argument("--place", action="store_true")
    options = parser.parse_args(arguments)
    (_send if options.role == "send" else _receive)(options)


if __name__ == "__main__":
    main(sys.argv[1:])
