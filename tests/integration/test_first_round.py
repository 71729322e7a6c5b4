"""The first rounds of a process import no module."""

from __future__ import annotations

import subprocess
import sys

import pytest

STAR = """
import sys
import numpy as np
import dblp

config = dblp.TransportConfig(deadline=dblp.Deadline())
policy = dblp.GradientNormPolicy("10%", "40.8%", interval=1)
with (
    dblp.ParameterServer.serve_in_thread(
        workers=1, policy=policy, downlink="DOWNLINK", rule="contributors", config=config
    ) as server,
    dblp.Worker(server.address, rank=0, config=config) as worker,
):
    gradient = np.random.default_rng(1).random(200_000, np.float32)
    before = set(sys.modules)
    for _ in range(3):
        worker.all_reduce(gradient)
    print(*sorted(set(sys.modules) - before))
"""

MESH = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import dblp

meshes = [dblp.Mesh(rank=r, world=2, listen="127.0.0.1:0", downlink="DOWNLINK") for r in range(2)]
addresses = [mesh.address for mesh in meshes]
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda mesh: mesh.connect(addresses), meshes))
gradients = np.random.default_rng(1).random((2, 200_000), np.float32)
before = set(sys.modules)
for _ in range(3):
    started = [
        mesh.all_reduce_async(gradient, tolerance="30%")
        for mesh, gradient in zip(meshes, gradients)
    ]
    for future in started:
        future.result(30)
print(*sorted(set(sys.modules) - before))
for mesh in meshes:
    mesh.close()
"""


@pytest.mark.parametrize("downlink", ["exact", "common", "lossy"])
@pytest.mark.parametrize("script", [STAR, MESH], ids=["star", "mesh"])
def test_rounds_import_nothing(script: str, downlink: str) -> None:
    command = [sys.executable, "-c", script.replace("DOWNLINK", downlink)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [], done.stderr
