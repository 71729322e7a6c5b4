"""The raw UDP ceiling: what a datagram transport without any protocol reaches here.

`raw_udp.c` sends 44 segments of 1,472 bytes per message (UDP_SEGMENT), receives with GRO and
`recvmmsg` into a ring, and copies once into place. No header, no check, no retransmission; or with
the memory traffic of a header and a check for each datagram, and still nothing that it could do.
"""

from __future__ import annotations

from pathlib import Path

from bench.kernel import own_udp_counters
from bench.netlab import NetworkLab
from bench.transport.peers.compiled import compiled
from bench.transport.peers.flow import FlowResult
from bench.transport.peers.role import Role, address_of

SEGMENT_BYTES = 1472
"""UDP payload of an MTU-sized packet (MTU 1500, IPv4)."""
GSO_SEGMENTS = 44
"""44 x 1,472 = 64,768 bytes: the most whole segments that fit into 64 KiB."""
HEADER_BYTES = 24
"""Header of a datagram, as long as dblp's."""
# The kernel charges a small datagram with up to three times its bytes: a quarter is safe.
_BUFFER_SHARE = 4
# More under way gains nothing on one machine.
_MOST_WINDOW_BYTES = 2 << 20


def run_raw_udp(
    lab: NetworkLab | None,
    src_host: int,
    dst_host: int,
    nbytes: int,
    rounds: int,
    *,
    gso: bool = True,
    framed: bool = False,
    warmup: int = 1,
    window_bytes: int | None = None,
    timeout_s: float = 120.0,
) -> FlowResult:
    """`warmup` + `rounds` rounds of `nbytes` bytes from `src_host` to `dst_host`.

    `gso=False` sends one MTU-sized datagram per message (`sendmmsg`), and receives without GRO.
    With `framed` a header of its own takes the place of the first bytes of each datagram, and both
    sides read the bytes once.
    Raises `PeerError` when a datagram was lost, `PeerTimeoutError` after `timeout_s`.
    """
    program = str(compiled(Path(__file__).with_name("raw_udp.c")))
    shape = [str(nbytes), str(rounds), str(warmup)]
    header = str(HEADER_BYTES if framed else 0)
    address = address_of(lab, dst_host)
    before = own_udp_counters() if lab is None else lab.udp_counters(dst_host)
    take = [program, "recv", address, *shape, str(int(gso)), str(SEGMENT_BYTES), header]
    with Role(lab, dst_host, take) as receiver:
        ready = receiver.hear(timeout_s)
        window = window_bytes or min(ready["granted"] // _BUFFER_SHARE, _MOST_WINDOW_BYTES)
        batch = [str(GSO_SEGMENTS if gso else 1), str(SEGMENT_BYTES), str(window), header]
        give = [program, "send", address, str(ready["port"]), *shape, *batch]
        with Role(lab, src_host, give) as sender:
            sent = sender.hear(timeout_s)
            received = receiver.hear(timeout_s)
    after = own_udp_counters() if lab is None else lab.udp_counters(dst_host)
    return FlowResult(
        name="raw udp" + (", framed" if framed else "") + ("" if gso else ", no GSO"),
        nbytes=nbytes,
        elapsed_s=tuple(sent["elapsed_s"][warmup:]),
        cold_s=tuple(sent["elapsed_s"][:warmup]),
        sender_cpu_s=sent["cpu_s"],
        receiver_cpu_s=received["cpu_s"],
        datagrams=-(-nbytes // SEGMENT_BYTES) * rounds,
        kernel_drops=(after - before).rcvbuf_errors,
    )
