/* Every CRC-32C implementation by number, for a bench that compares them. */
#include "crc32c.h"

static dblp_crc32c_fn backends[3];

void setup(void)
{
    dblp_crc32c_setup(1);
    backends[0] = dblp_crc32c_portable;
#ifdef DBLP_CRC32C_X86
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        backends[1] = dblp_crc32c_sse42;
    if (strcmp(dblp_crc32c_name, "vpclmulqdq") == 0)
        backends[2] = dblp_crc32c_best;
#endif
}

int supported(int backend)
{
    return backends[backend] != 0;
}

uint32_t checksum(int backend, const uint8_t *data, size_t size)
{
    return ~backends[backend](~0u, data, size);
}
