"""What the benches read from the Linux kernel, and the settings they change and put back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self


class LabError(RuntimeError):
    """The lab, or a command in it, does not work here; the message says what to do."""


class LabPermissionError(LabError):
    """This process may not create network namespaces."""


@dataclass(frozen=True)
class UdpCounters:
    """The kernel's UDP counters of one host, IPv4 and IPv6 together, in datagrams."""

    in_datagrams: int
    out_datagrams: int
    in_errors: int
    rcvbuf_errors: int
    """Datagrams that arrived but found the receive buffer full."""
    sndbuf_errors: int
    csum_errors: int

    def __sub__(self, before: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


@dataclass(frozen=True)
class LinkCounters:
    """What passed one host's interface. With offloads on, a packet may be up to 64 KiB."""

    rx_bytes: int
    rx_packets: int
    tx_bytes: int
    tx_packets: int

    def __sub__(self, before: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))


def available_congestion() -> list[str]:
    """The congestion controls this kernel can use now."""
    path = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    return path.read_text().split()


def default_congestion() -> str:
    """The congestion control of new connections outside a lab."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


@contextlib.contextmanager
def host_sysctls(values: Mapping[str, str]) -> Iterator[None]:
    """Set sysctls of the namespace this process is in (root), and put the old values back.

    For what a namespace does not own (`net.core.rmem_max`) and for benches outside a lab. It is
    seen by every process on the machine: prefer the lab's own settings where there are any.
    """
    before: dict[str, str] = {}
    try:
        for name, value in values.items():
            path = Path("/proc/sys") / name.replace(".", "/")
            old = path.read_text().strip()
            try:
                path.write_text(value)
            except OSError as error:
                raise LabPermissionError(f"sysctl {name} cannot be set: run it as root") from error
            before[name] = old
        yield
    finally:
        for name, value in reversed(before.items()):
            (Path("/proc/sys") / name.replace(".", "/")).write_text(value)


def host_congestion(name: str) -> contextlib.AbstractContextManager[None]:
    """New TCP connections outside a lab use `name` while the context lasts (root)."""
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    values = {"net.ipv4.tcp_congestion_control": name}
    if name not in allowed:
        # The order matters: it must be allowed before it can be the default, and the reverse after.
        wanted = " ".join([*allowed, name])
        values = {"net.ipv4.tcp_allowed_congestion_control": wanted, **values}
    return host_sysctls(values)


def own_udp_counters() -> UdpCounters:
    """The kernel's UDP counters of the namespace this process is in."""
    six = Path("/proc/net/snmp6")
    return parse_udp_counters(
        Path("/proc/net/snmp").read_text(), six.read_text() if six.exists() else ""
    )


def parse_udp_counters(snmp: str, snmp6: str) -> UdpCounters:
    """`UdpCounters` from the text of /proc/net/snmp and /proc/net/snmp6 (may be empty)."""
    four = snmp_table(snmp, "Udp")
    six = {}
    for line in snmp6.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].startswith("Udp6"):
            six[words[0].removeprefix("Udp6")] = int(words[1])

    def total(name: str) -> int:
        return four.get(name, 0) + six.get(name, 0)

    return UdpCounters(
        in_datagrams=total("InDatagrams"),
        out_datagrams=total("OutDatagrams"),
        in_errors=total("InErrors"),
        rcvbuf_errors=total("RcvbufErrors"),
        sndbuf_errors=total("SndbufErrors"),
        csum_errors=total("InCsumErrors"),
    )


def snmp_table(snmp: str, protocol: str) -> dict[str, int]:
    rows = [line.split()[1:] for line in snmp.splitlines() if line.startswith(f"{protocol}: ")]
    if len(rows) != 2:
        return {}
    return {name: int(value) for name, value in zip(rows[0], rows[1], strict=True)}


def touch_memory(nbytes: int) -> None:
    """Uses this much memory once, in a process of its own.

    A virtual machine gets a page from its host when it first touches it, at a fraction of the usual
    speed.  Whichever side of a comparison comes to that memory first would pay for it.
    """
    code = "import sys; bytearray(b'x') * int(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(nbytes)], check=False, timeout=120)
