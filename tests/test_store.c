/* test_store.c: runs written and read back, migration, stores of others, baselines, the folder. */
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "jobs/baseline.h"
#include "jobs/sweep_dir.h"
#include "tests/check_main.h"

static struct store *open_new(const char *path)
{
    struct store *s;
    struct err e = {.text = ""};
    ck_assert_msg(store_open(&s, path, true, &e) == ERR_OK, "%s", e.text);
    return s;
}

static void raw(const char *path, const char *sql)
{
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

static int64_t number(const char *path, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_step(q), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return v;
}

/* A run of one cell for each name; returns its number. */
static int64_t add_run(struct store *s, const char *const *names, const enum verdict *verdicts,
                       size_t n, double kl, const char *trace, bool ends)
{
    struct store_run r = {.began = 1000, .sweep = "s", .program = "p"};
    struct err e = {.text = ""};
    ck_assert_msg(store_begin(s, &r, &e) == ERR_OK, "%s", e.text);
    ck_assert(store_environment(s, r.id, "machine", "m", &e) == ERR_OK);
    for (size_t i = 0; i < n; i++) {
        struct answer_loss a = {"a", "", 10, kl * 10, 9, 0};
        struct speed_round rounds[2] = {{1, 2, 3}, {4, 5, 6}};
        struct cell_result c = {.name = names[i], .definition = "d", .verdict = verdicts[i]};
        c.now.quality = (struct quality){.answers = &a, .n = 1};
        c.now.quality.kl = (struct stats_interval){kl, kl / 2, NAN};
        c.now.quality.agreement = (struct stats_interval){0.9, 0.8, 0.95};
        c.now.quality.log_ppl_ratio = (struct stats_interval){NAN, NAN, NAN};
        c.now.tokens_per_second = 40;
        c.now.tps_lo = 39;
        c.now.tps_hi = 41;
        c.now.rounds = rounds;
        c.now.n_rounds = 2;
        snprintf(c.now.trace, sizeof c.now.trace, "%s", trace);
        snprintf(c.words, sizeof c.words, "words of %s", names[i]);
        c.gate[GATE_TOKENS] = (struct judgement){true, verdicts[i], "token words", "a command"};
        ck_assert_msg(store_cell(s, r.id, &c, &e) == ERR_OK, "%s", e.text);
    }
    r.ended = 1100;
    r.exit_code = 1;
    snprintf(r.verdict, sizeof r.verdict, "FAILED");
    if (ends)
        ck_assert(store_end(s, &r, &e) == ERR_OK);
    return r.id;
}

static const char *const two[] = {"m/a", "m/b"};
static const enum verdict good[] = {VERDICT_NO_BASELINE, VERDICT_NO_BASELINE};

START_TEST(a_run_reads_back)
{
    const char *path = test_path(test_folder(), "sweep.db");
    struct store *s = open_new(path);
    const enum verdict v[] = {VERDICT_PASS, VERDICT_FAILED};
    int64_t id = add_run(s, two, v, 2, 0.25, "t1", true);
    struct store_run r;
    struct store_cell *c;
    size_t n;
    ck_assert(store_run_read(s, 0, &r, NULL) == ERR_OK);
    ck_assert_int_eq(r.id, id);
    ck_assert_int_eq(r.n_cells, 2);
    ck_assert_int_eq(r.n_passed, 1);
    ck_assert_str_eq(r.verdict, "FAILED");
    ck_assert(store_cells(s, id, &c, &n, NULL) == ERR_OK);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(c[1].name, "m/b");
    ck_assert(c[1].verdict == VERDICT_FAILED);
    ck_assert_str_eq(c[1].gate[GATE_TOKENS].words, "token words");
    ck_assert(!c[1].gate[GATE_SPEED].asked);
    ck_assert(c[1].kl.value == 0.25 && c[1].kl.lo == 0.125 && isnan(c[1].kl.hi));
    ck_assert(isnan(c[1].log_ppl_ratio.value));
    ck_assert_str_eq(c[1].trace, "t1");
    free(c);
    struct store_point points[4];
    ck_assert(store_trend(s, "m/a", "kl", points, 4, &n, NULL) == ERR_OK);
    ck_assert(n == 1 && points[0].value == 0.25);
    struct err e = {.text = ""};
    ck_assert(store_run_read(s, 77, &r, &e) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "no run 77"));
    store_close(s);
}
END_TEST

