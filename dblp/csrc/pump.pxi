# The pump: receives and sends on all channels without the GIL until Python is needed.


cdef enum:
    MAX_CHANNELS = 256
    MAX_WAKE = 64
    CREDIT_BATCH = 32          # datagrams that are worth a credit at once
    CREDIT_DELAY_NS = 30_000   # longest that a smaller number waits for its credit
    CLOCK_TURNS = 8            # turns between two looks at the wake descriptors while busy


cdef int pump_turn(ChannelState **channels, int count, int64_t now) noexcept nogil:
    """One receive and one transmit turn per channel; returns how much happened."""
    cdef int i, progress = 0
    for i in range(count):
        progress += receive_turn(channels[i], now)
        credit_turn(channels[i], False)
    for i in range(count):
        request_turn(channels[i], now)   # a blocked channel must not starve among busy ones
        progress += transmit_turn(channels[i], now)
    return progress


cdef bint few_owed(ChannelState **channels, int count) noexcept nogil:
    """Some channel owes a credit, and none of them for as much as a GSO batch."""
    cdef int i
    cdef bint owed = False
    for i in range(count):
        if channels[i].credit_due or channels[i].drained_since_credit >= CREDIT_BATCH:
            return False
        owed = owed or channels[i].drained_since_credit > 0
    return owed


cdef bint any_full(ChannelState **channels, int count) noexcept nogil:
    """Some channel waits for room in its socket, of which only a poll tells."""
    cdef int i
    for i in range(count):
        if channels[i].send_full:
            return True
    return False


cdef bint any_event(ChannelState **channels, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        if channels[i].event:
            return True
    return False


cdef int64_t idle_wait(
    ChannelState **channels, int count, int64_t now, int64_t linger,
) noexcept nogil:
    """How long the pump may sleep: until the next pacing slot or credit request, at most
    `linger`."""
    cdef int i
    cdef int64_t wait = linger, at
    for i in range(count):
        at = next_deadline(channels[i], now)
        if at >= 0:
            wait = min(wait, max(at - now, 0))
    return wait


cdef int wait_for_any(
    ChannelState **channels, int count, pollfd *fds, int wakes, int64_t timeout,
) noexcept nogil:
    """Polls; clears `send_full` where the socket takes data again; returns WAKE as 8 when a wake
    descriptor is ready, else the number of ready descriptors (0 to 7)."""
    cdef int i, ready
    for i in range(count):
        fds[wakes + i].fd = channels[i].fd
        fds[wakes + i].events = POLLIN | (POLLOUT if channels[i].send_full else 0)
        fds[wakes + i].revents = 0
    ready = dblp_wait(fds, wakes + count, timeout)
    if ready < 0:
        return 8               # a signal: let Python run its handlers
    for i in range(wakes):
        if fds[i].revents:
            return 8
    for i in range(count):
        if fds[wakes + i].revents & ~POLLIN:
            channels[i].send_full = False
    return min(ready, 7)


cdef int pump_until(
    ChannelState **channels, int count, pollfd *fds, int wakes, int64_t budget, int64_t linger,
) noexcept nogil:
    cdef int64_t start = dblp_now_ns(), now = start, quiet_since = start, wait, spin = 0
    cdef int turn = 0, i, ready
    cdef bint uncounted = False    # a silence that the spin has not learnt of yet
    while True:
        if any_event(channels, count):
            return 1
        if pump_turn(channels, count, now):
            if uncounted and turn:     # else it may be the end of a longer one
                dblp_spin_learn(now - quiet_since)
            uncounted = False
            spin = 0
            turn += 1
            if turn % CLOCK_TURNS == 0 and wait_for_any(channels, count, fds, wakes, 0) == 8:
                return 8
            now = quiet_since = dblp_now_ns()
            if now - start >= budget:
                return 4
            continue
        if any_event(channels, count):
            return 1
        now = dblp_now_ns()
        if now - quiet_since < DBLP_SPIN_SHORT_NS:
            continue
        if spin == 0:
            uncounted = True
            spin = DBLP_SPIN_SHORT_NS if any_full(channels, count) else dblp_spin_ns(now)
            if spin > DBLP_SPIN_SHORT_NS and wait_for_any(channels, count, fds, wakes, 0) == 8:
                return 8
        # Sockets are empty.  A few datagrams wait a moment for company before their credit goes.
        if few_owed(channels, count):
            if spin > DBLP_SPIN_SHORT_NS:
                if now - quiet_since < DBLP_SPIN_SHORT_NS + CREDIT_DELAY_NS:
                    continue
            elif wait_for_any(channels, count, fds, wakes, CREDIT_DELAY_NS) & 7:
                now = dblp_now_ns()
                continue
        for i in range(count):
            credit_turn(channels[i], True)
        now = dblp_now_ns()
        if now - quiet_since < spin and now - start < budget:
            continue
        if uncounted and now - quiet_since >= DBLP_SPIN_LONG_NS:
            dblp_spin_learn(now - quiet_since)   # this stay may not see its end
            uncounted = False
        if now - start >= budget:
            return 4
        if now - quiet_since >= linger:
            return 2
        wait = min(linger - (now - quiet_since), budget - (now - start))
        wait = idle_wait(channels, count, now, wait)
        ready = wait_for_any(channels, count, fds, wakes, wait)
        if ready == 8:
            return 8
        now = dblp_now_ns()


def pump(channels, wake_fds, *, int64_t budget_ns, int64_t linger_ns):
    cdef int count = len(channels), wakes = len(wake_fds), i, result
    if count > MAX_CHANNELS or wakes > MAX_WAKE:
        raise ValueError(f"at most {MAX_CHANNELS} channels and {MAX_WAKE} wake descriptors")
    cdef ChannelState *states[MAX_CHANNELS]
    cdef pollfd fds[MAX_CHANNELS + MAX_WAKE]
    cdef Channel channel
    held = tuple(channels)     # nothing may be collected while the GIL is released
    for i in range(count):
        channel = held[i]
        if channel.state.fd < 0:
            raise ValueError("a channel without a socket cannot be pumped")
        states[i] = &channel.state
    for i in range(wakes):
        fds[i].fd = wake_fds[i]
        fds[i].events = POLLIN
        fds[i].revents = 0
    with nogil:
        result = pump_until(states, count, fds, wakes, budget_ns, linger_ns)
    return result


def probe_offload(int fd):
    return (bool(dblp_gso_works(fd)), bool(dblp_gro_works(fd)))
