"""torch.distributed's gloo all-reduce (a TCP ring): N ranks as separate processes.

The ranks stay up between calls, so a bench can interleave their rounds with another side's. Each
rank times its own calls; a round takes as long as its slowest rank.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence

from bench.kernel import default_congestion, host_congestion
from bench.netlab import NetworkLab
from bench.transport.peers.role import Role, python_command
from bench.transport.peers.tcp_flow import cpu_seconds
from bench.transport.peers.team import Team

_MODULE = "bench.transport.peers.gloo_ring"
_START_TIMEOUT_S = 90.0
# gloo's own timeout must not fire before the bench's: under loss one round takes many seconds.
_GLOO_TIMEOUT_S = 1800


class GlooRing(Team):
    """A gloo process group with one rank on each of `hosts` of `lab` (lab None: loopback).

    `congestion` is the congestion control of the connections the ranks make now: a setting of the
    lab's routes, or without a lab the machine's default while the ranks connect (root). None keeps
    what there is. Start it before loss is injected: connecting through loss takes long.
    """

    patience_s = 0.2
    """A rank that hangs in a collective cannot end by itself, and the others wait for it."""

    def __init__(
        self, lab: NetworkLab | None, hosts: Sequence[int], *, congestion: str | None = None
    ) -> None:
        super().__init__("gloo")
        self.world = len(hosts)
        self._directory = tempfile.TemporaryDirectory(prefix="dblp-gloo-")
        self.cpu_s = 0.0
        """CPU seconds of all ranks in the last `rounds` call."""
        scope: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if congestion is not None and lab is not None:
            lab.set_congestion(congestion)
        elif congestion is not None and congestion != default_congestion():
            scope = host_congestion(congestion)
        self.congestion = congestion or (lab and lab.congestion) or default_congestion()
        env = {
            "GLOO_SOCKET_IFNAME": "lo" if lab is None else lab.interface,
            "OMP_NUM_THREADS": "1",
        }
        try:
            with scope:
                for rank, host in enumerate(hosts):
                    place = [self._directory.name, str(rank), str(self.world)]
                    command = python_command(_MODULE, *place)
                    self._roles.append(Role(lab, host, command, env=env))
                for role in self._roles:
                    role.hear(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def rounds(
        self, nbytes: int, count: int, *, warmup: int = 0, limit_s: float = 120.0
    ) -> list[float]:
        """`count` all-reduces of `nbytes` bytes of float32 after `warmup` untimed ones.

        Returns each round's seconds (its slowest rank). Raises `PeerTimeoutError` when they do not
        end within `limit_s`; the ring is ended then.
        """
        request = {"nbytes": nbytes, "count": count, "warmup": warmup}
        answers = self.ask_all(self._roles, [request] * self.world, limit_s)
        self.cpu_s = sum(answer["cpu_s"] for answer in answers)
        return [max(s) for s in zip(*(a["elapsed_s"] for a in answers), strict=True)]

    def close(self) -> None:
        """End the ranks. Safe to call twice."""
        super().close()
        self._directory.cleanup()


def run_gloo_ring(
    lab: NetworkLab | None,
    hosts: Sequence[int],
    nbytes: int,
    rounds: int,
    congestion: str | None = None,
    *,
    warmup: int = 2,
    limit_s: float = 120.0,
) -> list[float]:
    """One ring for one measurement: seconds of each of `rounds` all-reduces of `nbytes` bytes."""
    with GlooRing(lab, hosts, congestion=congestion) as ring:
        return ring.rounds(nbytes, rounds, warmup=warmup, limit_s=limit_s)


def main(arguments: list[str]) -> None:
    """One rank: joins the group, then answers requests until its pipe closes."""
    # Only a rank needs torch; the coordinator stays light.
    import torch
    import torch.distributed as dist

    directory, rank, world = arguments[0], int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        # A file instead of a TCP store: it works across network namespaces and adds no traffic.
        init_method=f"file://{os.path.join(directory, 'store')}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=_GLOO_TIMEOUT_S),
    )
    dist.barrier()
    print(json.dumps({"rank": rank}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        tensor = torch.ones(request["nbytes"] // 4, dtype=torch.float32)
        for _ in range(request["warmup"]):
            dist.all_reduce(tensor)
        dist.barrier()
        elapsed = []
        cpu_before = cpu_seconds()
        for _ in range(request["count"]):
            # Ones stay small numbers; a sum that grows round by round would end in infinity.
            tensor.fill_(1.0)
            started = time.perf_counter()
            dist.all_reduce(tensor)
            elapsed.append(time.perf_counter() - started)
        answer = {"elapsed_s": elapsed, "cpu_s": cpu_seconds() - cpu_before}
        if request["count"] and (tensor[0].item(), tensor[-1].item()) != (world, world):
            answer = {"error": f"the sum is {tensor[0].item()}, not {world}"}
        print(json.dumps(answer), flush=True)
    # No destroy_process_group: it waits for ranks that may have been ended already.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
