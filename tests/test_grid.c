/* test_grid.c: the sweep file and its expansion: order, names, defaults, every fault with its text.
 */
#include <stdio.h>
#include <string.h>

#include "jobs/grid.h"
#include "tests/check_main.h"

#define AXES                                                                                       \
    "why: a test\n"                                                                                \
    "models:\n- {name: m, path: models/m}\n- {name: n, path: /abs/n, hint: make it}\n"             \
    "recipes:\n- {name: asis}\n- {name: q4, path: ../q4.yaml}\n"                                   \
    "prompts:\n- {name: p, path: p.jsonl}\n"                                                       \
    "settings:\n- {name: f32, arith: f32, max_tokens: 8}\n- {name: fast, arith: mma90}\n"

static struct sweep_file *parse(const char *text)
{
    struct sweep_file *f;
    struct err e = {.text = ""};
    ck_assert_msg(sweep_file_parse(&f, text, strlen(text), "dir/s.yaml", &e) == ERR_OK, "%s",
                  e.text);
    return f;
}

/* Refused with every one of the words, by the file or by the grid. */
static void refused(const char *text, const char *a, const char *b)
{
    struct sweep_file *f = NULL;
    struct grid g = {.n = 0};
    struct err e = {.text = ""};
    enum err_code rc = sweep_file_parse(&f, text, strlen(text), "dir/s.yaml", &e);
    if (rc == ERR_OK)
        rc = grid_expand(&g, f, &e);
    ck_assert_msg(rc == ERR_INPUT, "%s", text);
    ck_assert_msg(strstr(e.text, a) && strstr(e.text, b) && strstr(e.text, "dir/s.yaml"),
                  "'%s' lacks '%s' or '%s'", e.text, a, b);
    sweep_file_free(f);
}

START_TEST(the_grid_is_the_product_of_its_axes)
{
    struct sweep_file *f = parse(AXES "gates: {tokens: {demand: bits}}\n");
    struct grid g;
    ck_assert(grid_expand(&g, f, NULL) == ERR_OK);
    ck_assert_uint_eq(g.n, 8);
    ck_assert_str_eq(g.cells[0].name, "m/asis/p/f32");
    ck_assert_str_eq(g.cells[1].name, "m/asis/p/fast");
    ck_assert_str_eq(g.cells[7].name, "n/q4/p/fast");
    /* What answers is no part of what is asked. */
    ck_assert_str_eq(g.cells[0].definition, g.cells[6].definition);
    ck_assert_str_ne(g.cells[0].definition, g.cells[1].definition);
    grid_free(&g);
    sweep_file_free(f);
}
END_TEST

START_TEST(paths_are_relative_to_the_file)
{
    struct sweep_file *f = parse(AXES "out: there\nvariants: [made]\ngates: {}\n");
    ck_assert_str_eq(f->models[0].path, "dir/models/m");
    ck_assert_str_eq(f->models[1].path, "/abs/n");
    ck_assert_str_eq(f->models[1].hint, "make it");
    ck_assert(!f->recipes[0].path);
    ck_assert_str_eq(f->recipes[1].path, "dir/../q4.yaml");
    ck_assert_str_eq(f->out, "dir/there");
    ck_assert_str_eq(f->variants[0], "dir/made");
    sweep_file_free(f);
    f = parse(AXES "gates: {}\n");
    ck_assert_str_eq(f->out, "dir/s.sweep");
    ck_assert(!f->first_run_records);
    ck_assert_int_eq(f->gates.repeat_runs, 3);
    ck_assert_int_eq(f->limits.retries, 1);
    sweep_file_free(f);
}
END_TEST

