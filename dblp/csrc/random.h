/* splitmix64 (Steele, Lea, Flood 2014): the seeded generator of the injected loss. */
#ifndef DBLP_RANDOM_H
#define DBLP_RANDOM_H

#include <stdint.h>

/* Next draw; its upper 32 bits. */
static inline uint32_t dblp_splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
#endif
