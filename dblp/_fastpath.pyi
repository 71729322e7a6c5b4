"""The contract of the fast path: `_fastpath.pyx` (compiled) and `_fastpath_py.py` (readable twin)
both implement it.

It moves bytes and never decides: all bounds (notify counts, windows, rates, budgets) are set by the
caller.  Datagram trouble is counted, never raised.  Misuse by the caller raises ValueError.

Every buffer is contiguous; indices are whatever `numpy.asarray` makes one dimension of uint32 of.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

_BufferLike = Buffer | npt.NDArray[Any]
"""numpy's own stubs make an array a buffer from Python 3.12 on only."""

IS_COMPILED: bool
HEADER_BYTES: int  # 24
MAX_SLOTS: int  # 256 receive and 256 transmit slots per channel

# pump() result flags
EVENT: int
"""1: Python has something to do: control frame, notify reached, or a transmit slot ran dry."""
QUIET: int
"""2: nothing happened for linger_ns."""
BUDGET: int
"""4: budget_ns used up."""
WAKE: int
"""8: one of wake_fds is readable."""

COUNTERS: tuple[str, ...]
"""Names of the counters, in order:
datagrams_sent bytes_sent send_calls send_errors datagrams_received bytes_received receive_calls
accepted duplicate stale future foreign corrupt malformed truncated
control_received control_sent credits_sent credits_received
credit_requests_sent credit_requests_received
injected_loss moved gso_fallbacks kernel_drops
(`moved`: chunks that were not received straight into a place but copied there.)
"""

