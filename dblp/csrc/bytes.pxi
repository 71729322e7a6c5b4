# Buffers, checksum, header and bitmap primitives.


cdef class _Pin:
    """Holds a Py_buffer: the memory stays where it is while a slot points at it."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, object source, bint writable):
        self.held = False
        if not PyObject_CheckBuffer(source):
            raise ValueError(f"a contiguous buffer is needed, not {type(source).__name__}")
        try:
            PyObject_GetBuffer(source, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        except BufferError as error:
            wanted = "contiguous and writable" if writable else "contiguous"
            raise ValueError(f"the buffer must be {wanted}: {error}") from error
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef uint8_t *data(self) noexcept:
        return <uint8_t *> self.view.buf

    cdef Py_ssize_t size(self) noexcept:
        return self.view.len


def crc32c(data, uint32_t value=0):
    cdef _Pin pin = _Pin(data, False)
    cdef const uint8_t *start = pin.data()
    cdef size_t size = pin.size()
    with nogil:
        value = dblp_crc32c(value, start, size)
    return value


def crc32c_backend():
    return dblp_crc32c_name.decode()


cdef inline void put16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = value & 0xFF
    at[1] = (value >> 8) & 0xFF


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = value & 0xFF
    at[1] = (value >> 8) & 0xFF
    at[2] = (value >> 16) & 0xFF
    at[3] = value >> 24


cdef inline uint32_t get16(const uint8_t *at) noexcept nogil:
    return at[0] | (<uint32_t> at[1] << 8)


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return at[0] | (<uint32_t> at[1] << 8) | (<uint32_t> at[2] << 16) | (<uint32_t> at[3] << 24)


cdef inline void write_header(
    uint8_t *at, int kind, int flags, uint32_t length, uint32_t stream, uint64_t sequence,
    uint32_t round_id, uint32_t chunk, uint32_t tag, const uint8_t *payload,
) noexcept nogil:
    """Header with its checksum; the payload is read once, while it is on its way into the cache for
    the kernel."""
    at[0] = (VERSION << 4) | kind
    at[1] = flags
    put16(at + 2, length)
    put16(at + 4, stream)
    put16(at + 6, <uint32_t> (sequence & 0xFFFF))
    put32(at + 8, round_id)
    put32(at + 12, chunk)
    put32(at + 16, tag)
    put32(at + 20, ~dblp_crc32c_best(dblp_crc32c_best(NEVER, at, 20), payload, length))


cdef inline bint checksum_is_right(
    const uint8_t *header, const uint8_t *payload, uint32_t length,
) noexcept nogil:
    cdef uint32_t state = dblp_crc32c_best(NEVER, header, 20)
    return get32(header + 20) == <uint32_t> ~dblp_crc32c_best(state, payload, length)


def pack_datagram(int kind, int flags, int stream, sequence, round, chunk, tag, payload):
    cdef _Pin pin = _Pin(payload, False)
    for name, value, most in (
        ("kind", kind, 15), ("flags", flags, 255), ("stream", stream, 65535),
        ("round", round, NEVER), ("chunk", chunk, NEVER), ("tag", tag, NEVER),
    ):
        if not 0 <= value <= most:
            raise ValueError(f"{name} is {value}: it must be 0 to {most}")
    if pin.size() > MAX_DATAGRAM - HEADER:
        raise ValueError(f"a payload of {pin.size()} bytes does not fit a datagram")
    cdef bytes datagram = PyBytes_FromStringAndSize(NULL, HEADER + pin.size())
    cdef uint8_t *at = <uint8_t *> PyBytes_AS_STRING(datagram)
    if pin.size():
        memcpy(at + HEADER, pin.data(), pin.size())
    write_header(
        at, kind, flags, pin.size(), stream, <uint64_t> (int(sequence) & 0xFFFF), round, chunk, tag,
        at + HEADER,
    )
    return datagram


def parse_datagram(data):
    cdef _Pin pin = _Pin(data, False)
    cdef const uint8_t *at = pin.data()
    if pin.size() < HEADER or at[0] >> 4 != VERSION or get16(at + 2) != pin.size() - HEADER:
        return None
    if not checksum_is_right(at, at + HEADER, pin.size() - HEADER):
        return None
    payload = PyBytes_FromStringAndSize(<char *> at + HEADER, pin.size() - HEADER)
    return (
        at[0] & 15, at[1], get16(at + 4), get16(at + 6),
        get32(at + 8), get32(at + 12), get32(at + 16), payload,
    )


# --- bitmaps: least significant bit first ---------------------------------------------------------


cdef inline bint bit_is_set(const uint8_t *bits, uint32_t index) noexcept nogil:
    return (bits[index >> 3] >> (index & 7)) & 1


cdef _Pin bitmap_pin(object bitmap, int64_t count, bint writable):
    cdef _Pin pin = _Pin(bitmap, writable)
    if count < 0 or count > NEVER:
        raise ValueError(f"count must be 0 to 2**32-1, not {count}")
    if pin.size() * 8 < count:
        raise ValueError(f"a bitmap of {pin.size()} bytes is too short for {count} chunks")
    return pin


def bitmap_set(bitmap, int64_t index):
    if index < 0:
        raise ValueError(f"the index must not be negative: {index}")
    cdef _Pin pin = bitmap_pin(bitmap, index + 1, True)
    cdef uint8_t *bits = pin.data()
    if bit_is_set(bits, <uint32_t> index):
        return False
    bits[index >> 3] |= 1 << (index & 7)
    return True


def bitmap_count(bitmap, int64_t count):
    cdef _Pin pin = bitmap_pin(bitmap, count, False)
    cdef const uint8_t *bits = pin.data()
    cdef int64_t total = 0, i
    cdef uint64_t word
    with nogil:
        i = 0
        while i + 64 <= count:
            memcpy(&word, bits + (i >> 3), 8)
            total += popcount(word)
            i += 64
        while i < count:
            total += bit_is_set(bits, <uint32_t> i)
            i += 1
    return total


def bitmap_missing(bitmap, int64_t count, int64_t first=0):
    cdef int64_t i = max(first, 0), found = 0
    cdef int64_t room = count - bitmap_count(bitmap, count)
    cdef _Pin pin = bitmap_pin(bitmap, count, False)
    cdef const uint8_t *bits = pin.data()
    missing = np.empty(room, dtype=np.uint32)
    cdef uint32_t[::1] out = missing
    with nogil:
        while i < count:
            if (i & 7) == 0 and bits[i >> 3] == 0xFF:
                i += 8
                continue
            if not bit_is_set(bits, <uint32_t> i):
                out[found] = <uint32_t> i
                found += 1
            i += 1
    return missing[:found]


def zero_missing(buffer, bitmap, int64_t count, int64_t chunk_bytes):
    cdef _Pin target = _Pin(buffer, True)
    if (chunk_bytes < 1 or target.size() > count * chunk_bytes
            or (count and target.size() <= (count - 1) * chunk_bytes)):
        raise ValueError(f"{target.size()} bytes are not {count} chunks of {chunk_bytes} bytes")
    cdef uint32_t[::1] missing = bitmap_missing(bitmap, count)
    cdef Py_ssize_t i
    cdef int64_t start
    cdef uint8_t *base = target.data()
    cdef int64_t nbytes = target.size()
    with nogil:
        for i in range(missing.shape[0]):
            start = missing[i] * chunk_bytes
            memset(base + start, 0, min(chunk_bytes, nbytes - start))
    return missing.shape[0]


# --- growable queue of records --------------------------------------------------------------------


cdef bint queue_push(
    ByteQueue *queue, const uint8_t *data, uint32_t size, size_t most,
) noexcept nogil:
    cdef size_t wanted = queue.size + 4 + size, capacity
    cdef uint8_t *grown
    if wanted > most:
        return False
    if wanted > queue.capacity:
        capacity = wanted * 2
        grown = <uint8_t *> realloc(queue.data, capacity)
        if grown == NULL:
            return False
        queue.data = grown
        queue.capacity = capacity
    put32(queue.data + queue.size, size)
    if size:
        memcpy(queue.data + queue.size + 4, data, size)
    queue.size = wanted
    return True


cdef list queue_take(ByteQueue *queue):
    cdef list records = []
    cdef size_t at = 0
    cdef uint32_t size
    while at < queue.size:
        size = get32(queue.data + at)
        records.append(PyBytes_FromStringAndSize(<char *> queue.data + at + 4, size))
        at += 4 + size
    queue.size = 0
    return records
