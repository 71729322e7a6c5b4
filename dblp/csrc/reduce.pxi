# Mean over workers, chunk by chunk.


cdef int element_kind(str dtype) except -1:
    kind = DEF_KINDS.get(dtype)
    if kind is None:
        raise ValueError(f"dtype must be one of {', '.join(DEF_KINDS)}, not {dtype!r}")
    return kind


cdef enum:
    REDUCED = 255              # in ReducerState.arrivals: the chunk is in the result


cdef _Pin element_pin(object buffer, str dtype):
    cdef _Pin pin = _Pin(buffer, False)
    element_kind(dtype)
    if pin.size() % _ITEM_BYTES[dtype]:
        raise ValueError(f"{pin.size()} bytes are not a whole number of {dtype} elements")
    return pin


def squared_norm(buffer, str dtype):
    cdef int kind = element_kind(dtype)
    cdef _Pin pin = element_pin(buffer, dtype)
    cdef const uint8_t *data = pin.data()
    cdef size_t size = pin.size()
    cdef double total
    with nogil:
        total = dblp_energy(data, size, kind)
    return total


def chunk_energy(buffer, str dtype, int64_t chunk_bytes, *, chunks=None, sample=None):
    cdef int kind = element_kind(dtype)
    cdef _Pin pin = element_pin(buffer, dtype)
    if chunk_bytes < 8 or chunk_bytes % 8:
        raise ValueError(f"chunk_bytes must be a positive multiple of 8, not {chunk_bytes}")
    cdef int64_t offset = 0, stride = 0
    if sample is not None:
        offset, stride = sample
        if (stride < DBLP_PIECE or stride % DBLP_PIECE or offset % DBLP_PIECE
                or not 0 <= offset < stride):
            raise ValueError(f"sample must be multiples of {DBLP_PIECE} with 0 <= offset < stride, "
                             f"not {sample}")
    cdef int64_t count = (pin.size() + chunk_bytes - 1) // chunk_bytes, i, start, length
    cdef int64_t nbytes = pin.size()
    cdef const uint32_t[::1] wanted
    cdef bint some = chunks is not None
    if some:
        chunks = np.ascontiguousarray(chunks, dtype=np.uint32)
        if len(chunks) and int(chunks.max()) >= count:
            raise ValueError(f"the buffer has {count} chunks, but others are named")
        wanted = chunks
        count = wanted.shape[0]
    energy = np.empty(count, dtype=np.float32)
    cdef float[::1] out = energy
    cdef const uint8_t *data = pin.data()
    with nogil:
        for i in range(count):
            start = (<int64_t> wanted[i] if some else i) * chunk_bytes
            length = min(chunk_bytes, nbytes - start)
            if stride:
                out[i] = <float> dblp_sampled_energy(data + start, length, offset, stride, kind)
            else:
                out[i] = <float> dblp_energy(data + start, length, kind)
    return energy


cdef void zero_chunk(ReducerState *r, uint32_t chunk) noexcept nogil:
    cdef int64_t start = <int64_t> chunk * r.chunk_bytes
    memset(r.out + start, 0, min(<int64_t> r.chunk_bytes, r.nbytes - start))
    r.arrivals[chunk] = REDUCED


cdef inline const uint8_t *part_of(
    const ReducerState *r, int source, uint32_t chunk,
) noexcept nogil:
    """The source's part of a chunk that has arrived."""
    return r.sources[source] + <int64_t> landed_at(&r.landings[source], chunk) * r.chunk_bytes


cdef void reduce_chunk(
    ReducerState *r, uint32_t chunk, const uint8_t **parts, int present,
) noexcept nogil:
    """`parts` are those of the present sources in rank order; none of them is read again."""
    cdef int64_t start = <int64_t> chunk * r.chunk_bytes
    cdef int s
    if r.ready == r.limit:
        zero_chunk(r, chunk)
    else:
        dblp_mean(r.out + start, parts, present, min(<int64_t> r.chunk_bytes, r.nbytes - start),
                  present if r.contributors else r.world, r.kind)
        r.arrivals[chunk] = REDUCED
        r.order[r.ready] = chunk
        r.ready += 1
    for s in range(r.world):
        landing_clear(&r.landings[s], chunk)


