# Batched receiving: recvmmsg with GRO, payload slots aimed at the places of the next chunks.
#
# A message is scattered over [header, payload, header, payload, ..., rest].  Payload slots point
# straight into the destination, at chunks not yet received: in-order traffic costs no copy in user
# space.  A wrong guess only ever overwrites places that are still missing; the message is then
# gathered and its chunks are moved.  Where chunks may land anywhere (landing.pxi) none is wrong.


cdef enum:
    BIG_MESSAGES = 8           # messages per call when the kernel merges: 8 * 64 KiB stay in L2
    SMALL_MESSAGES = 64        # ... when it does not
    BIG_SEGMENTS = 64          # most header/payload pairs per message
    MAX_SEARCH = 4096          # places of an order that are searched for a missing chunk
    MAX_PAUSE = 16             # turns without aiming after repeated wrong guesses


cdef int ring_setup(ChannelState *s) except -1:
    cdef ReceiveRing *r = &s.rx
    cdef int slots = max(SMALL_MESSAGES, BIG_MESSAGES * BIG_SEGMENTS)
    r.messages = <mmsghdr *> calloc(SMALL_MESSAGES, sizeof(mmsghdr))
    r.vectors = <iovec *> calloc(2 * slots + SMALL_MESSAGES, sizeof(iovec))
    r.headers = <uint8_t *> malloc(slots * HEADER)
    r.aimed = <uint32_t *> calloc(slots, sizeof(uint32_t))
    r.ancillary = <uint8_t *> malloc(SMALL_MESSAGES * DBLP_CMSG_SPACE)
    r.scratch = <uint8_t *> malloc(SMALL_MESSAGES * MAX_DATAGRAM)
    r.linear = <uint8_t *> malloc(MAX_DATAGRAM)
    if (r.messages == NULL or r.vectors == NULL or r.headers == NULL or r.aimed == NULL
            or r.ancillary == NULL or r.scratch == NULL or r.linear == NULL):
        raise MemoryError
    r.merged = 16 * 8
    r.guess = max(1, min(BIG_SEGMENTS, MAX_GSO_BYTES // <int> s.datagram_bytes))
    return 0


cdef void ring_free(ChannelState *s) noexcept:
    free(s.rx.messages)
    free(s.rx.vectors)
    free(s.rx.headers)
    free(s.rx.aimed)
    free(s.rx.ancillary)
    free(s.rx.scratch)
    free(s.rx.linear)


cdef inline uint32_t next_missing(ReceiveSlot *slot, uint32_t start) noexcept nogil:
    """First place at or after `start`, in the order of the slot, whose chunk is missing; else
    NEVER."""
    cdef uint32_t i = start
    if slot.order != NULL:
        while i < slot.order_count and i < start + MAX_SEARCH:
            if not bit_is_set(slot.bits, slot.order[i]):
                return i
            i += 1
        return NEVER
    while i < slot.count:
        if (i & 7) == 0 and slot.bits[i >> 3] == 0xFF:
            i += 8
        elif bit_is_set(slot.bits, i):
            i += 1
        else:
            return i
    return NEVER


cdef int aiming_slot(ChannelState *s) noexcept nogil:
    cdef ReceiveSlot *slot
    if s.receive_count == 0:
        return -1
    slot = &s.receive[s.receive_hint]
    if not slot.in_use or slot.accepted == slot.count:
        s.receive_hint = s.receive_open[0]
        slot = &s.receive[s.receive_hint]
    return s.receive_hint if slot.aim else -1


cdef int lend_places(ChannelState *s, int m, iovec *vector) noexcept nogil:
    """Aims message `m` at free places of the landing, but takes them from it only when something
    has come; returns the number of pairs."""
    cdef ReceiveRing *r = &s.rx
    cdef ReceiveSlot *slot = &s.receive[r.aimed_slot]
    cdef Landing *landing = slot.landing
    cdef int pairs = 0, at
    while pairs < r.segments and r.lent < landing.free_count:
        r.lent += 1
        at = m * r.segments + pairs
        r.aimed[at] = landing.free[landing.free_count - r.lent]
        vector[2 * pairs].iov_base = r.headers + at * HEADER
        vector[2 * pairs].iov_len = HEADER
        vector[2 * pairs + 1].iov_base = slot.base + <int64_t> r.aimed[at] * s.chunk_bytes
        vector[2 * pairs + 1].iov_len = s.chunk_bytes
        pairs += 1
    return pairs


cdef void return_places(ChannelState *s) noexcept nogil:
    """Gives back to the landing what was lent and not used: below what has become free since."""
    cdef ReceiveRing *r = &s.rx
    cdef Landing *landing
    cdef uint32_t kept[BIG_MESSAGES * BIG_SEGMENTS]
    cdef uint32_t *bottom
    cdef int m, at, pair, n = 0
    if r.lent == 0:
        return
    r.lent = 0
    landing = s.receive[r.aimed_slot].landing
    for m in range(r.messages_count - 1, -1, -1):
        for pair in range(<int> (r.messages[m].msg_hdr.msg_iovlen - 1) // 2 - 1, -1, -1):
            at = m * r.segments + pair
            if r.aimed[at] != NEVER:
                kept[n] = r.aimed[at]
                n += 1
    bottom = landing.free + r.unlent
    memmove(bottom + n, bottom, (landing.free_count - r.unlent) * sizeof(uint32_t))
    memcpy(bottom, kept, n * sizeof(uint32_t))
    landing.free_count += n


cdef void prepare_message(ChannelState *s, int m, int *used) noexcept nogil:
    """Vectors of message `m`: aimed pairs, then the message's scratch for whatever is longer."""
    cdef ReceiveRing *r = &s.rx
    cdef msghdr *message = &r.messages[m].msg_hdr
    cdef iovec *vector = r.vectors + m * (2 * r.segments + 1)
    cdef int pairs = 0, place
    cdef uint32_t chunk, next
    cdef ReceiveSlot *slot
    message.msg_iov = vector
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = r.ancillary + m * DBLP_CMSG_SPACE
    message.msg_controllen = DBLP_CMSG_SPACE
    message.msg_flags = 0
    if r.aimed_slot >= 0 and s.receive[r.aimed_slot].landing != NULL:
        pairs = lend_places(s, m, vector)
    elif r.aimed_slot >= 0:
        slot = &s.receive[r.aimed_slot]
        while pairs < r.segments:
            next = next_missing(slot, used[0])
            if next == NEVER:
                break
            chunk = next if slot.order == NULL else slot.order[next]
            # The last chunk may be shorter: a full one that lands there would spill over the end.
            if chunk + 1 == slot.count:
                break
            used[0] = next + 1
            place = m * r.segments + pairs
            r.aimed[place] = chunk
            vector[2 * pairs].iov_base = r.headers + place * HEADER
            vector[2 * pairs].iov_len = HEADER
            vector[2 * pairs + 1].iov_base = slot.base + <int64_t> chunk * s.chunk_bytes
            vector[2 * pairs + 1].iov_len = s.chunk_bytes
            pairs += 1
    vector[2 * pairs].iov_base = r.scratch + <int64_t> m * MAX_DATAGRAM
    vector[2 * pairs].iov_len = MAX_DATAGRAM
    message.msg_iovlen = 2 * pairs + 1


cdef void gather(msghdr *message, uint8_t *to, int64_t size) noexcept nogil:
    """The message's bytes in one piece."""
    cdef size_t i = 0, part
    while size > 0 and i < message.msg_iovlen:
        part = min(<size_t> size, message.msg_iov[i].iov_len)
        memmove(to, message.msg_iov[i].iov_base, part)
        to += part
        size -= part
        i += 1


cdef int take_aimed(
    ChannelState *s, int m, int64_t size, int64_t segment, int64_t now,
) noexcept nogil:
    """Handles leading pairs of message `m` while every chunk lies where it may; returns bytes dealt
    with.  Stops before the first datagram that is elsewhere, so that nothing is moved over
    bytes not yet looked at."""
    cdef ReceiveRing *r = &s.rx
    cdef iovec *vector = r.messages[m].msg_hdr.msg_iov
    cdef int pairs = <int> (r.messages[m].msg_hdr.msg_iovlen - 1) // 2, pair
    cdef int64_t done = 0, part
    cdef uint32_t chunk = 0
    cdef int index
    cdef uint8_t *header
    cdef uint8_t *payload
    cdef ReceiveSlot *slot
    cdef Landing *landing = s.receive[r.aimed_slot].landing
    cdef uint32_t *aimed
    if segment > s.datagram_bytes or (size > segment and segment != s.datagram_bytes):
        return 0  # a longer one, or several of another size, lie across the pairs
    for pair in range(pairs):
        if done >= size:
            break
        part = min(segment, size - done)
        header = <uint8_t *> vector[2 * pair].iov_base
        payload = <uint8_t *> vector[2 * pair + 1].iov_base
        aimed = &r.aimed[m * r.segments + pair]
        if landing == NULL and part >= HEADER and header[0] & 15 == KIND_DATA:
            if get32(header + 12) != aimed[0]:
                break
        index = inspect(s, header, payload, part, now, &chunk)
        if index >= 0:
            slot = &s.receive[index]
            if index != r.aimed_slot or (landing != NULL and chunk + 1 == slot.count):
                # Of another round, or a last chunk: its place is not a place of this batch.
                memcpy(target_of(slot, chunk, s.chunk_bytes), payload, part - HEADER)
                s.counters[C_MOVED] += 1
            elif landing != NULL:
                landing_clear(landing, chunk)
                landing.place[chunk] = aimed[0]
                aimed[0] = NEVER
            accept_chunk(s, slot, chunk)
        done += part
    return <int> done


cdef int receive_turn(ChannelState *s, int64_t now) noexcept nogil:
    """One recvmmsg and all that follows from it; returns the number of messages (0: the socket is
    empty)."""
    cdef ReceiveRing *r = &s.rx
    cdef int m, n, got, used, segment, datagrams = 0
    cdef int64_t size, done, arrival, wall
    cdef uint32_t drops
    cdef bint scattered = False
    cdef bint big = r.merged >= 16 * 3
    cdef uint8_t *scratch
    r.segments = r.guess if big else 1
    r.aimed_slot = -1
    if r.pause > 0:
        r.pause -= 1
    else:
        r.aimed_slot = aiming_slot(s)
    # Preparing costs as much as an empty call: twice what came last time is enough.  A merged
    # message may be of any length: behind a short one the rest of a call is aimed wrongly, unless
    # it is aimed at a landing.
    r.messages_count = min(BIG_MESSAGES if big else SMALL_MESSAGES, max(2, 2 * r.came))
    if big and r.aimed_slot >= 0 and s.receive[r.aimed_slot].landing == NULL:
        r.messages_count = 2
    used = <int> s.receive[r.aimed_slot].cursor if r.aimed_slot >= 0 else 0
    r.lent = 0
    for m in range(r.messages_count):
        prepare_message(s, m, &used)
    got = recvmmsg(s.fd, r.messages, r.messages_count, MSG_DONTWAIT, NULL)
    s.counters[C_RECEIVE_CALLS] += 1
    r.came = max(got, 0)
    if got <= 0:
        return 0
    if r.lent:
        s.receive[r.aimed_slot].landing.free_count -= r.lent
        r.unlent = s.receive[r.aimed_slot].landing.free_count
    now = dblp_now_ns()
    wall = dblp_wall_ns()
    # A first wrong guess gathers all that is left of the batch before anything is moved.
    for m in range(got):
        size = r.messages[m].msg_len
        drops = s.drops_seen
        dblp_read_ancillary(&r.messages[m].msg_hdr, &segment, &drops, &arrival)
        arrival = now - max(wall - arrival, 0) if arrival else now
        if drops != s.drops_seen:
            s.counters[C_KERNEL_DROPS] += <uint32_t> (drops - s.drops_seen)
            s.drops_seen = drops
        if r.messages[m].msg_hdr.msg_flags & MSG_TRUNC:
            s.counters[C_TRUNCATED] += 1
            continue
        if size == 0:
            take_datagram(s, r.scratch, r.scratch, 0, arrival)
            continue
        if segment <= 0 or segment > size:
            segment = <int> size
        n = <int> ((size + segment - 1) // segment)
        datagrams += n
        done = 0
        scratch = r.scratch + <int64_t> m * MAX_DATAGRAM
        if r.messages[m].msg_hdr.msg_iovlen > 1:
            if not scattered:
                done = take_aimed(s, m, size, segment, arrival)
                scattered = done < size
                if scattered:
                    gather_rest(s, m, got)
            if done < size:
                take_segments(s, scratch + done, size - done, segment, arrival)
        else:
            return_places(s)    # if none was left for this message, none was for a later one
            take_segments(s, scratch, size, segment, arrival)
    return_places(s)
    r.merged += (16 * datagrams // got - r.merged) // 4
    if r.aimed_slot >= 0:
        r.miss = r.miss + 1 if scattered else 0
        if r.miss > 2:
            r.pause = min(MAX_PAUSE, 1 << min(r.miss, 8))
    return got


cdef void gather_rest(ChannelState *s, int first, int got) noexcept nogil:
    """Brings messages first … got-1 out of the destination into their scratch, each in one
    piece: nothing that they were aimed at is needed any more."""
    cdef int m
    cdef int64_t size
    for m in range(first, got):
        size = s.rx.messages[m].msg_len
        if s.rx.messages[m].msg_hdr.msg_iovlen > 1 and size <= MAX_DATAGRAM:
            gather(&s.rx.messages[m].msg_hdr, s.rx.linear, size)
            memcpy(s.rx.scratch + <int64_t> m * MAX_DATAGRAM, s.rx.linear, size)
    return_places(s)
