/* test_mma90.c: the step's definition against the hardware's own answers, and every vector form
 * against the definition.
 *
 * tests/golden/mma90/steps-h200.bin.xz: "MMA90V1\0", u32 sets; per set char name[32], u32 tiles,
 * u32 K; per tile u16 A[16][K], u16 B[8][K] (by column), f32 C[16][8], f32 D[16][8].
 */
#include "kernels/mma90.h"

#include <archive.h>
#include <archive_entry.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/cpu_mma_step.h"
#include "tests/check_main.h"

struct golden {
    uint8_t *data;
    size_t bytes;
};

static struct golden read_golden(void)
{
    struct golden g = {NULL, 0};
    struct archive *ar = archive_read_new();
    struct archive_entry *entry;
    archive_read_support_filter_xz(ar);
    archive_read_support_format_raw(ar);
    ck_assert_int_eq(
        archive_read_open_filename(ar, TEST_GOLDEN "/mma90/steps-h200.bin.xz", 1 << 16),
        ARCHIVE_OK);
    ck_assert_int_eq(archive_read_next_header(ar, &entry), ARCHIVE_OK);
    for (;;) {
        g.data = realloc(g.data, g.bytes + (1 << 20));
        ck_assert_ptr_nonnull(g.data);
        la_ssize_t n = archive_read_data(ar, g.data + g.bytes, 1 << 20);
        ck_assert_int_ge(n, 0);
        if (n == 0)
            break;
        g.bytes += (size_t)n;
    }
    archive_read_free(ar);
    return g;
}

static const enum cpu_isa isas[] = {CPU_C, CPU_AVX2, CPU_AVX512};

/* Sixteen rows of at most CPU_MMA_STRIP k as pairs, lanes fastest. */
static void pair_rows(const uint16_t *rows, size_t stride, int n, uint32_t *pairs)
{
    for (int i = 0; i < n; i += 2) {
        for (size_t lane = 0; lane < CPU_MMA_LANES; lane++) {
            const uint16_t *at = rows + lane * stride + i;
            pairs[(size_t)i / 2 * CPU_MMA_LANES + lane] = (uint32_t)at[0] | (uint32_t)at[1] << 16;
        }
    }
}

struct inputs {
    float v[CPU_MMA_STRIP];
    uint32_t e[CPU_MMA_STRIP / 2];
    uint8_t wide[CPU_MMA_STRIP / MMA90_K];
};

/* One tile's answers by a variant: A's rows are the lanes, B's columns the inputs. */
static uint64_t count_tile_fast(const uint8_t *p, uint32_t k, const struct cpu_mma_ops *ops)
{
    const uint16_t *a = (const uint16_t *)(const void *)p, *b = a + 16 * (size_t)k;
    const uint8_t *c = p + 48 * (size_t)k, *d = c + 512;
    static struct cpu_mma_strip strip;
    uint32_t pairs[CPU_MMA_STRIP / 2 * CPU_MMA_LANES];
    struct inputs in;
    struct cpu_mma_input x = {in.v, in.e, in.wide};
    float acc[8][CPU_MMA_LANES];
    uint64_t wrong = 0;
    for (size_t m = 0; m < 16; m++) {
        for (size_t j = 0; j < 8; j++)
            acc[j][m] = load_f32(c + 4 * (m * 8 + j));
    }
    for (uint32_t k0 = 0; k0 < k; k0 += CPU_MMA_STRIP) {
        int n = (int)MIN2(k - k0, (uint32_t)CPU_MMA_STRIP);
        pair_rows(a + k0, k, n, pairs);
        ops->expand_pairs(pairs, n, &strip);
        for (size_t j = 0; j < 8; j++) {
            ops->prepare(b + j * k + k0, n, x);
            ops->chain(&strip, x, n / MMA90_K, acc[j]);
        }
    }
    for (size_t m = 0; m < 16; m++) {
        for (size_t j = 0; j < 8; j++)
            wrong += f32_bits(acc[j][m]) != load_u32(d + 4 * (m * 8 + j));
    }
    return wrong;
}

/* One tile's answers by the definition: K / 16 steps in ascending order. */
static uint64_t count_tile(const uint8_t *p, uint32_t k, uint64_t *n)
{
    const uint16_t *a = (const uint16_t *)(const void *)p, *b = a + 16 * (size_t)k;
    const uint8_t *c = p + 48 * (size_t)k, *d = c + 512;
    uint64_t wrong = 0;
    for (size_t m = 0; m < 16; m++) {
        for (size_t j = 0; j < 8; j++) {
            uint32_t acc = load_u32(c + 4 * (m * 8 + j));
            for (size_t i = 0; i < k; i += 16)
                acc = mma90_step(a + m * k + i, b + j * k + i, acc);
            if (acc != load_u32(d + 4 * (m * 8 + j)))
                wrong++;
            ++*n;
        }
    }
    return wrong;
}

