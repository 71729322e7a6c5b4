"""A training script as users write it, for torchrun: `script.py ROLE FOLDER`.

Every rank writes what happens to it, line by line, to FOLDER/RANK (appended over restarts).
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dblp
import dblp.torch

STEPS = 12
VICTIM = 1
KEPT: list[object] = []


def main(role: str, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    log = (folder / str(rank)).open("a", buffering=1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(64, 2000))
    port = int(os.environ.get("TEST_PORT", "0"))
    config = dblp.torch.ExchangeOptions().config
    if "TEST_TIMEOUTS" in os.environ:
        timeout_s, straggler_timeout_s = map(float, os.environ["TEST_TIMEOUTS"].split())
        config = dblp.TransportConfig(timeout_s=timeout_s, straggler_timeout_s=straggler_timeout_s)
    state = dblp.torch.register(model, tolerance="10%", port=port, config=config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log.write(f"ready {os.getpid()} {restarts} {state.engine._pipeline.collective.port}\n")
    steps = 10_000 if role in ("hurt", "interrupt") else STEPS
    try:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).square().mean().backward()
            optimizer.step()
            if role == "restart" and restarts == 0 and step == 4 and rank == VICTIM:
                os.kill(os.getpid(), signal.SIGKILL)
    except dblp.DBLPError as error:
        log.write(f"{time.time()} {type(error).__name__}: {error}\n")
        if role == "hurt":
            time.sleep(2.0)  # torchrun must not end the others before they have written
        raise
    except KeyboardInterrupt:
        log.write("interrupted\n")
        sys.exit(130)
    log.write(f"done {state.step}\n")
    if role == "leave":  # without a word: the interpreter must end all the same
        KEPT.append(state)
    else:
        state.close()
    # The last reference to gloo must not go while the interpreter ends; see examples/ddp_cifar.py.
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
