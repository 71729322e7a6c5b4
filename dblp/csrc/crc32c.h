/* CRC-32C (Castagnoli, reflected 0x82F63B78) with run-time dispatch.
 *
 * The serial crc32 instruction chain takes 3 cycles per 8 bytes and would cost a quarter of the
 * goodput; carry-less multiplication folds 256 bytes per step instead.  All constants are powers of
 * x modulo the polynomial and are computed at start-up, so that none has to be trusted.
 */
#ifndef DBLP_CRC32C_H
#define DBLP_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DBLP_CRC32C_POLY 0x82F63B78u

typedef uint32_t (*dblp_crc32c_fn)(uint32_t state, const uint8_t *data, size_t size);

static uint32_t dblp_crc32c_table[8][256];

/* x^exponent mod P, bit-reflected: bit 31 is x^0. */
static uint32_t dblp_crc32c_power(unsigned exponent)
{
    uint32_t value = 0x80000000u;
    while (exponent--)
        value = (value >> 1) ^ ((value & 1) ? DBLP_CRC32C_POLY : 0);
    return value;
}

static inline uint32_t dblp_little32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

static uint32_t dblp_crc32c_portable(uint32_t state, const uint8_t *data, size_t size)
{
    while (size >= 8) { /* slicing by 8 */
        uint32_t low = dblp_little32(data) ^ state, high = dblp_little32(data + 4);
        state = dblp_crc32c_table[7][low & 0xff] ^ dblp_crc32c_table[6][low >> 8 & 0xff] ^
                dblp_crc32c_table[5][low >> 16 & 0xff] ^ dblp_crc32c_table[4][low >> 24] ^
                dblp_crc32c_table[3][high & 0xff] ^ dblp_crc32c_table[2][high >> 8 & 0xff] ^
                dblp_crc32c_table[1][high >> 16 & 0xff] ^ dblp_crc32c_table[0][high >> 24];
        data += 8;
        size -= 8;
    }
    while (size--)
        state = (state >> 8) ^ dblp_crc32c_table[0][(state ^ *data++) & 0xff];
    return state;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define DBLP_CRC32C_X86 1

static uint64_t dblp_crc32c_shift_480, dblp_crc32c_shift_960;
/* [0]: 2048 bits ahead, [1]: 512, [2]: 384, [3]: 256, [4]: 128; pairs (low half, high half) of a
 * lane */
static uint64_t dblp_crc32c_fold[5][2];

static inline uint64_t dblp_load64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

__attribute__((target("sse4.2"))) static inline uint32_t
dblp_crc32c_tail(uint64_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8)
        state = _mm_crc32_u64(state, dblp_load64(data));
    for (; size; size--)
        state = _mm_crc32_u8((uint32_t)state, *data++);
    return (uint32_t)state;
}

/* A register of the crc32 instruction, moved `shift` further. */
__attribute__((target("sse4.2,pclmul"))) static inline __m128i
dblp_crc32c_moved(uint64_t state, uint64_t shift)
{
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)state),
                                _mm_cvtsi64_si128((int64_t)shift), 0);
}

