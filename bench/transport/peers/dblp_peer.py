"""`dblp` in the benches: a parameter-server star that stays up, and one flow between two peers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.kernel import own_udp_counters
from bench.netlab import NetworkLab
from bench.transport.peers.flow import FlowResult
from bench.transport.peers.role import Role, address_of, python_command
from bench.transport.peers.team import Team

_MODULE = "bench.transport.peers.dblp_role"
_START_TIMEOUT_S = 60.0


def star_missing() -> str | None:
    """Why no parameter-server star can be measured here, as one sentence, or None."""
    return _missing("ParameterServer", "Worker")


def flow_missing() -> str | None:
    """Why no flow between two peers can be measured here, as one sentence, or None."""
    return _missing("Listener", "Peer")


def _missing(*wanted: str) -> str | None:
    try:
        import dblp
    except ImportError as error:
        return f"dblp cannot be imported: {error}"
    missing = [name for name in wanted if not hasattr(dblp, name)]
    return f"this dblp has no {', '.join(missing)}" if missing else None


@dataclass
class StarRounds:
    """Rounds of a star. Index of the inner lists: the round."""

    elapsed_s: list[float] = field(default_factory=list)
    """Each round's seconds: its slowest worker."""
    uplink_s: list[list[float]] = field(default_factory=list)
    """Per rank: seconds until the server had enough of this worker's gradient."""
    chunks: int = 0
    """Chunks of all uplinks."""
    datagrams: int = 0
    """Datagrams that the workers sent for them."""
    missing: int = 0
    regimes: list[str] = field(default_factory=list)
    """Regime of each round, at rank 0."""
    at_deadline: int = 0
    fallback: int = 0
    cpu_s: float = 0.0
    """CPU seconds of the workers and the server."""

    def extend(self, other: StarRounds) -> None:
        self.elapsed_s += other.elapsed_s
        if not self.uplink_s:
            self.uplink_s = [[] for _ in other.uplink_s]
        for mine, its in zip(self.uplink_s, other.uplink_s, strict=True):
            mine += its
        self.regimes += other.regimes
        for name in ("chunks", "datagrams", "missing", "at_deadline", "fallback", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class DblpStar(Team):
    """A parameter server on one host and one worker on each of `worker_hosts` (lab None: loopback).

    `policy` is "fixed:0.8%" or "adaptive:0.8%:40.8%"; `config` holds fields of TransportConfig.
    Gradients of `nbytes` bytes, and the server's buffers for them, are there before the first
    round, as in a training; of other sizes they are made in their first round.
    """

    def __init__(
        self,
        lab: NetworkLab | None,
        server_host: int,
        worker_hosts: Sequence[int],
        *,
        policy: str = "fixed:0",
        downlink: str = "exact",
        config: Mapping[str, Any] | None = None,
        nbytes: int = 0,
    ) -> None:
        super().__init__("dblp")
        self.policy = policy
        self.total = StarRounds()
        """Everything `rounds` has returned so far."""
        settings = {
            "config": dict(config or {}),
            "policy": policy,
            "downlink": downlink,
            "nbytes": nbytes,
            "workers": len(worker_hosts),
            "world": len(worker_hosts),
            "exact": policy in ("fixed:0", "fixed:0%"),
        }
        address = f"{address_of(lab, server_host)}:0"
        try:
            self._server = self._start(lab, server_host, "serve", {**settings, "address": address})
            settings["address"] = self._server.hear(_START_TIMEOUT_S)["address"]
            self._workers = [
                self._start(lab, host, "work", {**settings, "rank": rank})
                for rank, host in enumerate(worker_hosts)
            ]
            for worker in self._workers:
                worker.hear(_START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def _start(
        self, lab: NetworkLab | None, host: int, role: str, options: Mapping[str, Any]
    ) -> Role:
        started = Role(lab, host, python_command(_MODULE, role, json.dumps(options)))
        self._roles.append(started)
        return started

    def rounds(
        self,
        nbytes: int,
        count: int,
        *,
        warmup: int = 0,
        limit_s: float = 120.0,
        hogs: Sequence[int] = (),
    ) -> StarRounds:
        """`count` all-reduces of `nbytes` bytes of float32, after `warmup` that are not reported.

        `hogs` are the ranks whose trainer thread runs pure Python while the round is under way.
        Raises `PeerTimeoutError` when they do not end within `limit_s`; the star is ended then.
        """
        (before,) = self.ask_all([self._server], [{}], _START_TIMEOUT_S)
        request = {"nbytes": nbytes, "count": count, "warmup": warmup}
        requests = [{**request, "hog": rank in hogs} for rank in range(len(self._workers))]
        answers = self.ask_all(self._workers, requests, limit_s)
        (after,) = self.ask_all([self._server], [{}], _START_TIMEOUT_S)
        cpu = after["cpu_s"] - before["cpu_s"]
        done = StarRounds(
            elapsed_s=[max(s) for s in zip(*(a["elapsed_s"] for a in answers), strict=True)],
            uplink_s=[a["uplink"]["elapsed_s"] for a in answers],
            chunks=sum(sum(a["uplink"]["chunks"]) for a in answers),
            datagrams=sum(sum(a["uplink"]["datagrams"]) for a in answers),
            missing=sum(sum(a["uplink"]["missing"]) for a in answers),
            regimes=answers[0]["regime"],
            at_deadline=sum(a["at_deadline"] for a in answers),
            fallback=sum(a["fallback"] for a in answers),
            cpu_s=cpu + sum(a["cpu_s"] for a in answers),
        )
        self.total.extend(done)
        return done


def hog_process(lab: NetworkLab | None, host: int) -> Role:
    """A pure-Python loop in a process of its own on `host`, until it is closed."""
    role = Role(lab, host, python_command(_MODULE, "hog", "{}"))
    role.hear(_START_TIMEOUT_S)
    return role


def run_dblp_flow(
    lab: NetworkLab | None,
    src_host: int,
    dst_host: int,
    nbytes: int,
    rounds: int,
    *,
    warmup: int = 1,
    config: Mapping[str, Any] | None = None,
    timeout_s: float = 120.0,
) -> FlowResult:
    """`warmup` + `rounds` exact rounds of `nbytes` bytes, `dblp.Peer` to `dblp.Listener`."""
    options = {"nbytes": nbytes, "rounds": rounds, "warmup": warmup, "config": dict(config or {})}
    options["address"] = f"{address_of(lab, dst_host)}:0"
    before = own_udp_counters() if lab is None else lab.udp_counters(dst_host)
    with Role(lab, dst_host, python_command(_MODULE, "receive", json.dumps(options))) as receiver:
        options["address"] = receiver.hear(timeout_s)["address"]
        command = python_command(_MODULE, "send", json.dumps(options))
        with Role(lab, src_host, command) as sender:
            sent = sender.hear(timeout_s)
            received = receiver.hear(timeout_s)
    after = own_udp_counters() if lab is None else lab.udp_counters(dst_host)
    return FlowResult(
        name="dblp",
        nbytes=nbytes,
        elapsed_s=tuple(sent["elapsed_s"][warmup:]),
        cold_s=tuple(sent["elapsed_s"][:warmup]),
        sender_cpu_s=sent["cpu_s"],
        receiver_cpu_s=received["cpu_s"],
        datagrams=sent["datagrams"],
        chunks=sent["chunks"],
        kernel_drops=(after - before).rcvbuf_errors,
    )
