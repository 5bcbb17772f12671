/* test_mma90.c: the step's definition against the hardware's own answers.
 *
 * tests/golden/mma90/steps-h200.bin.xz: "MMA90V1\0", u32 sets; per set char name[32], u32 tiles,
 * u32 K; per tile u16 A[16][K], u16 B[8][K] (by column), f32 C[16][8], f32 D[16][8].
 */
#include "kernels/mma90.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>

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

Suite *test_suite(void)
{
    Suite *s = suite_create("mma90");
    TCase *c = tcase_create("step");
    tcase_add_test(c, definition_equals_hardware);
    tcase_set_timeout(c, 120);
    suite_add_tcase(s, c);
    return s;
}