START_TEST(definition_equals_hardware)
{
    struct golden g = read_golden();
    ck_assert_mem_eq(g.data, "MMA90V1", 8);
    uint32_t sets = load_u32(g.data + 8);
    size_t off = 12;
    uint64_t n = 0;
    for (uint32_t s = 0; s < sets; s++) {
        const char *name = (const char *)g.data + off;
        uint32_t tiles = load_u32(g.data + off + 32), k = load_u32(g.data + off + 36);
        uint64_t wrong = 0;
        off += 40;
        for (uint32_t t = 0; t < tiles; t++, off += 48 * (size_t)k + 1024)
            wrong += count_tile(g.data + off, k, &n);
        ck_assert_msg(wrong == 0, "%.32s: %llu outputs differ", name, (unsigned long long)wrong);
    }
    ck_assert_uint_eq(off, g.bytes);
    ck_assert_uint_eq(n, 150784);
    free(g.data);
}
END_TEST

START_TEST(variant_equals_hardware)
{
    struct golden g = read_golden();
    uint32_t sets = load_u32(g.data + 8);
    size_t off = 12;
    for (uint32_t s = 0; s < sets; s++) {
        uint32_t tiles = load_u32(g.data + off + 32), k = load_u32(g.data + off + 36);
        const char *name = (const char *)g.data + off;
        off += 40;
        for (uint32_t t = 0; t < tiles; t++, off += 48 * (size_t)k + 1024) {
            uint64_t wrong = 0;
            if (cpu_isa_runs(isas[_i]))
                wrong = count_tile_fast(g.data + off, k, cpu_mma_ops_of(isas[_i]));
            ck_assert_msg(wrong == 0, "%s, %.32s: %llu outputs differ", cpu_isa_name(isas[_i]),
                          name, (unsigned long long)wrong);
        }
    }
    free(g.data);
}
END_TEST

/* Products that vanish below the smallest subnormal, read from an H200: the result is +0. */
START_TEST(underflow_equals_hardware)
{
    static const uint32_t probe[][4] = {
        {0x97ff, 0x17ff, 0x00000000, 0x00000000}, {0x97ff, 0x17ff, 0x80000000, 0x00000000},
        {0x8001, 0x0001, 0x00000000, 0x00000000}, {0x8001, 0x3f00, 0x00000000, 0x80008000},
        {0x8001, 0x3f00, 0x80000000, 0x80008000}, {0x9000, 0x2000, 0x00000000, 0x00000000},
        {0x8080, 0x3b80, 0x00000000, 0x80008000}, {0xa000, 0x2000, 0x80000001, 0x80800001},
        {0x8001, 0x3f80, 0x00000000, 0x80010000}, {0x8000, 0x3f80, 0x80000000, 0x00000000},
        {0xa0ff, 0x20ff, 0x80000001, 0x827e0100}, {0x8000, 0x3f80, 0x80000001, 0x80000001},
        {0x0001, 0x3f00, 0x00000000, 0x00008000}, {0x9fff, 0x1cff, 0x00000000, 0x8001fc02},
        {0x9fff, 0x1fff, 0x00000000, 0x807f0080}, {0x9d80, 0x1d80, 0x80000000, 0x80002000},
    };
    for (size_t i = 0; i < ARRAY_LEN(probe); i++) {
        uint16_t a[MMA90_K] = {(uint16_t)probe[i][0]}, b[MMA90_K] = {(uint16_t)probe[i][1]};
        ck_assert_uint_eq(mma90_step(a, b, probe[i][2]), probe[i][3]);
    }
}
END_TEST

/* -2^-e + 2^-j with both as products, read from an H200: the second term counts while it reaches
 * 2^(E-25), and 2^-158 at least. */
START_TEST(depth_equals_hardware)
{
    static const struct {
        int e, depth;
    } probe[] = {{100, 25}, {126, 25}, {132, 25}, {133, 25}, {134, 24},
                 {135, 23}, {140, 18}, {148, 10}, {149, 9}};
    for (size_t i = 0; i < ARRAY_LEN(probe); i++)
        for (int j = probe[i].e + 1; j < probe[i].e + 40; j++) {
            int e = probe[i].e;
            uint16_t a[MMA90_K] = {(uint16_t)(0x8000 | (127 - e / 2) << 7),
                                   (uint16_t)((127 - j / 2) << 7)};
            uint16_t b[MMA90_K] = {(uint16_t)((127 - (e - e / 2)) << 7),
                                   (uint16_t)((127 - (j - j / 2)) << 7)};
            bool counts = mma90_step(a, b, 0) != f32_bits(-ldexpf(1, -e));
            ck_assert_msg(counts == (j - e <= probe[i].depth), "-2^-%d + 2^-%d", e, j);
        }
}
END_TEST

static uint64_t seed = 0x9e3779b97f4a7c15ull;

static uint32_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)(seed * 0x2545f4914f6cdd1dull >> 32);
}

/* A bf16 with an exponent field in [lo, hi], zero in `zeros` of 256 cases. */
static uint16_t draw_bf16(uint32_t lo, uint32_t hi, uint32_t zeros)
{
    uint32_t r = draw(), e = lo + draw() % (hi - lo + 1);
    if ((r & 0xff) < zeros)
        return (uint16_t)(r >> 16 & 0x8000u);
    return (uint16_t)((r >> 16 & 0x8000u) | e << 7 | (r >> 8 & 0x7fu));
}

