"""What the cases share: a lab where there can be one, and the sides that run all-reduces in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from bench.harness import CaseResult, Distribution
from bench.interleave import Plan, Side
from bench.kernel import available_congestion
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.peers.dblp_peer import DblpStar
from bench.transport.peers.gloo_ring import GlooRing

SERVER_HOST = 0
WORKER_HOSTS = (1, 2, 3)
CONTROLS = ("cubic", "bbr")


@contextlib.contextmanager
def lab_or_loopback(
    result: CaseResult, hosts: int, *, offloads: bool = True
) -> Iterator[NetworkLab | None]:
    """A lab, or None (loopback) with a note that says why."""
    reason = lab_unavailable()
    if reason is None:
        with NetworkLab(hosts, offloads=offloads) as lab:
            yield lab
    else:
        note(result, f"on loopback only: {reason}")
        yield None


def note(result: CaseResult, text: str) -> None:
    """Add a note once."""
    if text not in result.notes:
        result.notes.append(text)


def controls(result: CaseResult) -> list[str]:
    """The congestion controls to compare with; a note where this kernel lacks one."""
    there = [name for name in CONTROLS if name in available_congestion()]
    for name in CONTROLS:
        if name not in there:
            note(result, f"this kernel has no {name}: compared with {', '.join(there)} only")
    return there


def gloo_rings(
    result: CaseResult, lab: NetworkLab | None, stack: contextlib.ExitStack
) -> dict[str, GlooRing]:
    """A started gloo ring for each congestion control, by side name."""
    if lab is None:
        ring = stack.enter_context(GlooRing(None, [0] * len(WORKER_HOSTS)))
        note(result, f"gloo runs under {ring.congestion}, this machine's default, only")
        return {f"gloo {ring.congestion}": ring}
    return {
        f"gloo {name}": stack.enter_context(GlooRing(lab, WORKER_HOSTS, congestion=name))
        for name in controls(result)
    }


def star_side(
    name: str,
    star: DblpStar,
    nbytes: int,
    plan: Plan,
    *,
    warmup: int = 1,
    hogs: Sequence[int] = (),
) -> Side:
    """A side that runs all-reduces of a dblp star by its plan."""

    def measure(count: int, limit_s: float) -> list[float]:
        done = star.rounds(nbytes, count, warmup=warmup, limit_s=limit_s, hogs=hogs)
        return done.elapsed_s

    return Side(name, measure, plan)


def ring_side(name: str, ring: GlooRing, nbytes: int, plan: Plan, *, warmup: int = 1) -> Side:
    """A side that runs all-reduces of a gloo ring by its plan."""

    def measure(count: int, limit_s: float) -> list[float]:
        return ring.rounds(nbytes, count, warmup=warmup, limit_s=limit_s)

    return Side(name, measure, plan)


def record(result: CaseResult, side: Side, **labels: Any) -> Distribution | None:
    """One row for a side, in ms; a side that never finished a round gets a row that says so."""
    if side.gave_up_s is not None:
        where = ", ".join(f"{key} {value}" for key, value in labels.items())
        text = f"{side.name} ({where}): gave up after waiting {side.gave_up_s:.0f} s for a round"
        note(result, text)
    if side.failure is not None:
        result.failures.append(f"{side.name}: {side.failure}")
    if not side.samples:
        return None
    return result.add(side.samples, "ms", scale=1e3, **labels, side=side.name)


def median_or_waited(side: Side, seen: Distribution | None) -> float | None:
    """The median in seconds; where no round ever ended, how long was waited: a lower bound."""
    return side.gave_up_s if seen is None else seen.p50


def p99_at_least(seen: Distribution) -> float:
    """The 99th percentile, or the 95th as its lower bound where samples are too few."""
    return seen.p95 if seen.p99 is None else seen.p99
