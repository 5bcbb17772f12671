/* test_cuda_paths.c: which kernels and which name of arithmetic a card of each compute capability
 * gets, without a card: what the backend asks before it launches anything.
 */
#include "kernels/cuda/cuda_paths.h"

#include <check.h>
#include <stdio.h>

#include "tests/check_main.h"

/* In words: the operation, then the kernels that may take it, in the order in which they are tried.
 */
struct want {
    int capability;
    enum kern_arith arith;
    const char *isa, *linear, *experts, *attention, *attention_256, *attention_512, *residual;
    const char *archs[3]; /* builds whose code runs on it; the rest of `builds` does not */
};

static const struct want wants[] = {
    {80,
     KERN_MMA80,
     "sm_80",
     "few plain",
     "few plain",
     "items",
     "",
     "items turns",
     "rows",
     {"80", "80 90a", "80 86 89 90a 100 120"}},
    {86,
     KERN_MMA86,
     "sm_86",
     "few plain",
     "few plain",
     "items",
     "",
     "turns",
     "rows",
     {"80", "80 90a", "80 86 89 90a 100 120"}},
    {89,
     KERN_MMA89,
     "sm_89",
     "few plain",
     "few plain",
     "items",
     "",
     "turns",
     "rows",
     {"80", "80 90a", "80 86 89 90a 100 120"}},
    {90,
     KERN_MMA90,
     "sm_90",
     "stream many few plain",
     "few many plain",
     "row many items",
     "row",
     "row items turns",
     "router rows",
     {"90a", "80 90a", "80 86 89 90a 100 120"}},
    {100,
     KERN_MMA100,
     "sm_100",
     "stream few plain",
     "few plain",
     "row items",
     "row",
     "row items turns",
     "router rows",
     {"100", "80 86 89 90a 100 120", NULL}},
    {120,
     KERN_MMA120,
     "sm_120",
     "stream few plain",
     "few plain",
     "row items",
     "",
     "turns",
     "router rows",
     {"120", "120a", "80 86 89 90a 100 120"}},
};

static const char *const builds[] = {"80",  "90a",    "90",   "100",
                                     "120", "80 90a", "120a", "80 86 89 90a 100 120"};

/* The names of an operation's kernels that may run, and in `needs` the hardware of them all. */
static const char *kernels_of(const char *operation, unsigned kernels, size_t block,
                              unsigned *needs)
{
    static char text[128];
    text[0] = 0;
    for (unsigned i = 0; i < CUDA_KERNEL_COUNT; i++) {
        const struct cuda_kernel_facts *f = cuda_kernel_facts((enum cuda_kernel)i);
        if (strcmp(f->operation, operation) != 0 || !(kernels >> i & 1))
            continue;
        ck_assert_uint_le(f->shared, block);
        *needs |= f->hardware;
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "%s%s", at ? " " : "", f->name);
    }
    return text;
}

START_TEST(every_card_has_its_name_and_kernels)
{
    const struct want *w = &wants[_i];
    const struct cuda_chip *chip = cuda_chip_find(w->capability / 10, w->capability % 10);
    unsigned needs = 0;
    ck_assert_ptr_nonnull(chip);
    ck_assert_int_eq(chip->arith, w->arith);
    ck_assert_str_eq(chip->isa, w->isa);
    char name[16];
    snprintf(name, sizeof name, "mma%d", w->capability);
    ck_assert_str_eq(kern_arith_name(chip->arith), name);
    unsigned k = cuda_kernels_of(chip, chip->block_shared);
    size_t block = chip->block_shared;
    ck_assert_str_eq(kernels_of("linear", k, block, &needs), w->linear);
    ck_assert_str_eq(kernels_of("experts", k, block, &needs), w->experts);
    ck_assert_str_eq(kernels_of("attention", k, block, &needs), w->attention);
    ck_assert_str_eq(kernels_of("attention of 256 dims", k, block, &needs), w->attention_256);
    ck_assert_str_eq(kernels_of("attention of 512 dims", k, block, &needs), w->attention_512);
    ck_assert_str_eq(kernels_of("residual", k, block, &needs), w->residual);
    ck_assert_str_ne(kernels_of("all else", k, block, &needs), "");
    /* No Hopper kernel but on Hopper, and nothing that comes with 9.0 before it. */
    ck_assert_int_eq((needs & CUDA_WARPGROUPS) != 0, w->capability == 90);
    ck_assert_int_eq((needs & (CUDA_BULK | CUDA_CLUSTERS)) != 0, w->capability >= 90);
    ck_assert_int_eq((chip->hardware & CUDA_EARLY) != 0, w->capability >= 90);
    ck_assert_int_eq(kern_arith_measured(chip->arith), w->capability == 90);
}
END_TEST