enum mix {
    NEAR,
    WIDE,
    WIDER,
    TINY,
    HUGE_VALUES,
    SPECIAL,
    BITS,
    CANCEL,
    FULL,
    SPARSE,
    LOPSIDED,
    MIX_COUNT
};

static uint16_t draw_operand(enum mix m, bool weight)
{
    switch (m) {
    case NEAR:
        return draw_bf16(118, 128, 8);
    case WIDE:
        return draw_bf16(100, 150, 8);
    case WIDER:
        return draw_bf16(60, 195, 8);
    case TINY:
        return draw_bf16(0, 70, 16);
    case HUGE_VALUES:
        return draw_bf16(180, 254, 8);
    case SPECIAL:
        return draw() % 64 ? draw_bf16(110, 130, 64)
                           : (uint16_t)(0x7f80u | (draw() & 0x8000u) | (draw() & 1u) << 6);
    case BITS:
        return (uint16_t)draw();
    case CANCEL:
        return draw_bf16(127, 127, 0);
    case FULL:
        return (uint16_t)(0x3ffeu | (draw() & 1u));
    case SPARSE:
        return draw_bf16(90, 140, 230);
    default: /* a zero weight's input alone has a larger field than a true product */
        return weight ? draw_bf16(0, 20, 128) : draw_bf16(180, 228, 0);
    }
}

static float draw_sum(enum mix m)
{
    uint32_t r = draw();
    if (m == BITS || m == SPECIAL)
        return f32_from_bits(m == BITS || r % 32 == 0 ? r : (r & 0x80ffffffu) | 0x3e000000u);
    if (m == FULL) /* the products nearly fill 31 bits, and C tips some over */
        return f32_from_bits((r & 0x7fffffu) | 127u << 23);
    if (r % 8 == 0)
        return 0.0f;
    uint32_t e = m == TINY ? draw() % 40 : m == HUGE_VALUES ? 230 + draw() % 25 : 100 + draw() % 45;
    return f32_from_bits((r & 0x807fffffu) | e << 23);
}

/* 625,000 steps of sixteen outputs: ten million. */
START_TEST(variants_equal_definition)
{
    static struct cpu_mma_strip strip;
    uint16_t w[CPU_MMA_LANES][MMA90_K], in[MMA90_K];
    uint32_t pairs[MMA90_K / 2 * CPU_MMA_LANES];
    struct inputs space;
    struct cpu_mma_input x = {space.v, space.e, space.wide};
    uint64_t wrong[3][MIX_COUNT] = {{0}};
    bool runs[3]; /* cpuid traps in a virtual machine: asked once */
    for (size_t v = 0; v < ARRAY_LEN(isas); v++)
        runs[v] = cpu_isa_runs(isas[v]);
    for (int n = 0; n < 625000; n++) {
        enum mix m = (enum mix)(n % MIX_COUNT);
        float c[CPU_MMA_LANES];
        uint32_t want[CPU_MMA_LANES];
        for (int i = 0; i < MMA90_K; i++)
            in[i] = draw_operand(m, false);
        for (int lane = 0; lane < CPU_MMA_LANES; lane++) {
            for (int i = 0; i < MMA90_K; i++)
                w[lane][i] = draw_operand(m, true);
            if (m == CANCEL) {
                for (int i = 0; i < MMA90_K; i += 2)
                    w[lane][i + 1] = (uint16_t)(w[lane][i] ^ 0x8000u ^ (draw() % 4 == 0));
            }
            c[lane] = draw_sum(m);
            want[lane] = mma90_step(w[lane], in, f32_bits(c[lane]));
        }
        pair_rows(w[0], MMA90_K, MMA90_K, pairs);
        for (size_t v = 1; v < ARRAY_LEN(isas); v++) {
            if (!runs[v])
                continue;
            const struct cpu_mma_ops *ops = cpu_mma_ops_of(isas[v]);
            float acc[CPU_MMA_LANES];
            memcpy(acc, c, sizeof acc);
            ops->expand_pairs(pairs, MMA90_K, &strip);
            ops->prepare(in, MMA90_K, x);
            ops->chain(&strip, x, 1, acc);
            wrong[v][m] += memcmp(acc, want, sizeof acc) != 0;
        }
    }
    for (size_t v = 0; v < ARRAY_LEN(isas); v++) {
        for (int m = 0; m < MIX_COUNT; m++)
            ck_assert_msg(wrong[v][m] == 0, "%s, mix %d: %llu steps differ", cpu_isa_name(isas[v]),
                          m, (unsigned long long)wrong[v][m]);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("mma90");
    TCase *c = tcase_create("step");
    tcase_add_test(c, definition_equals_hardware);
    tcase_add_loop_test(c, variant_equals_hardware, 0, (int)ARRAY_LEN(isas));
    tcase_add_test(c, underflow_equals_hardware);
    tcase_add_test(c, depth_equals_hardware);
    tcase_add_test(c, variants_equal_definition);
    tcase_set_timeout(c, 300);
    suite_add_tcase(s, c);
    return s;
}
