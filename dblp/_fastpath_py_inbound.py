"""The receiving half of the readable channel: what happens to one arrived datagram."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ._fastpath_py_bytes import Buffer, byte_view, chunk_count, datagram_crc
from ._fastpath_py_reducer import Reducer
from ._fastpath_py_slots import Outcome, ReceiveSlot, extend_serially
from ._fastpath_py_state import HOST_DELAY_UNIT_NS, ChannelState, check_round
from .wire import (
    FLAG_CREDIT_AHEAD,
    FLAG_CREDIT_REQUEST,
    FLAG_CREDIT_UNTIMED,
    HEADER,
    HEADER_BYTES,
    KIND_CONTROL,
    KIND_CREDIT,
    KIND_DATA,
    KIND_HELLO,
    PROTOCOL_VERSION,
)

_MAX_INBOX_BYTES = 4 << 20
"""Control frames kept for Python, 4 bytes of bookkeeping each; more are dropped as malformed."""
_RECORD_BYTES = 4


class ReceivingChannel(ChannelState):
    """Receive slots, checks, placement, incoming credit."""

    def open_receive(
        self,
        stream: int,
        round: int,
        buffer: Buffer,
        bitmap: Buffer,
        *,
        aim: bool = True,
        reducer: Reducer | None = None,
        source: int = 0,
    ) -> int:
        """Arms (stream, round): chunks go to their place in writable `buffer`, bits into `bitmap`
        (≥ (count+7)//8 writable zeroed bytes).  Returns a slot number; ValueError when (stream,
        round) is open already, sizes do not fit, `buffer` is not the reducer's or no slot is free.
        The twin copies every chunk, so `aim` changes nothing."""
        check_round(stream, round)
        place = byte_view(buffer, "buffer", writable=True)
        bits = byte_view(bitmap, "bitmap", writable=True)
        count = chunk_count(place.size, self.chunk_bytes)
        if bits.size < (count + 7) // 8:
            raise ValueError(f"the bitmap has {bits.size} bytes: {count} chunks need more")
        if reducer is not None and (
            reducer.nbytes != place.size or reducer.chunk_bytes != self.chunk_bytes
        ):
            raise ValueError("the reducer's chunks are not those of this buffer")
        slot = ReceiveSlot(stream, round, place, bits, self.chunk_bytes, reducer, source)
        self._receiving.check_free(slot)
        if reducer is not None:
            reducer.land(source, place)
        number = self._receiving.open(slot)
        self._note_round(round)
        return number

    def set_aim(self, slot: int, aim: bool) -> None:
        """The twin copies every chunk: nothing changes."""
        self._receiving[slot]

    def expect(self, slot: int, order: npt.ArrayLike) -> None:
        """Chunks will come in this order.  The twin copies every chunk: nothing changes."""
        chunks = np.asarray(order, dtype=np.uint32)
        count = self._receiving[slot].count
        if chunks.size and int(chunks.max()) >= count:
            raise ValueError(f"the round has {count} chunks, the order names others")

    def set_notify(self, slot: int, accepted: int) -> None:
        """pump() returns EVENT when the slot's accepted count reaches this (fires once; at once if
        already there)."""
        receiving = self._receiving[slot]
        receiving.notify = accepted
        self._event |= receiving.take_notify()

    def accepted(self, slot: int) -> int:
        """Chunks accepted so far."""
        return self._receiving[slot].accepted

    def duplicates(self, slot: int) -> int:
        """Chunks that came again."""
        return self._receiving[slot].duplicates

    def close_receive(self, slot: int) -> None:
        """Later datagrams of this round are `stale`."""
        self._receiving.close(slot)

    def deliver(self, slot: int, index: int, payload: Buffer) -> bool:
        """A chunk that came on the reliable channel; False if it was there or does not fit."""
        receiving = self._receiving[slot]
        outcome = receiving.place(index, memoryview(payload).cast("B"))
        if outcome is Outcome.ACCEPTED:
            self._counters["accepted"] += 1
            self._event |= receiving.take_notify()
        return outcome is Outcome.ACCEPTED

    def deliver_zeros(self, slot: int, indices: npt.ArrayLike) -> int:
        """Accepts chunks as zeros, except where they are there already; returns how many."""
        receiving = self._receiving[slot]
        chunks = np.asarray(indices, np.uint32).tolist()
        if chunks and max(chunks) >= receiving.count:
            raise ValueError(f"chunk {max(chunks)} is not one of {receiving.count}")
        return sum(self.deliver(slot, chunk, bytes(receiving.size_of(chunk))) for chunk in chunks)

    # --- what arrives ---

    def _handle(self, datagram: bytes, now_ns: int) -> None:
        """One arrived datagram; trouble is counted, in the order in which it is looked for."""
        count = self._counters
        count["datagrams_received"] += 1
        count["bytes_received"] += len(datagram)
        # Too short for a header: zeros are read in its place, which makes it malformed below.
        header = datagram if len(datagram) >= HEADER_BYTES else bytes(HEADER_BYTES)
        first_byte, flags, length, stream, sequence, round, chunk, tag, crc = HEADER.unpack_from(
            header
        )
        kind = first_byte & 0x0F
        has_own_round = kind == KIND_DATA and len(datagram) >= HEADER_BYTES
        if self._loss.drops(round if has_own_round else self._newest_round):
            count["injected_loss"] += 1
        elif first_byte >> 4 != PROTOCOL_VERSION or length != len(datagram) - HEADER_BYTES:
            count["malformed"] += 1
        elif tag != self._recv_tag:
            count["foreign"] += 1
        elif crc != datagram_crc(datagram):
            count["corrupt"] += 1
        elif kind == KIND_DATA:
            self._note_arrival(sequence, now_ns)
            self._handle_data(stream, round, chunk, memoryview(datagram)[HEADER_BYTES:])
        elif kind == KIND_CONTROL and self._keep_control(datagram[HEADER_BYTES:]):
            count["control_received"] += 1
            self._event = True
        elif kind == KIND_CREDIT and length == 0:
            held_ns = stream * HOST_DELAY_UNIT_NS
            self._handle_credit(flags, held_ns, sequence, round, chunk, now_ns)
        elif kind != KIND_HELLO:  # A repeated HELLO is harmless: the socket is connected.
            count["malformed"] += 1

    def _keep_control(self, payload: bytes) -> bool:
        """Keeps a control frame for Python unless it is too far behind: memory is bounded."""
        kept_bytes = sum(_RECORD_BYTES + len(each) for each in self._control_in)
        if kept_bytes + _RECORD_BYTES + len(payload) > _MAX_INBOX_BYTES:
            return False
        self._control_in.append(payload)
        return True

    def _note_arrival(self, sequence: int, now_ns: int) -> None:
        """Any valid DATA is drained, whatever becomes of its chunk."""
        newest = extend_serially(self.received_sequence, sequence, 16)
        if newest > self.received_sequence:
            self.received_sequence = newest
            self._newest_arrival_ns = now_ns
        self._drained_since_credit += 1
        self.drained += 1
        if self._drained_since_credit >= max(1, self._window // 8):
            self._credit_due = True

    def _handle_data(self, stream: int, round: int, chunk: int, payload: memoryview) -> None:
        slot = self._receiving.find(stream, round)
        if slot is None:
            is_stale = self._receiving.is_stale(stream, round)
            self._counters["stale" if is_stale else "future"] += 1
            return
        outcome = slot.place(chunk, payload)
        self._counters[outcome.value] += 1
        if outcome is Outcome.DUPLICATE:
            slot.duplicates += 1
        elif outcome is Outcome.ACCEPTED:
            self._counters["moved"] += 1
            self._event |= slot.take_notify()

    def _handle_credit(
        self, flags: int, held_ns: int, drained: int, round: int, chunk: int, now_ns: int
    ) -> None:
        if flags & FLAG_CREDIT_REQUEST:
            self._counters["credit_requests_received"] += 1
            self.sync_received(extend_serially(self.received_sequence, round, 32))
            self._credit_due = True
            return
        self._counters["credits_received"] += 1
        self.told_ahead = bool(flags & FLAG_CREDIT_AHEAD)
        seen = min(extend_serially(self.acknowledged, round, 32), self.sent_sequence)
        if not flags & FLAG_CREDIT_UNTIMED:  # Karn's rule
            self._round_trips.covered(seen, now_ns, held_ns)
        lost = bool(flags & FLAG_CREDIT_UNTIMED) and seen > self.acknowledged
        self._tail_lost |= lost
        self._peer_drained = extend_serially(self._peer_drained, drained, 16)
        self._peer_seen = max(self._peer_seen, seen)
        if self._requests_unanswered:
            self._hasty = lost
        self._requests_unanswered = 0
        self.grant(seen, extend_serially(self.limit, chunk, 32))
        self._progress_ns = now_ns

    def _socket_ran_empty(self) -> None:
        if self._drained_since_credit > 0:
            self._credit_due = True