cdef inline void reducer_expect(
    const ReducerState *r, uint32_t chunk, const uint8_t *arriving,
) noexcept nogil:
    """The other sources' parts of a chunk whose last part is just arriving will be read next."""
    cdef int s
    if chunk >= r.count or r.arrivals[chunk] + 1 != r.world:
        return
    for s in range(r.world):
        if r.sources[s] != NULL and r.sources[s] != arriving:
            dblp_prefetch(part_of(r, s, chunk), r.chunk_bytes)


cdef inline void reducer_arrive(ReducerState *r, uint32_t chunk) noexcept nogil:
    cdef const uint8_t *parts[256]
    cdef int s
    if r.arrivals[chunk] == REDUCED:
        return
    r.arrivals[chunk] += 1
    if r.arrivals[chunk] == r.world:
        for s in range(r.world):
            parts[s] = part_of(r, s, chunk)
        reduce_chunk(r, chunk, parts, r.world)


cdef bint is_ahead(const ReducerState *r, const Landing *landing, int64_t by) noexcept nogil:
    """More than `by` chunks of this source have arrived beyond those of the slowest."""
    cdef uint32_t least = landing.arrived
    cdef int s
    for s in range(r.world):
        if r.landings[s].place != NULL:
            least = min(least, r.landings[s].arrived)
    return landing.arrived - least > by


