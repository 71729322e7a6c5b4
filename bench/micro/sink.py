"""A process that receives: `python -m bench.micro.sink`, a JSON line {"nbytes": N} per peer.

It tells its address, then accepts one peer after another and receives rounds until that one leaves.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import dblp

TIMEOUT_S = 60.0


def main() -> None:
    config = dblp.TransportConfig(timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S)
    with dblp.Listener(config=config) as listener:
        print(json.dumps({"address": listener.address}), flush=True)
        for line in sys.stdin:
            buffer = np.zeros(json.loads(line)["nbytes"], np.uint8)
            rounds = 0
            with listener.accept() as peer:
                try:
                    while True:
                        peer.recv(buffer)
                        rounds += 1
                except dblp.PeerLostError:
                    pass  # it said goodbye, as it should
            print(json.dumps({"rounds": rounds, "sum": int(buffer.sum())}), flush=True)


if __name__ == "__main__":
    main()