/* Three interleaved streams of 480 bytes hide the latency of the crc32 instruction. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t
dblp_crc32c_sse42(uint32_t state, const uint8_t *data, size_t size)
{
    while (size >= 1440) {
        uint64_t a = state, b = 0, c = 0;
        for (int i = 0; i < 480; i += 8) {
            a = _mm_crc32_u64(a, dblp_load64(data + i));
            b = _mm_crc32_u64(b, dblp_load64(data + 480 + i));
            c = _mm_crc32_u64(c, dblp_load64(data + 960 + i));
        }
        __m128i far = dblp_crc32c_moved(a, dblp_crc32c_shift_960);
        __m128i near = dblp_crc32c_moved(b, dblp_crc32c_shift_480);
        uint64_t moved = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(far, near));
        state = (uint32_t)(_mm_crc32_u64(0, moved) ^ c);
        data += 1440;
        size -= 1440;
    }
    return dblp_crc32c_tail(state, data, size);
}

#define DBLP_AVX512 __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

DBLP_AVX512 static inline __m512i dblp_fold512(__m512i lanes, __m512i constants, __m512i next)
{
    __m512i low = _mm512_clmulepi64_epi128(lanes, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(lanes, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

DBLP_AVX512 static inline __m128i dblp_constants128(int which)
{
    return _mm_set_epi64x((int64_t)dblp_crc32c_fold[which][1], (int64_t)dblp_crc32c_fold[which][0]);
}

DBLP_AVX512 static inline __m512i dblp_constants512(int which)
{
    return _mm512_broadcast_i32x4(dblp_constants128(which));
}

DBLP_AVX512 static inline __m128i dblp_fold128(__m128i lane, int which)
{
    __m128i constants = dblp_constants128(which);
    __m128i low = _mm_clmulepi64_si128(lane, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(lane, constants, 0x11);
    return _mm_xor_si128(low, high);
}

DBLP_AVX512 static uint32_t dblp_crc32c_vpclmul(uint32_t state, const uint8_t *data, size_t size)
{
    if (size < 256)
        return dblp_crc32c_tail(state, data, size);
    __m512i initial = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state));
    __m512i a = _mm512_xor_si512(_mm512_loadu_si512(data), initial);
    __m512i b = _mm512_loadu_si512(data + 64);
    __m512i c = _mm512_loadu_si512(data + 128);
    __m512i d = _mm512_loadu_si512(data + 192);
    __m512i step = dblp_constants512(0);
    data += 256;
    size -= 256;
    for (; size >= 256; data += 256, size -= 256) {
        a = dblp_fold512(a, step, _mm512_loadu_si512(data));
        b = dblp_fold512(b, step, _mm512_loadu_si512(data + 64));
        c = dblp_fold512(c, step, _mm512_loadu_si512(data + 128));
        d = dblp_fold512(d, step, _mm512_loadu_si512(data + 192));
    }
    step = dblp_constants512(1);
    b = dblp_fold512(a, step, b);
    c = dblp_fold512(b, step, c);
    d = dblp_fold512(c, step, d);
    for (; size >= 64; data += 64, size -= 64)
        d = dblp_fold512(d, step, _mm512_loadu_si512(data));
    __m128i lane = dblp_fold128(_mm512_extracti32x4_epi32(d, 0), 2);
    lane = _mm_xor_si128(lane, dblp_fold128(_mm512_extracti32x4_epi32(d, 1), 3));
    lane = _mm_xor_si128(lane, dblp_fold128(_mm512_extracti32x4_epi32(d, 2), 4));
    lane = _mm_xor_si128(lane, _mm512_extracti32x4_epi32(d, 3));
    uint64_t rest = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    rest = _mm_crc32_u64(rest, (uint64_t)_mm_extract_epi64(lane, 1));
    return dblp_crc32c_tail(rest, data, size);
}
#endif

static dblp_crc32c_fn dblp_crc32c_best = dblp_crc32c_portable;
static const char *dblp_crc32c_name = "portable";

/* Fills the tables and chooses the fastest implementation this processor has.  Call once, before
 * any use. */
static void dblp_crc32c_setup(int allow_hardware)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value >> 1) ^ ((value & 1) ? DBLP_CRC32C_POLY : 0);
        dblp_crc32c_table[0][byte] = value;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < 8; slice++) {
            uint32_t before = dblp_crc32c_table[slice - 1][byte];
            dblp_crc32c_table[slice][byte] = (before >> 8) ^ dblp_crc32c_table[0][before & 0xff];
        }
    dblp_crc32c_best = dblp_crc32c_portable;
    dblp_crc32c_name = "portable";
#ifdef DBLP_CRC32C_X86
    static const unsigned ahead[5] = {2048, 512, 384, 256, 128};
    /* A reflected 64x64 product carries one factor x, and a 32-bit constant in a 64-bit operand
     * carries x^32. */
    for (int i = 0; i < 5; i++) {
        dblp_crc32c_fold[i][0] = dblp_crc32c_power(ahead[i] + 31);
        dblp_crc32c_fold[i][1] = dblp_crc32c_power(ahead[i] - 33);
    }
    dblp_crc32c_shift_480 = dblp_crc32c_power(8 * 480 - 33);
    dblp_crc32c_shift_960 = dblp_crc32c_power(8 * 960 - 33);
    if (allow_hardware && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        dblp_crc32c_best = dblp_crc32c_sse42;
        dblp_crc32c_name = "sse4.2";
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("vpclmulqdq")) {
            dblp_crc32c_best = dblp_crc32c_vpclmul;
            dblp_crc32c_name = "vpclmulqdq";
        }
    }
#else
    (void)allow_hardware;
#endif
}

static inline uint32_t dblp_crc32c(uint32_t value, const uint8_t *data, size_t size)
{
    return ~dblp_crc32c_best(~value, data, size);
}
#endif
