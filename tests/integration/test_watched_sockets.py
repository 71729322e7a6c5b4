"""Who looks at the sockets of a driver: the pump, or the event loop, and never nobody."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import dblp
from dblp.config import TransportConfig
from dblp.io import driver
from tests.integration.meshes import MeshGroup

SOON_S = 5.0


def test_the_event_loop_watches_only_while_the_pump_does_not_stay(
    config: TransportConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays: list[tuple[bool, float]] = []
    real = driver.stay
    with MeshGroup(2, config) as group:
        links = [link for mesh in group.meshes for link in mesh._owner.driver._links]
        by_channel = {id(link.channel): link for link in links}

        def noted(channels: Any, *args: Any, timer: float, **options: Any) -> int:
            watched = any(by_channel[id(channel)].watched for channel in channels)
            stays.append((watched, timer - time.monotonic()))
            return real(channels, *args, timer=timer, **options)

        monkeypatch.setattr(driver, "stay", noted)
        for _ in range(3):
            futures = [
                mesh.all_reduce_async(np.ones(4_000_000, np.float32)) for mesh in group.meshes
            ]
            for future in futures:
                future.result(SOON_S * 4)
        deadline = time.monotonic() + SOON_S
        while not all(link.watched for link in links):  # the pump has gone to sleep
            assert time.monotonic() < deadline, "a socket that nobody looks at"
            time.sleep(0.01)
    assert any(not watched for watched, _ in stays)
    assert all(limit_s <= driver.WATCHED_STAY_S for watched, limit_s in stays if watched)


def test_a_round_after_a_pause_is_noticed(config: TransportConfig) -> None:
    """Around the time after which a quiet pump leaves the sockets to the event loop."""
    with MeshGroup(2, config) as group:
        for pause_s in (0.0, 0.001, 0.019, 0.0205, 0.03):
            time.sleep(pause_s)
            futures = [mesh.all_reduce_async(np.ones(100, np.float32)) for mesh in group.meshes]
            reports = [future.result(SOON_S) for future in futures]
            assert all(isinstance(report, dblp.ExchangeReport) for report in reports)
