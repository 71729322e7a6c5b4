# The Channel object: Python's view of one peer's transmit queue, receive table and credit.


cdef class Channel(_ChannelFlow):
    def __cinit__(self, int fd, *, send_tag, recv_tag, chunk_bytes, bint gso=True, bint gro=True):
        cdef ChannelState *s = &self.state
        if chunk_bytes < 8 or chunk_bytes % 8 or chunk_bytes > 65536 - 24 - 64:
            raise ValueError(
                f"chunk_bytes must be a multiple of 8 from 8 to 65448, not {chunk_bytes}")
        self.pins = {}
        s.fd = fd
        s.send_tag = send_tag
        s.recv_tag = recv_tag
        s.chunk_bytes = chunk_bytes
        s.datagram_bytes = chunk_bytes + HEADER
        s.receive = <ReceiveSlot *> calloc(SLOTS, sizeof(ReceiveSlot))
        s.transmit = <TransmitSlot *> calloc(SLOTS, sizeof(TransmitSlot))
        if s.receive == NULL or s.transmit == NULL:
            raise MemoryError
        s.window = 64
        s.cwnd = 1 << 30
        s.request_interval_ns = 2_000_000
        transmit_setup(s)
        if fd >= 0:
            ring_setup(s)
            s.gso = gso and dblp_gso_works(fd)
            s.gro = gro and dblp_enable_gro(fd)
            dblp_enable_drop_count(fd)
            dblp_enable_timestamps(fd)

    def __dealloc__(self):
        cdef int i
        for i in range(SLOTS):
            if self.state.transmit != NULL:
                free(self.state.transmit[i].queue)
        free(self.state.receive)
        free(self.state.transmit)
        free(self.state.marks)
        free(self.state.inbox.data)
        free(self.state.outbox.data)
        ring_free(&self.state)
        transmit_free(&self.state)

    # --- receive side

    def open_receive(
        self, int stream, round, buffer, bitmap, *,
        bint aim=True, Reducer reducer=None, int source=0,
    ):
        cdef ChannelState *s = &self.state
        check_identity(stream, round)
        cdef uint32_t round_id = round
        if find_receive(s, stream, round_id) >= 0:
            raise ValueError(f"stream {stream} round {round} is open for receiving already")
        cdef _Pin target = _Pin(buffer, True), bits
        cdef int64_t count = (target.size() + s.chunk_bytes - 1) // s.chunk_bytes
        bits = bitmap_pin(bitmap, count, True)
        if reducer is not None and (
            reducer.state.nbytes != target.size() or reducer.state.chunk_bytes != s.chunk_bytes
            or not 0 <= source < reducer.state.world
        ):
            raise ValueError("the reducer has another layout or fewer sources")
        in_use = [s.receive[i].in_use for i in range(SLOTS)]
        cdef int index = free_slot(s.receive_count, in_use, "receive")
        cdef Landing *landing = NULL if reducer is None else reducer.land(source, target.data())
        cdef ReceiveSlot *slot = &s.receive[index]
        memset(slot, 0, sizeof(ReceiveSlot))
        slot.in_use = True
        slot.aim = aim
        slot.stream = stream
        slot.round = round_id
        slot.base = target.data()
        slot.nbytes = target.size()
        slot.count = <uint32_t> count
        slot.last_bytes = last_bytes_of(target.size(), s.chunk_bytes)
        slot.bits = bits.data()
        slot.notify_at = NEVER
        slot.reducer = &reducer.state if reducer is not None else NULL
        slot.landing = landing
        s.receive_open[s.receive_count] = index
        s.receive_count += 1
        self.mark_stream(stream, round_id)
        self.pins["rx", index] = (target, bits, reducer)
        return index

    cdef void mark_stream(self, int stream, uint32_t round_id):
        """Remembers the newest round of the stream: older ones are stale, newer ones future."""
        cdef ChannelState *s = &self.state
        cdef int i
        self.mark_round(round_id)
        for i in range(s.marks_count):
            if s.marks[i].stream == stream:
                if round_newer(round_id, s.marks[i].newest):
                    s.marks[i].newest = round_id
                return
        if s.marks_count == s.marks_capacity:
            s.marks_capacity = max(16, 2 * s.marks_capacity)
            s.marks = <StreamMark *> realloc(s.marks, s.marks_capacity * sizeof(StreamMark))
        s.marks[s.marks_count].stream = stream
        s.marks[s.marks_count].newest = round_id
        s.marks_count += 1

    cdef void mark_round(self, uint32_t round_id) noexcept:
        if not self.state.any_round or round_newer(round_id, self.state.newest_round):
            self.state.newest_round = round_id
            self.state.any_round = True

    cdef ReceiveSlot *receiving(self, int slot) except NULL:
        if not 0 <= slot < SLOTS or not self.state.receive[slot].in_use:
            raise ValueError(f"receive slot {slot} is not open")
        return &self.state.receive[slot]

    cdef TransmitSlot *transmitting(self, int slot) except NULL:
        if not 0 <= slot < SLOTS or not self.state.transmit[slot].in_use:
            raise ValueError(f"transmit slot {slot} is not open")
        return &self.state.transmit[slot]

    def set_aim(self, int slot, bint aim):
        self.receiving(slot).aim = aim

    def expect(self, int slot, order):
        cdef ReceiveSlot *r = self.receiving(slot)
        chunks = np.array(order, dtype=np.uint32)
        place = np.zeros(r.count, dtype=np.uint32)
        cdef const uint32_t[::1] in_order = chunks
        cdef uint32_t[::1] places = place
        cdef uint32_t size = <uint32_t> in_order.shape[0], i
        for i in range(size):
            if in_order[i] >= r.count:
                raise ValueError(f"the round has {r.count} chunks, the order names others")
            places[in_order[i]] = i
        if size == 0:
            return
        r.order = &in_order[0]
        r.place = &places[0]
        r.order_count = size
        r.cursor = 0
        self.pins["rx", slot] = (*self.pins["rx", slot][:3], chunks, place)
        self.state.rx.pause = self.state.rx.miss = 0

    def set_notify(self, int slot, int64_t accepted):
        cdef ReceiveSlot *r = self.receiving(slot)
        if r.accepted >= accepted:
            self.state.event = True
            r.notify_at = NEVER
        else:
            r.notify_at = <uint32_t> min(accepted, NEVER)

    def accepted(self, int slot):
        return self.receiving(slot).accepted

    def duplicates(self, int slot):
        return self.receiving(slot).duplicates

    def close_receive(self, int slot):
        cdef ChannelState *s = &self.state
        self.receiving(slot).in_use = False
        s.receive_count = remove_index(s.receive_open, s.receive_count, slot)
        del self.pins["rx", slot]

    def deliver(self, int slot, int64_t index, payload):
        cdef ChannelState *s = &self.state
        cdef ReceiveSlot *r = self.receiving(slot)
        cdef _Pin pin = _Pin(payload, False)
        if not 0 <= index < r.count or bit_is_set(r.bits, <uint32_t> index):
            return False
        if pin.size() != length_of_chunk(<uint32_t> index, r.count, s.chunk_bytes, r.last_bytes):
            return False
        memcpy(target_of(r, <uint32_t> index, s.chunk_bytes), pin.data(), pin.size())
        accept_chunk(s, r, <uint32_t> index)
        return True

    def deliver_zeros(self, int slot, indices):
        cdef ChannelState *s = &self.state
        cdef ReceiveSlot *r = self.receiving(slot)
        cdef const uint32_t[::1] chunks = np.ascontiguousarray(indices, dtype=np.uint32)
        cdef uint32_t cursor = r.cursor, accepted = r.accepted, chunk
        cdef Py_ssize_t i
        for i in range(chunks.shape[0]):
            if chunks[i] >= r.count:
                raise ValueError(f"chunk {chunks[i]} is not one of {r.count}")
        with nogil:
            for i in range(chunks.shape[0]):
                chunk = chunks[i]
                if not bit_is_set(r.bits, chunk):
                    memset(target_of(r, chunk, s.chunk_bytes), 0,
                           length_of_chunk(chunk, r.count, s.chunk_bytes, r.last_bytes))
                    accept_chunk(s, r, chunk)
        r.cursor = cursor      # what comes next has not changed
        return r.accepted - accepted

    # --- transmit side

    def open_transmit(self, int stream, round, buffer):
        cdef ChannelState *s = &self.state
        check_identity(stream, round)
        cdef _Pin source = _Pin(buffer, False)
        in_use = [s.transmit[i].in_use for i in range(SLOTS)]
        cdef int index = free_slot(s.transmit_count, in_use, "transmit")
        cdef TransmitSlot *slot = &s.transmit[index]
        free(slot.queue)
        memset(slot, 0, sizeof(TransmitSlot))
        slot.in_use = True
        slot.stream = stream
        slot.round = round
        slot.base = source.data()
        slot.nbytes = source.size()
        slot.count = <uint32_t> ((source.size() + s.chunk_bytes - 1) // s.chunk_bytes)
        slot.last_bytes = last_bytes_of(source.size(), s.chunk_bytes)
        s.transmit_open[s.transmit_count] = index
        s.transmit_count += 1
        self.mark_round(slot.round)
        self.pins["tx", index] = (source, None)
        return index

    def queue(self, int slot, indices):
        cdef TransmitSlot *t = self.transmitting(slot)
        cdef const uint32_t[::1] chunks = np.ascontiguousarray(indices, dtype=np.uint32)
        cdef uint32_t n = <uint32_t> chunks.shape[0], waiting = t.tail - t.head, i
        cdef uint32_t *grown
        if n == 0:
            return
        for i in range(n):
            if chunks[i] >= t.count:
                raise ValueError(
                    f"chunk {chunks[i]} is out of range: the round has {t.count} chunks")
        if waiting + n > t.capacity:
            grown = <uint32_t *> malloc((waiting + n) * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            if waiting:
                memcpy(grown, t.queue + t.head, waiting * sizeof(uint32_t))
            free(t.queue)
            t.queue = grown
            t.capacity = waiting + n
        elif t.head and waiting:
            memmove(t.queue, t.queue + t.head, waiting * sizeof(uint32_t))
        t.head = 0
        t.tail = waiting + n
        memcpy(t.queue + waiting, &chunks[0], n * sizeof(uint32_t))
        self.wake_transmit()

    def follow(self, int slot, Reducer reducer not None):
        cdef TransmitSlot *t = self.transmitting(slot)
        if (reducer.state.nbytes != t.nbytes or reducer.state.chunk_bytes != self.state.chunk_bytes
                or t.follow != NULL):
            raise ValueError("the reducer has another layout, or the slot follows one already")
        t.follow = &reducer.state
        t.follow_head = 0
        self.pins["tx", slot] = (self.pins["tx", slot][0], reducer)
        self.wake_transmit()

    cdef void wake_transmit(self) noexcept:
        """New work after a pause must not look like a sender that was blocked all the while."""
        cdef int64_t now = dblp_now_ns() if self.state.fd >= 0 else 0
        self.state.last_progress_ns = max(self.state.last_progress_ns, now)

    def pending(self, int slot):
        return outstanding(self.transmitting(slot))

    def sent(self, int slot):
        return self.transmitting(slot).sent

    def cancel(self, int slot):
        cdef TransmitSlot *t = self.transmitting(slot)
        cdef int64_t dropped = outstanding(t)
        t.head = t.tail = 0
        t.follow = NULL
        return dropped

    def close_transmit(self, int slot):
        cdef ChannelState *s = &self.state
        self.transmitting(slot).in_use = False
        s.transmit_count = remove_index(s.transmit_open, s.transmit_count, slot)
        del self.pins["tx", slot]


cdef int check_identity(int stream, round) except -1:
    if not 0 <= stream < 65536 or not 0 <= round < 4294967296:
        raise ValueError(f"stream {stream} or round {round} is out of range")
    return 0


cdef uint32_t last_bytes_of(int64_t nbytes, int64_t chunk_bytes) noexcept:
    if nbytes == 0:
        return 0
    return <uint32_t> ((nbytes - 1) % chunk_bytes + 1)


cdef int free_slot(int used, list in_use, str kind) except -1:
    if used == SLOTS:
        raise ValueError(f"all {SLOTS} {kind} slots of this channel are open")
    return in_use.index(False)


cdef int remove_index(int *indices, int count, int slot) noexcept:
    cdef int i, kept = 0
    for i in range(count):
        if indices[i] != slot:
            indices[kept] = indices[i]
            kept += 1
    return kept
