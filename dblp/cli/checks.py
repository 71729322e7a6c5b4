"""What `dblp doctor` looks at.  Every check is bounded in time and raises nothing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import platform
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from .. import FASTPATH, __version__, fastpath

Status = Literal["ok", "warning", "error"]

ECHO_WAIT_S = 2.0
"""Longest wait for a datagram or a connection on loopback; takes microseconds where it works."""

BUFFER_OPTIONS = {
    "receive buffer": (socket.SO_RCVBUF, "net.core.rmem_max"),
    "send buffer": (socket.SO_SNDBUF, "net.core.wmem_max"),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    status: Status
    found: str
    wanted: str = ""
    advice: str = ""
    """What to do about it; empty when all is well."""

    def to_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        return dataclasses.asdict(self)


def run_checks(*, buffer_bytes: int, mtu: int) -> list[Check]:
    """All checks.  `buffer_bytes` is the wanted socket buffer, `mtu` the wanted MTU in bytes."""
    checks: list[Callable[[], list[Check]]] = [
        check_version,
        check_fast_path,
        check_crc32c,
        check_loop,
        check_udp_loopback,
        check_tcp_loopback,
        lambda: check_buffers(buffer_bytes),
        check_offload,
        lambda: check_mtu(mtu),
    ]
    return [finding for check in checks for finding in check()]


def check_version() -> list[Check]:
    """Which package on which system."""
    found = f"dblp {__version__}, Python {platform.python_version()}, {platform.system()}"
    return [Check("version", "ok", f"{found} {platform.release()} {platform.machine()}")]


def check_fast_path() -> list[Check]:
    """Whether the compiled extension is loaded."""
    if FASTPATH == "compiled":
        return [Check("fast path", "ok", FASTPATH, "compiled")]
    return [
        Check(
            "fast path",
            "warning",
            FASTPATH,
            "compiled",
            "the Python twin is correct but many times slower; install a C compiler and reinstall"
            " with DBLP_EXTENSIONS=require",
        )
    ]


def check_crc32c() -> list[Check]:
    """Whether checksums are computed in hardware."""
    backend = fastpath.crc32c_backend()
    if backend not in ("portable", "python"):
        return [Check("CRC32C", "ok", backend, "hardware")]
    return [
        Check(
            "CRC32C",
            "warning",
            backend,
            "hardware",
            "checksums are computed in software, which limits throughput; use a processor with"
            " SSE4.2 or ARMv8 CRC and the compiled fast path",
        )
    ]


def check_loop() -> list[Check]:
    """Whether uvloop is there."""
    if importlib.util.find_spec("uvloop") is not None:
        return [
            Check("event loop", "ok", f"uvloop {importlib.metadata.version('uvloop')}", "uvloop")
        ]
    advice = "asyncio's own loop works but is slower; run pip install uvloop"
    return [Check("event loop", "warning", "asyncio", "uvloop", advice)]


def check_udp_loopback() -> list[Check]:
    """Whether a datagram sent to 127.0.0.1 arrives."""
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            receiver.bind(("127.0.0.1", 0))
            receiver.settimeout(ECHO_WAIT_S)
            sender.sendto(b"dblp doctor", receiver.getsockname())
            arrived = receiver.recv(64) == b"dblp doctor"
    except OSError as error:
        return [_loopback_error("UDP", str(error))]
    if not arrived:
        return [_loopback_error("UDP", "another datagram arrived")]
    return [Check("UDP loopback", "ok", "works", "works")]


def check_tcp_loopback() -> list[Check]:
    """Whether a TCP connection to 127.0.0.1 can be made."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(ECHO_WAIT_S)
            address = listener.getsockname()
            with socket.create_connection(address, ECHO_WAIT_S), listener.accept()[0]:
                pass
    except OSError as error:
        return [_loopback_error("TCP", str(error))]
    return [Check("TCP loopback", "ok", "works", "works")]


