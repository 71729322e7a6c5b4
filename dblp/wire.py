"""What travels between two endpoints: the datagram header and the typed control frames.

Byte tables are in ``docs/WIRE.md``.  Everything here is pure: no sockets, no clock.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from .errors import RemoteProtocolError

PROTOCOL_VERSION = 2

# --- the datagram header -------------------------------------------------------------------------

HEADER = struct.Struct("<BBHHHIIII")
"""version<<4 | kind, flags, payload length, stream, sequence, round, chunk, session tag, crc32c."""

HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 24

KIND_DATA = 0
"""One chunk of one round."""
KIND_CONTROL = 1
"""One encoded control frame (the datagram copy; TCP is the reliable path)."""
KIND_CREDIT = 2
"""Flow control: `round` = newest sequence drained, `chunk` = newest sequence allowed, each the low
32 bits."""
KIND_HELLO = 3
"""Binds a UDP address to a session: the payload is the token from `Welcome`."""

FLAG_CREDIT_REQUEST = 1
"""On KIND_CREDIT: the sender is blocked; `round` = newest sequence it has sent.  Answer with a
credit."""

FLAG_CREDIT_UNTIMED = 2
"""On KIND_CREDIT: the newest sequence is known from a probe or a request, not from an arrival: no
round-trip sample."""

FLAG_CREDIT_AHEAD = 4
"""On KIND_CREDIT: the receiver has more from this sender than from the slowest of those whose
chunks go into the same mean: it should yield."""

IP_UDP_OVERHEAD = {4: 28, 6: 48}
"""Bytes of IP and UDP header per datagram, by IP version."""

MAX_CONTROL_FRAME_BYTES = 1 << 20
"""Longest control frame accepted on the reliable channel; a longer prefix ends the session."""

MAX_UDP_CONTROL_BYTES = 1200
"""Longest encoded frame that also goes out as a datagram; fits any path MTU an IPv6 network may
have."""

ROUND_MODULUS = 1 << 32


def next_round(round_id: int) -> int:
    """The round id after `round_id`, wrapping at 2**32."""
    return (round_id + 1) % ROUND_MODULUS


def round_is_newer(a: int, b: int) -> bool:
    """Whether round `a` comes after round `b` in serial-number arithmetic (RFC 1982)."""
    return 0 < (a - b) % ROUND_MODULUS < ROUND_MODULUS // 2


CHUNK_BYTES_MAX = 65_448
"""Longest payload that the fast path takes: the largest packet of either IP version has room."""


def chunk_bytes_for_mtu(mtu: int, ip_version: int = 4) -> int:
    """Payload bytes per datagram for a path MTU, a multiple of 8 so that no element is torn."""
    return min(mtu - IP_UDP_OVERHEAD[ip_version] - HEADER_BYTES, CHUNK_BYTES_MAX) & ~7


# --- control frames ------------------------------------------------------------------------------

NO_RANK = -1
"""In `Hello`: not a worker but a point-to-point peer."""

U16 = msgspec.Meta(ge=0, lt=1 << 16)
U32 = msgspec.Meta(ge=0, lt=1 << 32)


class Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all control frames: msgpack arrays headed by a tag."""


class Hello(Frame, tag="hello", frozen=True, array_like=True):
    """Worker → server, first frame on the TCP connection; in a mesh every rank is both."""

    version: int
    rank: int
    """Rank the worker wants, 0 … world-1; `NO_RANK` for a point-to-point peer."""
    world: int
    """World size the worker expects; 0 = whatever the server says."""
    mtu: int
    """Largest path MTU in bytes that the worker wants to use."""
    window: int
    """Datagrams that the worker's UDP socket can hold (its receive window)."""
    fingerprint: str = ""
    """Free-form identity of the job; must be equal on all ranks when not empty."""
    servers: int = 0
    """Mesh: number of ranks that serve a shard; 0: a worker of a parameter server, or a peer."""
    to: int = NO_RANK
    """Mesh: the rank that the newcomer wants to reach at this address."""


class Welcome(Frame, tag="welcome", frozen=True, array_like=True):
    """Server → worker: the session's parameters."""

    world: int
    mtu: int
    window: int
    udp_port: int
    server_tag: int
    """Session tag on datagrams towards the server."""
    worker_tag: int
    """Session tag on datagrams towards the worker."""
    token: bytes
    """Secret that the worker's first datagram carries (KIND_HELLO)."""
    downlink: str
    rule: str
    tolerance: str
    """Uplink tolerance of the first rounds, as an exact fraction."""
    order: str
    timeout_s: float


class UdpBound(Frame, tag="bound", frozen=True, array_like=True):
    """Server → worker: the worker's datagram arrived; data may flow."""

    datagrams: bool
    """False: none arrived in time; payload travels on the control channel (hazard 9)."""
    mtu: int
    """Path MTU in bytes that both sides use: that of `Welcome` if a greeting of that size arrived,
    else the smallest that any path must have."""


class Open(Frame, tag="open", frozen=True, array_like=True):
    """Sender → receiver: announces one round of one stream."""

    stream: int
    round: int
    nbytes: int
    chunk_bytes: int
    dtype: str
    wants_ready: bool
    """The sender waits for `Ready` before its first datagram (first round or changed layout)."""
    squared_norm: float
    """Uplink: squared L2 norm of the sender's whole buffer before transmission.  Downlink: the mean
    of these over the ranks.  NaN when unknown."""
    tolerance: str | None
    """Exact fraction that the receiver must use; None where the receiver knows it: on uplinks to a
    server whose policy decides, and point to point."""
    critical: bool
    """Whether this round is in a critical learning regime; with `tolerance`."""
    next_tolerance: str | None
    """Downlink: uplink tolerance of the next round of this stream, for the choice of send order."""
    whole_bytes: int = 0
    """Size of the buffer of which this round carries one shard; 0: the round is the buffer."""