def crc32c(data: _BufferLike, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of any contiguous buffer, continuing from `value`."""

def crc32c_backend() -> str:
    """'vpclmulqdq', 'sse4.2', 'armv8' or 'portable' (the twin: 'python')."""

def pack_datagram(
    kind: int,
    flags: int,
    stream: int,
    sequence: int,
    round: int,
    chunk: int,
    tag: int,
    payload: _BufferLike,
) -> bytes:
    """One whole datagram with valid length and CRC (tests, injector, HELLO)."""

def parse_datagram(data: _BufferLike) -> tuple[int, int, int, int, int, int, int, bytes] | None:
    """(kind, flags, stream, sequence & 0xffff, round, chunk, tag, payload), or None when version,
    length or CRC is wrong."""

def bitmap_set(bitmap: _BufferLike, index: int) -> bool:
    """Sets bit `index` (LSB first); True if it was clear."""

def bitmap_count(bitmap: _BufferLike, count: int) -> int:
    """Number of set bits among the first `count`."""

def bitmap_missing(bitmap: _BufferLike, count: int, first: int = 0) -> npt.NDArray[np.uint32]:
    """uint32 indices in first … count-1 whose bit is clear, ascending."""

def encode_runs(chunks: npt.ArrayLike) -> bytes:
    """Ascending chunk indices (uint32) as LEB128 numbers: (gap since the last run, length) of every
    run of neighbours; b"" for none.  ValueError unless they ascend."""

def decode_runs(data: _BufferLike, count: int) -> npt.NDArray[np.uint32]:
    """The indices that `encode_runs` took.  ValueError, before anything larger than `count` indices
    is allocated, unless `data` is whole pairs of numbers of at most 5 bytes, no run but the first
    touches the one before it, none is empty, and all indices are below `count`."""

def pack_classes(order: npt.ArrayLike, count: int) -> bytes:
    """Two bits per chunk of `count`, four chunks to a byte, lowest first: which ascending run of
    `order` (chunk indices, each at most once) it is in, 0 to 2; 3: in none.  b"" where two bits do
    not tell (more than three runs), and for all chunks in index order.  ValueError when an index is
    not below `count`."""

def order_of_classes(classes: _BufferLike, count: int) -> npt.NDArray[np.uint32]:
    """The order of which these are the classes.  ValueError unless they are (count+3)//4 bytes."""

def zero_missing(buffer: _BufferLike, bitmap: _BufferLike, count: int, chunk_bytes: int) -> int:
    """Zeroes every chunk of `buffer` whose bit is clear; returns how many."""

def squared_norm(buffer: _BufferLike, dtype: str) -> float:
    """Sum of squares in float64.  dtype: 'float32' 'float64' 'float16' 'bfloat16'."""

def chunk_energy(
    buffer: _BufferLike,
    dtype: str,
    chunk_bytes: int,
    *,
    chunks: npt.NDArray[np.uint32] | None = None,
    sample: tuple[int, int] | None = None,
) -> npt.NDArray[np.float32]:
    """Sum of squares per chunk.

    chunks: of these only, in their order; None: of all.  sample: (offset, stride), multiples of 128
    with 0 <= offset < stride: of each chunk only the 128 bytes at `offset`, `offset + stride` and
    so on are read; None: all.
    """

def gather_ranges(source: _BufferLike, ranges: _BufferLike, out: _BufferLike, dtype: str) -> None:
    """Copies the elements of `ranges` to `out`, one after the other.

    ranges: int64 pairs [start, stop) of element indices, ascending, not overlapping.  `out` must
    have exactly their size.
    """

def add_ranges(
    target: _BufferLike,
    ranges: _BufferLike,
    values: _BufferLike,
    dtype: str,
    factor: float = 1.0,
) -> None:
    """Adds `values` times `factor` (rounded to the dtype first) to the elements of `ranges`: what
    `gather_ranges` took.  dtype: 'float32' 'float64'."""

class Reducer:
    """Mean over workers, chunk by chunk while data arrives.  Accumulates in rank order, in float32
    (float64 for 'float64'), divides at the end, rounds once to the buffer's dtype."""

    def __init__(
        self,
        out: _BufferLike | None,
        sources: Sequence[_BufferLike | None],
        chunk_bytes: int,
        dtype: str,
        contributors: bool = False,
    ) -> None:
        """`out` (writable) and each of `sources` (rank order) are contiguous buffers of equal size
        in bytes, pinned while the Reducer lives; `out` must not overlap a source.  dtype as in
        squared_norm.  contributors=False: divide by len(sources); True: divide each chunk by the
        number of sources that delivered it.

        A source that is None comes later (`provide`); `out` None: the mean replaces the source
        that is provided."""

    count: int  # chunks
    @property
    def ready(self) -> int:
        """Chunks reduced so far; their indices are ready_indices()[:ready]."""
    limit: int  # chunks that may become ready: all, until set_limit or finish
    def set_limit(self, limit: int) -> None:
        """Only the first `limit` chunks to become ready are of use: the others become zero.  Before
        anyone follows; the limit can only go down."""
    def ready_indices(self) -> npt.NDArray[np.uint32]: ...
    def arrive(self, source: int, indices: npt.ArrayLike) -> None:
        """Source has these chunks.  Chunks now delivered by all sources are reduced and become
        ready.  Called from Channel ingest; at most once per (source, chunk)."""
    def provide(self, source: int, buffer: _BufferLike) -> None:
        """The whole of a source that was None is in `buffer`: every chunk of it arrives.  Without
        an `out` the mean is written there too, in place; then nothing else writes to `buffer`."""
    def finish(
        self, bitmaps: Sequence[_BufferLike | None], first: npt.ArrayLike = ()
    ) -> npt.NDArray[np.uint32]:
        """All sources have stopped; bitmaps say what each delivered (missing = contributes
        nothing; None: it delivered all).  Reduces every chunk that is not ready yet and makes it
        ready: those of `first` in its order, then the others, ascending.

        A chunk that no source has is zero.  Where no limit was set it does not become ready: the
        limit goes down by these chunks, and their indices (ascending) are returned."""

class Channel:
    """One direction-pair to one peer over one connected UDP socket: transmit queue, receive table,
    credit.

    fd = -1: no socket; use collect()/ingest() (simulator, impaired path).  Sequences are 64 bit
    inside, 16 bit on the wire; the first datagram sent has sequence 1.  Sequence numbers are used
    by DATA datagrams only (others carry the newest DATA sequence).
    """

    def __init__(
        self,
        fd: int,
        *,
        send_tag: int,
        recv_tag: int,
        chunk_bytes: int,
        gso: bool = True,
        gro: bool = True,
    ) -> None: ...

    chunk_bytes: int
    fd: int
    window: int
    """Datagrams that the peer may have in flight towards us (we advertise drained + window)."""
    cwnd: int
    """Datagrams that we may have unacknowledged (congestion control); default 1 << 30."""
    pacing_rate: float
    """Bytes per second that we may send; 0 = no pacing."""
    request_interval_ns: int
    """A transmitter that is blocked on credit asks for it after this long without progress (default
    2 ms); after a quarter of it while what it asks for shows that datagrams are lost."""

    # receive side
    def open_receive(
        self,
        stream: int,
        round: int,
        buffer: _BufferLike,
        bitmap: _BufferLike,
        *,
        aim: bool = True,
        reducer: Reducer | None = None,
        source: int = 0,
    ) -> int:
        """Arms (stream, round): chunks go to their place in writable `buffer`, bits into `bitmap`
        (≥ (count+7)//8 writable zeroed bytes).  Both are pinned until close_receive.  aim:
        datagrams may be received straight into places not yet received (a wrong guess is moved; the
        place of a missing chunk may hold garbage: zero_missing after close).  With aim=False only
        verified chunks ever touch the buffer.  reducer: `buffer` must be that of its source
        `source`, which can be received once.  A chunk may then lie anywhere in it until it is
        reduced: its contents are nobody else's business, nor zero_missing's.  Returns a slot
        number; ValueError when (stream, round) is open already, sizes do not fit, the buffer is not
        the source's, the source was received already or no slot is free.  Two rounds of one stream
        may be open at once.  A zero-length buffer is fine (count 0)."""
    def set_aim(self, slot: int, aim: bool) -> None: ...
    def expect(self, slot: int, order: npt.ArrayLike) -> None:
        """Chunks will come in this order (indices, each at most once), and are aimed for
        accordingly; a hint.  ValueError when an index is out of range."""
    def set_notify(self, slot: int, accepted: int) -> None:
        """pump() returns EVENT when the slot's accepted count reaches this (fires once; at once if
        already there)."""
    def accepted(self, slot: int) -> int: ...
    def duplicates(self, slot: int) -> int: ...
    def close_receive(self, slot: int) -> None:
        """Later datagrams of this round are `stale`."""
    def deliver(self, slot: int, index: int, payload: _BufferLike) -> bool:
        """A chunk that came on the reliable channel; False if it was there already or does not
        fit."""
    def deliver_zeros(self, slot: int, indices: npt.ArrayLike) -> int:
        """Accepts these chunks as zeros, except where they are there already; returns how many.
        ValueError if any is out of range."""

    # transmit side
    def open_transmit(self, stream: int, round: int, buffer: _BufferLike) -> int:
        """Registers the (readable, pinned) source of a round; returns a slot."""
    def queue(self, slot: int, indices: npt.ArrayLike) -> None:
        """Appends a pass: chunk indices in send order.  ValueError if any is out of range."""
    def follow(self, slot: int, reducer: Reducer) -> None:
        """Sends the reducer's chunks as they become ready, once each (in place of queue() for the
        first pass)."""
    def pending(self, slot: int) -> int:
        """Indices queued (or ready to follow, or not yet ready to follow) and not yet handed to the
        kernel."""
    def sent(self, slot: int) -> int:
        """Datagrams of this slot handed to the kernel so far, over all passes."""
    def cancel(self, slot: int) -> int:
        """Drops what is pending (also a follow); returns how many."""
    def close_transmit(self, slot: int) -> None: ...

    # flow control
    sent_sequence: int
    """Newest DATA sequence sent."""
    acknowledged: int
    """Newest sequence the peer says it has drained."""
    credited: tuple[int, int]
    """Of what credits have said: the newest sequence that the peer has drained or that is lost, and
    how many DATA datagrams it has drained, with repeated ones.  Without any, the rest is lost."""
    limit: int
    """Newest sequence we may send (credit); starts at 0: call grant() with the peer's window."""
    received_sequence: int
    """Newest sequence drained from the peer."""
    drained: int
    """DATA datagrams drained, with repeated ones; without any, the rest of received_sequence is
    lost."""
    def grant(self, sequence_seen: int, limit: int) -> None:
        """Credit that came otherwise than by datagram (monotonic: never lowers)."""
    def sync_received(self, sequence: int) -> None:
        """All up to `sequence` has arrived or is lost (a PROBE said so): raises
        received_sequence."""
    def blocked(self) -> bool:
        """Something is pending but credit, cwnd, pacing or a full socket holds it back."""
    def take_path_ns(self) -> tuple[int, int]:
        """(mean, number of) path delay samples since the last call: round trips without the time
        that either host held the datagram; (0, 0) when none."""
    def take_window_limited(self) -> bool:
        """Whether the congestion window alone has held chunks back since the last call (in a
        transmit turn: more chunks were sendable than cwnd - unacknowledged, which was at most what
        credit and pacing allowed)."""
    def take_lost(self) -> int:
        """Datagrams newly known to be lost, as far as credits tell; what was overtaken counts until
        it arrives, and what arrives twice makes up for one that was lost."""
    @property
    def told_ahead(self) -> bool:
        """The newest credit said that this sender is ahead of others whose chunks go into the same
        mean."""
    def take_tail_lost(self) -> bool:
        """Whether, since the last call, a credit that was asked for said that the newest datagrams
        in flight were lost."""
    def take_rtt_ns(self) -> tuple[int, int, int]:
        """(smallest, last, number of) round-trip samples since the last call; (0, 0, 0) when none.
        `last` is what the endpoints see; `smallest` is the delay of the path alone.  It leaves out
        how long the datagram waited to leave within its turn, and how long the peer's host held it
        before the credit left (field `stream` of the credit, units of 4,096 ns, at most 65,535)."""

    # control frames as datagrams (KIND_CONTROL)
    def send_control(self, payload: bytes, stream: int = 0, round: int = 0) -> bool:
        """Sends at once (fd) or appends for collect().  False if the kernel refused.  ValueError if
        longer than chunk_bytes."""
    def take_control(self) -> list[bytes]:
        """Payloads of the control datagrams received since the last call."""

    # faults
    def set_loss(self, ppm: int, first_round: int, last_round: int, seed: int) -> None:
        """Drops arriving datagrams (all kinds) with probability ppm/1e6 while the newest round this
        channel has opened for receiving or transmitting lies in first_round … last_round; DATA by
        its own round.  0 switches it off.  Counted as injected_loss."""

    # bytes in, bytes out without a socket (simulator, impaired path, tests)
    def ingest(self, datagrams: Sequence[bytes], now_ns: int) -> None:
        """Handles arrived datagrams exactly as pump() does."""
    def collect(self, max_datagrams: int, now_ns: int, took_ns: int = 0) -> list[bytes]:
        """What pump() would send now: control, credits and credit requests, then data within
        credit, cwnd and pacing, which leaves one after the other within `took_ns`."""
    def receive_raw(self, max_calls: int = 8) -> list[bytes]:
        """Reads the socket to EAGAIN (bounded) and returns the datagrams without handling them (GRO
        split undone)."""
    def send_pending(self, now_ns: int) -> int:
        """One transmit turn on the socket (impaired path); returns datagrams sent."""

    def next_deadline_ns(self, now_ns: int) -> int:
        """When this channel next wants a turn though nothing arrives (pacing, credit request, full
        socket); -1: never."""
    def reached(self) -> bool:
        """Something for Python is waiting (as EVENT of pump()); cleared by take_events()."""
    def take_events(self) -> None: ...
    def counters(self) -> dict[str, int]: ...

def pump(
    channels: Sequence[Channel], wake_fds: Sequence[int], *, budget_ns: int, linger_ns: int
) -> int:
    """Receives and sends on all channels until there is an EVENT, nothing happens for linger_ns,
    budget_ns is over, or a wake fd is readable.  Sends credits (every window/8 datagrams drained,
    when a socket runs empty after at least one DATA, and on request).  The GIL is released while it
    runs.  Returns flags (EVENT | QUIET | BUDGET | WAKE)."""

def probe_offload(fd: int) -> tuple[bool, bool]:
    """(UDP_SEGMENT works, UDP_GRO works) on this socket."""
