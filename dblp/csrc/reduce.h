/* Element arithmetic of the reduction: sums in rank order, one division, one rounding.
 *
 * Plain loops over contiguous elements, so that the compiler vectorises them; never built with
 * fast-math, because the result must equal the rank-order mean byte for byte.
 */
#ifndef DBLP_REDUCE_H
#define DBLP_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Compiled for wider vectors too, chosen when the module is loaded.  The results are the same. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define DBLP_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DBLP_WIDE
#endif

enum { DBLP_F32 = 0, DBLP_F64 = 1, DBLP_F16 = 2, DBLP_BF16 = 3 };

/* Elements that one step converts or accumulates: 4 KiB of float32 stay in the L1 cache. */
enum { DBLP_REDUCE_BLOCK = 1024 };

static inline float dblp_bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t dblp_float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float dblp_bf16_to_f32(uint16_t half)
{
    return dblp_bits_to_float((uint32_t)half << 16);
}

static inline uint16_t dblp_f32_to_bf16(float value)
{
    uint32_t bits = dblp_float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u); /* NaN stays a quiet NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float dblp_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu, mantissa = half & 0x3ffu;
    if (exponent == 0x1f)
        return dblp_bits_to_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact */
        uint32_t tiny = dblp_float_to_bits((float)mantissa * 5.9604644775390625e-8f);
        return dblp_bits_to_float(sign | tiny);
    }
    return dblp_bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t dblp_f32_to_f16(float value)
{
    uint32_t bits = dblp_float_to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu)); /* NaN stays a quiet NaN */
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (magnitude < 0x38800000u) {
        /* Subnormal: adding 0.5 leaves round(x * 2^24) in the low mantissa bits. */
        uint32_t rounded = dblp_float_to_bits(dblp_bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | rounded);
    }
    return (uint16_t)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}

static void dblp_load_block(float *to, const uint8_t *from, size_t count, int kind)
{
    uint16_t half;
    if (kind == DBLP_BF16)
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, 2);
            to[i] = dblp_bf16_to_f32(half);
        }
    else
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, 2);
            to[i] = dblp_f16_to_f32(half);
        }
}

static void dblp_mean_half(uint8_t *out, const uint8_t *const *sources, int present, size_t count,
                           float divisor, int kind)
{
    float sum[DBLP_REDUCE_BLOCK], term[DBLP_REDUCE_BLOCK];
    for (size_t start = 0; start < count; start += DBLP_REDUCE_BLOCK) {
        size_t n = count - start < DBLP_REDUCE_BLOCK ? count - start : DBLP_REDUCE_BLOCK;
        dblp_load_block(sum, sources[0] + 2 * start, n, kind);
        for (int s = 1; s < present; s++) {
            dblp_load_block(term, sources[s] + 2 * start, n, kind);
            for (size_t i = 0; i < n; i++)
                sum[i] += term[i];
        }
        for (size_t i = 0; i < n; i++) {
            float mean = sum[i] / divisor;
            uint16_t half = kind == DBLP_BF16 ? dblp_f32_to_bf16(mean) : dblp_f32_to_f16(mean);
            memcpy(out + 2 * (start + i), &half, 2);
        }
    }
}

#define DBLP_MEAN_OF(NAME, TYPE)                                                            \
    DBLP_WIDE static void NAME(uint8_t *out, const uint8_t *const *sources, int present,    \
                               size_t count, TYPE divisor)                                  \
    {                                                                                       \
        TYPE *to = (TYPE *)out;                                                             \
        const TYPE *a = (const TYPE *)sources[0];                                           \
        if (present == 1) {                                                                 \
            for (size_t i = 0; i < count; i++)                                              \
                to[i] = a[i] / divisor;                                                     \
            return;                                                                         \
        }                                                                                   \
        const TYPE *b = (const TYPE *)sources[1];                                           \
        if (present == 2) {                                                                 \
            for (size_t i = 0; i < count; i++)                                              \
                to[i] = (a[i] + b[i]) / divisor;                                            \
            return;                                                                         \
        }                                                                                   \
        const TYPE *c = (const TYPE *)sources[2];                                           \
        if (present == 3) {                                                                 \
            for (size_t i = 0; i < count; i++)                                              \
                to[i] = (a[i] + b[i] + c[i]) / divisor;                                     \
            return;                                                                         \
        }                                                                                   \
        TYPE sum[DBLP_REDUCE_BLOCK]; /* `out` may be one of the sources */                  \
        for (size_t start = 0; start < count; start += DBLP_REDUCE_BLOCK) {                 \
            size_t n = count - start < DBLP_REDUCE_BLOCK ? count - start : DBLP_REDUCE_BLOCK;\
            for (size_t i = 0; i < n; i++)                                                  \
                sum[i] = a[start + i] + b[start + i] + c[start + i];                        \
            for (int s = 3; s < present; s++) {                                             \
                const TYPE *term = (const TYPE *)sources[s] + start;                        \
                for (size_t i = 0; i < n; i++)                                              \
                    sum[i] += term[i];                                                      \
            }                                                                               \
            for (size_t i = 0; i < n; i++)                                                  \
                to[start + i] = sum[i] / divisor;                                           \
        }                                                                                   \
    }

