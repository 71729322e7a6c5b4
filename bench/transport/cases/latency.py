"""Small all-reduces: 4 KB, 64 KB and 1 MB, beside gloo."""

from __future__ import annotations

import contextlib

from bench.harness import CaseResult, Chart, Distribution, Settings, ratio
from bench.interleave import Plan, interleave
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import DblpStar, star_missing

_SIZES = {4096: "4 KB", 65_536: "64 KB", 1_048_576: "1 MB"}
_KEYS = {
    4096: "small_over_gloo",
    65_536: "small64k_over_gloo",
    1_048_576: "small1m_over_gloo",
}
_ROUNDS = 2000
_BUDGET_S = 40.0


def run(settings: Settings, result: CaseResult) -> None:
    """Three workers, exact, offloads on; turns of about a quarter of a second."""
    seen: dict[tuple[int, str], Distribution] = {}
    result.summary.update(dict.fromkeys(_KEYS.values()))
    missing = star_missing()
    if missing:
        result.notes.append(missing)
    with network.lab_or_loopback(result, 4) as lab, contextlib.ExitStack() as stack:
        rings = network.gloo_rings(result, lab, stack)
        stars = {}
        if not missing:
            star = DblpStar(lab, network.SERVER_HOST, network.WORKER_HOSTS)
            stars["dblp exact"] = stack.enter_context(star)
        for nbytes, label in _SIZES.items():
            plan = Plan(settings.pick(_ROUNDS, 20), settings.pick(_BUDGET_S, 5.0), turn_s=0.25)
            sides = [
                network.star_side(name, star, nbytes, plan, warmup=3)
                for name, star in stars.items()
            ]
            sides += [
                network.ring_side(name, ring, nbytes, plan, warmup=3)
                for name, ring in rings.items()
            ]
            interleave(sides)
            for side in sides:
                distribution = network.record(result, side, size=label)
                if distribution is not None:
                    seen[nbytes, side.name] = distribution
            series = {side.name: [s * 1e3 for s in side.samples] for side in sides}
            title = f"all-reduce of {label}, 3 workers"
            result.charts.append(
                Chart(label.replace(" ", ""), title, "share of rounds", series, "cdf", log=True,
                      x_label="ms")
            )  # fmt: skip
    for nbytes, key in _KEYS.items():
        mine = seen.get((nbytes, "dblp exact"))
        gloo = [d.p50 for (n, name), d in seen.items() if n == nbytes and name != "dblp exact"]
        result.summary[key] = ratio(mine.p50 if mine else None, min(gloo, default=None))
