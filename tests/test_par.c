/* test_par.c: every index once, whatever the number of threads. */
#include <stdlib.h>

#include "common/par.h"
#include "tests/check_main.h"

struct seen {
    int *times, n_threads;
    _Atomic int bad_thread;
};

static void see(void *ctx, int64_t i, int thread)
{
    struct seen *s = ctx;
    s->times[i]++;
    if (thread < 0 || thread >= s->n_threads)
        s->bad_thread = 1;
}

START_TEST(every_index_is_called_once)
{
    static const int threads[] = {0, 1, 2, 3, 8};
    static const int64_t sizes[] = {0, 1, 2, 7, 1000};
    for (size_t t = 0; t < ARRAY_LEN(threads); t++) {
        for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
            struct seen s = {.times = calloc((size_t)sizes[k] + 1, sizeof(int)),
                             .n_threads = MAX2(threads[t], 1)};
            par_for(threads[t], sizes[k], see, &s);
            for (int64_t i = 0; i < sizes[k]; i++)
                ck_assert_int_eq(s.times[i], 1);
            ck_assert_int_eq(s.times[sizes[k]], 0);
            ck_assert_int_eq(s.bad_thread, 0);
            free(s.times);
        }
    }
}
END_TEST

START_TEST(there_is_at_least_one_thread)
{
    ck_assert_int_ge(par_default_threads(), 1);
    ck_assert_int_ge(par_allowed_cores(), 1);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("par");
    TCase *t = tcase_create("par");
    tcase_add_test(t, every_index_is_called_once);
    tcase_add_test(t, there_is_at_least_one_thread);
    suite_add_tcase(s, t);
    return s;
}
