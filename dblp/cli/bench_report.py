"""What `dblp bench` says about a measurement: figures, and what to do about the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from .bench_cards import Counts, HostFacts
from .bench_run import WARMUP_ROUNDS, Measurement, Passage
from .checks import size

__all__ = ["Spread", "Traffic", "advice", "to_dict", "traffic"]

P99_SAMPLES_MIN = 1000
"""Below this the 99th percentile is the opinion of a handful."""

LOSS_WORTH_A_WORD = 0.001


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """A sample of seconds."""

    n: int
    min: float
    p50: float
    p95: float
    p99: float | None
    """None under 1,000 samples: look at `max` then."""
    max: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Of at least one sample."""
        p50, p95, p99 = (float(value) for value in np.percentile(samples, (50, 95, 99)))
        enough = len(samples) >= P99_SAMPLES_MIN
        return cls(len(samples), min(samples), p50, p95, p99 if enough else None, max(samples))


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """Data datagrams of one direction, in all rounds."""

    sent: int
    arrived: int
    lost: int
    """Sent, and neither arrived nor dropped by the receiver's kernel: lost on the way."""
    kernel_drops: int
    """Dropped by the receiver's kernel, as its socket buffer was full."""
    corrupt: int
    retransmitted: int

    @property
    def loss_share(self) -> float:
        """Lost on the way over sent, 0 … 1."""
        return self.lost / self.sent if self.sent else 0.0

    @property
    def dead(self) -> bool:
        """Not one datagram has arrived."""
        return self.arrived == 0


def traffic(sender: Counts, receiver: Counts) -> Traffic:
    """What happened to the datagrams between the two."""
    # Dropped credits are among the drops, so that the difference may go below zero.
    lost = sender.data_sent - receiver.data_received - receiver.kernel_drops
    return Traffic(
        sent=sender.data_sent,
        arrived=receiver.data_received,
        lost=max(0, lost),
        kernel_drops=receiver.kernel_drops,
        corrupt=receiver.corrupt,
        retransmitted=sender.retransmitted,
    )


def both_ways(found: Measurement) -> tuple[Traffic, Traffic]:
    """(up, down)."""
    assert found.here_counts is not None and found.server_counts is not None
    return (
        traffic(found.here_counts, found.server_counts),
        traffic(found.server_counts, found.here_counts),
    )


def round_times(found: Measurement) -> list[float]:
    """Seconds of each round, up and down."""
    return [up + down for up, down in zip(found.up.elapsed_s, found.down.elapsed_s, strict=True)]


def to_dict(found: Measurement) -> dict[str, Any]:
    """The content of --json.  Times in seconds, rates in bits per second, sizes in bytes."""
    up, down = both_ways(found)
    return {
        "server": found.address,
        "nbytes": found.plan.nbytes,
        "rounds": found.plan.rounds,
        "warmup_rounds": WARMUP_ROUNDS,
        "tolerance": str(found.plan.tolerance),
        "round_s": dataclasses.asdict(Spread.of(round_times(found))),
        "up": _passage_dict(found.up, up),
        "down": _passage_dict(found.down, down),
        "rtt_s": found.rtt_s,
        "mtu": {"used": used_mtu(found), "path": found.path_mtu},
        "hosts": {
            "client": msgspec.to_builtins(found.here),
            "server": msgspec.to_builtins(found.server),
        },
        "advice": advice(found),
    }


def _passage_dict(passage: Passage, datagrams: Traffic) -> dict[str, Any]:
    return {
        "goodput_bit_per_s": passage.goodput_bit_per_s,
        "elapsed_s": dataclasses.asdict(Spread.of(passage.elapsed_s)),
        "chunks": passage.chunks,
        "missing": passage.missing,
        "fallback_rounds": passage.fallback_rounds,
        "datagrams": {**dataclasses.asdict(datagrams), "loss_share": datagrams.loss_share},
    }


def used_mtu(found: Measurement) -> int:
    """The packet size that the two sides agreed on, in bytes."""
    return min(found.here.mtu, found.server.mtu)


