"""Data-parallel least squares with numpy; each worker may be on a machine of its own.

First `dblp server --listen 0.0.0.0:7000 --workers 2`, then on one machine
`python examples/numpy_worker.py SERVER:7000 --rank 0` and on another the same with `--rank 1`.
"""

import argparse

import numpy as np

import dblp

FEATURES, ROWS = 20_000, 64

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("address", help="HOST:PORT of the server")
parser.add_argument("--rank", type=int, required=True, help="0 … workers-1")
parser.add_argument("--steps", type=int, default=100)
options = parser.parse_args()

truth = np.random.default_rng(0).standard_normal(FEATURES).astype(np.float32)
own = np.random.default_rng(1 + options.rank)  # every worker has data of its own
inputs = own.standard_normal((ROWS, FEATURES)).astype(np.float32) / np.sqrt(FEATURES)
targets = inputs @ truth

weights = np.zeros(FEATURES, np.float32)
with dblp.Worker(options.address, rank=options.rank) as worker:
    for step in range(options.steps):
        error = inputs @ weights - targets
        gradient = inputs.T @ error / ROWS
        report = worker.all_reduce(gradient)
        weights -= 20.0 * gradient
        if step % 10 == 0 or step == options.steps - 1:
            print(
                f"step {step:3}: error {float(np.square(error).mean()):.3e}, {report.regime}, "
                f"tolerance {report.tolerance}, {report.elapsed_s * 1e3:.2f} ms"
            )
