"""A parameter server and three workers in one process: `python examples/loopback.py`."""

from threading import Thread

import numpy as np

import dblp


def train(address: str, rank: int) -> None:
    with dblp.Worker(address, rank=rank) as worker:
        for step in range(12):
            gradient = np.full(100_000, rank + 1, np.float32)
            report = worker.all_reduce(gradient)  # in place: now the mean over the workers
            if rank == 0:
                print(step, report.regime, report.tolerance, f"{report.delivered_share:.1%}")


policy = dblp.GradientNormPolicy(low="0.8%", high="40.8%", interval=5)
with dblp.ParameterServer("127.0.0.1:0", workers=3, policy=policy) as server:
    threads = [Thread(target=train, args=(server.address, rank)) for rank in range(3)]
    for thread in threads:
        thread.start()
    server.wait()  # until every worker has left
