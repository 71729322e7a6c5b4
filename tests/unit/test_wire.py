"""The datagram header, round ids and the control-frame codec."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblp import wire
from dblp.errors import RemoteProtocolError

OPEN = wire.Open(3, 7, 20_000_000, 1448, "float32", True, 1.5, None, False, "51/125")

FRAMES: list[wire.Frame] = [
    wire.Hello(1, 0, 3, 1500, 4096, "job"),
    wire.Welcome(3, 1500, 4096, 40000, 1, 2, b"token", "exact", "zero", "1/125", "auto", 30.0),
    wire.UdpBound(True, 1500),
    OPEN,
    wire.Ready(3, 7),
    wire.Probe(OPEN, 2, 2**40),
    wire.Bitmap(3, 7, 2, 10, 0, 64, 1, "ranges", b"\x01\x02", 2**40, 2**40 + 100),
    wire.Stop(3, 7, 10, 12, False, b"\x03\x02"),
    wire.Stop(3, 7, 10, 12, True, None),
    wire.Outline(3, 7, 4096, b"\x1b\xff"),
    wire.Zeros(3, 7, 0, 64, "bits", b"\x0f" * 8),
    wire.ChunkData(3, 7, 5, b"\x00" * 1448),
    wire.Heartbeat(),
    wire.Heartbeat("stream 0 round 7: waiting for rank 2"),
    wire.Abort("PeerLostError", "rank 1 is gone"),
    wire.Bye(),
]

small = st.integers(0, 2**32 - 1)
open_frames = st.builds(
    wire.Open,
    stream=small,
    round=small,
    nbytes=st.integers(0, 2**40),
    chunk_bytes=small,
    dtype=st.text(max_size=12),
    wants_ready=st.booleans(),
    squared_norm=st.floats(allow_nan=False),
    tolerance=st.none() | st.just("51/125"),
    critical=st.booleans(),
    next_tolerance=st.none() | st.just("1/125"),
)


def test_the_header_has_24_bytes_and_1448_are_left_at_mtu_1500() -> None:
    assert wire.HEADER_BYTES == 24
    assert wire.chunk_bytes_for_mtu(1500) == 1448


@given(st.integers(1280, 65535), st.sampled_from([4, 6]))
def test_chunks_fit_the_mtu_and_tear_no_element(mtu: int, ip_version: int) -> None:
    chunk_bytes = wire.chunk_bytes_for_mtu(mtu, ip_version)
    packet = wire.IP_UDP_OVERHEAD[ip_version] + wire.HEADER_BYTES + chunk_bytes
    assert chunk_bytes % 8 == 0
    assert packet <= mtu
    assert mtu - 8 < packet or chunk_bytes == wire.CHUNK_BYTES_MAX
    assert chunk_bytes >= wire.MAX_UDP_CONTROL_BYTES


@pytest.mark.parametrize(
    ("a", "b", "newer"),
    [
        (1, 0, True),
        (0, 0, False),
        (0, 1, False),
        (0, 2**32 - 1, True),
        (2**32 - 1, 0, False),
        (5, 2**32 - 5, True),
        (2**31 - 1, 0, True),
        (2**31, 0, False),
    ],
)
def test_round_ids_compare_across_the_wrap(a: int, b: int, newer: bool) -> None:
    assert wire.round_is_newer(a, b) is newer


@given(small)
def test_the_next_round_is_newer(round_id: int) -> None:
    following = wire.next_round(round_id)
    assert 0 <= following < 2**32
    assert wire.round_is_newer(following, round_id)
    assert not wire.round_is_newer(round_id, following)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_survives_the_codec(frame: wire.Frame) -> None:
    assert wire.decode_frame(wire.encode_frame(frame)) == frame


def test_the_list_above_has_every_kind_of_frame() -> None:
    assert {type(frame) for frame in FRAMES} == set(wire.Frame.__subclasses__())


def test_an_unknown_norm_travels_as_nan() -> None:
    frame = wire.Open(0, 0, 8, 8, "float32", False, math.nan, None, False, None)
    decoded = wire.decode_frame(wire.encode_frame(frame))
    assert isinstance(decoded, wire.Open)
    assert math.isnan(decoded.squared_norm)


@given(open_frames)
def test_any_open_survives_the_codec(frame: wire.Open) -> None:
    assert wire.decode_frame(wire.encode_frame(frame)) == frame


@given(st.binary(max_size=300))
def test_garbage_is_a_remote_protocol_error(data: bytes) -> None:
    try:
        frame = wire.decode_frame(data)
    except RemoteProtocolError:
        return
    assert isinstance(frame, wire.Frame)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
@given(data=st.data())
def test_a_damaged_frame_is_refused_or_legal(frame: wire.Frame, data: st.DataObject) -> None:
    encoded = bytearray(wire.encode_frame(frame))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.integers(0, len(encoded))) :]
    try:
        decoded = wire.decode_frame(bytes(encoded))
    except RemoteProtocolError:
        return
    assert isinstance(decoded, wire.Frame)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode_frame(b"\x91" * 100_000)


@pytest.mark.parametrize(
    "body",
    [["hello", 1], ["nope"], [], ["bye", "extra"], {"type": "bye"}, ["ready", "3", 7], None],
)
def test_wrong_fields_are_refused(body: object) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode_frame(wire.msgspec.msgpack.encode(body))


@given(st.lists(st.sampled_from(FRAMES), max_size=8), st.data())
def test_the_reader_does_not_care_how_tcp_cuts_the_stream(
    frames: list[wire.Frame], data: st.DataObject
) -> None:
    stream = b"".join(wire.frame_with_prefix(frame) for frame in frames)
    reader = wire.FrameReader()
    received: list[wire.Frame] = []
    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, 2000))
        received += reader.feed(stream[position : position + size])
        position += size
    assert received == frames


def test_the_reader_refuses_an_oversized_frame_before_it_arrives() -> None:
    reader = wire.FrameReader()
    with pytest.raises(RemoteProtocolError, match="is this a dblp peer"):
        reader.feed(wire.LENGTH_PREFIX.pack(wire.MAX_CONTROL_FRAME_BYTES + 1))


def test_the_reader_takes_the_longest_frame() -> None:
    empty = len(wire.encode_frame(wire.ChunkData(0, 0, 0, b"\x00" * 65536))) - 65536
    frame = wire.ChunkData(0, 0, 0, b"\x00" * (wire.MAX_CONTROL_FRAME_BYTES - empty))
    assert wire.FrameReader().feed(wire.frame_with_prefix(frame)) == [frame]
