# Batched sending: UDP_SEGMENT from scattered vectors [header, payload, header, payload, ...], no
# copy in user space.


cdef enum:
    SEND_MESSAGES = 64         # messages per sendmmsg without GSO
    SEND_BATCHES = 4           # GSO batches per sendmmsg: 256 KiB, 80 us until credits are read
    CREDIT_COPIES = 4          # of 4 copies one arrives three times in four at 70 % loss
    HASTY_REQUESTS = 8         # and none was answered: the peer is not there
    FULL_SOCKET_NS = 1_000_000 # the pump waits for a full socket, an event loop has to look again
    PREFETCH_CHUNKS = 2        # chunks that are on their way from memory while one is checked
    MAX_SEGMENTS = 64          # UDP_MAX_SEGMENTS of every kernel that knows GSO
    MAX_GSO_BYTES = 65000      # below 65,535 less IP and UDP headers
    BURST_BYTES = 65536        # longest paced burst
    AHEAD_BYTES = 65536        # lead of a sender over the slowest from which on it is told
    PACED_BURST_NS = 250_000   # a paced burst is what the rate sends in this time: 40 KB at 1 Gb/s
    PACING_DEBT_NS = 1_000_000 # a turn that comes late is made up for, by at most this much


# What the kernel takes per datagram: weights of a turn that took less, or more, than usual, how
# often the usual it counts at most, and the first guess.
cdef double SENDING_FALL = 1.0 / 4, SENDING_RISE = 1.0 / 64, SENDING_MOST = 2.0
cdef double SENDING_FIRST_NS = 1000.0


