/* Socket vocabulary that Cython cannot spell: ancillary data of GSO, GRO and SO_RXQ_OVFL. */
#ifndef DBLP_UDP_H
#define DBLP_UDP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

enum { DBLP_CMSG_SPACE = 128 };

static inline int64_t dblp_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Segment size for the kernel to cut the message at; 0 leaves the message whole. */
static inline void dblp_set_segment(struct msghdr *message, uint8_t *space, uint16_t segment)
{
    if (segment == 0) {
        message->msg_control = NULL;
        message->msg_controllen = 0;
        return;
    }
    message->msg_control = space;
    message->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    c->cmsg_level = SOL_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    memcpy(CMSG_DATA(c), &segment, sizeof segment);
}

/* The wall clock, which the kernel stamps arrivals with. */
static inline int64_t dblp_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Reads the GRO segment size (0: none), the socket's drop counter (left alone when absent) and the
 * arrival time by the wall clock (0: none). */
static inline void dblp_read_ancillary(struct msghdr *message, int *segment, uint32_t *drops,
                                       int64_t *arrival)
{
    struct timespec t;
    *segment = 0;
    *arrival = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
            memcpy(segment, CMSG_DATA(c), sizeof(int));
        else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL)
            memcpy(drops, CMSG_DATA(c), sizeof(uint32_t));
        else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
            memcpy(&t, CMSG_DATA(c), sizeof t);
            *arrival = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        }
    }
}

static inline int dblp_enable_gro(int fd)
{
    int one = 1;
    return setsockopt(fd, SOL_UDP, UDP_GRO, &one, sizeof one) == 0;
}

static inline int dblp_enable_drop_count(int fd)
{
    int one = 1;
    return setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one) == 0;
}

static inline int dblp_enable_timestamps(int fd)
{
    int one = 1;
    return setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) == 0;
}

static inline int dblp_gso_works(int fd)
{
    int segment = 0;
    socklen_t size = sizeof segment;
    return getsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, &size) == 0;
}

static inline int dblp_gro_works(int fd)
{
    int on = 0;
    socklen_t size = sizeof on;
    return getsockopt(fd, SOL_UDP, UDP_GRO, &on, &size) == 0;
}

static inline int dblp_wait(struct pollfd *fds, unsigned count, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    return ppoll(fds, count, &t, NULL);
}
#endif
