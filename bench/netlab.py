"""A small network on one machine: N hosts behind one switch, for benches and integration tests.

Every host is a network namespace with one interface `e0` (10.99.0.1, 10.99.0.2, ...), the switch
is a namespace with a bridge and one port per host. The namespaces have no names: each one lives
exactly as long as its holder process, and a holder ends when the pipe from this process closes. So
two labs never collide, and nothing stays behind even if this process is killed.

Works as root, or without root inside `unshare -Urn`. Needs iproute2, nftables, ethtool, util-linux.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.kernel import (
    LabError,
    LabPermissionError,
    LinkCounters,
    UdpCounters,
    available_congestion,
    parse_udp_counters,
    snmp_table,
)

_TOOLS = ("ip", "tc", "nft", "ethtool", "unshare", "nsenter")
_COMMAND_TIMEOUT_S = 20.0
# The smallest burst that lets a 64 KiB segmentation-offload packet through tbf after segmentation.
_SHAPER_BURST = "32k"
_NO_PERMISSION = (
    "the network lab may not create network namespaces: run it as root or in `unshare -Urn`"
)
_ALL_PPM = 1_000_000
_OFFLOADS = ("tso", "gso", "gro", "tx-udp-segmentation")


def lab_unavailable() -> str | None:
    """Why no lab can be built here, as one sentence, or None when one can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"the network lab needs {', '.join(missing)}: install iproute2, nftables and ethtool"
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        return _NO_PERMISSION
    return None


