"""What the two sides of `dblp bench` tell each other: cards of one fixed size, sent as buffers.

The size of a card and its head (magic, version, length) are the same in every version, so that two
versions always understand each other well enough to say that they differ.  The body is msgpack.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from ..errors import ConfigError, RemoteProtocolError

__all__ = [
    "BENCH_VERSION",
    "CARD_BYTES",
    "MAX_BYTES",
    "MAX_ROUNDS",
    "REASON_CHARACTERS_MAX",
    "Accepted",
    "Card",
    "Counts",
    "HostFacts",
    "Outcome",
    "Refused",
    "Request",
    "decode_card",
    "encode_card",
    "is_card",
]

BENCH_VERSION = 1
"""Goes up whenever a body or the course of a bench changes."""

CARD_BYTES = 2048
"""Never changes, whatever the version."""

HEAD = struct.Struct("<8sHH")
"""magic, version, length of the body; never changes either."""

MAGIC = b"dblpbnch"

MAX_BYTES = 4 << 30
"""Largest buffer of a round: what a server is ready to allocate for a stranger."""

MAX_ROUNDS = 1_000_000

REASON_CHARACTERS_MAX = 400
"""Fits a card in any script."""

Whole = Annotated[int, msgspec.Meta(ge=0)]


class HostFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one host grants.  Sizes in bytes."""

    version: str
    """Of the dblp package."""
    fastpath: str
    """"compiled" or "python"."""
    wanted_buffer: Whole
    receive_buffer: Whole
    send_buffer: Whole
    mtu: Whole
    """Largest packet that this side agrees to."""
    gso: bool
    gro: bool


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one side's channel counted while the rounds ran."""

    data_sent: Whole
    """Data datagrams handed to the kernel."""
    data_received: Whole
    """Data datagrams that came out of the kernel intact, repeated and late ones included."""
    kernel_drops: Whole
    """Datagrams that arrived and found the socket's buffer full."""
    corrupt: Whole
    gso_fallbacks: Whole
    retransmitted: Whole = 0
    """Data datagrams beyond the first pass."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="request"):
    """Client → server, first."""

    nbytes: Annotated[int, msgspec.Meta(ge=4, le=MAX_BYTES, multiple_of=4)]
    """Size of the float32 buffer of a round."""
    rounds: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROUNDS)]
    """Reported rounds; each goes up and comes back."""
    warmup: Annotated[int, msgspec.Meta(ge=0, le=100)]
    """Rounds before them."""
    tolerance: Annotated[str, msgspec.Meta(max_length=64)]
    """What either receiver does without, as `Tolerance.wire` writes it."""


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="accepted"):
    """Server → client: the rounds may begin."""

    host: HostFacts


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="refused"):
    """Server → client: no rounds, and why."""

    reason: str


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="outcome"):
    """Server → client, after the last round."""

    counts: Counts


Card = Request | Accepted | Refused | Outcome
_decoder = msgspec.msgpack.Decoder(Card)


def encode_card(card: Card, *, version: int = BENCH_VERSION) -> bytearray:
    """The card as the buffer to send."""
    body = msgspec.msgpack.encode(card)
    data = bytearray(CARD_BYTES)
    HEAD.pack_into(data, 0, MAGIC, version, len(body))
    data[HEAD.size : HEAD.size + len(body)] = body
    return data


def is_card(data: bytearray) -> bool:
    """Whether a received buffer is a card, of whatever version."""
    return bool(HEAD.unpack_from(data)[0] == MAGIC)


def decode_card(data: bytearray) -> Card:
    """The card in a received buffer.

    Raises ConfigError when the other side has another version, RemoteProtocolError for nonsense.
    """
    if not is_card(data):
        raise RemoteProtocolError("the other side is no dblp bench: run dblp bench on both hosts")
    _, version, length = HEAD.unpack_from(data)
    if version != BENCH_VERSION:
        raise ConfigError(
            f"the other side speaks version {version} of the bench protocol and this one version "
            f"{BENCH_VERSION}: install the same dblp on both hosts"
        )
    try:
        return _decoder.decode(data[HEAD.size : HEAD.size + length])
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the other side sent a card that is wrong: {error}") from None
