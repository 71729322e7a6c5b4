"""All-reduce of 5 M float32 under uniform loss, beside gloo.

Three workers. Every host drops arriving packets at random, whatever protocol they carry. With
offloads on, one lost packet is what the kernel hands around at once: up to 64 KiB, for both sides.
"""

from __future__ import annotations

import contextlib

from bench.harness import CaseResult, Chart, Distribution, Settings, ratio
from bench.interleave import Plan, Side, interleave
from bench.netlab import NetworkLab
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import DblpStar, star_missing

_NBYTES = 20_000_000
_LOSS_PERCENT = (0.0, 0.1, 1.0, 5.0)
_POLICIES = {"dblp exact": "fixed:0", "dblp 0.8%": "fixed:0.8%", "dblp 40.8%": "fixed:40.8%"}
_KEYS = (
    "loss1_p99_over_clean_p50",
    "loss1_gloo_p99_over_dblp",
    "loss5_gloo_over_dblp",
    "loss5_mtu_gloo_over_dblp",
)
_ROUNDS = 150
_BUDGET_S = 7.0
# A 99th percentile needs 1,000 rounds; these two sides get them (the other gloo is the slower one).
_TAIL_ROUNDS = 1000
_TAIL_SIDES = ("dblp 0.8%", "gloo bbr")
_TAIL_BUDGET_S = 95.0
# At 5 % a gloo round under CUBIC takes seconds: a few rounds, or none, is what fits.
_HEAVY_BUDGET_S = 25.0

Cells = dict[tuple[bool, float, str], tuple[Side, Distribution | None]]


def run(settings: Settings, result: CaseResult) -> None:
    """Runs every cell: offloads on and off, each loss rate, all sides interleaved."""
    cells: Cells = {}
    result.summary.update(dict.fromkeys(_KEYS))
    missing = star_missing()
    if missing:
        result.notes.append(missing)
    for offloads in settings.pick((True, False), (True,)):
        with (
            network.lab_or_loopback(result, 4, offloads=offloads) as lab,
            contextlib.ExitStack() as stack,
        ):
            _run_network(settings, result, lab, stack, cells, dblp=not missing)
        if lab is None:
            break
    _summarise(result, cells)


def _run_network(
    settings: Settings,
    result: CaseResult,
    lab: NetworkLab | None,
    stack: contextlib.ExitStack,
    cells: Cells,
    *,
    dblp: bool,
) -> None:
    nbytes = settings.pick(_NBYTES, 200_000)
    offloads = lab is None or lab.offloads
    stars = {
        name: stack.enter_context(
            DblpStar(lab, network.SERVER_HOST, network.WORKER_HOSTS, policy=policy)
        )
        for name, policy in (_POLICIES if dblp else {}).items()
    }
    rings = network.gloo_rings(result, lab, stack)
    # Ascending: the heaviest loss comes last, so a ring that never recovers from it harms no one.
    for percent in _LOSS_PERCENT if lab is not None else (0.0,):
        if lab is not None:
            lab.set_loss(round(percent * 10_000))
        plans = {name: _plan(settings, name, percent, offloads) for name in (*stars, *rings)}
        warmup = 1 if percent < _LOSS_PERCENT[-1] else 0
        sides = [
            *(
                network.star_side(name, star, nbytes, plans[name], warmup=warmup)
                for name, star in stars.items()
            ),
            *(
                network.ring_side(name, ring, nbytes, plans[name], warmup=warmup)
                for name, ring in rings.items()
            ),
        ]
        interleave(sides)
        for side in sides:
            seen = network.record(result, side, offloads=offloads, loss_percent=percent)
            cells[offloads, percent, side.name] = (side, seen)


def _plan(settings: Settings, side: str, percent: float, offloads: bool) -> Plan:
    if settings.smoke:
        return Plan(3, 5.0)
    if percent == 1.0 and offloads and side in _TAIL_SIDES:
        return Plan(_TAIL_ROUNDS, _TAIL_BUDGET_S)
    heavy = percent == _LOSS_PERCENT[-1] and side.startswith("gloo")
    return Plan(_ROUNDS, _HEAVY_BUDGET_S if heavy else _BUDGET_S)


def _summarise(result: CaseResult, cells: Cells) -> None:
    def seen(percent: float, side: str) -> Distribution | None:
        return cells.get((True, percent, side), (None, None))[1]

    def gloo_median(offloads: bool) -> float | None:
        medians = [
            network.median_or_waited(*cell)
            for (off, percent, name), cell in cells.items()
            if off == offloads and percent == 5.0 and name.startswith("gloo")
        ]
        return min((m for m in medians if m is not None), default=None)

    def dblp_median(offloads: bool) -> float | None:
        cell = cells.get((offloads, 5.0, "dblp 0.8%"))
        return cell[1].p50 if cell and cell[1] else None

    lossy, clean = seen(1.0, "dblp 0.8%"), seen(0.0, "dblp 0.8%")
    rings = [seen(1.0, f"gloo {name}") for name in network.CONTROLS]
    gloo_tail = min((network.p99_at_least(d) for d in rings if d), default=None)
    tail = lossy.tail if lossy else None
    result.summary["loss1_p99_over_clean_p50"] = ratio(tail, clean.p50 if clean else None)
    result.summary["loss1_gloo_p99_over_dblp"] = ratio(gloo_tail, tail)
    result.summary["loss5_gloo_over_dblp"] = ratio(gloo_median(True), dblp_median(True))
    result.summary["loss5_mtu_gloo_over_dblp"] = ratio(gloo_median(False), dblp_median(False))
    for percent in _LOSS_PERCENT:
        series = {
            name: [s * 1e3 for s in side.samples]
            for (off, at, name), (side, _) in cells.items()
            if off and at == percent
        }
        if series:
            title = f"all-reduce of 5 M float32, 3 workers, {percent:g} % loss, offloads on"
            chart = Chart(
                f"{percent:g}", title, "share of rounds", series, "cdf", x_label="ms", log=True
            )
            result.charts.append(chart)
