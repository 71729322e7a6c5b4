# What happens to one arrived datagram, wherever it came from.


cdef enum:
    HOST_DELAY_UNIT_NS = 4096  # of the 16-bit host delay in a credit: up to 268 ms
    MAX_INBOX = 4 << 20        # bytes of control datagrams kept for Python; more are malformed


cdef inline bint round_newer(uint32_t a, uint32_t b) noexcept nogil:
    return <int32_t_> (a - b) > 0


cdef inline uint64_t extend16(uint64_t near, uint32_t low) noexcept nogil:
    """The 64-bit sequence with these low 16 bits that lies closest to `near`."""
    cdef int64_t value = <int64_t> near + <int16_t_> ((low - <uint32_t> (near & 0xFFFF)) & 0xFFFF)
    return <uint64_t> value if value > 0 else 0


cdef inline uint64_t extend32(uint64_t near, uint32_t low) noexcept nogil:
    cdef int64_t value = <int64_t> near + <int32_t_> (low - <uint32_t> near)
    return <uint64_t> value if value > 0 else 0


cdef inline bint is_round(
    const ReceiveSlot *slot, uint32_t stream, uint32_t round_id,
) noexcept nogil:
    return slot.stream == stream and slot.round == round_id


cdef int find_receive(ChannelState *s, uint32_t stream, uint32_t round_id) noexcept nogil:
    cdef int i, slot
    if s.receive_count == 0:
        return -1
    slot = s.receive_hint
    if s.receive[slot].in_use and is_round(&s.receive[slot], stream, round_id):
        return slot
    for i in range(s.receive_count):
        slot = s.receive_open[i]
        if is_round(&s.receive[slot], stream, round_id):
            s.receive_hint = slot
            s.rx.pause = s.rx.miss = 0   # the end of the last round says nothing about this one
            return slot
    return -1


cdef void count_unknown_round(ChannelState *s, uint32_t stream, uint32_t round_id) noexcept nogil:
    cdef int i
    for i in range(s.marks_count):
        if s.marks[i].stream == stream:
            if not round_newer(round_id, s.marks[i].newest):
                s.counters[C_STALE] += 1
                return
            break
    s.counters[C_FUTURE] += 1


cdef inline uint32_t length_of_chunk(
    uint32_t chunk, uint32_t count, uint32_t chunk_bytes, uint32_t last,
) noexcept nogil:
    return last if chunk + 1 == count else chunk_bytes


cdef bint loss_hits(ChannelState *s, const uint8_t *header, uint32_t size) noexcept nogil:
    """One draw of splitmix64 per datagram while the injected loss is active."""
    cdef uint32_t round_id = s.newest_round
    cdef bint known = s.any_round
    if size >= HEADER and (header[0] & 15) == KIND_DATA:
        round_id = get32(header + 8)
        known = True
    if not known or round_id < s.loss_first or round_id > s.loss_last:
        return False
    return ((<uint64_t> dblp_splitmix64(&s.loss_state) * 1000000) >> 32) < s.loss_ppm


cdef inline void accept_chunk(ChannelState *s, ReceiveSlot *slot, uint32_t chunk) noexcept nogil:
    """The chunk's verified bytes are in place."""
    slot.bits[chunk >> 3] |= 1 << (chunk & 7)
    slot.accepted += 1
    if slot.landing != NULL:
        slot.landing.arrived += 1
    slot.cursor = (chunk if slot.order == NULL else slot.place[chunk]) + 1
    s.counters[C_ACCEPTED] += 1
    if slot.reducer != NULL:
        reducer_arrive(slot.reducer, chunk)
    if slot.accepted >= slot.notify_at:
        slot.notify_at = NEVER
        s.event = True


cdef void handle_credit(ChannelState *s, const uint8_t *header, int64_t now) noexcept nogil:
    cdef uint64_t sequence
    cdef bint lost
    if header[1] & FLAG_REQUEST:
        s.counters[C_REQUESTS_RECEIVED] += 1
        sequence = extend32(s.received_sequence, get32(header + 8))
        sync_sequence(s, sequence)
        s.credit_due = True
        return
    s.counters[C_CREDITS_RECEIVED] += 1
    s.told_ahead = header[1] & FLAG_AHEAD
    s.last_progress_ns = now
    sequence = min(extend32(s.acknowledged, get32(header + 8)), s.sent_sequence)
    lost = header[1] & FLAG_UNTIMED and sequence > s.acknowledged
    if lost:
        s.tail_lost = True
    s.peer_drained = max(s.peer_drained, extend16(s.peer_drained, get16(header + 6)))
    s.peer_seen = max(s.peer_seen, sequence)
    if s.requests_unanswered:
        s.hasty = lost
    s.requests_unanswered = 0
    grant_credit(
        s, sequence, extend32(s.limit, get32(header + 12)),
        -1 if header[1] & FLAG_UNTIMED else now,
        <int64_t> get16(header + 4) * HOST_DELAY_UNIT_NS,
    )


cdef void sync_sequence(ChannelState *s, uint64_t sequence) noexcept nogil:
    """All up to `sequence` has arrived or is lost.  When the newest of it arrived is not known, so
    the credit that covers it must not be taken for a round trip (Karn's rule)."""
    if sequence > s.received_sequence:
        s.received_sequence = sequence
        s.timed = False


cdef inline int64_t waited_to_leave(const TimeMark *mark, uint64_t sequence) noexcept nogil:
    """How long after the turn began the kernel took this datagram: it takes, and a device without
    offloads sends, one after the other."""
    cdef int64_t after = <int64_t> (mark.sequence - sequence)
    return mark.took_ns * (mark.datagrams - 1 - after) // mark.datagrams