/* Whatever the shared memory that a device says it has: no kernel asks for more, and each operation
 * has one left that needs no hardware of its own. */
START_TEST(no_kernel_asks_for_more_than_there_is)
{
    static const char *const operations[] = {
        "linear", "experts", "attention", "attention of 512 dims", "residual", "all else"};
    const struct cuda_chip *chip = cuda_chip_number(_i);
    for (size_t block = 99 << 10; block <= 300 << 10; block += 1 << 10) {
        unsigned needs, k = cuda_kernels_of(chip, block), plain = 0;
        for (unsigned i = 0; i < CUDA_KERNEL_COUNT; i++)
            if (cuda_kernel_facts((enum cuda_kernel)i)->hardware == 0)
                plain |= 1u << i;
        for (size_t i = 0; i < ARRAY_LEN(operations); i++) {
            needs = 0;
            ck_assert_str_ne(kernels_of(operations[i], k & plain, block, &needs), "");
            ck_assert_str_ne(kernels_of(operations[i], k, block, &needs), "");
            ck_assert_uint_eq(needs & ~chip->hardware, 0);
        }
    }
}
END_TEST

START_TEST(an_unknown_capability_has_no_name)
{
    static const int unknown[] = {0, 35, 70, 75, 87, 88, 91, 101, 103, 110, 121, 130};
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
        ck_assert_ptr_null(cuda_chip_find(unknown[i] / 10, unknown[i] % 10));
    ck_assert_ptr_null(cuda_chip_find(-1, 90));
    ck_assert_ptr_null(cuda_chip_number((int)ARRAY_LEN(wants)));
    ck_assert_ptr_nonnull(cuda_chip_number((int)ARRAY_LEN(wants) - 1));
}
END_TEST

/* Code of a smaller minor runs, that of 90a on 9.0 alone, and 9.0 wants no other. */
START_TEST(code_is_held_against_the_card)
{
    const struct want *w = &wants[_i];
    const struct cuda_chip *chip = cuda_chip_find(w->capability / 10, w->capability % 10);
    for (size_t i = 0; i < ARRAY_LEN(builds); i++) {
        bool runs = false;
        for (size_t j = 0; j < ARRAY_LEN(w->archs); j++)
            runs |= w->archs[j] && strcmp(w->archs[j], builds[i]) == 0;
        ck_assert_msg(cuda_chip_runs(chip, builds[i]) == runs, "%d: %s", w->capability, builds[i]);
    }
    ck_assert(!cuda_chip_runs(chip, ""));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda paths");
    TCase *c = tcase_create("cuda paths");
    tcase_add_loop_test(c, every_card_has_its_name_and_kernels, 0, ARRAY_LEN(wants));
    tcase_add_loop_test(c, no_kernel_asks_for_more_than_there_is, 0, ARRAY_LEN(wants));
    tcase_add_test(c, an_unknown_capability_has_no_name);
    tcase_add_loop_test(c, code_is_held_against_the_card, 0, ARRAY_LEN(wants));
    suite_add_tcase(s, c);
    return s;
}
