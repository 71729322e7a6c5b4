"""DBLP_SEND and DBLP_RECV between two peers, without a server: `python examples/point_to_point.py`.

Both ends run in this process; on two machines each side keeps its half.
"""

import numpy as np

import dblp

sent = np.random.default_rng(1).standard_normal(250_000).astype(np.float32)
received = np.empty_like(sent)

with (
    dblp.Listener("127.0.0.1:0") as listener,
    dblp.Peer.connect(listener.address) as sender,
    listener.accept() as receiver,
):
    done = sender.send_async(sent)  # `sent` must not change until this future is done
    report = receiver.recv(received, tolerance="2.4%")  # the receiver sets the bound
    print(f"receiver: {report.delivered} of {report.chunks} chunks in {report.elapsed_s:.4f} s")
    print(f"sender: {done.result().missing} chunks were not delivered")

wrong = (received != sent) & (received != 0)
print(f"{wrong.sum()} wrong elements; missing chunks are zero")
