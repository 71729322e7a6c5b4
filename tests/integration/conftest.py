"""Real sockets on loopback: both event loops, and nothing may be left behind."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator

import pytest

from dblp.config import TransportConfig
from tests.integration.cluster import LIMIT_S

LOOPS = os.environ.get("DBLP_TEST_LOOPS", "uvloop asyncio").split()
"""Which loops to test; the run with the Python fast path leaves one out to save time."""


@pytest.fixture(params=LOOPS)
def config(request: pytest.FixtureRequest) -> TransportConfig:
    """The default settings, once per event loop, with chunks as between hosts."""
    if request.param == "uvloop" and importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    return TransportConfig(mtu=1500, loop=request.param, timeout_s=LIMIT_S)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whoever closes an endpoint gets its thread back."""
    yield
    deadline = time.monotonic() + LIMIT_S
    while left := [t.name for t in threading.enumerate() if t.name.startswith("dblp-")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)
