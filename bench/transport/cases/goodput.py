"""One flow, 1 to 500 MB per round, beside kernel TCP and the raw UDP ceiling.

Every turn starts both processes anew, so the first round of each turn (`cold`) is reported apart.
TCP runs as iperf3 runs it (128 KiB blocks), with 1 MB blocks, and into a buffer of the round's
size; the summary compares with the first, and names the others under keys of their own.  The raw
UDP pair runs as it is, and with the memory traffic of a header and a check per datagram.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from bench.harness import CaseResult, Chart, Distribution, Settings, ratio
from bench.netlab import NetworkLab, lab_unavailable
from bench.transport.cases import _network as network
from bench.transport.peers.dblp_peer import flow_missing, run_dblp_flow
from bench.transport.peers.flow import FlowResult
from bench.transport.peers.raw_udp import run_raw_udp
from bench.transport.peers.role import PeerError
from bench.transport.peers.tcp_flow import LARGE_BLOCK_BYTES, run_tcp_flow

_MB = 1_000_000
_SUMMARY_BYTES = 100 * _MB
_TURNS = 4
# After this long no further turn starts at a size: the case has to end within ten minutes.
_SIZE_BUDGET_S = 45.0
# Rounds of one turn, by size: about half a second with offloads on.
_TURN_ROUNDS = {1 * _MB: 60, 20 * _MB: 20, 100 * _MB: 8, 500 * _MB: 3}
_TURN_ROUNDS_MTU = {1 * _MB: 40, 20 * _MB: 8, 100 * _MB: 3, 500 * _MB: 1}
_SMOKE_ROUNDS = {200_000: 3}
_KEYS = (
    "goodput_over_tcp_offload",
    "goodput_over_bbr_offload",
    "goodput_over_tcp_mtu",
    "goodput_over_ceiling",
    "clean_kernel_drops",
    "clean_overhead",
)
_STOCK_BUFFER_BYTES = 212_992

Flow = Callable[..., FlowResult]
"""`flow(lab, source host, destination host, nbytes=..., rounds=...)`."""


@dataclass
class _Collected:
    """All turns of one side at one size in one network."""

    elapsed_s: list[float] = field(default_factory=list)
    cold_s: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    datagrams: int = 0
    chunks: int = 0
    kernel_drops: int = 0

    def add(self, flow: FlowResult) -> None:
        self.elapsed_s += flow.elapsed_s
        self.cold_s += flow.cold_s
        self.cpu_s_per_gb.append(flow.cpu_s_per_gb)
        self.datagrams += flow.datagrams
        self.chunks += flow.chunks
        self.kernel_drops += flow.kernel_drops


Cells = dict[tuple[str, int, str], _Collected]


def run(settings: Settings, result: CaseResult) -> None:
    """Loopback, veth with offloads on, veth with offloads off; all sides of a size take turns."""
    cells: Cells = {}
    result.summary.update(dict.fromkeys(_KEYS))
    missing = flow_missing()
    if missing:
        result.notes.append(missing)
    flows = _flows(result, dblp=not missing)
    networks: list[tuple[str, bool | None]] = [("loopback", None)]
    reason = lab_unavailable()
    if reason is None:
        networks += [("offloads on", True), ("offloads off", False)]
    else:
        result.notes.append(f"on loopback only: {reason}")
    for label, offloads in networks:
        lab_context: contextlib.AbstractContextManager[NetworkLab | None] = (
            contextlib.nullcontext() if offloads is None else NetworkLab(2, offloads=offloads)
        )
        with lab_context as lab:
            sizes = _TURN_ROUNDS_MTU if offloads is False else _TURN_ROUNDS
            sizes = settings.pick(sizes, _SMOKE_ROUNDS)
            if offloads is None and not settings.smoke:
                sizes = {_SUMMARY_BYTES: sizes[_SUMMARY_BYTES]}
            for nbytes, rounds in sizes.items():
                _take_turns(result, cells, (label, lab), flows, nbytes, rounds)
    seen = _record(result, cells)
    _summarise(result, cells, seen, settings.pick(_SUMMARY_BYTES, next(iter(_SMOKE_ROUNDS))))


def _flows(result: CaseResult, *, dblp: bool) -> dict[str, Flow]:
    flows: dict[str, Flow] = {}
    if dblp:
        stock = {"socket_buffer_bytes": _STOCK_BUFFER_BYTES}
        flows["dblp"] = run_dblp_flow
        flows["dblp, stock buffers"] = partial(run_dblp_flow, config=stock)
    for name in network.controls(result):
        flows[f"tcp {name}"] = partial(run_tcp_flow, congestion=name)
        flows[f"tcp {name}, 1 MB blocks"] = partial(
            run_tcp_flow, congestion=name, block_bytes=LARGE_BLOCK_BYTES
        )
    flows["tcp cubic, into place"] = partial(
        run_tcp_flow, congestion="cubic", block_bytes=LARGE_BLOCK_BYTES, place=True
    )
    flows["raw udp"] = run_raw_udp
    flows["raw udp, framed"] = partial(run_raw_udp, framed=True)
    return flows


def _take_turns(
    result: CaseResult,
    cells: Cells,
    where: tuple[str, NetworkLab | None],
    flows: dict[str, Flow],
    nbytes: int,
    rounds: int,
) -> None:
    """All sides in turn, each time in another order. A side that fails is out of all the rest."""
    label, lab = where
    started = time.monotonic()
    for turn in range(1 if nbytes in _SMOKE_ROUNDS else _TURNS):
        if turn and time.monotonic() - started > _SIZE_BUDGET_S:
            break
        names = list(flows)
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            try:
                flow = flows[name](lab, 0, 1, nbytes=nbytes, rounds=rounds)
            except PeerError as error:
                result.failures.append(f"{name} ({label}, {nbytes} bytes): {error}")
                del flows[name]
                continue
            cells.setdefault((label, nbytes, name), _Collected()).add(flow)


def _record(result: CaseResult, cells: Cells) -> dict[tuple[str, int, str], Distribution]:
    seen = {}
    for (label, nbytes, name), cell in cells.items():
        key = (label, nbytes, name)
        gbit = [nbytes * 8e-9 / s for s in cell.elapsed_s]
        seen[key] = result.add(
            gbit, "gbit_s", network=label, mb=nbytes / _MB, side=name,
            cold_p50_gbit_s=nbytes * 8e-9 / statistics.median(cell.cold_s),
            cpu_s_per_gb=round(statistics.median(cell.cpu_s_per_gb), 3),
            datagrams=cell.datagrams, chunks=cell.chunks, kernel_drops=cell.kernel_drops,
        )  # fmt: skip
    for label in dict.fromkeys(label for label, _, _ in cells):
        sizes = sorted({nbytes for at, nbytes, _ in cells if at == label})
        names = list(dict.fromkeys(name for at, _, name in cells if at == label))
        series = {
            name: [seen[label, n, name].p50 if (label, n, name) in seen else 0.0 for n in sizes]
            for name in names
        }
        ticks = [f"{n / _MB:g} MB" for n in sizes]
        chart = Chart(
            label.replace(" ", "-"), f"one flow, {label}", "Gb/s (median)", series, x=ticks
        )
        result.charts.append(chart)
    return seen


def _summarise(
    result: CaseResult,
    cells: Cells,
    seen: dict[tuple[str, int, str], Distribution],
    nbytes: int,
) -> None:
    def p50(label: str, *sides: str) -> float | None:
        found = [seen[label, nbytes, side].p50 for side in sides if (label, nbytes, side) in seen]
        return max(found, default=None)

    stock = ("tcp cubic", "tcp bbr")
    large = ("tcp cubic, 1 MB blocks", "tcp bbr, 1 MB blocks")
    on, off = "offloads on", "offloads off"
    keys = result.summary
    keys["goodput_over_tcp_offload"] = ratio(p50(on, "dblp"), p50(on, *stock))
    keys["goodput_over_bbr_offload"] = ratio(p50(on, "dblp"), p50(on, "tcp bbr"))
    keys["goodput_over_tcp_mtu"] = ratio(p50(off, "dblp"), p50(off, *stock))
    keys["goodput_over_ceiling"] = ratio(p50(on, "dblp"), p50(on, "raw udp"))
    keys["goodput_over_tcp_large_blocks_offload"] = ratio(p50(on, "dblp"), p50(on, *large))
    keys["goodput_over_tcp_large_blocks_mtu"] = ratio(p50(off, "dblp"), p50(off, *large))
    keys["goodput_over_tcp_into_place_offload"] = ratio(
        p50(on, "dblp"), p50(on, "tcp cubic, into place")
    )
    keys["ceiling_over_tcp_offload"] = ratio(p50(on, "raw udp"), p50(on, *stock))
    keys["goodput_over_framed_ceiling"] = ratio(p50(on, "dblp"), p50(on, "raw udp, framed"))
    keys["framed_ceiling_over_tcp_offload"] = ratio(p50(on, "raw udp, framed"), p50(on, *stock))
    mine = [cell for (_, _, name), cell in cells.items() if name.startswith("dblp")]
    chunks = sum(cell.chunks for cell in mine)
    keys["clean_kernel_drops"] = sum(cell.kernel_drops for cell in mine) if mine else None
    keys["clean_overhead"] = ratio(sum(cell.datagrams for cell in mine), chunks)
