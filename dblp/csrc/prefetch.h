/* Asks for memory before it is needed.
 *
 * Chunks that are not neighbours defeat the hardware's prefetcher: the first lines of each come
 * from memory one after the other.  Asking for a whole chunk while the one before is worked on
 * hides that.
 */
#ifndef DBLP_PREFETCH_H
#define DBLP_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

enum { DBLP_LINE_BYTES = 64, DBLP_PREFETCH_MAX = 2048 };

static inline void dblp_prefetch(const uint8_t *data, size_t size)
{
    size_t end = size < DBLP_PREFETCH_MAX ? size : DBLP_PREFETCH_MAX;
    for (size_t at = 0; at < end; at += DBLP_LINE_BYTES)
        __builtin_prefetch(data + at, 0, 2);
}

#endif
