/* cpu_interleave.c: transposes blocks of 16 bytes by 16, 8 or 4 rows in registers. The vectors are
 * those that every x86-64 has; other machines take the plain loop. */
#include "kernels/cpu/cpu_interleave.h"

#ifdef __SSE2__
#include <emmintrin.h>

/* One round over N rows: row i is zipped with row i + N / 2; after log2(N) of them element e of row
 * l stands at l of row e. */
#define ROUND(N, lo, hi, a, b)                                                                     \
    for (int i_ = 0; i_ < (N) / 2; i_++) {                                                         \
        (b)[2 * i_] = lo((a)[i_], (a)[i_ + (N) / 2]);                                              \
        (b)[2 * i_ + 1] = hi((a)[i_], (a)[i_ + (N) / 2]);                                          \
    }

static void load_rows(__m128i *v, int n, const uint8_t *from, size_t stride)
{
    for (int i = 0; i < n; i++)
        v[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + (size_t)i * stride));
}

static void store_rows(const __m128i *v, int n, uint8_t *to, size_t stride)
{
    for (int i = 0; i < n; i++)
        _mm_storeu_si128((__m128i *)(void *)(to + (size_t)i * stride), v[i]);
}

static void block_1(uint8_t *to, size_t to_stride, const uint8_t *from, size_t stride)
{
    __m128i a[16], b[16];
    load_rows(a, 16, from, stride);
    ROUND(16, _mm_unpacklo_epi8, _mm_unpackhi_epi8, a, b)
    ROUND(16, _mm_unpacklo_epi8, _mm_unpackhi_epi8, b, a)
    ROUND(16, _mm_unpacklo_epi8, _mm_unpackhi_epi8, a, b)
    ROUND(16, _mm_unpacklo_epi8, _mm_unpackhi_epi8, b, a)
    store_rows(a, 16, to, to_stride);
}

static void block_2(uint8_t *to, size_t to_stride, const uint8_t *from, size_t stride)
{
    __m128i a[8], b[8];
    load_rows(a, 8, from, stride);
    ROUND(8, _mm_unpacklo_epi16, _mm_unpackhi_epi16, a, b)
    ROUND(8, _mm_unpacklo_epi16, _mm_unpackhi_epi16, b, a)
    ROUND(8, _mm_unpacklo_epi16, _mm_unpackhi_epi16, a, b)
    store_rows(b, 8, to, to_stride);
}

static void block_4(uint8_t *to, size_t to_stride, const uint8_t *from, size_t stride)
{
    __m128i a[4], b[4];
    load_rows(a, 4, from, stride);
    ROUND(4, _mm_unpacklo_epi32, _mm_unpackhi_epi32, a, b)
    ROUND(4, _mm_unpacklo_epi32, _mm_unpackhi_epi32, b, a)
    store_rows(a, 4, to, to_stride);
}

/* Whole blocks; how many elements of each row they were. */
static int64_t put_blocks(uint8_t *to, size_t to_stride, const uint8_t *from, size_t stride,
                          size_t size, int64_t n, int lanes)
{
    const int64_t per = 16 / (int64_t)size;
    int64_t i = 0;
    for (; i + per <= n; i += per) {
        uint8_t *out = to + (size_t)i * to_stride;
        const uint8_t *in = from + (size_t)i * size;
        for (int lane = 0; lane < lanes; lane += (int)per) {
            if (size == 1)
                block_1(out + lane, to_stride, in + (size_t)lane * stride, stride);
            else if (size == 2)
                block_2(out + lane * 2, to_stride, in + (size_t)lane * stride, stride);
            else
                block_4(out + lane * 4, to_stride, in + (size_t)lane * stride, stride);
        }
    }
    return i;
}
#else
static int64_t put_blocks(uint8_t *to, size_t to_stride, const uint8_t *from, size_t stride,
                          size_t size, int64_t n, int lanes)
{
    (void)to, (void)to_stride, (void)from, (void)stride, (void)size, (void)n, (void)lanes;
    return 0;
}
#endif

void cpu_interleave(uint8_t *to, int64_t step, const uint8_t *from, size_t stride, size_t size,
                    int64_t n, int lanes)
{
    const size_t to_stride = (size_t)step * size;
    for (int64_t i = put_blocks(to, to_stride, from, stride, size, n, lanes); i < n; i++) {
        uint8_t *out = to + (size_t)i * to_stride;
        const uint8_t *in = from + (size_t)i * size;
        for (size_t lane = 0; lane < (size_t)lanes; lane++)
            for (size_t b = 0; b < size; b++)
                out[lane * size + b] = in[lane * stride + b];
    }
}
