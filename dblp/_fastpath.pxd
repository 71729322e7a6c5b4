# cython: language_level=3
"""Vocabulary of the fast path: C externs and the structures that the .pxi files share."""

from libc.stdint cimport int16_t as int16_t_
from libc.stdint cimport int32_t as int32_t_
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "csrc/crc32c.h" nogil:
    uint32_t dblp_crc32c(uint32_t value, const uint8_t *data, size_t size)
    uint32_t (*dblp_crc32c_best)(uint32_t state, const uint8_t *data, size_t size)
    const char *dblp_crc32c_name
    void dblp_crc32c_setup(int allow_hardware)

cdef extern from "csrc/prefetch.h" nogil:
    void dblp_prefetch(const uint8_t *data, size_t size)

cdef extern from *:
    int popcount "__builtin_popcountll"(uint64_t word) nogil

cdef extern from "csrc/random.h" nogil:
    uint32_t dblp_splitmix64(uint64_t *state)

cdef extern from "csrc/reduce.h" nogil:
    int DBLP_F32, DBLP_F64, DBLP_F16, DBLP_BF16
    void dblp_mean(
        uint8_t *out, const uint8_t **sources, int present, size_t nbytes, int divisor, int kind)
    enum: DBLP_PIECE
    double dblp_energy(const uint8_t *data, size_t nbytes, int kind)
    double dblp_sampled_energy(
        const uint8_t *data, size_t nbytes, size_t offset, size_t stride, int kind)

cdef extern from "csrc/spin.h" nogil:
    int64_t DBLP_SPIN_SHORT_NS, DBLP_SPIN_LONG_NS
    int64_t dblp_spin_ns(int64_t now)
    void dblp_spin_learn(int64_t ns)

cdef extern from "csrc/udp.h" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    cdef struct msghdr:
        void *msg_name
        uint32_t msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    cdef struct mmsghdr:
        msghdr msg_hdr
        unsigned int msg_len
    cdef struct pollfd:
        int fd
        short events
        short revents
    int MSG_DONTWAIT, MSG_TRUNC, POLLIN, POLLOUT, DBLP_CMSG_SPACE
    int EAGAIN, EWOULDBLOCK, EINTR, EIO, EINVAL, EMSGSIZE, ENOBUFS
    int errno
    int sendmmsg(int fd, mmsghdr *messages, unsigned int count, int flags)
    int recvmmsg(int fd, mmsghdr *messages, unsigned int count, int flags, void *timeout)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int64_t dblp_now_ns()
    void dblp_set_segment(msghdr *message, uint8_t *space, uint16_t segment)
    int64_t dblp_wall_ns()
    void dblp_read_ancillary(msghdr *message, int *segment, uint32_t *drops, int64_t *arrival)
    int dblp_enable_timestamps(int fd)
    int dblp_enable_gro(int fd)
    int dblp_enable_drop_count(int fd)
    int dblp_gso_works(int fd)
    int dblp_gro_works(int fd)
    int dblp_wait(pollfd *fds, unsigned int count, int64_t timeout_ns)


cdef struct Landing:            # where the chunks of one source lie; see landing.pxi
    uint32_t *place            # of each chunk until it is reduced, else NEVER; NULL: at its own
    uint32_t *free             # unused places, the next one to use last
    uint32_t free_count
    uint32_t arrived           # chunks of this source so far

cdef struct ReducerState:
    uint8_t *out
    uint8_t **sources
    Landing *landings          # one per source
    int world
    int kind
    bint contributors
    uint32_t chunk_bytes
    int64_t nbytes
    uint32_t count
    uint8_t *arrivals          # per chunk: how many sources have delivered it
    uint32_t *order            # reduced chunks in the order they became ready
    uint32_t ready
    uint32_t limit             # chunks that may become ready; the others become zero

cdef struct ReceiveSlot:
    bint in_use
    bint aim
    uint16_t stream
    uint32_t round
    uint8_t *base
    int64_t nbytes
    uint32_t count
    uint32_t last_bytes
    uint8_t *bits
    uint32_t accepted
    uint32_t duplicates
    uint32_t notify_at
    uint32_t cursor            # place in the order of the chunk that is expected (aiming only)
    const uint32_t *order      # chunks in the order in which they come; NULL: by index
    const uint32_t *place      # the place of each chunk in it
    uint32_t order_count
    ReducerState *reducer
    Landing *landing           # NULL: chunks lie at their own places

