# The half of a Channel that knows no buffers: flow control, control datagrams, faults, and use
# without a socket.


cdef class _ChannelFlow:
    cdef ChannelState state
    cdef dict pins             # ("rx" | "tx", slot) -> what must stay alive while the slot is open

    @property
    def chunk_bytes(self):
        return self.state.chunk_bytes

    @property
    def fd(self):
        return self.state.fd

    @property
    def gso(self):
        return self.state.gso

    @property
    def gro(self):
        return self.state.gro

    @property
    def window(self):
        return self.state.window

    @window.setter
    def window(self, value):
        if not 1 <= value < 32768:
            raise ValueError(f"the window must be 1 to 32767 datagrams, not {value}")
        self.state.window = value

    @property
    def cwnd(self):
        return self.state.cwnd

    @cwnd.setter
    def cwnd(self, value):
        if value < 1:
            raise ValueError(f"the congestion window must be at least 1 datagram, not {value}")
        self.state.cwnd = min(value, 1 << 30)

    @property
    def pacing_rate(self):
        return self.state.pacing_rate

    @pacing_rate.setter
    def pacing_rate(self, double value):
        if not value >= 0:
            raise ValueError(
                f"the pacing rate must be 0 (none) or more bytes per second, not {value}")
        self.state.pacing_rate = value

    @property
    def request_interval_ns(self):
        return self.state.request_interval_ns

    @request_interval_ns.setter
    def request_interval_ns(self, value):
        if value < 1:
            raise ValueError(f"the request interval must be positive, not {value}")
        self.state.request_interval_ns = value

    @property
    def sent_sequence(self):
        return self.state.sent_sequence

    @property
    def acknowledged(self):
        return self.state.acknowledged

    @property
    def credited(self):
        return (self.state.peer_seen, self.state.peer_drained)

    @property
    def limit(self):
        return self.state.limit

    @property
    def received_sequence(self):
        return self.state.received_sequence

    @property
    def drained(self):
        return self.state.drained

    def grant(self, sequence_seen, limit):
        grant_credit(&self.state, sequence_seen, limit, -1, 0)

    def sync_received(self, sequence):
        sync_sequence(&self.state, sequence)

    def blocked(self):
        cdef ChannelState *s = &self.state
        if not anything_sendable(s):
            return False
        return s.send_full or allowance(s, dblp_now_ns() if s.fd >= 0 else s.last_progress_ns) <= 0

    def take_rtt_ns(self):
        cdef ChannelState *s = &self.state
        if s.rtt_count == 0:
            return (0, 0, 0)
        result = (s.rtt_min_ns, s.rtt_last_ns, s.rtt_count)
        s.rtt_count = 0
        return result

    def take_path_ns(self):
        cdef ChannelState *s = &self.state
        taken = (s.path_sum_ns // s.path_count if s.path_count else 0, s.path_count)
        s.path_sum_ns = s.path_count = 0
        return taken

    def take_window_limited(self):
        limited = bool(self.state.window_limited)
        self.state.window_limited = False
        return limited

    @property
    def told_ahead(self):
        return bool(self.state.told_ahead)

    def take_tail_lost(self):
        lost = bool(self.state.tail_lost)
        self.state.tail_lost = False
        return lost

    def take_lost(self):
        cdef int64_t lost = <int64_t> (self.state.acknowledged - self.state.peer_drained)
        newly = max(lost - self.state.lost, 0)
        self.state.lost = lost
        return newly

    def send_control(self, bytes payload not None, int stream=0, round=0):
        cdef ChannelState *s = &self.state
        if len(payload) > s.chunk_bytes:
            raise ValueError(
                f"a control frame of {len(payload)} bytes does not fit a datagram of "
                f"{s.chunk_bytes}")
        cdef bytes datagram = pack_datagram(
            KIND_CONTROL, 0, stream, s.sent_sequence & 0xFFFF, round, 0, s.send_tag, payload)
        cdef char *data = PyBytes_AS_STRING(datagram)
        cdef bint taken
        if s.fd < 0:
            taken = queue_push(&s.outbox, <uint8_t *> data, len(datagram), MAX_INBOX)
        else:
            taken = send(s.fd, data, len(datagram), MSG_DONTWAIT) >= 0
        s.counters[C_CONTROL_SENT] += taken
        return taken

    def take_control(self):
        return queue_take(&self.state.inbox)

    def set_loss(self, int64_t ppm, first_round, last_round, seed):
        if not 0 <= ppm <= 1_000_000:
            raise ValueError(f"the loss must be 0 to 1,000,000 parts per million, not {ppm}")
        self.state.loss_ppm = <uint32_t> ppm
        self.state.loss_first = first_round
        self.state.loss_last = last_round
        self.state.loss_state = int(seed) & 0xFFFFFFFFFFFFFFFF

    def ingest(self, datagrams, int64_t now_ns):
        cdef ChannelState *s = &self.state
        cdef bytes datagram
        cdef uint8_t *at
        cdef bint data_before = s.drained_since_credit > 0
        for item in datagrams:
            datagram = bytes(item)
            at = <uint8_t *> PyBytes_AS_STRING(datagram)
            take_datagram(s, at, at + HEADER, len(datagram), now_ns)
        if s.fd >= 0:
            credit_turn(s, True)
        elif s.drained_since_credit:
            s.credit_due = True

    def collect(self, int64_t max_datagrams, int64_t now_ns, int64_t took_ns=0):
        cdef ChannelState *s = &self.state
        cdef list out = queue_take(&s.outbox)
        cdef uint8_t header[HEADER]
        cdef iovec vector[2]
        cdef TransmitSlot *slot
        cdef int i, n = 0
        cdef int64_t allowed, nbytes = 0
        cdef bytes datagram
        if s.credit_due:
            s.credit_due = False
            s.drained_since_credit = 0
            credit_datagram(s, False, header, now_ns)
            s.counters[C_CREDITS_SENT] += 1
            out.append(PyBytes_FromStringAndSize(<char *> header, HEADER))
        if wants_request(s, now_ns):
            s.last_progress_ns = now_ns
            credit_datagram(s, True, header, now_ns)
            s.requests_unanswered += 1
            s.counters[C_REQUESTS_SENT] += 1
            out.append(PyBytes_FromStringAndSize(<char *> header, HEADER))
        allowed = allowance(s, now_ns)
        note_window_limit(s, allowed)
        allowed = min(allowed, max_datagrams)
        for i in range(s.transmit_count):
            slot = &s.transmit[s.transmit_open[i]]
            while allowed > 0 and sendable(slot) > 0:
                fill_datagram(s, slot, chunk_at(slot, 0), s.sent_sequence + n + 1, header, vector)
                datagram = PyBytes_FromStringAndSize(NULL, HEADER + vector[1].iov_len)
                memcpy(PyBytes_AS_STRING(datagram), header, HEADER)
                memcpy(PyBytes_AS_STRING(datagram) + HEADER, vector[1].iov_base, vector[1].iov_len)
                out.append(datagram)
                advance(s, slot, 1)
                nbytes += len(datagram)
                n += 1
                allowed -= 1
        account_sent(s, n, nbytes, now_ns, took_ns)
        return out

    def receive_raw(self, int max_calls=8):
        cdef ChannelState *s = &self.state
        cdef ReceiveRing *r = &s.rx
        cdef list out = []
        cdef int call, m, got, segment
        cdef uint32_t drops
        cdef int64_t size, at, arrival
        cdef uint8_t *data
        if s.fd < 0:
            raise ValueError("this channel has no socket")
        for call in range(max_calls):
            r.aimed_slot = -1
            r.segments = 1
            for m in range(SMALL_MESSAGES):
                got = 0
                prepare_message(s, m, &got)
            with nogil:
                got = recvmmsg(s.fd, r.messages, SMALL_MESSAGES, MSG_DONTWAIT, NULL)
            s.counters[C_RECEIVE_CALLS] += 1
            if got <= 0:
                break
            for m in range(got):
                drops = s.drops_seen
                dblp_read_ancillary(&r.messages[m].msg_hdr, &segment, &drops, &arrival)
                s.counters[C_KERNEL_DROPS] += <uint32_t> (drops - s.drops_seen)
                s.drops_seen = drops
                size = r.messages[m].msg_len
                data = r.scratch + <int64_t> m * MAX_DATAGRAM
                at = 0
                while at < size:
                    out.append(PyBytes_FromStringAndSize(
                        <char *> data + at, min(size - at, segment if segment > 0 else size)))
                    at += segment if segment > 0 else size
        return out

    def send_pending(self, int64_t now_ns):
        cdef ChannelState *s = &self.state
        cdef int n
        if s.fd < 0:
            raise ValueError("this channel has no socket")
        with nogil:
            s.send_full = False
            request_turn(s, now_ns)
            n = transmit_turn(s, now_ns)
        return n

    def next_deadline_ns(self, int64_t now_ns):
        return next_deadline(&self.state, now_ns)

    def reached(self):
        return self.state.event

    def take_events(self):
        self.state.event = False

    def counters(self):
        return {name: self.state.counters[i] for i, name in enumerate(COUNTERS)}
