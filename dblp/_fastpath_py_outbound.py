"""The sending half of the readable channel: passes of chunks within credit, cwnd and pacing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._fastpath_py_bytes import Buffer, byte_view, pack_datagram, pack_header
from ._fastpath_py_reducer import Reducer
from ._fastpath_py_slots import TransmitSlot
from ._fastpath_py_socket import MAX_BATCH_BYTES, MAX_SEGMENTS, Datagram
from ._fastpath_py_state import HOST_DELAY_UNIT_NS, LOW_32, ChannelState, check_round
from .wire import (
    FLAG_CREDIT_AHEAD,
    FLAG_CREDIT_REQUEST,
    FLAG_CREDIT_UNTIMED,
    HEADER_BYTES,
    KIND_CREDIT,
    KIND_DATA,
)

FULL_SOCKET_NS = 1_000_000
"""The pump waits for a full socket, an event loop has to look again."""

HASTY_REQUESTS = 8
"""So many, and none was answered: the peer is not there."""


class SendingChannel(ChannelState):
    """Transmit slots, flow control, outgoing credit and credit requests."""

    def open_transmit(self, stream: int, round: int, buffer: Buffer) -> int:
        """Registers the (readable, pinned) source of a round; returns a slot."""
        check_round(stream, round)
        slot = TransmitSlot(stream, round, byte_view(buffer, "buffer"), self.chunk_bytes)
        number = self._sending.open(slot)
        self._note_round(round)
        return number

    def queue(self, slot: int, indices: Sequence[int] | np.ndarray[Any, Any]) -> None:
        """Appends a pass: uint32 chunk indices in send order.  ValueError if out of range."""
        self._sending[slot].queue(indices)
        self._has_new_work = True

    def follow(self, slot: int, reducer: Reducer) -> None:
        """Sends the reducer's chunks as they become ready, once each (in place of queue() for the
        first pass)."""
        self._sending[slot].follow(reducer)
        self._has_new_work = True

    def pending(self, slot: int) -> int:
        """Indices queued (or ready to follow, or not yet ready to follow) and not yet handed to the
        kernel."""
        return self._sending[slot].pending

    def sent(self, slot: int) -> int:
        """Datagrams of this slot handed to the kernel so far, over all passes."""
        return self._sending[slot].sent

    def cancel(self, slot: int) -> int:
        """Drops what is pending (also a follow); returns how many."""
        return self._sending[slot].cancel()

    def close_transmit(self, slot: int) -> None:
        """Forgets the slot, what is pending too."""
        self._sending.close(slot)

    # --- flow control ---

    def blocked(self) -> bool:
        """Something is pending but credit, cwnd, pacing or a full socket holds it back (as of the
        last progress)."""
        if self._sending.sendable() is None:
            return False
        return self._socket_full or self._allowance(self._progress_ns) == 0

    def take_path_ns(self) -> tuple[int, int]:
        """(mean, number of) path delay samples since the last call; zeros when none."""
        return self._round_trips.take_path()

    def take_window_limited(self) -> bool:
        """Whether the congestion window alone has held chunks back since the last call (in a
        transmit turn: more chunks were sendable than cwnd - unacknowledged, which was at most what
        credit and pacing allowed)."""
        taken, self._window_limited = self._window_limited, False
        return taken

    @property
    def credited(self) -> tuple[int, int]:
        """(newest sequence that credits acknowledge, datagrams that they say were drained)."""
        return self._peer_seen, self._peer_drained

    def take_lost(self) -> int:
        """Datagrams that are newly known to be lost, as far as credits tell."""
        before, self._lost = self._lost, self.acknowledged - self._peer_drained
        return max(self._lost - before, 0)

    def take_tail_lost(self) -> bool:
        """Whether, since the last call, a credit that was asked for said that the newest datagrams
        in flight were lost."""
        taken, self._tail_lost = self._tail_lost, False
        return taken

    def take_rtt_ns(self) -> tuple[int, int, int]:
        """(smallest, last, number of) round-trip samples since the last call; zeros when none.
        `last` is what the endpoints see; `smallest` leaves out the time that either host held the
        datagram, before it left or before its credit did: the delay of the path alone."""
        return self._round_trips.take()

    def next_deadline_ns(self, now_ns: int) -> int:
        """When this channel next wants a turn though nothing arrives (pacing, credit request, full
        socket); -1: never."""
        if self._sending.sendable() is None:
            return -1
        if self._credit_left() <= 0:
            return self._progressed_ns(now_ns) + self._request_wait_ns
        if self._pacing_rate > 0 and now_ns < self._pacer.next_send_ns:
            return self._pacer.next_send_ns
        return now_ns + FULL_SOCKET_NS if self._socket_full else now_ns

    # --- what leaves ---

    def _credit_left(self) -> int:
        """DATA datagrams that credit and congestion window allow now."""
        in_flight = self.sent_sequence - self.acknowledged
        return min(self.limit - self.sent_sequence, self.cwnd - in_flight)

    def _allowance(self, now_ns: int) -> int:
        """DATA datagrams that credit, congestion window and pacing let go now."""
        datagram_bytes = HEADER_BYTES + self.chunk_bytes
        paced = self._pacer.allowance(now_ns, self._pacing_rate, datagram_bytes)
        return max(0, min(self._credit_left(), paced))

    def _transmit(
        self, most: int, now_ns: int, send: Callable[[list[Datagram]], int], took_ns: int = 0
    ) -> int:
        """One turn: peek, pack and send batch by batch, and account for exactly what left."""
        allowed = self._allowance(now_ns)
        self._note_window_limit(allowed)
        allowed = min(most, allowed)
        sent = nbytes = 0
        while sent < allowed and (slot := self._sending.sendable()) is not None:
            datagrams = self._pack_batch(slot, allowed - sent)
            taken = send(datagrams)
            if taken:
                self.sent_sequence += taken
                self._event |= slot.commit(taken)
            sent += taken
            nbytes += sum(len(header) + len(payload) for header, payload in datagrams[:taken])
            if taken < len(datagrams):
                break
        if sent:
            self._counters["datagrams_sent"] += sent
            self._counters["bytes_sent"] += nbytes
            self._progress_ns = now_ns
            self._round_trips.mark(self.sent_sequence, now_ns, took_ns, sent)
            self._pacer.charge(now_ns, self._pacing_rate, nbytes)
        return sent

    def _note_window_limit(self, allowed: int) -> None:
        """Remembers that the congestion window, and nothing else, held chunks back."""
        room = max(0, self._cwnd - (self.sent_sequence - self.acknowledged))
        wanted = sum(slot.ready for slot in self._sending)
        if room == allowed < min(wanted, self.limit - self.sent_sequence):
            self._window_limited = True

    def _pack_batch(self, slot: TransmitSlot, most: int) -> list[Datagram]:
        """The slot's next chunks, all of one size; a shorter one ends the batch (UDP_SEGMENT)."""
        datagram_bytes = HEADER_BYTES + self.chunk_bytes
        batch = max(1, min(MAX_SEGMENTS, MAX_BATCH_BYTES // datagram_bytes))
        datagrams: list[Datagram] = []
        for ahead, index in enumerate(slot.peek(min(most, batch)), start=1):
            payload = slot.payload(index)
            sequence = self.sent_sequence + ahead
            header = pack_header(
                KIND_DATA, 0, slot.stream, sequence, slot.round, index, self._send_tag, payload
            )
            datagrams.append((header, payload))
            if len(payload) < self.chunk_bytes:
                break
        return datagrams

    def _take_credit(self, now_ns: int) -> bytes:
        """The credit that is due; its stream field says how long this host had the newest DATA."""
        flags = FLAG_CREDIT_UNTIMED if self._newest_arrival_ns is None else 0
        if self._receiving.sender_is_ahead():
            flags |= FLAG_CREDIT_AHEAD
        self._credit_due = False
        self._drained_since_credit = 0
        self._counters["credits_sent"] += 1
        arrived_ns = now_ns if self._newest_arrival_ns is None else self._newest_arrival_ns
        held = min(max(now_ns - arrived_ns, 0) // HOST_DELAY_UNIT_NS, 0xFFFF)
        newest = self.received_sequence
        return self._credit(flags, held, newest, newest + self._window)

    def _request_due(self, now_ns: int) -> bool:
        """Blocked on credit or congestion window with no progress for the request interval."""
        if self._sending.sendable() is None or self._credit_left() > 0:
            return False
        return now_ns - self._progressed_ns(now_ns) >= self._request_wait_ns

    @property
    def _request_wait_ns(self) -> int:
        """While requests find losses, a quarter of the interval: waiting costs more than asking in
        vain.  But no answer comes sooner than a round trip, and a silent peer is not asked for
        ever."""
        interval_ns = self._request_interval_ns
        if self._hasty and self._requests_unanswered < HASTY_REQUESTS:
            return min(max(interval_ns // 4, self._round_trips.shortest_ns), interval_ns)
        return interval_ns

    def _progressed_ns(self, now_ns: int) -> int:
        """Time of the last progress.  On a socket new work counts: nothing was blocked before."""
        if self._has_new_work and self._socket is not None:
            self._progress_ns = max(self._progress_ns, now_ns)
        self._has_new_work = False
        return self._progress_ns

    def _take_request(self, now_ns: int) -> bytes:
        """The credit request that is due."""
        self._progress_ns = now_ns
        self._requests_unanswered += 1
        self._counters["credit_requests_sent"] += 1
        return self._credit(FLAG_CREDIT_REQUEST, 0, self.sent_sequence, 0)

    def _credit(self, flags: int, held: int, newest: int, limit: int) -> bytes:
        """Its sequence field counts the DATA datagrams that this host has drained."""
        return pack_datagram(
            KIND_CREDIT, flags, held, self.drained, newest & LOW_32, limit & LOW_32,
            self._send_tag, b"",
        )  # fmt: skip

    def _pack(
        self, kind: int, flags: int, stream: int, round: int, chunk: int, payload: Buffer
    ) -> bytes:
        return pack_datagram(
            kind, flags, stream, self.sent_sequence, round, chunk, self._send_tag, payload
        )
