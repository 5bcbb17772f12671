/* test_arena.c: alignment, zeroing, marks, the seal, and memory running out. */
#include <stdint.h>
#include <string.h>

#include "common/arena.h"
#include "common/io.h"
#include "tests/check_main.h"

static void assert_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(p[i], 0);
}

START_TEST(blocks_are_aligned_zeroed_and_apart)
{
    struct arena *a = arena_new(1000);
    uint8_t *last = NULL;
    for (size_t n = 0; n < 300; n++) {
        uint8_t *p = arena_alloc(a, n);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_eq((uintptr_t)p % ARENA_ALIGN, 0);
        ck_assert_ptr_ne(p, last);
        assert_zero(p, n);
        memset(p, 0xff, n);
        last = p;
    }
    arena_free(a);
}
END_TEST

START_TEST(a_reset_frees_what_came_after_and_the_memory_comes_back_zeroed)
{
    struct arena *a = arena_new(4096);
    char *kept = arena_strdup(a, "kept");
    struct arena_mark m = arena_mark(a);
    size_t before = arena_bytes(a);
    for (int i = 0; i < 50; i++)
        memset(arena_alloc(a, 1000), 0xee, 1000);
    ck_assert_uint_gt(arena_bytes(a), before);
    arena_reset(a, m);
    ck_assert_uint_eq(arena_bytes(a), before);
    ck_assert_str_eq(kept, "kept");
    assert_zero(arena_alloc(a, 1000), 1000);
    arena_free(a);
}
END_TEST

START_TEST(a_mark_of_the_empty_arena_empties_it)
{
    struct arena *a = arena_new(0);
    struct arena_mark m = arena_mark(a);
    ck_assert_ptr_nonnull(arena_alloc(a, 10));
    arena_reset(a, m);
    ck_assert_uint_eq(arena_bytes(a), 0);
    arena_free(a);
}
END_TEST

START_TEST(sealed_it_refuses_and_names_the_phase)
{
    struct err e;
    struct arena *a = arena_new(0);
    arena_seal(a, "decode");
    ck_assert_ptr_null(arena_alloc(a, 8));
    ck_assert_int_eq(arena_error(a, 8, &e), ERR_INTERNAL);
    ck_assert_str_eq(e.text, "allocation of 8 bytes during decode");
    arena_seal(a, NULL);
    ck_assert_ptr_nonnull(arena_alloc(a, 8));
    arena_free(a);
}
END_TEST

START_TEST(sizes_that_wrap_are_refused)
{
    struct arena *a = arena_new(0);
    ck_assert_ptr_null(arena_alloc(a, SIZE_MAX));
    ck_assert_ptr_null(arena_alloc(a, SIZE_MAX - 32));
    ck_assert_ptr_null(arena_array(a, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(arena_strndup(a, "", SIZE_MAX));
    arena_free(a);
    arena_free(NULL);
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    struct err e;
    io_fault_set(IO_FAULT_ALLOC, 1);
    ck_assert_ptr_null(arena_new(0));
    struct arena *a = arena_new(64);
    io_fault_set(IO_FAULT_ALLOC, 1);
    ck_assert_ptr_null(arena_alloc(a, 64));
    ck_assert_int_eq(arena_error(a, 64, &e), ERR_NOMEM);
    ck_assert_ptr_nonnull(arena_alloc(a, 64));
    arena_free(a);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("arena");
    TCase *t = tcase_create("arena");
    tcase_add_test(t, blocks_are_aligned_zeroed_and_apart);
    tcase_add_test(t, a_reset_frees_what_came_after_and_the_memory_comes_back_zeroed);
    tcase_add_test(t, a_mark_of_the_empty_arena_empties_it);
    tcase_add_test(t, sealed_it_refuses_and_names_the_phase);
    tcase_add_test(t, sizes_that_wrap_are_refused);
    tcase_add_test(t, any_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}
