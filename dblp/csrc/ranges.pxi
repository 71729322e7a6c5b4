# Ranges of elements: what of a gradient was not delivered, and what of the next it is added to.


cdef int64_t elements_of(_Pin ranges, int64_t items) except -1:
    """How many elements lie in all ranges; ValueError unless they ascend and end within `items`."""
    cdef const int64_t *at = <const int64_t *> ranges.data()
    cdef Py_ssize_t i
    cdef int64_t place = 0, total = 0
    if ranges.size() % 16:
        raise ValueError(f"{ranges.size()} bytes are no pairs of int64")
    for i in range(0, ranges.size() // 8, 2):
        if at[i] < place or at[i + 1] < at[i] or at[i + 1] > items:
            raise ValueError(
                f"range {i // 2} is {at[i]} to {at[i + 1]}: ranges must ascend, within {items}"
            )
        place = at[i + 1]
        total += place - at[i]
    return total


cdef int64_t items_of(_Pin pin, int64_t item_bytes, str name) except -1:
    if pin.size() % item_bytes:
        raise ValueError(f"{name} has {pin.size()} bytes: not a whole number of elements")
    return pin.size() // item_bytes


def gather_ranges(source, ranges, out, str dtype):
    element_kind(dtype)
    cdef int64_t item = _ITEM_BYTES[dtype], start, size
    cdef _Pin whole = _Pin(source, False), spans = _Pin(ranges, False), packed = _Pin(out, True)
    cdef int64_t total = elements_of(spans, items_of(whole, item, "source"))
    if packed.size() != total * item:
        raise ValueError(f"the ranges have {total} elements, out has {packed.size()} bytes")
    cdef const int64_t *at = <const int64_t *> spans.data()
    cdef const uint8_t *data = whole.data()
    cdef uint8_t *to = packed.data()
    cdef Py_ssize_t i, count = spans.size() // 8
    with nogil:
        for i in range(0, count, 2):
            start, size = at[i] * item, (at[i + 1] - at[i]) * item
            memcpy(to, data + start, size)
            to += size


def add_ranges(target, ranges, values, str dtype, double factor=1.0):
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype {dtype!r} cannot be added to: use float32 or float64")
    cdef int64_t item = _ITEM_BYTES[dtype], j, size
    cdef _Pin whole = _Pin(target, True), spans = _Pin(ranges, False), packed = _Pin(values, False)
    cdef int64_t total = elements_of(spans, items_of(whole, item, "target"))
    if packed.size() != total * item:
        raise ValueError(f"the ranges have {total} elements, values {packed.size()} bytes")
    cdef const int64_t *at = <const int64_t *> spans.data()
    cdef Py_ssize_t i, count = spans.size() // 8
    cdef bint is_double = item == 8
    cdef float factor32 = <float> factor
    cdef float *base32 = <float *> whole.data()
    cdef float *to32
    cdef const float *from32 = <const float *> packed.data()
    cdef double *base64 = <double *> whole.data()
    cdef double *to64
    cdef const double *from64 = <const double *> packed.data()
    with nogil:
        for i in range(0, count, 2):
            size = at[i + 1] - at[i]
            if is_double:
                to64 = base64 + at[i]
                for j in range(size):
                    to64[j] += from64[j] * factor
                from64 += size
            else:
                to32 = base32 + at[i]
                for j in range(size):
                    to32[j] += from32[j] * factor32
                from32 += size