START_TEST(past_rounds_come_newest_first_and_from_this_machine)
{
    struct store *s = open_new(test_path(test_folder(), "sweep.db"));
    for (int i = 0; i < 3; i++)
        add_run(s, two, good, 2, 1, "t", true);
    struct cell_result c = {.name = "m/a", .definition = "d"};
    struct speed_round rounds[8] = {{9, 9, 9}};
    size_t n[4] = {1}, n_rounds = 1, n_runs = 1;
    ck_assert(store_past_rounds(s, &c, "m", rounds, 8, &n_rounds, n, 3, &n_runs, NULL) == ERR_OK);
    ck_assert_uint_eq(n_runs, 3);
    ck_assert_uint_eq(n_rounds, 5);
    ck_assert(n[1] == 2 && n[2] == 2 && rounds[1].base == 1 && rounds[4].base_again == 6);
    n_rounds = n_runs = 0;
    ck_assert(store_past_rounds(s, &c, "other", rounds, 8, &n_rounds, n, 3, &n_runs, NULL) ==
              ERR_OK);
    ck_assert_uint_eq(n_rounds, 0);
    store_close(s);
}
END_TEST

START_TEST(an_older_store_is_migrated)
{
    const char *path = test_path(test_folder(), "sweep.db");
    struct store *s = open_new(path);
    add_run(s, two, good, 2, 1, "t", true);
    store_close(s);
    raw(path, "DROP TABLE files; PRAGMA user_version=1;");
    s = open_new(path);
    struct store_run r;
    ck_assert(store_run_read(s, 0, &r, NULL) == ERR_OK);
    ck_assert_int_eq(r.n_cells, 2);
    char sha256[SHA256_HEX];
    test_spill(path = test_path(test_folder(), "f"), "x", 1);
    ck_assert(store_file_hash(s, path, sha256, NULL) == ERR_OK);
    ck_assert_str_eq(sha256, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
    store_close(s);
}
END_TEST

START_TEST(stores_of_others_are_left_alone)
{
    const char *folder = test_folder();
    const char *path = test_path(folder, "sweep.db"), *text = test_path(folder, "text");
    const char *other = test_path(folder, "other.db");
    struct store *s = open_new(path);
    struct err e = {.text = ""};
    store_close(s);
    raw(path, "PRAGMA user_version=99;");
    ck_assert(store_open(&s, path, true, &e) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "version 99"));
    ck_assert_int_eq(number(path, "PRAGMA user_version"), 99);
    test_spill(text, "this is no database, and long enough to be told from one", 56);
    ck_assert(store_open(&s, text, true, &e) == ERR_INPUT);
    raw(other, "CREATE TABLE t(x); PRAGMA user_version=1;");
    ck_assert(store_open(&s, other, true, &e) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "no sweep made"));
    ck_assert_int_eq(number(other, "SELECT count(*) FROM sqlite_master"), 1);
    ck_assert(store_open(&s, test_path(folder, "none.db"), false, &e) == ERR_INPUT);
}
END_TEST

/* ---- baselines ---------------------------------------------------------------------------------
 */

static char changes[2000];

static void note(void *ctx, const struct baseline_change *c)
{
    size_t at = strlen(changes);
    (void)ctx;
    snprintf(changes + at, sizeof changes - at, "%s %s %s>%s\n", c->cell, c->what, c->old, c->now);
}

static enum err_code accept(struct store *s, const char *glob, struct err *e)
{
    changes[0] = 0;
    return baseline_accept(s, glob, "because", 5000, note, NULL, e);
}

