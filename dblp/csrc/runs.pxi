# Chunk indices as they travel in control frames: runs of missing chunks, and the classes of a send
# order.


cdef enum:
    LEB128_BYTES_MAX = 5       # a chunk index has 32 bits
    CLASSES_MAX = 3            # that two bits can name
    NOT_SENT = 3               # the fourth value


cdef inline uint8_t *put_leb128(uint8_t *at, uint32_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = (value & 0x7F) | 0x80
        at += 1
        value >>= 7
    at[0] = value
    return at + 1


cdef inline Py_ssize_t leb128_size(uint32_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        size += 1
        value >>= 7
    return size


cdef inline Py_ssize_t run_end(
    const uint32_t *chunks, Py_ssize_t first, Py_ssize_t count,
) noexcept nogil:
    """Where the run of neighbours that starts at position `first` ends."""
    cdef Py_ssize_t end = first + 1
    while end < count and chunks[end] == chunks[end - 1] + 1:
        end += 1
    return end


def encode_runs(chunks):
    cdef const uint32_t[::1] held = np.ascontiguousarray(chunks, dtype=np.uint32)
    cdef Py_ssize_t count = held.shape[0], i, end, size = 0
    if count == 0:
        return b""
    cdef const uint32_t *at = &held[0]
    cdef uint32_t place = 0
    for i in range(1, count):
        if at[i] <= at[i - 1]:
            raise ValueError(f"chunk {at[i]} follows {at[i - 1]}: chunks must ascend")
    with nogil:
        i = 0
        while i < count:
            end = run_end(at, i, count)
            size += leb128_size(at[i] - place) + leb128_size(<uint32_t> (end - i))
            place = at[end - 1] + 1
            i = end
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *out = <uint8_t *> PyBytes_AS_STRING(data)
    place = 0
    with nogil:
        i = 0
        while i < count:
            end = run_end(at, i, count)
            out = put_leb128(out, at[i] - place)
            out = put_leb128(out, <uint32_t> (end - i))
            place = at[end - 1] + 1
            i = end
    return data


cdef int64_t get_leb128(const uint8_t **at, const uint8_t *end) noexcept nogil:
    """The number at `at`, which moves on; -1 if it ends within the number, -2 if that is too
    long."""
    cdef int64_t value = 0
    cdef uint8_t byte
    cdef int k
    for k in range(LEB128_BYTES_MAX):
        if at[0] == end:
            return -1
        byte = at[0][0]
        at[0] += 1
        value |= <int64_t> (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value
    return -2


cdef int64_t chunks_in_runs(const uint8_t *at, const uint8_t *end, int64_t count) except -1:
    """How many chunks the runs have; ValueError unless they ascend and end within `count`."""
    cdef int64_t gap, length, place = 0, total = 0
    while at != end:
        gap = get_leb128(&at, end)
        length = gap if gap < 0 else get_leb128(&at, end) if at != end else -3
        if length == -3:
            raise ValueError("they end within a pair")
        if length == -2:
            raise ValueError("a number has more than 32 bits")
        if length == -1:
            raise ValueError("they end within a number")
        if length == 0 or (gap == 0 and total):
            raise ValueError("a run is empty")
        place += gap + length
        if place > count:
            raise ValueError(f"they go beyond the {count} of the round")
        total += length
    return total


def decode_runs(data, int64_t count):
    cdef _Pin pin = _Pin(data, False)
    cdef const uint8_t *at = pin.data()
    cdef const uint8_t *end = at + pin.size()
    chunks = np.empty(chunks_in_runs(at, end, count), dtype=np.uint32)
    cdef uint32_t[::1] out = chunks
    cdef int64_t place = 0, length, k
    cdef Py_ssize_t n = 0
    with nogil:
        while at != end:
            place += get_leb128(&at, end)
            length = get_leb128(&at, end)
            for k in range(length):
                out[n + k] = <uint32_t> (place + k)
            n += length
            place += length
    return chunks


def pack_classes(order, int64_t count):
    cdef const uint32_t[::1] chunks = np.ascontiguousarray(order, dtype=np.uint32)
    cdef Py_ssize_t size = chunks.shape[0], i
    cdef int number = 0, shift
    if count < 0:
        raise ValueError(f"a round has no {count} chunks")
    for i in range(size):
        if chunks[i] >= count:
            raise ValueError(f"chunk {chunks[i]} is not one of {count}")
        number += i > 0 and chunks[i] <= chunks[i - 1]
    if number >= CLASSES_MAX or (number == 0 and size == count):
        return b""
    cdef bytearray packed = bytearray(b"\xff") * ((count + 3) // 4)   # NOT_SENT, all of them
    cdef uint8_t *at = packed
    number = 0
    for i in range(size):
        number += i > 0 and chunks[i] <= chunks[i - 1]
        shift = 2 * (chunks[i] & 3)
        at[chunks[i] >> 2] = (at[chunks[i] >> 2] & ~(3 << shift)) | (number << shift)
    return bytes(packed)


cdef inline int class_of(const uint8_t *packed, int64_t chunk) noexcept nogil:
    return (packed[chunk >> 2] >> (2 * (chunk & 3))) & 3


def order_of_classes(classes, int64_t count):
    cdef _Pin pin = _Pin(classes, False)
    cdef const uint8_t *at = pin.data()
    if count < 0 or pin.size() != (count + 3) // 4:
        raise ValueError(f"{pin.size()} bytes are not the classes of {count} chunks")
    cdef int64_t places[4]
    cdef int64_t i
    cdef int kind
    for kind in range(4):
        places[kind] = 0
    for i in range(count):
        places[class_of(at, i)] += 1
    order = np.empty(count - places[NOT_SENT], dtype=np.uint32)
    cdef uint32_t[::1] out = order
    places[2] = places[0] + places[1]
    places[1] = places[0]
    places[0] = 0
    for i in range(count):
        kind = class_of(at, i)
        if kind != NOT_SENT:
            out[places[kind]] = <uint32_t> i
            places[kind] += 1
    return order
