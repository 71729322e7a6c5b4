/* How long the pump of a thread reads empty sockets again before it sleeps.
 *
 * To be woken costs the peer where it is on the same host (6 to 10 us in a virtual machine, once a
 * GSO batch), and takes as long. But on a processor that others want, every microsecond of reading
 * in vain is theirs. So a long spin has to have been worth it lately, and ends for a while with the
 * first switch that this thread did not ask for. */
#ifndef DBLP_SPIN_H
#define DBLP_SPIN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <sys/resource.h>

enum {
    DBLP_SPIN_SHORT_NS = 5000,      /* with 20 us a star on two cores is slower by a twentieth */
    DBLP_SPIN_LONG_NS = 100000,     /* 50 us lie between two GSO batches of MTU-sized packets */
    DBLP_SPIN_CONTENDED_NS = 5000000,
    DBLP_SPIN_ALWAYS = 256,         /* of `share` */
};

static __thread struct {
    long switches;                  /* that this thread did not ask for, so far */
    int64_t contended_until;
    int share;                      /* of recent silences that only a long spin covers */
} dblp_spin;

/* How long to spin in a silence that lasts at `now`. */
static inline int64_t dblp_spin_ns(int64_t now)
{
    struct rusage usage;
    if (dblp_spin.share < DBLP_SPIN_ALWAYS / 2)
        return DBLP_SPIN_SHORT_NS;
    if (getrusage(RUSAGE_THREAD, &usage) == 0 && usage.ru_nivcsw != dblp_spin.switches) {
        dblp_spin.switches = usage.ru_nivcsw;
        dblp_spin.contended_until = now + DBLP_SPIN_CONTENDED_NS;
    }
    return now < dblp_spin.contended_until ? DBLP_SPIN_SHORT_NS : DBLP_SPIN_LONG_NS;
}

/* A silence is over: it took so long. */
static inline void dblp_spin_learn(int64_t silence_ns)
{
    int covered = silence_ns < DBLP_SPIN_LONG_NS ? DBLP_SPIN_ALWAYS : 0;
    if (silence_ns >= DBLP_SPIN_SHORT_NS)
        dblp_spin.share += (covered - dblp_spin.share) / 8;
}
#endif
