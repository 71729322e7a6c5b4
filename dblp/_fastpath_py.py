"""The readable twin of the compiled fast path: numpy, struct, socket.  It is the specification.

`_fastpath.pyi` is the contract of both; the parts lie in the `_fastpath_py_*` modules:
bytes (checksum, datagrams, bitmaps), runs (chunk indices), reducer and ranges (numbers), slots,
state, inbound, outbound and channel (one peer), socket and pump.
"""

from ._fastpath_py_bytes import (
    bitmap_count,
    bitmap_missing,
    bitmap_set,
    crc32c,
    crc32c_backend,
    pack_datagram,
    parse_datagram,
    zero_missing,
)
from ._fastpath_py_channel import Channel
from ._fastpath_py_pump import BUDGET, EVENT, QUIET, WAKE, pump
from ._fastpath_py_ranges import add_ranges, gather_ranges
from ._fastpath_py_reducer import Reducer, chunk_energy, squared_norm
from ._fastpath_py_runs import decode_runs, encode_runs, order_of_classes, pack_classes
from ._fastpath_py_slots import MAX_SLOTS
from ._fastpath_py_socket import probe_offload
from ._fastpath_py_state import COUNTERS
from .wire import HEADER_BYTES

IS_COMPILED = False

__all__ = [
    "BUDGET",
    "COUNTERS",
    "EVENT",
    "HEADER_BYTES",
    "IS_COMPILED",
    "MAX_SLOTS",
    "QUIET",
    "WAKE",
    "Channel",
    "Reducer",
    "add_ranges",
    "bitmap_count",
    "bitmap_missing",
    "bitmap_set",
    "chunk_energy",
    "crc32c",
    "crc32c_backend",
    "decode_runs",
    "encode_runs",
    "gather_ranges",
    "order_of_classes",
    "pack_classes",
    "pack_datagram",
    "parse_datagram",
    "probe_offload",
    "pump",
    "squared_norm",
    "zero_missing",
]
