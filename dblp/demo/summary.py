"""summary.json: the numbers of both sides and their ratios."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dblp

from ..wire import HEADER_BYTES
from .record import SideRecord
from .settings import DemoSettings


def summarize(
    settings: DemoSettings,
    burst_rounds: Sequence[int],
    dblp_side: SideRecord,
    baseline: SideRecord,
) -> dict[str, Any]:
    """The content of summary.json.  Ratios are baseline over DBLP, so more than 1 favours DBLP;
    `tail` compares the largest latencies (Tables II and III), `burst` burst by burst.  A ratio
    without a meaningful denominator is None."""
    ours, theirs = side_summary(dblp_side), side_summary(baseline)
    latency, their_latency = ours["send_latency_s"], theirs["send_latency_s"]
    bursts = zip(theirs["burst_latency_s"], ours["burst_latency_s"], strict=True)
    return {
        "machine": machine(),
        "config": {
            **dataclasses.asdict(settings),
            "dataset": settings.dataset,
            "burst_rounds": list(burst_rounds),
            "steps": len(dblp_side.rounds),
        },
        "dblp": ours,
        "baseline": theirs,
        "ratios": {
            "burst": [ratio(theirs_s, ours_s) for theirs_s, ours_s in bursts],
            "tail": ratio(their_latency["max"], latency["max"]),
            "mean": ratio(their_latency["mean"], latency["mean"]),
            "train_time": ratio(theirs["train_time_s"], ours["train_time_s"]),
        },
    }


def side_summary(side: SideRecord) -> dict[str, Any]:
    """R of summary.json.  Send latency is the slowest worker's uplink of each iteration."""
    latency = np.array([record.send_latency_s for record in side.rounds])
    return {
        "test_accuracy": side.accuracy[-1],
        "send_latency_s": {
            "mean": float(latency.mean()),
            "p50": float(np.percentile(latency, 50)),
            "p95": float(np.percentile(latency, 95)),
            "max": float(latency.max()),
        },
        "burst_latency_s": [record.send_latency_s for record in side.burst_rounds],
        "train_time_s": side.train_time_s,
        "bytes_sent": bytes_sent(side),
        "delivered_share": float(np.mean([record.delivered_share for record in side.rounds])),
        "critical_share": float(np.mean([record.critical for record in side.rounds])),
        "replica_drift": side.replica_drift,
    }


def bytes_sent(side: SideRecord) -> int:
    """Bytes of gradient datagrams, headers and retransmissions included, that workers and server
    handed to their kernels.  Every chunk counts as the average chunk of its round."""
    uplinks = [worker["uplink"] for record in side.rounds for worker in record.workers]
    total = 0.0
    for uplink in uplinks:
        if uplink["chunks"]:
            total += uplink["datagrams"] * (HEADER_BYTES + uplink["nbytes"] / uplink["chunks"])
    datagrams = sum(uplink["datagrams"] for uplink in uplinks)
    per_datagram = total / datagrams if datagrams else 0.0
    return round(total + side.downlink_datagrams * per_datagram)


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator, None where that is no finite number."""
    value = numerator / denominator if denominator else math.inf
    return value if math.isfinite(value) else None


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    import torch

    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "dblp": dblp.__version__,
        "fastpath": dblp.FASTPATH,
        "network": "loopback",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