cdef struct TransmitSlot:
    bint in_use
    uint16_t stream
    uint32_t round
    uint8_t *base
    int64_t nbytes
    uint32_t count
    uint32_t last_bytes
    uint32_t *queue
    uint32_t capacity
    uint32_t head
    uint32_t tail
    ReducerState *follow
    uint32_t follow_head
    uint64_t sent

cdef struct StreamMark:
    uint16_t stream
    uint32_t newest

cdef struct TimeMark:           # one turn of sending
    uint64_t sequence           # its last
    int64_t at_ns
    int64_t took_ns             # the kernel takes datagrams one after the other
    int datagrams

cdef struct ByteQueue:          # length-prefixed records
    uint8_t *data
    size_t capacity
    size_t size

cdef struct ReceiveRing:
    mmsghdr *messages
    iovec *vectors
    uint8_t *headers
    uint8_t *ancillary
    uint8_t *scratch            # one maximal datagram per message
    uint8_t *linear             # one maximal datagram, gathered
    uint32_t *aimed             # chunk, or place of a landing, each payload slot was aimed at
    uint32_t lent               # places of the landing among them
    uint32_t unlent             # free ones below them
    int messages_count
    int came                    # messages of the last call
    int guess                   # segments that the next message will probably hold
    int segments                # header/payload pairs per message
    int aimed_slot
    int merged                  # running average of segments per message, times 16
    int pause                   # turns without aiming after wrong guesses
    int miss                    # consecutive turns with wrong guesses

cdef struct TransmitRing:
    mmsghdr *messages
    iovec *vectors
    uint8_t *headers
    uint8_t *ancillary
    int *slot_of
    int *datagrams_of
    int64_t *bytes_of

cdef struct ChannelState:
    int fd
    uint32_t send_tag
    uint32_t recv_tag
    uint32_t chunk_bytes
    uint32_t datagram_bytes
    int batch_max               # datagrams per GSO batch
    bint gso
    bint gro
    bint event
    bint send_full              # the socket refused; wait for POLLOUT
    uint64_t counters[32]
    uint32_t drops_seen
    ReceiveSlot *receive
    int receive_open[256]
    int receive_count
    int receive_hint
    TransmitSlot *transmit
    int transmit_open[256]
    int transmit_count
    StreamMark *marks
    int marks_count
    int marks_capacity
    uint32_t newest_round
    bint any_round
    uint64_t sent_sequence
    uint64_t acknowledged
    uint64_t limit
    uint64_t received_sequence
    bint timed                  # received_sequence is the number of a datagram that did arrive
    int64_t newest_arrival_ns   # when the datagram of received_sequence reached this host
    uint32_t window
    uint64_t cwnd
    bint window_limited         # the congestion window has held chunks back
    bint told_ahead             # the newest credit said so
    bint tail_lost              # a credit said so of the newest in flight
    double pacing_rate
    int64_t next_send_ns
    int64_t last_progress_ns
    bint hasty                  # the last answer to a request told of a loss
    int64_t request_interval_ns
    uint32_t drained_since_credit
    uint64_t drained            # DATA datagrams from the socket, with repeated ones
    uint64_t peer_drained       # what the newest credit said of that
    uint64_t peer_seen          # newest sequence that a credit has acknowledged
    int64_t lost                # acknowledged less peer_drained at the last take_lost
    uint64_t credited_sequence  # received_sequence of the last credit
    uint32_t requests_unanswered
    bint credit_due
    bint request_due
    TimeMark times[256]
    uint32_t times_head
    uint32_t times_tail
    int64_t rtt_min_ns
    int64_t path_min_ns         # smallest round trip of all, without the hosts' delay; 0: unknown
    int64_t rtt_last_ns
    int64_t rtt_count
    double datagram_ns          # what the kernel usually takes for one in a turn of sending
    int64_t path_sum_ns
    int64_t path_count
    uint32_t loss_ppm
    uint32_t loss_first
    uint32_t loss_last
    uint64_t loss_state
    ByteQueue inbox
    ByteQueue outbox
    ReceiveRing rx
    TransmitRing tx