class Ready(Frame, tag="ready", frozen=True, array_like=True):
    """Receiver → sender: the round is armed."""

    stream: int
    round: int
    exact: bool = False
    """The receiver wants every chunk, so memory order is the fastest and loses nothing."""


class Probe(Frame, tag="probe", frozen=True, array_like=True):
    """Sender → receiver: a pass is over (signal P of Algorithm 1).  Repeats the announcement."""

    open: Open
    epoch: int
    sequence: int
    """Newest transmit sequence used (64 bit): all of it has arrived or is lost."""
    zeros: int = 0
    """Chunks of the round that `Zeros` has named."""


class Bitmap(Frame, tag="bitmap", frozen=True, array_like=True):
    """Receiver → sender: what is missing (signal B).  A fragment that can be acted on by itself."""

    stream: int
    round: int
    epoch: int
    accepted: int
    """Chunks accepted so far, over the whole round, without those that `Zeros` named."""
    first: int
    count: int
    """The fragment covers chunks first … first+count-1."""
    total_fragments: int
    encoding: Literal["bits", "ranges"]
    """bits: 1 = received, LSB first; ranges: LEB128 (gap, length) pairs of missing runs."""
    data: bytes
    sequence_seen: int
    limit: int
    """Flow-control credit, as on KIND_CREDIT but 64 bit."""


class Stop(Frame, tag="stop", frozen=True, array_like=True):
    """Receiver → sender: the round is over (signal S), with the final set of missing chunks."""

    stream: int
    round: int
    accepted: int
    count: int
    at_deadline: bool
    missing: bytes | None
    """LEB128 (gap, length) pairs of missing runs; None = too long for a datagram, comes by TCP."""


class Outline(Frame, tag="outline", frozen=True, array_like=True):
    """Sender → receiver: in which order the chunks of a round come; a hint, on datagrams only."""

    stream: int
    round: int
    first: int
    """Chunk that the first two bits are about; a multiple of 4,096."""
    classes: bytes
    """Two bits per chunk, from the lowest: 0, 1, 2 = the order of the classes, within which the
    index ascends; 3 = not sent."""


class Zeros(Frame, tag="zeros", frozen=True, array_like=True):
    """Sender → receiver: chunks that are zero and are not sent.  A fragment that can be acted on by
    itself, as `Bitmap`."""

    stream: int
    round: int
    first: int
    count: int
    """The fragment covers chunks first … first+count-1."""
    encoding: Literal["bits", "ranges"]
    """bits: 0 = zeros, LSB first; ranges: LEB128 (gap, length) pairs of runs of them."""
    data: bytes


class ChunkData(Frame, tag="data", frozen=True, array_like=True):
    """Sender → receiver on the reliable channel when datagrams do not get through (hazard 9)."""

    stream: int
    round: int
    first: int
    payload: bytes
    """Consecutive whole chunks starting at `first`."""


class Heartbeat(Frame, tag="beat", frozen=True, array_like=True):
    """Either way, while idle."""

    stall: str = ""
    """What the sender of the heartbeat is waiting for, for the peer's stall report."""


class Abort(Frame, tag="abort", frozen=True, array_like=True):
    """Either way: the job cannot go on.  `kind` is the name of the error class to raise."""

    kind: str
    reason: str


class Bye(Frame, tag="bye", frozen=True, array_like=True):
    """Either way: an orderly end; implies STOP for every open round of the peer's senders."""


AnyFrame = (
    Hello
    | Welcome
    | UdpBound
    | Open
    | Ready
    | Probe
    | Bitmap
    | Stop
    | Outline
    | Zeros
    | ChunkData
    | Heartbeat
    | Abort
    | Bye
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)

LENGTH_PREFIX = struct.Struct("<I")


def encode_frame(frame: Frame) -> bytes:
    """`frame` as msgpack bytes, without the length prefix."""
    return _encoder.encode(frame)


def decode_frame(data: bytes | memoryview) -> AnyFrame:
    """The frame in `data`; `RemoteProtocolError` if it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RemoteProtocolError(f"the peer sent an illegal control frame: {error}") from error


class FrameReader:
    """Cuts the TCP byte stream into frames; bounded, whatever the peer sends."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[AnyFrame]:
        """All frames completed by `data`; `RemoteProtocolError` on an illegal or oversized one."""
        self._buffer += data
        frames: list[AnyFrame] = []
        start = 0
        while len(self._buffer) - start >= LENGTH_PREFIX.size:
            (length,) = LENGTH_PREFIX.unpack_from(self._buffer, start)
            if length > MAX_CONTROL_FRAME_BYTES:
                raise RemoteProtocolError(
                    f"the peer announced a control frame of {length} bytes; at most "
                    f"{MAX_CONTROL_FRAME_BYTES} are allowed: is this a dblp peer?"
                )
            end = start + LENGTH_PREFIX.size + length
            if len(self._buffer) < end:
                break
            frames.append(decode_frame(bytes(self._buffer[start + LENGTH_PREFIX.size : end])))
            start = end
        del self._buffer[:start]
        return frames


def frame_with_prefix(frame: Frame) -> bytes:
    """`frame` as it goes out on the TCP connection."""
    body = encode_frame(frame)
    return LENGTH_PREFIX.pack(len(body)) + body
