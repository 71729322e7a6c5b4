"""Datagrams in and out of one connected UDP socket, in batches where the kernel can (GSO, GRO)."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
SO_RXQ_OVFL = 40
SO_TIMESTAMPNS = 35

MAX_SEGMENTS = 64
"""Limit of UDP_SEGMENT in Linux (UDP_MAX_SEGMENTS was 64 before 6.9)."""
MAX_BATCH_BYTES = 65_000
"""Below 65,535 less IP and UDP header."""
_RECEIVE_BYTES = 65_536
_ANCILLARY_BYTES = 128

_FULL = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}
_GSO_REFUSED = {errno.EIO, errno.EINVAL, errno.EMSGSIZE}

Datagram = tuple[bytes, memoryview]
"""Header and payload."""


@dataclass(frozen=True)
class Arrived:
    """What one receive call brought."""

    datagrams: list[bytes]
    wall_ns: int | None
    """When the kernel got it, by the wall clock; None where it does not say."""


class DatagramSocket:
    """Batched, never blocking use of a socket that somebody else owns and closes."""

    def __init__(self, fd: int, gso: bool, gro: bool, counters: dict[str, int]) -> None:
        try:
            self._socket = socket.socket(fileno=fd)
        except OSError as error:
            raise ValueError(f"file descriptor {fd} is not a socket: {error}") from error
        # The descriptor is not ours: let go of it instead of closing it.
        weakref.finalize(self, self._socket.detach)
        self._counters = counters
        self._gso = gso and probe_offload(fd)[0]
        if gro:
            self._enable(SOL_UDP, UDP_GRO)
        self._enable(socket.SOL_SOCKET, SO_RXQ_OVFL)
        self._enable(socket.SOL_SOCKET, SO_TIMESTAMPNS)
        self._scratch = bytearray(_RECEIVE_BYTES)

    def _enable(self, level: int, option: int) -> None:
        # An older kernel works without: one datagram per call, no drop count, no time stamp.
        with contextlib.suppress(OSError):
            self._socket.setsockopt(level, option, 1)

    # --- out ---

    def send(self, datagrams: Sequence[Datagram]) -> int:
        """Sends from the front; how many the kernel took.  The rest: try again when writable.

        All are of one size but the last, which may be shorter: that is what UDP_SEGMENT can cut.
        """
        if len(datagrams) > 1 and self._gso:
            parts = [part for datagram in datagrams for part in datagram]
            segment = sum(map(len, datagrams[0]))
            error = self._send_message(parts, [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))])
            if error is None:
                return len(datagrams)
            if error not in _GSO_REFUSED:
                self._note_error(error)
                return 0
            self._gso = False
            self._counters["gso_fallbacks"] += 1
        for sent, datagram in enumerate(datagrams):
            error = self._send_message(datagram, [])
            if error is not None:
                self._note_error(error)
                return sent
        return len(datagrams)

    def _send_message(
        self, parts: Sequence[bytes | memoryview], ancillary: list[tuple[int, int, bytes]]
    ) -> int | None:
        """One system call; the error number, None when the kernel took it."""
        self._counters["send_calls"] += 1
        try:
            self._socket.sendmsg(parts, ancillary, socket.MSG_DONTWAIT)
        except OSError as error:
            return error.errno or errno.EIO
        return None

    def _note_error(self, error: int) -> None:
        if error not in _FULL:
            self._counters["send_errors"] += 1

    # --- in ---

    def receive(self) -> Arrived | None:
        """The datagrams of one receive call (GRO split undone); None when the socket is empty."""
        self._counters["receive_calls"] += 1
        try:
            nbytes, ancillary, flags, _ = self._socket.recvmsg_into(
                [self._scratch], _ANCILLARY_BYTES, socket.MSG_DONTWAIT
            )
        except OSError as error:
            # A pending error of an earlier send (ECONNREFUSED) is reported once: go on reading.
            return None if error.errno in _FULL else Arrived([], None)
        segment = nbytes
        wall_ns = None
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_UDP, UDP_GRO):
                segment = struct.unpack_from("=i", data)[0]
            elif (level, kind) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                self._counters["kernel_drops"] = struct.unpack_from("=I", data)[0]
            elif (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = struct.unpack_from("@ll", data)
                wall_ns = seconds * 1_000_000_000 + nanoseconds
        if flags & socket.MSG_TRUNC:
            self._counters["truncated"] += 1
            return Arrived([], wall_ns)
        message = bytes(memoryview(self._scratch)[:nbytes])
        cuts = range(0, nbytes, segment) if nbytes else [0]
        return Arrived([message[at : at + segment] for at in cuts], wall_ns)


def probe_offload(fd: int) -> tuple[bool, bool]:
    """(UDP_SEGMENT works, UDP_GRO works) on this socket."""
    probed = socket.socket(fileno=fd)
    try:
        family, kind = probed.family, probed.type
        segments = _accepts(lambda: probed.getsockopt(SOL_UDP, UDP_SEGMENT))
    finally:
        probed.detach()
    # Switching GRO on is the only test of it that all kernels know: not on the caller's socket.
    with socket.socket(family, kind) as like_it:
        return segments, _accepts(lambda: like_it.setsockopt(SOL_UDP, UDP_GRO, 1))


def _accepts(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True