# --- advice ---------------------------------------------------------------------------------------


def advice(found: Measurement) -> list[str]:
    """What to do, most urgent first; empty when all is well."""
    return [
        *_about_reachability(found),
        *_about_drops(found),
        *_about_host("this host", found.here),
        *_about_host("the server", found.server),
        *_about_offload(found),
        *_about_mtu(found),
        *_about_loss(found),
    ]


def _about_reachability(found: Measurement) -> Iterator[str]:
    up, down = both_ways(found)
    used, path = used_mtu(found), found.path_mtu
    if path is not None and used > path:
        yield (
            f"packets of {used:,} bytes do not fit the path, which takes {path:,}: use "
            f"--mtu {path} here and TransportConfig(mtu={path}) in your programs"
        )
        return
    port = found.address.rpartition(":")[2]
    if up.dead and down.dead:
        yield (
            "no datagram gets through, everything went over TCP, which is slower: open UDP port "
            f"{port} of the server in every firewall between the hosts"
        )
    elif up.dead:
        yield (
            "datagrams to the server do not get through and went over TCP: open its UDP port "
            f"{port}"
        )
    elif down.dead:
        yield (
            "datagrams from the server do not get through and went over TCP: let the answers from "
            f"its UDP port {port} into this host"
        )
    elif count := found.up.fallback_rounds + found.down.fallback_rounds:
        yield f"{count:,} passages needed TCP: datagrams got through at times only"


def _about_drops(found: Measurement) -> Iterator[str]:
    for where, way in zip(("the server's", "this host's"), both_ways(found), strict=True):
        if way.kernel_drops:
            yield (
                f"{where} kernel dropped {way.kernel_drops:,} datagrams as the receive buffer was "
                "full: grant a larger one, or give the process more processor time"
            )


def _about_host(where: str, host: HostFacts) -> Iterator[str]:
    wanted = host.wanted_buffer
    too_small = {
        name: (granted, sysctl)
        for name, granted, sysctl in (
            ("receive", host.receive_buffer, "net.core.rmem_max"),
            ("send", host.send_buffer, "net.core.wmem_max"),
        )
        if granted < wanted
    }
    if too_small:
        granted = " and ".join(f"{size(n)} to {name}" for name, (n, _) in too_small.items())
        settings = " ".join(f"{sysctl}={wanted}" for _, sysctl in too_small.values())
        yield (
            f"{where} grants a socket {granted} where {size(wanted)} are wanted; run there: "
            f"sudo sysctl -w {settings}"
        )
    for name, works, version in (("GSO", host.gso, "4.18"), ("GRO", host.gro, "5.0")):
        if not works:
            yield (
                f"{where} has no UDP {name}, so every datagram costs a system call: it takes Linux "
                f"{version} or newer"
            )
    if host.fastpath != "compiled":
        yield (
            f"{where} runs the Python fast path, which is many times slower: install a C compiler "
            "there and reinstall with DBLP_EXTENSIONS=require"
        )


def _about_offload(found: Measurement) -> Iterator[str]:
    for where, counts in (("this host", found.here_counts), ("the server", found.server_counts)):
        if counts is not None and counts.gso_fallbacks:
            yield (
                f"the network driver of {where} refused segmented datagrams (GSO) while the rounds "
                "ran, so they were sent one by one: a newer kernel or driver may help"
            )


def _about_mtu(found: Measurement) -> Iterator[str]:
    used, path = used_mtu(found), found.path_mtu
    if path is not None and used < path:
        yield (
            f"the path's first link takes packets of {path:,} bytes and {used:,} were used: if all "
            f"of the path does, try --mtu {path} here and TransportConfig(mtu={path}) on both hosts"
        )


def _about_loss(found: Measurement) -> Iterator[str]:
    for way, direction in zip(both_ways(found), ("to the server", "from the server"), strict=True):
        if way.loss_share >= LOSS_WORTH_A_WORD and not way.dead:
            yield (
                f"{way.loss_share:.2%} of the datagrams {direction} were lost on the way: a "
                "tolerance above that spares most rounds the wait for what is sent again"
            )