cdef int transmit_setup(ChannelState *s) except -1:
    cdef TransmitRing *t = &s.tx
    cdef int slots = SEND_BATCHES * MAX_SEGMENTS
    t.messages = <mmsghdr *> calloc(SEND_MESSAGES, sizeof(mmsghdr))
    t.vectors = <iovec *> calloc(2 * slots, sizeof(iovec))
    t.headers = <uint8_t *> malloc(slots * HEADER)
    t.ancillary = <uint8_t *> malloc(SEND_MESSAGES * DBLP_CMSG_SPACE)
    t.slot_of = <int *> calloc(SEND_MESSAGES, sizeof(int))
    t.datagrams_of = <int *> calloc(SEND_MESSAGES, sizeof(int))
    t.bytes_of = <int64_t *> calloc(SEND_MESSAGES, sizeof(int64_t))
    if (t.messages == NULL or t.vectors == NULL or t.headers == NULL or t.ancillary == NULL
            or t.slot_of == NULL or t.datagrams_of == NULL or t.bytes_of == NULL):
        raise MemoryError
    s.datagram_ns = SENDING_FIRST_NS
    s.batch_max = max(1, min(MAX_SEGMENTS, MAX_GSO_BYTES // <int> s.datagram_bytes))
    return 0


cdef void transmit_free(ChannelState *s) noexcept:
    free(s.tx.messages)
    free(s.tx.vectors)
    free(s.tx.headers)
    free(s.tx.ancillary)
    free(s.tx.slot_of)
    free(s.tx.datagrams_of)
    free(s.tx.bytes_of)


cdef inline int64_t sendable(TransmitSlot *slot) noexcept nogil:
    """Chunks that could go now."""
    cdef int64_t n = slot.tail - slot.head
    if slot.follow != NULL:
        n += slot.follow.ready - slot.follow_head
    return n


cdef inline int64_t outstanding(TransmitSlot *slot) noexcept nogil:
    """Chunks still to go, ready or not."""
    cdef int64_t n = slot.tail - slot.head
    if slot.follow != NULL:
        n += slot.follow.limit - slot.follow_head
    return n


cdef inline uint32_t chunk_at(TransmitSlot *slot, uint32_t offset) noexcept nogil:
    """The chunk `offset` places after the next one: first what follows the reducer, then the
    queue."""
    cdef uint32_t following = 0
    if slot.follow != NULL:
        following = slot.follow.ready - slot.follow_head
        if offset < following:
            return slot.follow.order[slot.follow_head + offset]
    return slot.queue[slot.head + offset - following]


cdef void advance(ChannelState *s, TransmitSlot *slot, uint32_t taken) noexcept nogil:
    """The kernel has taken this many; raises the event when the slot runs dry."""
    cdef uint32_t following = 0
    if slot.follow != NULL:
        following = min(taken, slot.follow.ready - slot.follow_head)
        slot.follow_head += following
    slot.head += taken - following
    slot.sent += taken
    if slot.head == slot.tail:
        slot.head = slot.tail = 0
    if outstanding(slot) == 0:
        s.event = True


cdef inline int64_t paced_burst(ChannelState *s) noexcept nogil:
    """Datagrams of one paced burst: two that fit a batch at least, a GSO batch at most."""
    cdef double nbytes = s.pacing_rate * PACED_BURST_NS * 1e-9
    nbytes = min(max(nbytes, 2.0 * s.datagram_bytes), <double> BURST_BYTES)
    return max(1, <int64_t> nbytes // s.datagram_bytes)


cdef int64_t allowance(ChannelState *s, int64_t now) noexcept nogil:
    """Datagrams that credit, congestion window and pacing let go now."""
    cdef int64_t allowed = <int64_t> (s.limit - s.sent_sequence) if s.limit > s.sent_sequence else 0
    cdef int64_t flying = <int64_t> (s.sent_sequence - s.acknowledged)
    if <int64_t> s.cwnd - flying < allowed:
        allowed = <int64_t> s.cwnd - flying
    if allowed > 0 and s.pacing_rate > 0:
        if now < s.next_send_ns:
            return 0
        allowed = min(allowed, paced_burst(s))
    return max(allowed, 0)


cdef void note_window_limit(ChannelState *s, int64_t allowed) noexcept nogil:
    """Remembers that the congestion window, and nothing else, held chunks back."""
    cdef int64_t wanted = 0, room = <int64_t> s.cwnd - <int64_t> (s.sent_sequence - s.acknowledged)
    cdef int i
    if max(room, 0) != allowed:
        return
    for i in range(s.transmit_count):
        wanted += sendable(&s.transmit[s.transmit_open[i]])
    if wanted > allowed and s.limit > s.sent_sequence + allowed:
        s.window_limited = True


cdef inline bint anything_sendable(ChannelState *s) noexcept nogil:
    cdef int i
    for i in range(s.transmit_count):
        if sendable(&s.transmit[s.transmit_open[i]]) > 0:
            return True
    return False


cdef void fill_datagram(
    ChannelState *s, TransmitSlot *slot, uint32_t chunk, uint64_t sequence, uint8_t *header,
    iovec *vector,
) noexcept nogil:
    cdef uint32_t length = length_of_chunk(chunk, slot.count, s.chunk_bytes, slot.last_bytes)
    cdef uint8_t *payload = slot.base + <int64_t> chunk * s.chunk_bytes
    write_header(
        header, KIND_DATA, 0, length, slot.stream, sequence, slot.round, chunk, s.send_tag, payload)
    vector[0].iov_base = header
    vector[0].iov_len = HEADER
    vector[1].iov_base = payload
    vector[1].iov_len = length


cdef inline void prefetch_chunk(
    ChannelState *s, TransmitSlot *slot, uint32_t chunk,
) noexcept nogil:
    dblp_prefetch(slot.base + <int64_t> chunk * s.chunk_bytes, s.chunk_bytes)


cdef int build_messages(ChannelState *s, int64_t allowed) noexcept nogil:
    """Fills the ring with up to `allowed` datagrams; a GSO batch holds one slot's, and a short
    chunk ends it."""
    cdef TransmitRing *t = &s.tx
    cdef bint batched = s.gso and s.batch_max > 1
    cdef int most = SEND_BATCHES if batched else SEND_MESSAGES
    cdef int per_message = s.batch_max if batched else 1
    cdef int messages = 0, i, n, used = 0
    cdef uint32_t offset, chunk
    cdef int64_t room
    cdef TransmitSlot *slot
    cdef uint64_t sequence = s.sent_sequence
    cdef mmsghdr *message
    cdef iovec *vector
    for i in range(s.transmit_count):
        slot = &s.transmit[s.transmit_open[i]]
        room = sendable(slot)
        offset = 0
        while messages < most and offset < room and allowed > 0:
            message = &t.messages[messages]
            message.msg_hdr.msg_iov = t.vectors + 2 * used
            t.bytes_of[messages] = 0
            n = 0
            while n < per_message and offset < room and allowed > 0:
                chunk = chunk_at(slot, offset)
                sequence += 1
                if offset + PREFETCH_CHUNKS < room:
                    prefetch_chunk(s, slot, chunk_at(slot, offset + PREFETCH_CHUNKS))
                vector = t.vectors + 2 * used
                fill_datagram(s, slot, chunk, sequence, t.headers + used * HEADER, vector)
                t.bytes_of[messages] += HEADER + vector[1].iov_len
                used += 1
                n += 1
                offset += 1
                allowed -= 1
                if vector[1].iov_len != s.chunk_bytes:
                    break
            message.msg_hdr.msg_iovlen = 2 * n
            dblp_set_segment(
                &message.msg_hdr, t.ancillary + messages * DBLP_CMSG_SPACE,
                s.datagram_bytes if n > 1 else 0,
            )
            t.slot_of[messages] = s.transmit_open[i]
            t.datagrams_of[messages] = n
            messages += 1
        if messages == most or allowed <= 0:
            break
    return messages


cdef int transmit_turn(ChannelState *s, int64_t now) noexcept nogil:
    """One sendmmsg of what may go now; returns datagrams taken by the kernel."""
    cdef TransmitRing *t = &s.tx
    cdef int64_t allowed, nbytes = 0
    cdef int messages, taken, i, datagrams = 0
    if s.send_full or not anything_sendable(s):
        return 0
    allowed = allowance(s, now)
    note_window_limit(s, allowed)
    if allowed <= 0:
        return 0
    messages = build_messages(s, allowed)
    now = dblp_now_ns()        # filling takes longer than a datagram takes to the other host
    taken = sendmmsg(s.fd, t.messages, messages, MSG_DONTWAIT)
    s.counters[C_SEND_CALLS] += 1
    if taken < 0:
        send_failed(s)
        return 0
    for i in range(taken):
        datagrams += t.datagrams_of[i]
        nbytes += t.bytes_of[i]
        advance(s, &s.transmit[t.slot_of[i]], t.datagrams_of[i])
    account_sent(s, datagrams, nbytes, now, dblp_now_ns() - now)
    return datagrams


cdef int64_t took_undisturbed(ChannelState *s, int datagrams, int64_t took) noexcept nogil:
    """`took`, but no more than is usual per datagram: a system call may go on after the last has
    left, with what others have sent.  The usual rises slowly, from a first guess."""
    cdef double usual = s.datagram_ns
    cdef double each = min(<double> took / datagrams, SENDING_MOST * usual)
    s.datagram_ns = usual + (each - usual) * (SENDING_FALL if each < usual else SENDING_RISE)
    return min(took, <int64_t> (s.datagram_ns * datagrams))


cdef void account_sent(
    ChannelState *s, int datagrams, int64_t nbytes, int64_t now, int64_t took,
) noexcept nogil:
    cdef TimeMark *mark
    if datagrams == 0:
        return
    s.sent_sequence += datagrams
    s.counters[C_DATAGRAMS_SENT] += datagrams
    s.counters[C_BYTES_SENT] += nbytes
    s.last_progress_ns = now
    if s.times_tail - s.times_head == 256:
        s.times_head += 1
    mark = &s.times[s.times_tail & 255]
    mark.sequence = s.sent_sequence
    mark.at_ns = now
    mark.took_ns = took_undisturbed(s, datagrams, took)
    mark.datagrams = datagrams
    s.times_tail += 1
    if s.pacing_rate > 0:
        s.next_send_ns = (max(s.next_send_ns, now - PACING_DEBT_NS)
                          + <int64_t> (nbytes * 1e9 / s.pacing_rate))


cdef void send_failed(ChannelState *s) noexcept nogil:
    """GSO that stops working (EIO, EINVAL, EMSGSIZE) is switched off for good; the batch goes again
    without."""
    if errno == EAGAIN or errno == EWOULDBLOCK or errno == ENOBUFS:
        s.send_full = True
    elif s.gso and s.batch_max > 1 and (errno == EIO or errno == EINVAL or errno == EMSGSIZE):
        s.gso = False
        s.counters[C_GSO_FALLBACKS] += 1
    elif errno != EINTR:
        s.counters[C_SEND_ERRORS] += 1
        s.send_full = True


cdef inline bint sender_is_ahead(const ChannelState *s) noexcept nogil:
    """In the round of the last datagram, of those whose chunks go into the same mean."""
    cdef const ReceiveSlot *slot = &s.receive[s.receive_hint]
    return (s.receive_count > 0 and slot.in_use and slot.landing != NULL
            and is_ahead(slot.reducer, slot.landing, AHEAD_BYTES // s.chunk_bytes))


cdef void credit_datagram(
    ChannelState *s, bint request, uint8_t *header, int64_t now,
) noexcept nogil:
    cdef uint64_t seen = s.sent_sequence if request else s.received_sequence
    cdef uint32_t limit = 0 if request else <uint32_t> (seen + s.window)
    cdef int flags = FLAG_REQUEST if request else 0 if s.timed else FLAG_UNTIMED
    cdef int64_t held = 0
    if not request and sender_is_ahead(s):
        flags |= FLAG_AHEAD
    if s.timed and not request:
        held = min(max(now - s.newest_arrival_ns, 0) // HOST_DELAY_UNIT_NS, 65535)
    write_header(
        header, KIND_CREDIT, flags, 0, <uint32_t> held, s.drained, <uint32_t> seen, limit,
        s.send_tag, header,
    )


cdef void send_copies(
    ChannelState *s, const uint8_t *header, int copies, int counter,
) noexcept nogil:
    """A lost credit stalls the sender for a request interval; where many datagrams are lost, copies
    are cheaper."""
    while copies > 0:
        send(s.fd, header, HEADER, MSG_DONTWAIT)
        s.counters[counter] += 1
        copies -= 1


cdef void credit_turn(ChannelState *s, bint empty) noexcept nogil:
    """Sends the credit that is due: on request, after an eighth of the window, or when the socket
    has run empty."""
    cdef uint8_t header[HEADER]
    cdef uint64_t advanced
    cdef bint thinned
    if not (s.credit_due or s.drained_since_credit >= max(1, s.window >> 3)
            or (empty and s.drained_since_credit)):
        return
    advanced = s.received_sequence - s.credited_sequence
    # Asked for, or over a quarter was lost.
    thinned = s.credit_due or 4 * s.drained_since_credit < 3 * advanced
    s.credit_due = False
    s.drained_since_credit = 0
    s.credited_sequence = s.received_sequence
    credit_datagram(s, False, header, dblp_now_ns())
    send_copies(s, header, CREDIT_COPIES if thinned else 1, C_CREDITS_SENT)


cdef bint wants_request(ChannelState *s, int64_t now) noexcept nogil:
    """Blocked on credit or congestion window with no progress for the request interval."""
    if not anything_sendable(s):
        return False
    if s.limit > s.sent_sequence and s.sent_sequence - s.acknowledged < s.cwnd:
        return False
    return now - s.last_progress_ns >= request_wait(s)


cdef inline int64_t request_wait(ChannelState *s) noexcept nogil:
    """A quarter of the interval while requests find losses: waiting costs more than asking then.
    But no answer comes sooner than a round trip, and a silent peer is not asked for ever."""
    if s.hasty and s.requests_unanswered < HASTY_REQUESTS:
        return min(max(s.request_interval_ns >> 2, s.path_min_ns), s.request_interval_ns)
    return s.request_interval_ns


cdef void request_turn(ChannelState *s, int64_t now) noexcept nogil:
    cdef uint8_t header[HEADER]
    if not wants_request(s, now):
        return
    s.last_progress_ns = now
    credit_datagram(s, True, header, now)
    send_copies(s, header, 1 << min(s.requests_unanswered, 3), C_REQUESTS_SENT)
    s.requests_unanswered += 1


cdef int64_t next_deadline(ChannelState *s, int64_t now) noexcept nogil:
    """When this channel wants a turn though nothing arrives; -1: never."""
    if not anything_sendable(s):
        return -1
    if s.limit <= s.sent_sequence or s.sent_sequence - s.acknowledged >= s.cwnd:
        return s.last_progress_ns + request_wait(s)
    if s.pacing_rate > 0 and now < s.next_send_ns:
        return s.next_send_ns
    return now + FULL_SOCKET_NS if s.send_full else now
