"""Plays one process of the demo without a transport.  `python fake_process.py BEHAVIOUR`.

Behaviours: good; killed, error, silent: what worker 1 does after two rounds; deaf: the server never
ends; mute: the server dies at once.
"""

import json
import os
import signal
import sys
import time

import numpy as np

CHUNKS = 10


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def report(step: int, rank: int) -> dict[str, object]:
    return {
        "round_id": step,
        "chunks": CHUNKS,
        "missing": rank,
        "datagrams": CHUNKS,
        "nbytes": CHUNKS * 1448,
        "elapsed_s": 0.001 * (rank + 1) + 0.0001 * step,
    }


def work(behaviour: str, rank: int, assignment: dict[str, object]) -> None:
    say(event="ready")
    steps = 2 if behaviour != "good" and rank == 1 else 6
    for step in range(steps):
        say(
            event="round",
            step=step,
            epoch=step // 3,
            loss=2.0 - 0.1 * step,
            squared_norm=float(rank + 1),
            critical=step < 2,
            tolerance="0.8%",
            elapsed_s=0.01,
            uplink=report(step, rank),
            downlink=report(step, 0),
        )
        if step % 3 == 2:
            say(event="epoch", epoch=step // 3, correct=9, seen=10, train_time_s=0.5 * (step + 1))
    if steps == 2 and behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if steps == 2 and behaviour == "error":
        say(event="error", kind="ConfigError", message="the buffer is read-only: pass another")
        sys.exit(1)
    if behaviour == "killed":
        time.sleep(0.2)
        say(event="error", kind="PeerLostError", message="rank 1 is gone")
        sys.exit(1)
    if behaviour in ("error", "silent"):
        time.sleep(60)
    np.save(str(assignment["parameters_path"]), np.array([1.0, 2.0 + rank], np.float32))
    say(event="trained")


def main() -> None:
    behaviour = sys.argv[1]
    assignment = json.loads(sys.stdin.readline())
    if assignment["rank"] is not None:
        work(behaviour, assignment["rank"], assignment)
        return
    if behaviour == "mute":
        sys.exit(3)
    say(event="listening", address="127.0.0.1:1")
    sys.stdin.read()
    if behaviour == "deaf":
        time.sleep(60)
    say(event="served", datagrams=180)


if __name__ == "__main__":
    main()
