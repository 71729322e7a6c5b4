"""One process of a `dblp` bench: a parameter server, a worker, or one end of a flow.

`python -m bench.transport.peers.dblp_role ROLE OPTIONS` with OPTIONS as JSON; answers JSON lines.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import dblp
from bench.transport.peers.role import PeerError
from bench.transport.peers.tcp_flow import cpu_seconds

_UPLINK = ("elapsed_s", "datagrams", "chunks", "missing", "retransmitted", "passes")
_HOG_STEPS = 2_000
_TILE_ELEMENTS = 1 << 20


def transport_config(fields: Mapping[str, Any]) -> dblp.TransportConfig:
    """A TransportConfig; a field this version does not have is a `PeerError` that names it."""
    known = {field.name for field in dataclasses.fields(dblp.TransportConfig)}
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise PeerError(f"TransportConfig has no {', '.join(unknown)}")
    values = dict(fields)
    if values.get("deadline") is not None:
        values["deadline"] = dblp.Deadline(**values["deadline"])
    if isinstance(values.get("congestion"), float):
        values["congestion"] = dblp.FixedRate(values["congestion"])
    return dblp.TransportConfig(**values)


def policy_of(text: str) -> dblp.TolerancePolicy:
    """A policy from "fixed:0.8%" or "adaptive:0.8%:40.8%"."""
    kind, *bounds = text.split(":")
    if kind == "fixed":
        return dblp.FixedTolerance(bounds[0])
    return dblp.GradientNormPolicy(bounds[0], bounds[1])


def tile_of(rank: int) -> np.ndarray:
    """A piece of a float32 gradient; rank r holds (r + 1) times that of rank 0."""
    values = np.random.default_rng(7).standard_normal(_TILE_ELEMENTS, dtype=np.float32)
    return values * np.float32(rank + 1)


def tiles(buffer: np.ndarray) -> list[np.ndarray]:
    """`buffer` as views of at most one tile each."""
    return [buffer[at : at + _TILE_ELEMENTS] for at in range(0, len(buffer), _TILE_ELEMENTS)]


def fill(buffer: np.ndarray, tile: np.ndarray) -> None:
    """Repeat the tile over the buffer: one small tile, so that large rounds fit into memory."""
    for part in tiles(buffer):
        np.copyto(part, tile[: len(part)])


def holds(buffer: np.ndarray, tile: np.ndarray, *, rtol: float = 0.0) -> bool:
    """Whether `buffer` is `tile` over and over."""
    return all(np.allclose(part, tile[: len(part)], rtol=rtol, atol=rtol) for part in tiles(buffer))


def serve(options: Mapping[str, Any]) -> None:
    """Runs a parameter server until the pipe closes; answers every line with its CPU seconds."""
    server = dblp.ParameterServer.serve_in_thread(
        options["address"],
        workers=options["workers"],
        policy=policy_of(options["policy"]),
        downlink=options["downlink"],
        config=transport_config(options["config"]),
        reserve=[options["nbytes"]] if options["nbytes"] else [],
    )
    with server:
        _answer(address=server.address)
        for _ in sys.stdin:
            _answer(cpu_s=cpu_seconds())


def work(options: Mapping[str, Any]) -> None:
    """A worker that runs rounds on request until the pipe closes."""
    config = transport_config(options["config"])
    with dblp.Worker(options["address"], rank=options["rank"], config=config) as worker:
        tile = tile_of(options["rank"])
        buffer = np.empty(options["nbytes"] // 4, dtype=np.float32)
        fill(buffer, tile)
        _answer(rank=options["rank"])
        for line in sys.stdin:
            request = json.loads(line)
            elements = request["nbytes"] // 4
            if len(buffer) != elements:
                buffer = np.empty(elements, dtype=np.float32)
            _answer(**_rounds(worker, buffer, tile, request, options))


def _rounds(
    worker: dblp.Worker,
    buffer: np.ndarray,
    tile: np.ndarray,
    request: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    one_round = _hogged_round if request["hog"] else _round
    for _ in range(request["warmup"]):
        fill(buffer, tile)
        one_round(worker, buffer)
    elapsed = []
    reports = []
    cpu_before = cpu_seconds()
    for _ in range(request["count"]):
        fill(buffer, tile)
        seconds, report = one_round(worker, buffer)
        elapsed.append(seconds)
        reports.append(report)
    answer: dict[str, Any] = {"elapsed_s": elapsed, "cpu_s": cpu_seconds() - cpu_before}
    answer["uplink"] = {
        name: [getattr(report.uplink, name) for report in reports] for name in _UPLINK
    }
    answer["regime"] = [str(report.regime) for report in reports]
    answer["at_deadline"] = sum(report.uplink.at_deadline for report in reports)
    answer["fallback"] = sum(report.uplink.fallback for report in reports)
    if options["exact"] and reports:
        # Rank r gave (r + 1) times the same values: the mean is (world + 1) / 2 times them.
        mean = tile * np.float32((options["world"] + 1) / 2 / (options["rank"] + 1))
        if not holds(buffer, mean, rtol=1e-5):
            return {"error": "an exact round did not return the mean of the gradients"}
    return answer


def _round(worker: dblp.Worker, buffer: np.ndarray) -> tuple[float, Any]:
    started = time.perf_counter()
    report = worker.all_reduce(buffer)
    return time.perf_counter() - started, report


def _hogged_round(worker: dblp.Worker, buffer: np.ndarray) -> tuple[float, Any]:
    """The trainer thread runs pure Python, and so holds the GIL, until the round is over."""
    ended: list[float] = []
    started = time.perf_counter()
    future = worker.all_reduce_async(buffer)
    future.add_done_callback(lambda _: ended.append(time.perf_counter()))
    total = 0
    while not ended:
        for step in range(_HOG_STEPS):
            total += step * step
    return ended[0] - started, future.result()


def hog() -> None:
    """A pure-Python loop as a process of its own: the same load on the CPU, another interpreter."""
    _answer(rank=-1)
    total = 0
    while True:
        for step in range(_HOG_STEPS):
            total += step * step


def receive(options: Mapping[str, Any]) -> None:
    """Receives `warmup` + `rounds` buffers from one peer."""
    buffer = np.zeros(options["nbytes"] // 4, dtype=np.float32)
    config = transport_config(options["config"])
    with dblp.Listener(options["address"], config=config) as listener:
        _answer(address=listener.address)
        with listener.accept() as peer:
            cpu_before = 0.0
            for index in range(options["warmup"] + options["rounds"]):
                if index == options["warmup"]:
                    cpu_before = cpu_seconds()
                peer.recv(buffer)
            cpu = cpu_seconds() - cpu_before
            whole = holds(buffer, tile_of(0))
            _answer(**({"cpu_s": cpu} if whole else {"error": "the received bytes differ"}))


def send(options: Mapping[str, Any]) -> None:
    """Sends the same buffer `warmup` + `rounds` times, p = 0."""
    buffer = np.empty(options["nbytes"] // 4, dtype=np.float32)
    fill(buffer, tile_of(0))
    elapsed = []
    datagrams = chunks = 0
    cpu_before = 0.0
    config = transport_config(options["config"])
    with dblp.Peer.connect(options["address"], config=config) as peer:
        for index in range(options["warmup"] + options["rounds"]):
            if index == options["warmup"]:
                cpu_before = cpu_seconds()
            started = time.perf_counter()
            report = peer.send(buffer)
            elapsed.append(time.perf_counter() - started)
            if index >= options["warmup"]:
                datagrams += report.datagrams
                chunks += report.chunks
        cpu = cpu_seconds() - cpu_before
        _answer(elapsed_s=elapsed, cpu_s=cpu, datagrams=datagrams, chunks=chunks)
        sys.stdin.readline()  # stay until the receiver has told its result


def _answer(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(arguments: list[str]) -> None:
    role, options = arguments[0], json.loads(arguments[1])
    if role == "hog":
        hog()
    else:
        {"serve": serve, "work": work, "send": send, "receive": receive}[role](options)


if __name__ == "__main__":
    main(sys.argv[1:])
