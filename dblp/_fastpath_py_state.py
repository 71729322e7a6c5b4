"""State that both directions of the readable channel share, and its counters."""

from __future__ import annotations

from ._fastpath_py_slots import LossInjector, Pacer, ReceiveTable, RoundTrips, TransmitTable
from ._fastpath_py_socket import DatagramSocket
from .wire import round_is_newer

COUNTERS: tuple[str, ...] = (
    "datagrams_sent",
    "bytes_sent",
    "send_calls",
    "send_errors",
    "datagrams_received",
    "bytes_received",
    "receive_calls",
    "accepted",
    "duplicate",
    "stale",
    "future",
    "foreign",
    "corrupt",
    "malformed",
    "truncated",
    "control_received",
    "control_sent",
    "credits_sent",
    "credits_received",
    "credit_requests_sent",
    "credit_requests_received",
    "injected_loss",
    "moved",
    "gso_fallbacks",
    "kernel_drops",
)

LOW_32 = 0xFFFFFFFF

HOST_DELAY_UNIT_NS = 4096
"""Unit of the 16-bit host delay in a credit: up to 268 ms."""

MAX_CHUNK_BYTES = 65_448
MAX_CWND = 1 << 30
"""A multiple of 8 that fits a UDP datagram with all headers."""


class ChannelState:
    """What a channel knows; see `Channel` for the meaning of the public fields."""

    def __init__(
        self,
        fd: int,
        *,
        send_tag: int,
        recv_tag: int,
        chunk_bytes: int,
        gso: bool = True,
        gro: bool = True,
    ) -> None:
        if not 8 <= chunk_bytes <= MAX_CHUNK_BYTES or chunk_bytes % 8:
            raise ValueError(
                f"chunk_bytes is {chunk_bytes}: use a multiple of 8 from 8 to {MAX_CHUNK_BYTES}"
            )
        for name, tag in (("send_tag", send_tag), ("recv_tag", recv_tag)):
            if not 0 <= tag <= LOW_32:
                raise ValueError(f"{name} is {tag}: it must fit in 32 bits")
        self.fd = fd
        self.chunk_bytes = chunk_bytes
        self._window = 64
        self._cwnd = MAX_CWND
        self._pacing_rate = 0.0
        self._request_interval_ns = 2_000_000
        self.sent_sequence = 0
        self.acknowledged = 0
        self.limit = 0
        self.received_sequence = 0
        self._send_tag = send_tag
        self._recv_tag = recv_tag
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._socket = DatagramSocket(fd, gso, gro, self._counters) if fd >= 0 else None
        self._receiving = ReceiveTable()
        self._sending = TransmitTable()
        self._newest_round: int | None = None
        self._control_in: list[bytes] = []
        self._control_out: list[bytes] = []
        self._pacer = Pacer()
        self._round_trips = RoundTrips()
        self._loss = LossInjector()
        self._event = False
        self._drained_since_credit = 0
        self.drained = 0
        """DATA datagrams drained, with repeated ones."""
        self._peer_drained = 0
        self._peer_seen = 0
        self._lost = 0
        self._credit_due = False
        self._progress_ns = 0
        self._newest_arrival_ns: int | None = None
        self._socket_full = False
        self._has_new_work = False
        self._window_limited = False
        self._tail_lost = False
        self.told_ahead = False
        """The newest credit said that this sender is ahead of others whose chunks go into the same
        mean."""
        self._requests_unanswered = 0
        self._hasty = False

    @property
    def window(self) -> int:
        """Datagrams that the peer may have in flight towards us (we advertise drained + window)."""
        return self._window

    @window.setter
    def window(self, datagrams: int) -> None:
        # Sequences are 16 bit on the wire: half of them tell newer from older.
        if not 1 <= datagrams < 1 << 15:
            raise ValueError(f"the window is {datagrams}: use 1 to 32767 datagrams")
        self._window = datagrams

    @property
    def cwnd(self) -> int:
        """Datagrams that we may have unacknowledged (congestion control)."""
        return self._cwnd

    @cwnd.setter
    def cwnd(self, datagrams: int) -> None:
        if datagrams < 1:
            raise ValueError(f"the congestion window is {datagrams}: use at least 1 datagram")
        self._cwnd = min(datagrams, MAX_CWND)

    @property
    def pacing_rate(self) -> float:
        """Bytes per second that we may send; 0 = no pacing."""
        return self._pacing_rate

    @pacing_rate.setter
    def pacing_rate(self, bytes_per_second: float) -> None:
        if not bytes_per_second >= 0:
            raise ValueError(f"the pacing rate is {bytes_per_second}: use 0 (none) or more")
        self._pacing_rate = float(bytes_per_second)

    @property
    def request_interval_ns(self) -> int:
        """A transmitter that is blocked on credit asks for it after this long without progress."""
        return self._request_interval_ns

    @request_interval_ns.setter
    def request_interval_ns(self, interval_ns: int) -> None:
        if interval_ns < 1:
            raise ValueError(f"the request interval is {interval_ns} ns: it must be positive")
        self._request_interval_ns = interval_ns

    def grant(self, sequence_seen: int, limit: int) -> None:
        """Credit that came otherwise than by datagram (monotonic: never lowers)."""
        self.acknowledged = max(self.acknowledged, min(sequence_seen, self.sent_sequence))
        self.limit = max(self.limit, limit)
        self._round_trips.forget(self.acknowledged)  # It has no time of its own: no sample.

    def sync_received(self, sequence: int) -> None:
        """All up to `sequence` has arrived or is lost (a PROBE said so)."""
        if sequence > self.received_sequence:
            self.received_sequence = sequence
            self._newest_arrival_ns = None  # No datagram of this sequence has been held here.

    def _the_socket(self) -> DatagramSocket:
        if self._socket is None:
            raise ValueError("this channel has no socket: use ingest() and collect()")
        return self._socket

    def _note_round(self, round: int) -> None:
        if self._newest_round is None or round_is_newer(round, self._newest_round):
            self._newest_round = round


def check_round(stream: int, round: int) -> None:
    if not 0 <= stream < 1 << 16:
        raise ValueError(f"stream is {stream}: it must fit in 16 bits")
    if not 0 <= round < 1 << 32:
        raise ValueError(f"round is {round}: it must fit in 32 bits")