START_TEST(accepting_records_what_changed)
{
    const char *path = test_path(test_folder(), "sweep.db");
    struct store *s = open_new(path);
    struct baseline b;
    struct err e = {.text = ""};
    ck_assert(baseline_read(s, &b, NULL) == ERR_OK);
    ck_assert_int_eq(b.id, 0);
    add_run(s, two, good, 2, 0.5, "t1", true);
    ck_assert_msg(accept(s, "*", &e) == ERR_OK, "%s", e.text);
    ck_assert_str_eq(changes, "m/a new cell >t1\nm/b new cell >t1\n");
    int64_t second = add_run(s, two, good, 2, 0.25, "t2", true);
    ck_assert(accept(s, "m/b", &e) == ERR_OK);
    ck_assert_str_eq(changes, "m/b trace t1>t2\nm/b kl 0.500000>0.250000\n");
    ck_assert(baseline_read(s, &b, NULL) == ERR_OK);
    ck_assert_uint_eq(b.n, 2);
    ck_assert_str_eq(baseline_find(&b, "m/a")->trace, "t1");
    ck_assert_int_eq(baseline_find(&b, "m/b")->run, second);
    ck_assert_str_eq(b.why, "because");
    baseline_free(&b);
    ck_assert_int_eq(number(path, "SELECT count(*) FROM baseline_changes"), 4);
    store_close(s);
}
END_TEST

START_TEST(objects_of_baselines_and_late_runs_are_used)
{
    struct store *s = open_new(test_path(test_folder(), "sweep.db"));
    struct err e = {.text = ""};
    add_run(s, two, good, 2, 1, "t1", true);
    ck_assert(accept(s, "m/a", &e) == ERR_OK);
    add_run(s, two, good, 2, 1, "t2", true);
    add_run(s, two, good, 2, 1, "t3", true);
    ck_assert(store_uses(s, "t1", 1));
    ck_assert(!store_uses(s, "t2", 1));
    ck_assert(store_uses(s, "t2", 2));
    ck_assert(store_uses(s, "t3", 1));
    ck_assert(store_uses(s, "p", 1));
    ck_assert(!store_uses(s, "other", 99));
    store_close(s);
}
END_TEST

START_TEST(what_did_not_work_is_not_accepted)
{
    struct store *s = open_new(test_path(test_folder(), "sweep.db"));
    static const enum verdict bad[] = {VERDICT_NONDETERMINISTIC, VERDICT_BROKEN, VERDICT_MISSING,
                                       VERDICT_SKIPPED};
    struct err e = {.text = ""};
    struct baseline b;
    ck_assert(accept(s, "*", &e) == ERR_INPUT); /* no run */
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const enum verdict both[] = {bad[i], bad[i]};
        add_run(s, two, both, 2, 1, "t", true);
        ck_assert(accept(s, "*", &e) == ERR_NEGATIVE);
        const enum verdict one[] = {bad[i], VERDICT_FAILED};
        add_run(s, two, one, 2, 1, "t", true);
        ck_assert(accept(s, "*", &e) == ERR_OK);
        ck_assert_ptr_nonnull(strstr(changes, "m/a left out"));
        ck_assert(baseline_read(s, &b, NULL) == ERR_OK);
        ck_assert(!baseline_find(&b, "m/a") && baseline_find(&b, "m/b"));
        baseline_free(&b);
        ck_assert(accept(s, "no/such", &e) == ERR_NEGATIVE);
    }
    add_run(s, two, good, 2, 1, "t", false);
    ck_assert(accept(s, "*", &e) == ERR_NEGATIVE);
    ck_assert_ptr_nonnull(strstr(e.text, "did not come to its end"));
    store_close(s);
}
END_TEST

START_TEST(a_baseline_of_another_form_is_refused_and_replaced)
{
    const char *path = test_path(test_folder(), "sweep.db");
    struct store *s = open_new(path);
    struct baseline b;
    struct err e = {.text = ""};
    add_run(s, two, good, 2, 1, "t", true);
    ck_assert(accept(s, "*", &e) == ERR_OK);
    raw(path, "UPDATE baselines SET form = 2");
    ck_assert(baseline_read(s, &b, &e) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "form 2"));
    ck_assert(accept(s, "*", &e) == ERR_OK);
    ck_assert(baseline_read(s, &b, &e) == ERR_OK);
    baseline_free(&b);
    store_close(s);
}
END_TEST