class _Namespace:
    """One anonymous network namespace, kept alive by a process that waits for its pipe to close."""

    def __init__(self) -> None:
        # `cat` answers with the line it got: from then on the namespace is known to exist.
        self._holder = subprocess.Popen(
            ["unshare", "-n", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.write(b"up\n")
        self._holder.stdin.flush()
        if self._holder.stdout.readline() != b"up\n":
            self.close()
            raise LabPermissionError(_NO_PERMISSION)

    @property
    def pid(self) -> int:
        return self._holder.pid

    def enter(self, command: Sequence[str]) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]

    def read(self, path: str) -> str:
        """A file of this namespace's /proc/net."""
        return Path(f"/proc/{self.pid}/net/{path}").read_text()

    def close(self) -> None:
        for pipe in (self._holder.stdin, self._holder.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._holder.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()


class NetworkLab:
    """N hosts behind a switch; use it as a context manager.

    `hosts` is the number of hosts, `mtu` the MTU of every link in bytes. `offloads=False` makes
    every packet on the wire MTU-sized, as on a real network's wire (segmentation and GRO off).
    Raises `LabPermissionError` or `LabError`, one sentence each.
    """

    interface = "e0"

    def __init__(self, hosts: int, *, mtu: int = 1500, offloads: bool = True) -> None:
        if not 1 <= hosts <= 250:
            raise ValueError(f"hosts is {hosts}: the lab takes 1 to 250")
        reason = lab_unavailable()
        if reason is not None:
            raise LabPermissionError(reason)
        self.mtu = mtu
        self.offloads = True
        self.congestion: str | None = None
        """Congestion control of new TCP connections where `set_congestion` chose it."""
        self._hosts: list[_Namespace] = []
        self._switch: _Namespace | None = None
        self._children: list[subprocess.Popen[Any]] = []
        try:
            self._build(hosts)
            self.set_offloads(offloads)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._hosts)

    def _build(self, hosts: int) -> None:
        self._switch = _Namespace()
        self._on_switch("ip", "link", "add", "br0", "type", "bridge")
        self._on_switch("ip", "link", "set", "br0", "mtu", str(self.mtu), "up")
        for index in range(hosts):
            host = _Namespace()
            self._hosts.append(host)
            port = f"p{index}"
            self.run(
                index, "ip", "link", "add", "e0", "mtu", str(self.mtu), "type", "veth",
                "peer", "name", port, "mtu", str(self.mtu), "netns", str(self._switch.pid),
            )  # fmt: skip
            self._on_switch("ip", "link", "set", port, "master", "br0", "up")
            self.run(index, "ip", "addr", "add", f"{self.address(index)}/24", "dev", "e0")
            for link in ("lo", "e0"):
                self.run(index, "ip", "link", "set", link, "up")
            with contextlib.suppress(LabError):  # a kernel without IPv6 still makes a lab
                self.run(
                    index, "ip", "-6", "addr", "add", f"{self.address6(index)}/64",
                    "dev", "e0", "nodad",
                )  # fmt: skip

    # -- addresses and commands -------------------------------------------------------------------

    def address(self, host: int) -> str:
        return f"10.99.0.{host + 1}"

    def address6(self, host: int) -> str:
        return f"fd99::{host + 1:x}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """`command` as it must be started so that it runs on `host`."""
        return self._hosts[host].enter(command)

    def popen(self, host: int, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start `command` on `host`; the lab ends it at the latest when it closes."""
        child = subprocess.Popen(self.command(host, command), **options)
        self._children.append(child)
        return child

    def run(self, host: int, *command: str, stdin: str | None = None) -> str:
        """Run a short command on `host` and return its standard output; `LabError` if it fails."""
        return _run(self.command(host, command), stdin)

    def exec(
        self, host: int, command: Sequence[str], *, check: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` on `host`."""
        return subprocess.run(self.command(host, command), check=check, **options)

    def _on_switch(self, *command: str) -> str:
        assert self._switch is not None
        return _run(self._switch.enter(command), None)

    # -- the network's properties -----------------------------------------------------------------

    def set_offloads(self, on: bool) -> None:
        """Segmentation and receive offloads of every host and every port of the switch."""
        word = "on" if on else "off"
        for feature in _OFFLOADS:
            for index in range(len(self._hosts)):
                # A feature that veth does not have here is no error: there is none to turn off.
                with contextlib.suppress(LabError):
                    self.run(index, "ethtool", "-K", "e0", feature, word)
                with contextlib.suppress(LabError):
                    self._on_switch("ethtool", "-K", f"p{index}", feature, word)
        self.offloads = on

    def set_loss(self, ppm: int, *, protocol: str | None = None) -> None:
        """Every host drops `ppm` packets per million where they arrive (0: none).

        `protocol` is "udp" or "tcp", None means all. With offloads on a packet is what the kernel
        hands around: up to 64 KiB at once, for TCP and for UDP alike.
        """
        if not 0 <= ppm <= _ALL_PPM:
            raise ValueError(f"ppm is {ppm}: give packets per million, 0 to 1,000,000")
        if protocol not in (None, "udp", "tcp"):
            raise ValueError(f"protocol is {protocol!r}: give 'udp', 'tcp' or None")
        match = f"meta l4proto {protocol} " if protocol else ""
        # The kernel refuses to compare with the modulus itself, so all is a rule without a draw.
        chance = f"numgen random mod 1000000 < {ppm} " if ppm < _ALL_PPM else ""
        script = "add table inet lab\ndelete table inet lab\n"
        if ppm:
            script += (
                "add table inet lab\n"
                "add chain inet lab arrive { type filter hook input priority 0; }\n"
                f'add rule inet lab arrive iifname "e0" {match}{chance}drop\n'
            )
        for index in range(len(self._hosts)):
            self.run(index, "nft", "-f", "-", stdin=script)

    def set_rate(
        self, mbit: float, limit_bytes: int, *, ports: Sequence[int] | None = None,
        hosts_too: bool = False,
    ) -> None:  # fmt: skip
        """Shape switch ports (towards the hosts): `mbit` Mb/s, drop-tail buffer of `limit_bytes`.

        `mbit` 0 takes the shaping off. `ports` None means all. `hosts_too` also limits what a host
        sends, with a long queue that does not drop, as a network card of that speed would.
        """
        for port in range(len(self._hosts)) if ports is None else ports:
            self._shape(None, f"p{port}", mbit, limit_bytes)
            if hosts_too or not mbit:
                self._shape(port, "e0", mbit, 16 << 20)

    def _shape(self, host: int | None, device: str, mbit: float, limit_bytes: int) -> None:
        base = ["tc", "qdisc", "replace" if mbit else "del", "dev", device, "root"]
        if mbit:
            rate = ["rate", f"{int(mbit * 1e6)}bit", "burst", _SHAPER_BURST]
            base += ["tbf", *rate, "limit", str(limit_bytes)]
        with contextlib.nullcontext() if mbit else contextlib.suppress(LabError):
            if host is None:
                self._on_switch(*base)
            else:
                self.run(host, *base)

    def set_congestion(self, name: str) -> None:
        """Congestion control ("cubic", "bbr") of TCP connections that hosts start from now on.

        Done by a route attribute, which needs no change outside the lab's namespaces. Applies to
        e0 and to each host's loopback, on both ends of a connection.
        """
        if name not in available_congestion():
            raise LabError(
                f"this kernel has no congestion control {name!r}: it has "
                f"{', '.join(available_congestion())}"
            )
        for index in range(len(self._hosts)):
            mine = self.address(index)
            self.run(
                index, "ip", "route", "replace", "10.99.0.0/24", "dev", "e0", "proto", "kernel",
                "scope", "link", "src", mine, "congctl", name,
            )  # fmt: skip
            for local, device in (("127.0.0.1", "lo"), (mine, "e0")):
                self.run(
                    index, "ip", "route", "replace", "local", local, "dev", device, "table",
                    "local", "proto", "kernel", "scope", "host", "src", local, "congctl", name,
                )  # fmt: skip
        self.congestion = name

    def set_sysctl(self, name: str, value: str) -> None:
        """A sysctl of every host's namespace, such as `net.ipv4.tcp_rmem`."""
        for index in range(len(self._hosts)):
            self.run(index, "sysctl", "-qw", f"{name}={value}")

    # -- counters ---------------------------------------------------------------------------------

    def drops(self) -> dict[int, int]:
        """Packets that each shaped port of the switch has dropped so far, by host."""
        counts = dict.fromkeys(range(len(self._hosts)), 0)
        for qdisc in json.loads(self._on_switch("tc", "-s", "-j", "qdisc", "show")):
            device = str(qdisc.get("dev", ""))
            if qdisc.get("kind") == "tbf" and device.startswith("p"):
                counts[int(device[1:])] += int(qdisc.get("drops", 0))
        return counts

    def udp_counters(self, host: int) -> UdpCounters:
        return parse_udp_counters(self._hosts[host].read("snmp"), self._snmp6(host))

    def link_counters(self, host: int) -> LinkCounters:
        for line in self._hosts[host].read("dev").splitlines():
            name, _, rest = line.partition(":")
            if name.strip() == "e0":
                n = [int(word) for word in rest.split()]
                return LinkCounters(rx_bytes=n[0], rx_packets=n[1], tx_bytes=n[8], tx_packets=n[9])
        raise LabError(f"host {host} has no interface e0 any more: build a new lab")

    def tcp_retransmitted(self, host: int) -> int:
        """TCP segments that the host has sent again so far."""
        return snmp_table(self._hosts[host].read("snmp"), "Tcp").get("RetransSegs", 0)

    def _snmp6(self, host: int) -> str:
        try:
            return self._hosts[host].read("snmp6")
        except FileNotFoundError:
            return ""

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End what still runs in the lab and take the network down; safe to call twice."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
                child.wait()
        self._children.clear()
        for namespace in (*self._hosts, self._switch):
            if namespace is not None:
                namespace.close()
        self._hosts.clear()
        self._switch = None


def _run(command: Sequence[str], stdin: str | None) -> str:
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False,
            timeout=_COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{' '.join(command)}` took over {_COMMAND_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()
        raise LabError(f"`{' '.join(command)}` failed: {reason[0] if reason else done.returncode}")
    return done.stdout
