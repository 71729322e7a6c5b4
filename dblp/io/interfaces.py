"""Which addresses of this host to tell others (field problems 1 and 2).

A host name is never asked for: on many systems it resolves to 127.0.1.1.  What counts is the route
to a peer that is known, and what the kernel says about its interfaces.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError
from .udp import is_own_address

__all__ = [
    "IFNAME_VARIABLE",
    "Interface",
    "advertised_addresses",
    "choose_interfaces",
    "common_family",
    "host_key",
    "interfaces",
    "is_within_host",
    "path_mtu",
    "route_to",
]

IFNAME_VARIABLE = "DBLP_SOCKET_IFNAME"
"""Environment variable that names the interfaces to use, such as "eth0" or "^docker,veth"."""

_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40  # sizeof(struct ifreq) on 64-bit Linux
_IFREQS_MAX = 256
_IF_INET6 = Path("/proc/net/if_inet6")
_IP_MTU = 14
_IPV6_MTU = 24  # Linux: what the kernel knows of the path of a connected socket
_BRIDGES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "lxc")
"""Interfaces of container engines: reachable from this host only, most of the time."""


@dataclass(frozen=True, slots=True)
class Interface:
    """One address of one interface that is up."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        return ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def interfaces() -> list[Interface]:
    """All usable addresses of this network namespace, IPv4 first; link-local ones left out."""
    return [*_ipv4(), *_ipv6()]


def _ipv4() -> list[Interface]:
    room = array.array("B", bytes(_IFREQ_BYTES * _IFREQS_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        where, size = room.buffer_info()
        request = struct.pack("iP", size, where)
        used = struct.unpack("iP", fcntl.ioctl(sock.fileno(), _SIOCGIFCONF, request))[0]
    found = []
    for start in range(0, used, _IFREQ_BYTES):
        entry = room[start : start + _IFREQ_BYTES].tobytes()
        name = entry[:16].split(b"\0", 1)[0].decode()
        found.append(Interface(name.split(":")[0], socket.inet_ntoa(entry[20:24])))
    return [item for item in found if not ipaddress.ip_address(item.address).is_link_local]


def _ipv6() -> list[Interface]:
    found = []
    with contextlib.suppress(OSError):  # a kernel without IPv6
        for line in _IF_INET6.read_text(encoding="ascii").splitlines():
            digits, _, _, _, _, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if not address.is_link_local:
                found.append(Interface(name, str(address)))
    return found


def choose_interfaces(wish: str, found: Sequence[Interface] | None = None) -> list[Interface]:
    """The interfaces that `wish` names, in its order.

    Args:
        wish: names with commas between; each is a prefix, "=eth0" an exact name; "^docker,veth"
            takes all but those (the syntax of NCCL_SOCKET_IFNAME).
        found: what to choose from; None asks the kernel.

    Raises:
        ConfigError: nothing matches; lists what there is.
    """
    found = interfaces() if found is None else found
    excluded = wish.startswith("^")
    names = [name.strip() for name in wish.lstrip("^").split(",") if name.strip()]

    def matches(item: Interface, name: str) -> bool:
        return item.name == name[1:] if name.startswith("=") else item.name.startswith(name)

    if excluded:
        chosen = [item for item in found if not any(matches(item, name) for name in names)]
    else:
        chosen = [item for name in names for item in found if matches(item, name)]
    if not chosen:
        raise ConfigError(
            f"{IFNAME_VARIABLE} is {wish!r}, but no interface of this host matches: choose from "
            f"{', '.join(map(str, found)) or 'none, as no interface is up'}"
        )
    return list(dict.fromkeys(chosen))


def route_to(host: str, port: int = 9) -> str | None:
    """The local address from which packets to `host` leave; None when there is no route.

    Sends nothing: a connected UDP socket only looks the route up.
    """
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        return None
    for family, kind, protocol, _, address in known:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
            sock.connect(address)
            return str(sock.getsockname()[0])
    return None


def path_mtu(host: str, port: int = 9) -> int | None:
    """The largest packet in bytes that the path to `host` takes, as far as this kernel knows (at
    least the MTU of the interface); None where it does not say.  Sends nothing."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            if family == socket.AF_INET6:
                return probe.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def is_within_host(host: str, *, packet_bytes: int) -> bool:
    """Whether `host` is an address of this one, to which packets of this size can go.  Sends
    nothing."""
    local, there = route_to(host), _resolved(host)
    is_own = bool(there) and all(is_own_address(address, local=local) for address in there)
    return is_own and (path_mtu(host) or 0) >= packet_bytes


def _resolved(host: str) -> set[str]:
    try:
        return {str(item[4][0]) for item in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)}
    except socket.gaierror:
        return set()


def advertised_addresses(
    master: str | None, wish: str | None = None, found: Sequence[Interface] | None = None
) -> list[str]:
    """Addresses at which other hosts may reach this one, best first.

    Args:
        master: host that all ranks know, such as MASTER_ADDR; the address on the route to it comes
            first.  None: unknown.
        wish: as in `choose_interfaces`; None reads DBLP_SOCKET_IFNAME.  What it names is final.
        found: the interfaces; None asks the kernel.

    Raises:
        ConfigError: the wish matches nothing, or the host has no address at all.
    """
    wish = os.environ.get(IFNAME_VARIABLE, "") if wish is None else wish
    found = interfaces() if found is None else found
    if wish:
        return list(dict.fromkeys(item.address for item in choose_interfaces(wish, found)))
    outside = sorted(
        (item for item in found if not item.is_loopback),
        key=lambda item: item.name.startswith(_BRIDGES),
    )
    addresses = [item.address for item in outside]
    route = route_to(master) if master else None
    if route is not None and not ipaddress.ip_address(route).is_loopback:
        addresses.insert(0, route)
    if not addresses:
        addresses = [item.address for item in found]
    if not addresses:
        raise ConfigError("this host has no network address: bring an interface up, such as lo")
    return list(dict.fromkeys(addresses))


def common_family(tables: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of the addresses of every rank those of one family, the same for all: a listening socket has
    one, and datagrams of the other are of another size.

    Args:
        tables: by rank, best first, none of them empty.  The first rank's best address counts most.

    Raises:
        ConfigError: there is no such family; names two ranks.
    """
    best = ipaddress.ip_address(tables[0][0]).version
    for version in (best, 10 - best):  # 4 and 6
        chosen = [
            [text for text in table if ipaddress.ip_address(text).version == version]
            for table in tables
        ]
        if all(chosen):
            return chosen
        if version == best:
            lacking = next(rank for rank, table in enumerate(chosen) if not table)
    raise ConfigError(
        f"rank 0 has the address {tables[0][0]} and rank {lacking} {tables[lacking][0]}, and not "
        f"all ranks have one of either family: give all hosts IPv4 addresses, or all IPv6"
    )


def host_key() -> str:
    """Equal for processes that share a network stack, and so reach each other over loopback."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{boot.read_text(encoding='ascii').strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return f"unknown {os.urandom(8).hex()}"