/* ---- the folder --------------------------------------------------------------------------------
 */

static bool only_a(void *ctx, const char *sha256)
{
    return strcmp(sha256, ctx) == 0;
}

START_TEST(a_folder_of_others_is_left_alone)
{
    const char *folder = test_folder();
    struct sweep_dir d;
    struct err e = {.text = ""};
    const char *mine = test_path(folder, "mine");
    test_spill(test_path(folder, "precious"), "x", 1);
    ck_assert(sweep_dir_open(&d, folder, SWEEP_DIR_MAKE, &e) == ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, "left alone"));
    ck_assert_str_eq(test_names(folder), "precious");
    ck_assert(sweep_dir_open(&d, test_path(folder, "precious"), SWEEP_DIR_MAKE, &e) == ERR_USAGE);
    ck_assert(sweep_dir_open(&d, mine, SWEEP_DIR_READ, &e) == ERR_INPUT);
    ck_assert_msg(sweep_dir_open(&d, mine, SWEEP_DIR_MAKE, &e) == ERR_OK, "%s", e.text);
    struct sweep_dir second;
    ck_assert(sweep_dir_open(&second, mine, SWEEP_DIR_CHANGE, &e) == ERR_BUSY);
    ck_assert(sweep_dir_open(&second, mine, SWEEP_DIR_READ, &e) == ERR_OK);
    sweep_dir_close(&second);
    sweep_dir_close(&d);
    ck_assert(sweep_dir_open(&d, mine, SWEEP_DIR_CHANGE, &e) == ERR_OK);
    sweep_dir_close(&d);
}
END_TEST

START_TEST(objects_are_kept_by_hash_and_pruned)
{
    const char *folder = test_folder();
    struct sweep_dir d;
    char a[SHA256_HEX], b[SHA256_HEX];
    const char *file = test_path(folder, "file");
    ck_assert(sweep_dir_open(&d, test_path(folder, "s"), SWEEP_DIR_MAKE, NULL) == ERR_OK);
    test_spill(file, "one", 3);
    ck_assert(sweep_dir_keep(&d, file, ".txt", a, NULL) == ERR_OK);
    test_spill(file, "two", 3);
    ck_assert(sweep_dir_keep(&d, file, ".txt", b, NULL) == ERR_OK);
    char *path = sweep_dir_object(&d, a, ".txt");
    size_t n;
    char *text = test_slurp(path, &n);
    ck_assert_str_eq(text, "one");
    free(text);
    test_spill(test_path(d.path, "objects/notes.txt"), "mine", 4);
    ck_assert(sweep_dir_prune(&d, only_a, a, NULL) == ERR_OK);
    ck_assert(access(path, F_OK) == 0);
    free(path);
    path = sweep_dir_object(&d, b, ".txt");
    ck_assert(access(path, F_OK) != 0);
    free(path);
    ck_assert(access(test_path(d.path, "objects/notes.txt"), F_OK) == 0);
    sweep_dir_close(&d);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("store");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_run_reads_back);
    tcase_add_test(t, past_rounds_come_newest_first_and_from_this_machine);
    tcase_add_test(t, an_older_store_is_migrated);
    tcase_add_test(t, stores_of_others_are_left_alone);
    tcase_add_test(t, accepting_records_what_changed);
    tcase_add_test(t, objects_of_baselines_and_late_runs_are_used);
    tcase_add_test(t, what_did_not_work_is_not_accepted);
    tcase_add_test(t, a_baseline_of_another_form_is_refused_and_replaced);
    tcase_add_test(t, a_folder_of_others_is_left_alone);
    tcase_add_test(t, objects_are_kept_by_hash_and_pruned);
    suite_add_tcase(s, t);
    return s;
}
