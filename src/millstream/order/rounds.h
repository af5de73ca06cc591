/* The rounds of the shuffle for many indices at once; see `shuffling.pyx` for what they compute.
 *
 * In C because a function for one kind of processor needs an attribute, and the vectorized
 * multiplication of 64-bit numbers needs intrinsics: left to the compiler it is a third slower.
 */
#ifndef MILLSTREAM_ROUNDS_H
#define MILLSTREAM_ROUNDS_H

#include <stddef.h>
#include <stdint.h>

#include "processor.h"

#define MILLSTREAM_NUM_ROUNDS 12
#define MILLSTREAM_FIRST_ODD 0x9E3779B97F4A7C15ULL
#define MILLSTREAM_SECOND_ODD 0xD1B54A32D192ED03ULL

/* Scale 64 random bits to [0, limit), limit < 2^32, by their high bits: limit * word >> 64. */
static inline uint64_t millstream_below(uint64_t limit, uint64_t word) {
    return ((word >> 32) * limit + (((word & 0xFFFFFFFFu) * limit) >> 32)) >> 32;
}

/* The round function: a keyed mixer, reduced to the base by its high bits. */
static inline uint64_t millstream_round_value(
    uint64_t right, uint64_t key0, uint64_t key1, uint64_t base) {
    uint64_t x = (right ^ key0) * MILLSTREAM_FIRST_ODD;
    x = ((x ^ (x >> 32)) + key1) * MILLSTREAM_SECOND_ODD;
    return millstream_below(base, x ^ (x >> 29));
}

/* Put indices of less than base * base through all rounds, in place, once. */
static void millstream_rounds_portable(
    uint64_t *indices, size_t count, const uint64_t *keys, uint64_t base) {
    for (size_t i = 0; i < count; i++) {
        uint64_t right = indices[i] / base, left = indices[i] - right * base;
        indices[i] = right << 32 | left;
    }
    /* Round by round: one index would wait for its own multiplications. */
    for (int round = 0; round < MILLSTREAM_NUM_ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) {
            uint64_t right = indices[i] >> 32;
            uint64_t total = (indices[i] & 0xFFFFFFFFu)
                + millstream_round_value(right, keys[2 * round], keys[2 * round + 1], base);
            indices[i] = (total >= base ? total - base : total) << 32 | right;
        }
    }
    for (size_t i = 0; i < count; i++) {
        indices[i] = (indices[i] >> 32) * base + (indices[i] & 0xFFFFFFFFu);
    }
}

#if MILLSTREAM_X86
#include <immintrin.h>

#define MILLSTREAM_LANES 4    /* indices in a vector */
#define MILLSTREAM_VECTORS 4  /* that are put through a round side by side */

static inline MILLSTREAM_AVX2 __m256i millstream_times(__m256i a, __m256i low, __m256i high) {
    __m256i cross = _mm256_add_epi64(
        _mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), _mm256_mul_epu32(a, high));
    return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}

static MILLSTREAM_AVX2 void millstream_rounds_avx2(
    uint64_t *indices, size_t count, const uint64_t *keys, uint64_t base) {
    const __m256i first_low = _mm256_set1_epi64x((int64_t)(MILLSTREAM_FIRST_ODD & 0xFFFFFFFFu));
    const __m256i first_high = _mm256_set1_epi64x((int64_t)(MILLSTREAM_FIRST_ODD >> 32));
    const __m256i second_low = _mm256_set1_epi64x((int64_t)(MILLSTREAM_SECOND_ODD & 0xFFFFFFFFu));
    const __m256i second_high = _mm256_set1_epi64x((int64_t)(MILLSTREAM_SECOND_ODD >> 32));
    const __m256i bases = _mm256_set1_epi64x((int64_t)base);
    const __m256i below_base = _mm256_set1_epi64x((int64_t)base - 1);
    const size_t step = MILLSTREAM_LANES * MILLSTREAM_VECTORS;
    size_t start = 0;
    for (; start + step <= count; start += step) {
        __m256i left[MILLSTREAM_VECTORS], right[MILLSTREAM_VECTORS];
        for (int v = 0; v < MILLSTREAM_VECTORS; v++) {
            uint64_t digits[2][MILLSTREAM_LANES];
            for (int lane = 0; lane < MILLSTREAM_LANES; lane++) {
                uint64_t index = indices[start + v * MILLSTREAM_LANES + lane];
                digits[1][lane] = index / base;
                digits[0][lane] = index - digits[1][lane] * base;
            }
            left[v] = _mm256_loadu_si256((const __m256i *)digits[0]);
            right[v] = _mm256_loadu_si256((const __m256i *)digits[1]);
        }
        for (int round = 0; round < MILLSTREAM_NUM_ROUNDS; round++) {
            const __m256i key0 = _mm256_set1_epi64x((int64_t)keys[2 * round]);
            const __m256i key1 = _mm256_set1_epi64x((int64_t)keys[2 * round + 1]);
            for (int v = 0; v < MILLSTREAM_VECTORS; v++) {
                __m256i x = millstream_times(_mm256_xor_si256(right[v], key0), first_low, first_high);
                x = _mm256_add_epi64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 32)), key1);
                x = millstream_times(x, second_low, second_high);
                x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 29));
                __m256i low = _mm256_srli_epi64(_mm256_mul_epu32(x, bases), 32);
                __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), bases);
                __m256i total = _mm256_add_epi64(
                    left[v], _mm256_srli_epi64(_mm256_add_epi64(low, high), 32));
                __m256i is_over = _mm256_cmpgt_epi64(total, below_base);
                left[v] = right[v];
                right[v] = _mm256_sub_epi64(total, _mm256_and_si256(is_over, bases));
            }
        }
        for (int v = 0; v < MILLSTREAM_VECTORS; v++) {
            __m256i index = _mm256_add_epi64(_mm256_mul_epu32(right[v], bases), left[v]);
            _mm256_storeu_si256(
                (__m256i *)(indices + start + v * MILLSTREAM_LANES), index);
        }
    }
    millstream_rounds_portable(indices + start, count - start, keys, base);
}
#else
#define millstream_rounds_avx2 millstream_rounds_portable
#endif

/* The same, as fast as the processor at hand can. */
static void millstream_rounds(
    uint64_t *indices, size_t count, const uint64_t *keys, uint64_t base) {
    (millstream_use_avx2 ? millstream_rounds_avx2 : millstream_rounds_portable)(
        indices, count, keys, base);
}

#endif
