"""The same tests on the Python twin of the fast path, in an interpreter that loads only that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dblp

HERE = Path(__file__).parent
LIMIT_S = 300

SELECTED = {
    "test_exact_mean.py": "not mtu and not twenty_five and not every_setting and not offload",
    "test_tolerance.py": "not enough_chunks or 40.8",
    "test_injected_faults.py": "each_fault or in_the_reports or one_round_only or lossy_link",
    "test_async_calls.py": "not threads and not bad_network",
    "test_point_to_point.py": "not 5000000",
    "test_blocked_udp.py": "not cluster_without or both",
    "test_disagreements.py": "different",
    "test_hostile_peers.py": "must_not or right_address or udp_port",
    "test_lifecycle.py": "not exit_without and not forked",
    "test_aio.py": "",
}
"""What depends on the fast path at all, without what would take it too long; file → -k."""


@pytest.mark.skipif(dblp.FASTPATH == "python", reason="this run is already on the twin")
@pytest.mark.parametrize("file", SELECTED)
def test_the_twin_passes_too(file: str) -> None:
    environment = {**os.environ, "DBLP_FASTPATH": "python", "DBLP_TEST_LOOPS": "asyncio"}
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / file),
        "-k", SELECTED[file],
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_environment_chooses_the_fast_path() -> None:
    program = "import dblp; print(dblp.FASTPATH)"
    for wanted in ("python", dblp.FASTPATH):
        environment = {**os.environ, "DBLP_FASTPATH": wanted}
        out = subprocess.run(
            [sys.executable, "-c", program], cwd=HERE.parents[1], env=environment,
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        assert out.strip() == wanted
