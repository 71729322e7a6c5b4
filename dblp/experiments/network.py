"""The network that an experiment runs in: the machine's loopback, or a shaped one of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Literal, NoReturn

from ..errors import ConfigError

__all__ = ["NETWORKS", "Network", "enter", "is_shaped"]

Network = Literal["loopback", "1gbit"]
NETWORKS: tuple[Network, ...] = ("loopback", "1gbit")

INSIDE = "DBLP_EXPERIMENT_NETWORK"
"""Environment variable with the network that a process was started in."""

SHAPE = (
    "ip link set lo up mtu 1500 && "
    "tc qdisc add dev lo root tbf rate 1gbit burst 64kb latency 20ms && "
    'exec "$@"'
)
"""One gigabit per second for everything that is sent, with a queue of 20 ms."""

PROBE_S = 10.0


def enter(network: str, arguments: Sequence[str]) -> None:
    """Sees to it that this process runs in `network`.

    Returns on loopback and in a process that is in `network` already.  Otherwise this process is
    replaced by `python -m dblp` with `arguments` in a network namespace of its own, where loopback
    is shaped.  That takes user namespaces or root, and the commands unshare, ip and tc.

    Raises:
        ConfigError: there is no such network, or this machine cannot make it.
    """
    if network not in NETWORKS:
        raise ConfigError(f"--network is {network!r}: choose one of {', '.join(NETWORKS)}")
    if network == "loopback" or os.environ.get(INSIDE) == network:
        return
    missing = [command for command in ("unshare", "ip", "tc") if shutil.which(command) is None]
    if missing:
        raise ConfigError(
            f"--network {network} needs the command {' and '.join(missing)}, not found here: "
            "install util-linux and iproute2, or leave --network out"
        )
    flags = "-n" if os.geteuid() == 0 else "-Urn"
    shaped = ["unshare", flags, "sh", "-c", SHAPE, "sh"]
    _try([*shaped, "true"], network)
    _replace([*shaped, sys.executable, "-m", "dblp", *arguments], network)


def is_shaped() -> bool:
    """Whether this process, or the one that started it, is in a shaped network."""
    return os.environ.get(INSIDE, "loopback") != "loopback"


def _try(command: Sequence[str], network: str) -> None:
    """Makes the network once for nothing, so that what goes wrong has a sentence."""
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise ConfigError(
            f"--network {network} cannot be made on this machine ({said}): run it as root, allow "
            "user namespaces, or leave --network out"
        ) from error


def _replace(command: list[str], network: str) -> NoReturn:
    os.execvpe(command[0], command, {**os.environ, INSIDE: network})
