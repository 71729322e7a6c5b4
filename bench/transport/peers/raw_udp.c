/* The ceiling of UDP on this machine: a sender and a receiver with nothing in between.
 *
 * No header, no check, no retransmission: payload is placed in the order of arrival. The one rule
 * is a window, so that the receiver's socket buffer never overflows: the receiver reports how many
 * bytes it has taken, the sender keeps at most `window` bytes beyond that under way. A lost
 * datagram therefore stops the flow; the sender gives up after five seconds and says so.
 *
 *   raw_udp recv ADDRESS NBYTES ROUNDS WARMUP GRO SEGMENT HEADER
 *   raw_udp send ADDRESS PORT NBYTES ROUNDS WARMUP SEGMENTS SEGMENT WINDOW HEADER
 *
 * SEGMENTS is the number of segments per message (1: UDP_SEGMENT off). Results are JSON lines.
 *
 * With HEADER bytes above 0 both sides also do what no protocol with a header and a check per
 * datagram can do without: the sender hands over two pieces per segment, a header of its own in
 * place of the segment's first bytes and the rest from where it lies, and each side reads one word
 * of every cache line once. That is a check's memory traffic without its arithmetic.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum {
    WANTED_BUFFER = 4 << 20, /* the kernel doubles it, and caps it at rmem_max */
    SLOTS = 64,
    SLOT_BYTES = 65536,
    MAX_SEGMENTS = 64,
    MAX_HEADER = 64,
    LINE_BYTES = 64,
    PATIENCE_MS = 5000,
};

/* Receive slots that are in use together: 16 x 64 KiB stays in the second-level cache. */
static const int GRO_SLOTS = 16;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "raw_udp: %s: %s\n", what, errno ? strerror(errno) : "gave up");
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* One pass over the bytes; the sum keeps the compiler from leaving it out. */
static void read_once(const uint8_t *bytes, size_t size) {
    static volatile uint64_t total;
    uint64_t sum = 0, word;
    for (size_t at = 0; at + sizeof word <= size; at += LINE_BYTES) {
        memcpy(&word, bytes + at, sizeof word);
        sum += word;
    }
    total = total + sum;
}

static uint8_t *buffer_of(size_t nbytes) {
    uint8_t *buffer = aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
    if (!buffer) fail("buffer");
    memset(buffer, 0x5a, nbytes);
    return buffer;
}

static int udp_socket(void) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int wanted = WANTED_BUFFER;
    if (fd < 0) fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof wanted);
    return fd;
}

static struct sockaddr_in address_of(const char *text, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, text, &a.sin_addr) != 1) fail("address");
    return a;
}

/* ---- receiver ------------------------------------------------------------------------------- */

static void receive(char **arg) {
    const size_t nbytes = strtoull(arg[1], NULL, 10);
    const int rounds = atoi(arg[2]), warmup = atoi(arg[3]), gro = atoi(arg[4]);
    const size_t slot_bytes = gro ? SLOT_BYTES : (size_t)atoi(arg[5]);
    const int slots = gro ? GRO_SLOTS : SLOTS, checked = atoi(arg[6]) > 0;
    static struct mmsghdr messages[SLOTS];
    static struct iovec vectors[SLOTS];
    struct sockaddr_in here = address_of(arg[0], 0), peer;
    socklen_t length = sizeof here;
    uint64_t taken = 0;
    double cpu_before = 0;
    int granted = 0;

    int fd = udp_socket();
    if (gro && setsockopt(fd, IPPROTO_UDP, UDP_GRO, &gro, sizeof gro)) fail("UDP_GRO");
    if (bind(fd, (struct sockaddr *)&here, sizeof here)) fail("bind");
    getsockname(fd, (struct sockaddr *)&here, &length);
    length = sizeof granted;
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &granted, &length);

    uint8_t *place = buffer_of(nbytes), *ring = buffer_of((size_t)slots * slot_bytes);
    for (int i = 0; i < slots; i++) {
        vectors[i] = (struct iovec){ring + (size_t)i * slot_bytes, slot_bytes};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
    }
    printf("{\"port\": %d, \"granted\": %d}\n", ntohs(here.sin_port), granted);
    fflush(stdout);

    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (poll(&ready, 1, 6 * PATIENCE_MS) != 1) fail("no sender came");
    length = sizeof peer;
    if (recvfrom(fd, ring, 1, MSG_PEEK, (struct sockaddr *)&peer, &length) < 0) fail("peek");
    if (connect(fd, (struct sockaddr *)&peer, length)) fail("connect");

    for (int round = 0; round < warmup + rounds; round++) {
        size_t got = 0;
        if (round == warmup) cpu_before = cpu_s();
        while (got < nbytes) {
            int count = recvmmsg(fd, messages, (unsigned)slots, MSG_WAITFORONE, NULL);
            if (count < 0) fail("recvmmsg");
            for (int i = 0; i < count; i++) {
                size_t size = messages[i].msg_len;
                if (messages[i].msg_hdr.msg_flags & MSG_TRUNC || got + size > nbytes)
                    fail("more bytes than a round has");
                memcpy(place + got, vectors[i].iov_base, size);
                if (checked) read_once(place + got, size);
                got += size;
                taken += size;
            }
            if (send(fd, &taken, sizeof taken, MSG_DONTWAIT) < 0 && errno != EAGAIN) fail("credit");
        }
    }
    printf("{\"cpu_s\": %.6f, \"taken\": %llu}\n", cpu_s() - cpu_before, (unsigned long long)taken);
}

