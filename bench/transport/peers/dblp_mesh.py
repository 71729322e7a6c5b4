"""`dblp.Mesh` in the benches: N ranks without a server, as separate processes that stay up.

As with the gloo ring, each rank times its own calls, and a round takes as long as its slowest rank.
"""

from __future__ import annotations

import json
import math
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.netlab import NetworkLab
from bench.transport.peers.role import (
    PeerError,
    Role,
    address_of,
    python_command,
)
from bench.transport.peers.tcp_flow import cpu_seconds
from bench.transport.peers.team import Team

_MODULE = "bench.transport.peers.dblp_mesh"
_START_TIMEOUT_S = 60.0
_UPLINK = ("chunks", "datagrams", "missing")
_SUMS = (*_UPLINK, "cpu_s", "fallback")


def mesh_missing() -> str | None:
    """Why no mesh can be measured here, as one sentence, or None."""
    try:
        import dblp
    except ImportError as error:
        return f"dblp cannot be imported: {error}"
    return None if hasattr(dblp, "Mesh") else "this dblp has no Mesh"


@dataclass
class MeshRounds:
    """Rounds of a mesh."""

    elapsed_s: list[float] = field(default_factory=list)
    """Each round's seconds: its slowest rank."""
    chunks: int = 0
    """Chunks of all uplinks."""
    datagrams: int = 0
    """Datagrams that the ranks sent for them."""
    missing: int = 0
    fallback: int = 0
    cpu_s: float = 0.0
    """CPU seconds of all ranks."""

    def extend(self, other: MeshRounds) -> None:
        self.elapsed_s += other.elapsed_s
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class DblpMesh(Team):
    """A mesh with one rank on each of `hosts` of `lab` (lab None: loopback).

    `downlink` is as for `dblp.Mesh`; `config` holds fields of TransportConfig.  The tolerance is
    that of a call.
    """

    def __init__(
        self,
        lab: NetworkLab | None,
        hosts: Sequence[int],
        *,
        downlink: str = "exact",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("dblp mesh")
        self.world = len(hosts)
        self.downlink = downlink
        try:
            for rank, host in enumerate(hosts):
                options = {
                    "rank": rank,
                    "world": self.world,
                    "listen": f"{address_of(lab, host)}:0",
                    "downlink": downlink,
                    "config": dict(config or {}),
                }
                command = python_command(_MODULE, json.dumps(options))
                self._roles.append(Role(lab, host, command))
            addresses = [role.hear(_START_TIMEOUT_S)["address"] for role in self._roles]
            for role in self._roles:
                role.tell({"addresses": addresses})
            for role in self._roles:
                role.hear(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def rounds(
        self,
        nbytes: int,
        count: int,
        *,
        tolerance: str = "0%",
        warmup: int = 0,
        limit_s: float = 120.0,
    ) -> MeshRounds:
        """`count` all-reduces of `nbytes` bytes of float32, after `warmup` that are not reported.

        Raises `PeerTimeoutError` when they do not end within `limit_s`; the mesh is ended then.
        Raises `PeerError` when a result is wrong or the ranks' results differ where they must not.
        """
        request = {"nbytes": nbytes, "count": count, "warmup": warmup, "tolerance": tolerance}
        answers = self.ask_all(self._roles, [request] * self.world, limit_s)
        if self.downlink != "lossy" and len({answer["crc"] for answer in answers}) > 1:
            raise PeerError(f"dblp mesh: the ranks' means differ with downlink={self.downlink!r}")
        return MeshRounds(
            elapsed_s=[max(s) for s in zip(*(a["elapsed_s"] for a in answers), strict=True)],
            **{name: sum(answer[name] for answer in answers) for name in _SUMS},
        )


def main(arguments: list[str]) -> None:
    """One rank: joins the mesh, then answers requests until its pipe closes."""
    # Only a rank needs dblp; the coordinator also runs where it cannot be imported.
    import dblp
    from bench.transport.peers.dblp_role import tile_of, transport_config

    options = json.loads(arguments[0])
    with dblp.Mesh(
        rank=options["rank"],
        world=options["world"],
        listen=options["listen"],
        downlink=options["downlink"],
        config=transport_config(options["config"]),
    ) as mesh:
        print(json.dumps({"address": mesh.address}), flush=True)
        mesh.connect(json.loads(sys.stdin.readline())["addresses"])
        print(json.dumps({"rank": mesh.rank}), flush=True)
        tile = tile_of(mesh.rank)
        buffer = np.empty(0, dtype=np.float32)
        for line in sys.stdin:
            request = json.loads(line)
            if len(buffer) != request["nbytes"] // 4:
                buffer = np.empty(request["nbytes"] // 4, dtype=np.float32)
            print(json.dumps(_rounds(mesh, buffer, tile, request)), flush=True)


def _rounds(
    mesh: Any, buffer: np.ndarray, tile: np.ndarray, request: Mapping[str, Any]
) -> dict[str, Any]:
    """The rounds of one request, and whether the mean is right."""
    from bench.transport.peers.dblp_role import fill, holds

    elapsed, reports = [], []
    cpu_before = 0.0
    for index in range(request["warmup"] + request["count"]):
        if index == request["warmup"]:
            cpu_before = cpu_seconds()
        fill(buffer, tile)
        started = time.perf_counter()
        # A fixed tolerance needs no norm of the gradient (`TolerancePolicy.needs_norms`).
        report = mesh.all_reduce(buffer, tolerance=request["tolerance"], squared_norm=math.nan)
        if index >= request["warmup"]:
            elapsed.append(time.perf_counter() - started)
            reports.append(report)
    cpu = cpu_seconds() - cpu_before
    uplinks = [part for report in reports for part in report.rounds if part.direction == "uplink"]
    # Rank r gave (r + 1) times the same values: the mean is (world + 1) / 2 times them.
    mean = tile * np.float32((mesh.world + 1) / 2 / (mesh.rank + 1))
    if dblp_exact(request["tolerance"]) and not holds(buffer, mean, rtol=1e-5):
        return {"error": "an exact round did not return the mean of the gradients"}
    return {
        "elapsed_s": elapsed,
        "cpu_s": cpu,
        "crc": zlib.crc32(buffer),
        "fallback": sum(part.fallback for part in uplinks),
        **{name: sum(getattr(part, name) for part in uplinks) for name in _UPLINK},
    }


def dblp_exact(tolerance: str) -> bool:
    """Whether a tolerance lets nothing be lost."""
    import dblp

    return dblp.Tolerance.of(tolerance).is_exact


if __name__ == "__main__":
    main(sys.argv[1:])
