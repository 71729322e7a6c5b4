# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled fast path.  `_fastpath.pyi` is its contract, `_fastpath_py.py` its readable twin.

It touches bytes and file descriptors and never decides: windows, rates, notify counts and budgets
are set by the caller.  Loops are `noexcept nogil`; every bound is checked once at entry; datagram
trouble is counted.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

import numpy as np

IS_COMPILED = True
HEADER_BYTES = 24
MAX_SLOTS = 256
EVENT, QUIET, BUDGET, WAKE = 1, 2, 4, 8

DEF_KINDS = {"float32": DBLP_F32, "float64": DBLP_F64, "float16": DBLP_F16, "bfloat16": DBLP_BF16}
_ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

cdef enum:
    HEADER = 24
    SLOTS = 256
    VERSION = 2
    KIND_DATA = 0
    KIND_CONTROL = 1
    KIND_CREDIT = 2
    KIND_HELLO = 3
    FLAG_REQUEST = 1
    FLAG_UNTIMED = 2
    FLAG_AHEAD = 4
    MAX_DATAGRAM = 65536

# No such chunk, no such count; also the checksum's initial state.
cdef uint32_t NEVER = <uint32_t> -1

cdef enum:  # positions in ChannelState.counters, in the order of COUNTERS
    C_DATAGRAMS_SENT, C_BYTES_SENT, C_SEND_CALLS, C_SEND_ERRORS,
    C_DATAGRAMS_RECEIVED, C_BYTES_RECEIVED, C_RECEIVE_CALLS,
    C_ACCEPTED, C_DUPLICATE, C_STALE, C_FUTURE, C_FOREIGN, C_CORRUPT, C_MALFORMED, C_TRUNCATED,
    C_CONTROL_RECEIVED, C_CONTROL_SENT, C_CREDITS_SENT, C_CREDITS_RECEIVED,
    C_REQUESTS_SENT, C_REQUESTS_RECEIVED,
    C_INJECTED_LOSS, C_MOVED, C_GSO_FALLBACKS, C_KERNEL_DROPS, C_COUNT

COUNTERS = (
    "datagrams_sent", "bytes_sent", "send_calls", "send_errors",
    "datagrams_received", "bytes_received", "receive_calls",
    "accepted", "duplicate", "stale", "future", "foreign", "corrupt", "malformed", "truncated",
    "control_received", "control_sent", "credits_sent", "credits_received",
    "credit_requests_sent", "credit_requests_received",
    "injected_loss", "moved", "gso_fallbacks", "kernel_drops",
)

dblp_crc32c_setup(1)

include "csrc/bytes.pxi"
include "csrc/landing.pxi"
include "csrc/reduce.pxi"
include "csrc/ranges.pxi"
include "csrc/runs.pxi"
include "csrc/receive.pxi"
include "csrc/receive_socket.pxi"
include "csrc/transmit.pxi"
include "csrc/channel_flow.pxi"
include "csrc/channel.pxi"
include "csrc/pump.pxi"