def _loopback_error(protocol: str, reason: str) -> Check:
    advice = (
        f"{protocol} sockets do not work on 127.0.0.1: check the firewall, the sandbox and that the"
        " lo interface is up (ip link set lo up)"
    )
    return Check(f"{protocol} loopback", "error", reason, "works", advice)


def check_buffers(wanted_bytes: int) -> list[Check]:
    """How much socket buffer the kernel grants, set and read back."""
    findings = []
    for name, (option, sysctl) in BUFFER_OPTIONS.items():
        try:
            granted = granted_buffer(option, wanted_bytes)
        except OSError as error:
            findings.append(
                Check(name, "error", str(error), size(wanted_bytes), "open a UDP socket")
            )
            continue
        if granted >= wanted_bytes:
            findings.append(Check(name, "ok", size(granted), size(wanted_bytes)))
            continue
        advice = (
            f"sudo sysctl -w {sysctl}={wanted_bytes}  (to keep it: echo '{sysctl}={wanted_bytes}'"
            " | sudo tee -a /etc/sysctl.d/90-dblp.conf)"
        )
        findings.append(Check(name, "warning", size(granted), size(wanted_bytes), advice))
    return findings


def granted_buffer(option: int, wanted_bytes: int) -> int:
    """Bytes that the kernel grants a UDP socket for `option` when asked for `wanted_bytes`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
        granted = probe.getsockopt(socket.SOL_SOCKET, option)
    # Linux doubles the value for its own bookkeeping and reports the double (socket(7)).
    return granted // 2 if sys.platform == "linux" else granted


def size(nbytes: int) -> str:
    """Bytes for people, in the unit that sysctl takes and in MiB."""
    return f"{nbytes:,} bytes ({nbytes / (1 << 20):.1f} MiB)"


def check_offload() -> list[Check]:
    """Whether the kernel segments and joins datagrams for us."""
    try:
        found = udp_offload()
    except OSError as error:
        return [Check("UDP offload", "warning", str(error), "GSO and GRO", "needs a UDP socket")]
    findings = []
    for name, works, version in (("GSO", found[0], "4.18"), ("GRO", found[1], "5.0")):
        advice = (
            "" if works else f"many more system calls per round; needs Linux {version} or newer"
        )
        status: Status = "ok" if works else "warning"
        findings.append(
            Check(f"UDP {name}", status, "works" if works else "refused", "works", advice)
        )
    return findings


def udp_offload() -> tuple[bool, bool]:
    """Whether GSO and GRO work on a UDP socket here."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return fastpath.probe_offload(probe.fileno())


def check_mtu(wanted: int) -> list[Check]:
    """MTU of every interface that is up; one below `wanted` bytes needs a setting."""
    mtus = interface_mtus()
    if not mtus:
        return [Check("MTU", "ok", "unknown", f"{wanted} bytes")]
    findings = []
    for name, found in mtus.items():
        if found >= wanted:
            findings.append(Check(f"MTU of {name}", "ok", f"{found} bytes", f"{wanted} bytes"))
            continue
        advice = (
            f"datagrams of {wanted} bytes do not pass {name} in one piece; where traffic takes it,"
            f" use TransportConfig(mtu={found})"
        )
        findings.append(
            Check(f"MTU of {name}", "warning", f"{found} bytes", f"{wanted} bytes", advice)
        )
    return findings


def interface_mtus(root: Path = Path("/sys/class/net")) -> dict[str, int]:
    """MTU in bytes of every interface that is up, by name; empty where the system does not say."""
    mtus: dict[str, int] = {}
    try:
        interfaces = sorted(root.iterdir())
    except OSError:
        return mtus
    for interface in interfaces:
        try:
            if (interface / "operstate").read_text().strip() in ("up", "unknown"):
                mtus[interface.name] = int((interface / "mtu").read_text())
        except (OSError, ValueError):
            continue
    return mtus