cdef void grant_credit(
    ChannelState *s, uint64_t seen, uint64_t limit, int64_t now, int64_t host_delay,
) noexcept nogil:
    """Never lowers; every entry of the send-time ring that `seen` covers gives up its place, the
    newest a sample.  `host_delay`: how long the peer's host had the datagram before the credit
    left.  That is no part of the path's delay, nor is the time until it left here.  `now` below 0:
    the credit says nothing about time."""
    cdef TimeMark *mark = NULL
    cdef int64_t sample
    if seen > s.sent_sequence:
        seen = s.sent_sequence
    if seen > s.acknowledged:
        s.acknowledged = seen
        while s.times_head != s.times_tail and s.times[s.times_head & 255].sequence <= seen:
            mark = &s.times[s.times_head & 255]
            s.times_head += 1
        if mark != NULL and mark.sequence < seen and s.times_head != s.times_tail:
            # `seen` left with the next turn.  The end of the turn before may be lost, and then that
            # is long ago.
            mark = &s.times[s.times_head & 255]
    if limit > s.limit:
        s.limit = limit
    # Arrivals are dated by the wall clock, of either host: where it was set, no sample.
    if now >= 0 and mark != NULL and now - mark.at_ns >= host_delay:
        sample = s.rtt_last_ns = now - mark.at_ns
        sample = max(sample - host_delay - waited_to_leave(mark, seen), 0)
        if s.rtt_count == 0 or sample < s.rtt_min_ns:
            s.rtt_min_ns = sample
        if s.path_min_ns == 0 or sample < s.path_min_ns:
            s.path_min_ns = max(sample, 1)
        s.rtt_count += 1
        s.path_sum_ns += sample
        s.path_count += 1


cdef inline void prefetch_reduction(ChannelState *s, const uint8_t *header) noexcept nogil:
    """Before the header is known to be right: a hint, for the round that the last chunk was of."""
    cdef ReceiveSlot *slot
    if s.receive_count == 0 or header[0] & 15 != KIND_DATA:
        return
    slot = &s.receive[s.receive_hint]
    if slot.in_use and slot.reducer != NULL and slot.round == get32(header + 8):
        reducer_expect(slot.reducer, get32(header + 12), slot.base)


cdef int inspect(
    ChannelState *s, const uint8_t *header, const uint8_t *payload, int64_t size, int64_t now,
    uint32_t *chunk,
) noexcept nogil:
    """Checks one datagram of `size` bytes (header and payload may lie apart) and deals with
    everything but placing: returns the receive slot that wants the payload (and its chunk), or -1.
    Order of checks as in the twin."""
    cdef uint32_t length, kind
    cdef uint64_t sequence
    cdef int index
    cdef ReceiveSlot *slot
    s.counters[C_DATAGRAMS_RECEIVED] += 1
    s.counters[C_BYTES_RECEIVED] += size
    if s.loss_ppm and loss_hits(s, header, <uint32_t> size):
        s.counters[C_INJECTED_LOSS] += 1
        return -1
    if size < HEADER or header[0] >> 4 != VERSION or get16(header + 2) != size - HEADER:
        s.counters[C_MALFORMED] += 1
        return -1
    if get32(header + 16) != s.recv_tag:
        s.counters[C_FOREIGN] += 1
        return -1
    length = <uint32_t> (size - HEADER)
    prefetch_reduction(s, header)
    if not checksum_is_right(header, payload, length):
        s.counters[C_CORRUPT] += 1
        return -1
    kind = header[0] & 15
    if kind != KIND_DATA:
        if kind == KIND_CREDIT and length == 0:
            handle_credit(s, header, now)
        elif kind == KIND_CONTROL and queue_push(&s.inbox, payload, length, MAX_INBOX):
            s.counters[C_CONTROL_RECEIVED] += 1
            s.event = True
        elif kind != KIND_HELLO:   # a repeated greeting is harmless
            s.counters[C_MALFORMED] += 1
        return -1
    sequence = extend16(s.received_sequence, get16(header + 6))
    if sequence > s.received_sequence:
        s.received_sequence = sequence
        s.newest_arrival_ns = now
        s.timed = True
    s.drained_since_credit += 1
    s.drained += 1
    index = find_receive(s, get16(header + 4), get32(header + 8))
    if index < 0:
        count_unknown_round(s, get16(header + 4), get32(header + 8))
        return -1
    slot = &s.receive[index]
    chunk[0] = get32(header + 12)
    if chunk[0] >= slot.count or length != length_of_chunk(
        chunk[0], slot.count, s.chunk_bytes, slot.last_bytes,
    ):
        s.counters[C_MALFORMED] += 1
        return -1
    if bit_is_set(slot.bits, chunk[0]):
        slot.duplicates += 1
        s.counters[C_DUPLICATE] += 1
        return -1
    return index


cdef void take_datagram(
    ChannelState *s, const uint8_t *header, const uint8_t *payload, int64_t size, int64_t now,
) noexcept nogil:
    """One datagram whose payload lies outside every open buffer: check, copy, account."""
    cdef uint32_t chunk = 0
    cdef int index = inspect(s, header, payload, size, now, &chunk)
    if index < 0:
        return
    cdef ReceiveSlot *slot = &s.receive[index]
    memcpy(target_of(slot, chunk, s.chunk_bytes), payload, size - HEADER)
    s.counters[C_MOVED] += 1
    accept_chunk(s, slot, chunk)


cdef void take_segments(
    ChannelState *s, const uint8_t *data, int64_t size, int64_t segment, int64_t now,
) noexcept nogil:
    """A contiguous message of one or more datagrams of `segment` bytes each (the last may be
    shorter)."""
    cdef int64_t at = 0, part
    while at < size:
        part = min(segment, size - at)
        take_datagram(s, data + at, data + at + HEADER, part, now)
        at += part