DBLP_MEAN_OF(dblp_mean_f32, float)
DBLP_MEAN_OF(dblp_mean_f64, double)

/* out = (sources[0] + sources[1] + ...) / divisor over nbytes; no source: zeros.  `out` is apart
 * from the sources or exactly one of them. */
static void dblp_mean(uint8_t *out, const uint8_t *const *sources, int present, size_t nbytes,
                      int divisor, int kind)
{
    if (present == 0)
        memset(out, 0, nbytes);
    else if (kind == DBLP_F32)
        dblp_mean_f32(out, sources, present, nbytes / 4, (float)divisor);
    else if (kind == DBLP_F64)
        dblp_mean_f64(out, sources, present, nbytes / 8, (double)divisor);
    else
        dblp_mean_half(out, sources, present, nbytes / 2, (float)divisor, kind);
}

/* Sum of squares in double.  Partial sums that do not wait for each other: an addition takes four
 * cycles, and with eight of them that is what a pass over memory takes. */
enum { DBLP_PARTS = 32 };

DBLP_WIDE static double dblp_energy(const uint8_t *data, size_t nbytes, int kind)
{
    double part[DBLP_PARTS] = {0};
    size_t i = 0, count;
    if (kind == DBLP_F32) {
        const float *x = (const float *)data;
        count = nbytes / 4;
        for (; i + DBLP_PARTS <= count; i += DBLP_PARTS)
            for (int k = 0; k < DBLP_PARTS; k++)
                part[k] += (double)x[i + k] * x[i + k];
        for (int k = 0; i < count; i++, k++)
            part[k] += (double)x[i] * x[i];
    } else if (kind == DBLP_F64) {
        const double *x = (const double *)data;
        count = nbytes / 8;
        for (; i + DBLP_PARTS <= count; i += DBLP_PARTS)
            for (int k = 0; k < DBLP_PARTS; k++)
                part[k] += x[i + k] * x[i + k];
        for (int k = 0; i < count; i++, k++)
            part[k] += x[i] * x[i];
    } else {
        float block[DBLP_REDUCE_BLOCK];
        count = nbytes / 2;
        for (; i < count; i += DBLP_REDUCE_BLOCK) {
            size_t n = count - i < DBLP_REDUCE_BLOCK ? count - i : DBLP_REDUCE_BLOCK;
            dblp_load_block(block, data + 2 * i, n, kind);
            for (size_t k = 0; k < n; k++)
                part[k % DBLP_PARTS] += (double)block[k] * block[k];
        }
    }
    for (int width = DBLP_PARTS / 2; width > 0; width /= 2)
        for (int k = 0; k < width; k++)
            part[k] += part[k + width];
    return part[0];
}

/* The same of one piece of every `stride` bytes, the first at `offset`: two cache lines each. */
enum { DBLP_PIECE = 128 };

DBLP_WIDE static double dblp_sampled_energy(const uint8_t *data, size_t nbytes, size_t offset,
                                            size_t stride, int kind)
{
    double part[DBLP_PARTS] = {0};
    double rest = 0;
    size_t at = offset;
    if (kind == DBLP_F32) {
        for (; at + DBLP_PIECE <= nbytes; at += stride) {
            const float *x = (const float *)(data + at);
            for (int k = 0; k < DBLP_PARTS; k++)
                part[k] += (double)x[k] * x[k];
        }
    } else {
        for (; at + DBLP_PIECE <= nbytes; at += stride)
            rest += dblp_energy(data + at, DBLP_PIECE, kind);
    }
    for (; at < nbytes; at += stride)
        rest += dblp_energy(data + at, nbytes - at < DBLP_PIECE ? nbytes - at : DBLP_PIECE, kind);
    for (int k = 0; k < DBLP_PARTS; k++)
        rest += part[k];
    return rest;
}
#endif