START_TEST(every_key_is_read)
{
    struct sweep_file *f = parse(
        AXES "first_run: record\n"
             "limits: {seconds: 60, total_seconds: 600, memory_mb: 500, retries: 0, pause: 0.5}\n"
             "gates:\n"
             "  repeat: {runs: 4}\n"
             "  invariance: {max_batch: [1, 8], chunk: [7]}\n"
             "  tokens: {demand: ids}\n"
             "  quality: {kl: 0.1, agreement: 0.9, perplexity: 1.05, rise: 0.02}\n"
             "  speed: {rounds: 7}\n");
    ck_assert(f->first_run_records);
    ck_assert_int_eq(f->limits.retries, 0);
    ck_assert(f->limits.pause == 0.5);
    ck_assert_int_eq(f->limits.memory_mb, 500);
    ck_assert_int_eq(f->gates.repeat_runs, 4);
    ck_assert_uint_eq(f->gates.n_max_batch, 2);
    ck_assert_int_eq(f->gates.max_batch[1], 8);
    ck_assert_int_eq(f->gates.chunk[0], 7);
    ck_assert(f->gates.tokens && f->gates.tokens_ids_only);
    ck_assert(f->gates.quality.asked && f->gates.quality.agreement == 0.9);
    ck_assert_int_eq(f->gates.speed_rounds, 7);
    sweep_file_free(f);
}
END_TEST

static const struct {
    const char *text, *a, *b;
} faults[] = {
    {"", "empty", ""},
    {AXES, "gates", ""},
    {AXES "gates: {}\ngate: {}\n", "gate", "line"},
    {AXES "gates: {speeed: {rounds: 7}}\n", "speeed", "did you mean 'speed'"},
    {AXES "gates: {speed: {rounds: 2}}\n", "found 2", "3 to"},
    {AXES "gates: {repeat: {runs: 1}}\n", "found 1", "2 to"},
    {AXES "gates: {invariance: {}}\n", "max_batch", "chunk"},
    {AXES "gates: {invariance: {chunk: [0]}}\n", "chunk", "found 0"},
    {AXES "gates: {tokens: {demand: text}}\n", "text", "bits or ids"},
    {AXES "gates: {quality: {kl: -1}}\n", "kl", "-1"},
    {AXES "gates: {quality: {agreement: 93}}\n", "agreement", "0 to 1"},
    {AXES "gates: {quality: {perplexity: 0.5}}\n", "perplexity", "ratio"},
    {AXES "gates: {}\nfirst_run: pass\n", "pass", "record or fail"},
    {AXES "gates: {}\nlimits: {seconds: -4}\n", "seconds", "-4"},
    {"why: a\nmodels: []\nrecipes: [{name: r}]\nprompts: [{name: p, path: p}]\n"
     "settings: [{name: s}]\ngates: {}\n",
     "models", "no cells"},
    {"why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}]\nprompts: []\n"
     "settings: [{name: s}]\ngates: {}\n",
     "prompts", "no cells"},
    {"why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}, {name: r, path: x}]\n"
     "prompts: [{name: p, path: p}]\nsettings: [{name: s}]\ngates: {}\n",
     "recipes", "entries 1 and 2 are both 'r'"},
    {"why: a\nmodels: [{name: ../m, path: m}]\nrecipes: [{name: r}]\n"
     "prompts: [{name: p, path: p}]\nsettings: [{name: s}]\ngates: {}\n",
     "../m", "letters"},
    {"why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}]\nprompts: [{name: p}]\n"
     "settings: [{name: s}]\ngates: {}\n",
     "'p'", "no path"},
    {"why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}]\n"
     "prompts: [{name: p, path: p}]\nsettings: [{name: s, arith: f64}]\ngates: {}\n",
     "f64", "expected f32, mma90 or"},
    {"why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}]\n"
     "prompts: [{name: p, path: p}]\nsettings: [{name: s, threads: -1}]\ngates: {}\n",
     "threads", "-1"},
};

START_TEST(faults_are_named)
{
    refused(faults[_i].text, faults[_i].a, faults[_i].b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("grid");
    TCase *t = tcase_create("grid");
    tcase_add_test(t, the_grid_is_the_product_of_its_axes);
    tcase_add_test(t, paths_are_relative_to_the_file);
    tcase_add_test(t, every_key_is_read);
    tcase_add_loop_test(t, faults_are_named, 0, (int)(sizeof faults / sizeof faults[0]));
    suite_add_tcase(s, t);
    return s;
}
