"""Three workers into one 1 Gb/s port with a 200 KB drop-tail buffer, beside gloo.

The switch's ports are shaped towards the hosts. The bottleneck of the parameter server is the port
to its host: three gradients per round. A ring moves 4/3 of a gradient over each port.
"""

from __future__ import annotations

import contextlib
import statistics

from bench.harness import CaseResult, Chart, Distribution, Settings, ratio
from bench.interleave import Plan, interleave
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import DblpStar, StarRounds, star_missing

_NBYTES = 20_000_000
_RATE_MBIT = 1000
_BUFFER_BYTES = 200_000
_WORLD = len(network.WORKER_HOSTS)
_STAR_BYTES_FACTOR = _WORLD
_RING_BYTES_FACTOR = 2 * (_WORLD - 1) / _WORLD
# Of an MTU-sized packet with its Ethernet header, 1,514 bytes as the shaper counts, a chunk fills:
_CHUNK_SHARE = 1448 / 1514


def run(settings: Settings, result: CaseResult) -> None:
    """Offloads on (the summary) and off; dblp exact and both gloo rings take turns."""
    result.summary.update(
        dict.fromkeys(
            ("incast_link_share", "incast_waste", "incast_fairness", "incast_gloo_over_dblp")
        )
    )
    reason = lab_unavailable()
    if reason is not None:
        result.notes.append(f"not run: {reason}")
        return
    for offloads in settings.pick((True, False), (True,)):
        with NetworkLab(4, offloads=offloads) as lab, contextlib.ExitStack() as stack:
            _run_network(settings, result, lab, stack)


def _run_network(
    settings: Settings, result: CaseResult, lab: NetworkLab, stack: contextlib.ExitStack
) -> None:
    nbytes = settings.pick(_NBYTES, 200_000)
    missing = star_missing()
    if missing:
        network.note(result, missing)
    rings = network.gloo_rings(result, lab, stack)
    stars = {}
    if not missing:
        star = DblpStar(lab, network.SERVER_HOST, network.WORKER_HOSTS)
        stars["dblp exact"] = stack.enter_context(star)
    lab.set_rate(_RATE_MBIT, _BUFFER_BYTES)
    plan = Plan(settings.pick(100, 2), settings.pick(75.0, 5.0), turn_s=settings.pick(4.0, 1.0))
    sides = [network.star_side(name, star, nbytes, plan) for name, star in stars.items()]
    sides += [network.ring_side(name, ring, nbytes, plan) for name, ring in rings.items()]
    drops_before = sum(lab.drops().values())
    interleave(sides)
    drops = sum(lab.drops().values()) - drops_before
    labels = {"offloads": lab.offloads, "rate": "1 Gb/s", "buffer": "200 KB"}
    seen = {}
    for side in sides:
        star_or_ring = _STAR_BYTES_FACTOR if side.name in stars else _RING_BYTES_FACTOR
        limit_s = nbytes * star_or_ring * 8 / (_RATE_MBIT * 1e6)
        distribution = network.record(result, side, **labels, link_limit_ms=round(limit_s * 1e3, 2))
        if distribution is not None:
            seen[side.name] = distribution
    result.notes.append(
        f"offloads {'on' if lab.offloads else 'off'}: the switch dropped {drops} packets, all sides"
    )
    for star in stars.values():
        _summarise(result, star.total, seen, nbytes, lab.offloads)
    if lab.offloads:
        series = {side.name: [s * 1e3 for s in side.samples] for side in sides}
        title = "all-reduce of 20 MB over 1 Gb/s ports with 200 KB buffers"
        result.charts.append(Chart("cdf", title, "share of rounds", series, "cdf", x_label="ms"))


def _summarise(
    result: CaseResult,
    total: StarRounds,
    seen: dict[str, Distribution],
    nbytes: int,
    offloads: bool,
) -> None:
    """The share counts payload over the line rate, so headers alone make 1 out of reach."""
    suffix = "" if offloads else "_mtu"
    limit_s = nbytes * _STAR_BYTES_FACTOR * 8 / (_RATE_MBIT * 1e6)
    uplink = [max(times) for times in zip(*total.uplink_s, strict=True)]
    share = limit_s / statistics.median(uplink)
    spread = [max(times) / min(times) for times in zip(*total.uplink_s, strict=True)]
    gloo = [d.p50 for name, d in seen.items() if name.startswith("gloo")]
    mine = seen.get("dblp exact")
    per_byte = mine.p50 / _STAR_BYTES_FACTOR if mine else None
    result.summary[f"incast_link_share{suffix}"] = ratio(share, 1.0)
    result.summary[f"incast_wire_share{suffix}"] = ratio(share, _CHUNK_SHARE)
    result.summary[f"incast_waste{suffix}"] = ratio(total.datagrams - total.chunks, total.chunks)
    result.summary[f"incast_fairness{suffix}"] = ratio(statistics.median(spread), 1.0)
    result.summary[f"incast_gloo_over_dblp{suffix}"] = ratio(
        min(gloo) / _RING_BYTES_FACTOR if gloo else None, per_byte
    )