cdef class Reducer:
    cdef ReducerState state
    cdef list pins
    cdef object order

    def __cinit__(self, out, sources, int64_t chunk_bytes, str dtype, bint contributors=False):
        self.state.kind = element_kind(dtype)
        cdef int world = len(sources)
        if not 1 <= world < REDUCED:
            raise ValueError(f"a Reducer takes 1 to {REDUCED - 1} sources, not {world}")
        if chunk_bytes < 8 or chunk_bytes % 8:
            raise ValueError(f"chunk_bytes must be a positive multiple of 8, not {chunk_bytes}")
        self.pins = []
        self.state.nbytes = -1
        self.state.world = world
        self.state.sources = <uint8_t **> calloc(world, sizeof(void *))
        self.state.landings = <Landing *> calloc(world, sizeof(Landing))
        if self.state.sources == NULL or self.state.landings == NULL:
            raise MemoryError
        if out is not None:
            self.state.out = self.keep(out, True, "the result")
        for i in range(world):
            if sources[i] is not None:
                self.state.sources[i] = self.keep(sources[i], False, f"source {i}")
        if self.state.nbytes < 0:
            raise ValueError("a Reducer needs at least one buffer to know its size")
        if self.state.nbytes % _ITEM_BYTES[dtype]:
            raise ValueError(
                f"{self.state.nbytes} bytes are not a whole number of {dtype} elements")
        self.state.contributors = contributors
        self.state.chunk_bytes = <uint32_t> chunk_bytes
        self.state.count = <uint32_t> ((self.state.nbytes + chunk_bytes - 1) // chunk_bytes)
        self.state.limit = self.state.count
        self.state.arrivals = <uint8_t *> calloc(self.state.count + 1, 1)
        self.order = np.zeros(self.state.count + 1, dtype=np.uint32)
        cdef uint32_t[::1] order = self.order
        self.state.order = &order[0]
        if self.state.arrivals == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int s
        if self.state.landings != NULL:
            for s in range(self.state.world):
                landing_free(&self.state.landings[s])
        free(self.state.landings)
        free(self.state.sources)
        free(self.state.arrivals)

    cdef uint8_t *keep(self, object buffer, bint writable, str name) except? NULL:
        cdef _Pin pin = _Pin(buffer, writable)
        if self.state.nbytes < 0:
            self.state.nbytes = pin.size()
        elif pin.size() != self.state.nbytes:
            raise ValueError(f"{name} has {pin.size()} bytes, the others {self.state.nbytes}")
        self.pins.append(pin)
        return pin.data()

    cdef Landing *land(self, int source, const uint8_t *buffer) except NULL:
        """The chunks of a source are going to arrive in `buffer`, which must be its own."""
        cdef Landing *landing = &self.state.landings[source]
        if self.state.nbytes and self.state.sources[source] != buffer:
            raise ValueError(f"the buffer is not that of source {source} of the reducer")
        if landing.place != NULL:
            raise ValueError(f"source {source} of the reducer is being received already")
        landing_setup(landing, self.state.count)
        return landing

    @property
    def count(self):
        return self.state.count

    @property
    def ready(self):
        return self.state.ready

    @property
    def limit(self):
        return self.state.limit

    def set_limit(self, int64_t limit):
        if not 0 <= limit <= self.state.limit:
            raise ValueError(f"the limit is {limit}: it can go down from {self.state.limit} only")
        cdef uint32_t i
        for i in range(<uint32_t> limit, self.state.ready):
            zero_chunk(&self.state, self.state.order[i])
        self.state.limit = <uint32_t> limit
        self.state.ready = min(self.state.ready, self.state.limit)

    def ready_indices(self):
        return self.order[: self.state.count]

    def arrive(self, int source, indices):
        if not 0 <= source < self.state.world:
            raise ValueError(f"source {source} is not one of {self.state.world}")
        cdef const uint32_t[::1] which = np.ascontiguousarray(indices, dtype=np.uint32)
        cdef Py_ssize_t i
        for i in range(which.shape[0]):
            if which[i] >= self.state.count or self.state.arrivals[which[i]] == REDUCED:
                raise ValueError(
                    f"chunk {which[i]} cannot arrive: out of range or complete already")
            reducer_arrive(&self.state, which[i])

    def provide(self, int source, buffer):
        if not 0 <= source < self.state.world:
            raise ValueError(f"source {source} is not one of {self.state.world}")
        if self.state.sources[source] != NULL:
            raise ValueError(f"source {source} is there already")
        cdef bint in_place = self.state.out == NULL
        cdef uint8_t *data = self.keep(buffer, in_place, f"source {source}")
        self.state.sources[source] = data
        if in_place:
            self.state.out = data
        cdef uint32_t chunk
        with nogil:
            for chunk in range(self.state.count):
                reducer_arrive(&self.state, chunk)

    cdef void complete(self, uint32_t chunk, const uint8_t **bits, bint skip) noexcept nogil:
        """Reduces one chunk from the sources that have it, unless it is ready; with `skip` one that
        no source has is zero, and nobody need follow it."""
        cdef const uint8_t *parts[256]
        cdef int s, present = 0
        if self.state.arrivals[chunk] == REDUCED:
            return
        for s in range(self.state.world):
            if bits[s] == NULL or bit_is_set(bits[s], chunk):
                parts[present] = part_of(&self.state, s, chunk)
                present += 1
        if skip and present == 0:
            zero_chunk(&self.state, chunk)
            self.state.limit -= 1
        else:
            reduce_chunk(&self.state, chunk, parts, present)

    def finish(self, bitmaps, first=()):
        cdef int world = self.state.world, s
        if len(bitmaps) != world:
            raise ValueError(f"{len(bitmaps)} bitmaps for {world} sources")
        pins = [None if b is None else bitmap_pin(b, self.state.count, False) for b in bitmaps]
        cdef const uint8_t *bits[256]
        for s in range(world):
            bits[s] = NULL if pins[s] is None else (<_Pin> pins[s]).data()
            if self.state.sources[s] == NULL:
                raise ValueError(f"source {s} has not been provided")
        cdef const uint32_t[::1] ahead = np.ascontiguousarray(first, dtype=np.uint32)
        cdef Py_ssize_t i
        for i in range(ahead.shape[0]):
            if ahead[i] >= self.state.count:
                raise ValueError(f"chunk {ahead[i]} is out of range")
        cdef uint32_t chunk
        cdef bint skip = self.state.limit == self.state.count
        with nogil:
            for i in range(ahead.shape[0]):
                self.complete(ahead[i], bits, skip)
            for chunk in range(self.state.count):
                self.complete(chunk, bits, skip)
        if not skip or self.state.ready == self.state.count:
            return np.empty(0, dtype=np.uint32)
        nobody = np.ones(self.state.count, dtype=bool)
        nobody[self.order[: self.state.ready]] = False
        return np.flatnonzero(nobody).astype(np.uint32)
