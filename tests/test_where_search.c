/* test_where_search.c: the search for a remedy against all sets of moves; each fault planted in it
 * is seen. */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "evals/where_private.h"
#include "tests/check_main.h"

#define ATOMS 6

/* Effects that add up over a base of 4 bits: each bit more halves what is wrong, and costs as much
 * as the one before. */
struct sums {
    struct where_unit unit[ATOMS];
    double margin;
};

static double share(int level)
{
    return level <= 4 ? 0 : level == WHERE_KEEP ? 1 : 1 - ldexp(1, 4 - level);
}

static enum err_code sum_cost(void *ctx, const struct where_move *m, size_t n, uint64_t *bytes,
                              struct err *e)
{
    const struct sums *s = ctx;
    (void)e;
    *bytes = 0;
    for (size_t i = 0; i < n; i++)
        *bytes += s->unit[m[i].unit].bytes *
                  (uint64_t)(m[i].level == WHERE_KEEP ? 12 : MAX2(m[i].level - 4, 0)) / 4;
    return ERR_OK;
}

static enum err_code sum_run(void *ctx, const struct where_move *m, size_t n, double *lead,
                             struct err *e)
{
    const struct sums *s = ctx;
    (void)e;
    *lead = s->margin;
    for (size_t i = 0; i < n; i++)
        *lead += (s->unit[m[i].unit].margin - s->margin) * share(m[i].level);
    return ERR_OK;
}

/* The cheapest of all sets and levels. */
static uint64_t cheapest(struct sums *s, double safety)
{
    static const int levels[] = {0, 5, 6, 8, WHERE_KEEP};
    uint64_t best = UINT64_MAX;
    int count = 1;
    for (int i = 0; i < ATOMS; i++)
        count *= (int)ARRAY_LEN(levels);
    for (int x = 0; x < count; x++) {
        struct where_move m[ATOMS];
        size_t n = 0;
        uint64_t bytes;
        double lead;
        for (int i = 0, left = x; i < ATOMS; i++, left /= (int)ARRAY_LEN(levels))
            if (left % (int)ARRAY_LEN(levels))
                m[n++] = (struct where_move){(size_t)i, levels[left % (int)ARRAY_LEN(levels)]};
        ck_assert(sum_cost(s, m, n, &bytes, NULL) == ERR_OK);
        ck_assert(sum_run(s, m, n, &lead, NULL) == ERR_OK);
        best = lead >= safety && lead > 0 && bytes < best ? bytes : best;
    }
    return best;
}

struct tally {
    int found, missed, weak, idle; /* idle: a move that was not needed */
    double dear;                   /* bytes over the cheapest's, mean */
};

static struct tally search_all(enum where_fault fault)
{
    struct tally t = {0};
    struct rng r = {.seed = 7};
    struct err e = {.text = ""};
    where_plant(fault);
    for (int k = 0; k < 60; k++) {
        struct sums s = {.margin = -1 - rng_double(&r)};
        struct where_remedy m = {.found = false};
        double safety = 0.2;
        for (int i = 0; i < ATOMS; i++) {
            s.unit[i].margin = s.margin + 2.2 * rng_double(&r) - 0.3;
            s.unit[i].lead = s.unit[i].margin;
            s.unit[i].bytes = 400 + 4 * (uint64_t)(1000 * rng_double(&r));
        }
        struct where_problem p = {s.unit, ATOMS, s.margin, s.margin, safety, sum_cost, sum_run, &s};
        ck_assert_msg(where_search(&p, &m, &e) == ERR_OK, "%s", e.text);
        uint64_t best = cheapest(&s, safety), bytes;
        double lead;
        t.missed += !m.found && best != UINT64_MAX;
        if (!m.found || best == UINT64_MAX)
            continue;
        t.found++;
        t.dear += (double)m.bytes / (double)best;
        t.weak += m.lead < safety;
        for (size_t i = 0; i < m.n_moves && m.n_moves > 1; i++) {
            struct where_move less[WHERE_MOVES_MAX];
            memcpy(less, m.move, sizeof less);
            less[i] = less[m.n_moves - 1];
            ck_assert(sum_run(&s, less, m.n_moves - 1, &lead, NULL) == ERR_OK);
            t.idle += lead >= safety;
        }
        ck_assert(sum_cost(&s, m.move, m.n_moves, &bytes, NULL) == ERR_OK && bytes == m.bytes);
        ck_assert(sum_run(&s, m.move, m.n_moves, &lead, NULL) == ERR_OK && lead == m.lead);
    }
    where_plant(WHERE_FAULT_NONE);
    t.dear /= t.found ? t.found : 1;
    return t;
}

static bool is_right(const struct tally *t)
{
    return t->found > 40 && t->missed == 0 && t->weak == 0 && t->idle == 0 && t->dear < 1.15;
}

START_TEST(the_search_is_near_the_cheapest_set)
{
    struct tally t = search_all(WHERE_FAULT_NONE);
    ck_assert_msg(is_right(&t), "found %d, missed %d, weak %d, idle %d, %.4g times the cheapest",
                  t.found, t.missed, t.weak, t.idle, t.dear);
    ck_assert(t.dear >= 1);
}
END_TEST

START_TEST(a_fault_of_the_search_is_seen)
{
    struct tally t = search_all((enum where_fault)_i);
    ck_assert_msg(!is_right(&t), "fault %d: found %d, missed %d, weak %d, idle %d, %.4g", _i,
                  t.found, t.missed, t.weak, t.idle, t.dear);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("where_search");
    TCase *t = tcase_create("where_search");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, the_search_is_near_the_cheapest_set);
    tcase_add_loop_test(t, a_fault_of_the_search_is_seen, WHERE_FAULT_NO_DROP,
                        WHERE_FAULT_SIGN + 1);
    suite_add_tcase(s, t);
    return s;
}
