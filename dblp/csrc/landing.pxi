# Where the chunks of a reducer's source land.
#
# The reducer reads every chunk once and never again.  So the chunks that arrive for it need not lie
# at their own places in the source's buffer: each lands on the place that was freed last, which is
# still in the cache.  Usually a few places go round like that, and the rest of the buffer is for
# the time that one source is far ahead of the others.  And where any chunk may land anywhere, none
# is aimed wrongly because of its order.
#
# A place is either free, or lent to a call of recvmmsg, or that of one chunk.  The last chunk,
# which may be shorter, always lies at its own.


cdef int landing_setup(Landing *landing, uint32_t count) except -1:
    """Lets the chunks of a source land anywhere; before any of them has arrived."""
    cdef uint32_t i
    landing.place = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    landing.free = <uint32_t *> malloc((count + 1) * sizeof(uint32_t))
    if landing.place == NULL or landing.free == NULL:
        landing_free(landing)
        raise MemoryError
    memset(landing.place, 0xFF, (count + 1) * sizeof(uint32_t))    # NEVER
    landing.free_count = count - 1 if count else 0
    for i in range(landing.free_count):
        landing.free[i] = landing.free_count - 1 - i
    return 0


cdef void landing_free(Landing *landing) noexcept:
    free(landing.place)
    free(landing.free)
    landing.place = landing.free = NULL
    landing.free_count = 0


cdef inline uint32_t landed_at(const Landing *landing, uint32_t chunk) noexcept nogil:
    """The place of a chunk that has arrived."""
    if landing.place == NULL or landing.place[chunk] == NEVER:
        return chunk
    return landing.place[chunk]


cdef inline void landing_give(Landing *landing, uint32_t place) noexcept nogil:
    landing.free[landing.free_count] = place
    landing.free_count += 1


cdef inline void landing_clear(Landing *landing, uint32_t chunk) noexcept nogil:
    """The chunk is not needed any more."""
    if landing.place != NULL and landing.place[chunk] != NEVER:
        landing_give(landing, landing.place[chunk])
        landing.place[chunk] = NEVER


cdef inline uint8_t *target_of(
    ReceiveSlot *slot, uint32_t chunk, uint32_t chunk_bytes,
) noexcept nogil:
    """Where the bytes of a chunk belong that is just being accepted."""
    cdef Landing *landing = slot.landing
    cdef uint32_t place = chunk
    if landing != NULL and chunk + 1 != slot.count:
        if landing.place[chunk] == NEVER:
            landing.free_count -= 1    # never below 0: there is one for every chunk, none is lent
            landing.place[chunk] = landing.free[landing.free_count]
        place = landing.place[chunk]
    return slot.base + <int64_t> place * chunk_bytes