/* ---- sender --------------------------------------------------------------------------------- */

struct flow {
    int fd;
    size_t segment, message_bytes, header;
    uint64_t sent, taken, window;
};

/* Reads what the receiver has reported; waits until `room` more bytes fit into the window. */
static void await_room(struct flow *flow, uint64_t room) {
    struct pollfd ready = {.fd = flow->fd, .events = POLLIN};
    uint64_t report;
    for (;;) {
        while (recv(flow->fd, &report, sizeof report, MSG_DONTWAIT) == sizeof report)
            if (report > flow->taken) flow->taken = report;
        if (flow->sent + room <= flow->taken + flow->window) return;
        errno = 0;
        if (poll(&ready, 1, PATIENCE_MS) != 1) fail("datagrams were lost, the receiver waits");
    }
}

/* Vectors of one message of `size` bytes at `source`; returns how many. */
static size_t scatter(const struct flow *flow, struct iovec *vector, uint8_t *headers,
                      uint8_t *source, size_t size) {
    size_t count = 0;
    if (!flow->header) {
        vector[0] = (struct iovec){source, size};
        return 1;
    }
    read_once(source, size);
    for (size_t at = 0; at < size; at += flow->segment) {
        size_t part = size - at < flow->segment ? size - at : flow->segment;
        size_t head = part < flow->header ? part : flow->header;
        memset(headers, (int)at, head);
        vector[count++] = (struct iovec){headers, head};
        vector[count++] = (struct iovec){source + at + head, part - head};
        headers += MAX_HEADER;
    }
    return count;
}

/* Messages of the `left` bytes at `source`, at most SLOTS; returns how many. */
static int fill(const struct flow *flow, struct mmsghdr *messages, uint8_t *source, size_t left) {
    static struct iovec vectors[SLOTS][2 * MAX_SEGMENTS];
    static uint8_t headers[SLOTS][MAX_SEGMENTS * MAX_HEADER];
    int count = 0;
    while (left && count < SLOTS) {
        size_t size = left < flow->message_bytes ? left : flow->message_bytes;
        struct msghdr *message = &messages[count].msg_hdr;
        message->msg_iov = vectors[count];
        message->msg_iovlen = scatter(flow, vectors[count], headers[count], source, size);
        source += size;
        left -= size;
        count++;
    }
    return count;
}

static void send_round(struct flow *flow, uint8_t *source, size_t nbytes) {
    static struct mmsghdr messages[SLOTS];
    /* A quarter of the window per call keeps both sides busy. */
    int most = (int)(flow->window / 4 / flow->message_bytes);
    most = most < 1 ? 1 : most > SLOTS ? SLOTS : most;
    for (size_t done = 0; done < nbytes;) {
        size_t bytes = (size_t)most * flow->message_bytes;
        if (bytes > nbytes - done) bytes = nbytes - done;
        int count = fill(flow, messages, source + done, bytes);
        await_room(flow, bytes);
        for (int first = 0; first < count;) {
            int took = sendmmsg(flow->fd, messages + first, (unsigned)(count - first), 0);
            if (took < 0) fail("sendmmsg");
            first += took;
        }
        flow->sent += bytes;
        done += bytes;
    }
    uint64_t window = flow->window;
    flow->window = 0; /* wait until everything has been taken */
    await_room(flow, 0);
    flow->window = window;
}

static void send_all(char **arg) {
    const size_t nbytes = strtoull(arg[2], NULL, 10);
    const int rounds = atoi(arg[3]), warmup = atoi(arg[4]);
    int segments = atoi(arg[5]), segment = atoi(arg[6]), header = atoi(arg[8]);
    struct sockaddr_in there = address_of(arg[0], atoi(arg[1]));
    struct flow flow = {.fd = udp_socket(),
                        .segment = (size_t)segment,
                        .message_bytes = (size_t)segments * (size_t)segment,
                        .header = (size_t)header,
                        .window = strtoull(arg[7], NULL, 10)};
    double cpu_before = 0;

    if (segments > MAX_SEGMENTS || header > MAX_HEADER || header > segment) fail("arguments");

    if (segments > 1 && setsockopt(flow.fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment))
        fail("UDP_SEGMENT");
    if (connect(flow.fd, (struct sockaddr *)&there, sizeof there)) fail("connect");
    uint8_t *source = buffer_of(nbytes);
    printf("{\"elapsed_s\": [");
    for (int round = 0; round < warmup + rounds; round++) {
        if (round == warmup) cpu_before = cpu_s();
        double started = now_s();
        send_round(&flow, source, nbytes);
        printf("%s%.9f", round ? ", " : "", now_s() - started);
    }
    printf("], \"cpu_s\": %.6f}\n", cpu_s() - cpu_before);
}

int main(int count, char **arg) {
    if (count == 9 && !strcmp(arg[1], "recv")) receive(arg + 2);
    else if (count == 11 && !strcmp(arg[1], "send")) send_all(arg + 2);
    else {
        fprintf(stderr, "usage: raw_udp recv|send ...\n");
        return 2;
    }
    return 0;
}
