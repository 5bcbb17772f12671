/* test_cuda_self.c: a whole model on a CUDA device: each cell of the self-comparison is the same
 * bits and sees its planted fault; many repeats beside another stream; a device that fails within a
 * batch.
 *
 * The model of the cells has products that stream (K of three chunks above 1024); that of the
 * faults is the small one of test_self.c, where a wrong order of chunk sums shows in "down".
 */
#include <stdio.h>
#include <stdlib.h>

#include "infer/batch.h"
#include "tests/cuda_rig.h"
#include "tests/self_rig.h"

static char *make_model(bool wide)
{
    struct tiny_model m = tiny_model_default();
    m.form = TINY_PACKED;
    m.ctx = 512;
    if (wide) {
        m.d_model = 1536;
        m.d_ff = 2048;
        m.n_head = 24;
        m.n_kv = 8;
        m.head_dim = 64;
        m.bits = 4;
        m.group = 64;
    }
    return make_folder(wide ? "wide" : "small", &m);
}

/* prompts: a file, which is freed. */
static void compare(struct self_report *r, bool wide, char *prompts, const char *cells,
                    struct plant *plant)
{
    static const struct kern_options kern = {.device = "cuda:0", .arith = KERN_MMA90};
    compare_self(r, make_model(wide), prompts, &kern, cells, plant);
}

START_TEST(every_cell_is_the_same_bits)
{
    struct self_report r;
    compare(&r, _i, make_prompts(), NULL, NULL);
    ck_assert_int_eq(r.n_cells, SELF_CELLS);
    for (int i = 0; i < r.n_cells; i++) {
        const struct self_cell *c = &r.cell[i];
        bool on_cpu_only = strcmp(c->name, "threads") == 0;
        ck_assert_msg(c->state == (on_cpu_only ? SELF_NOT_RUN : SELF_SAME),
                      "%s, %s: state %d, '%s' token %lld, layer %d %s; %s", c->name, c->way,
                      (int)c->state, c->at.custom_id, (long long)c->at.token, c->at.layer, c->at.op,
                      c->why);
    }
}
END_TEST

/* The fault, the cell that must see it, and where. */
static const struct {
    const char *cell;
    struct plant plant;
    int layer;
    const char *op;
} faults[] = {
    {"repeat", {.fault = KERN_FAULT_RACE}, ANY_LAYER, "down"},
    {"load", {.fault = KERN_FAULT_COMPANY}, 0, "down"},
    {"stream", {.fault = KERN_FAULT_COMPANY}, 0, "down"},
    {"batch", {.fault = KERN_FAULT_CHUNK_ORDER}, 0, "down"},
    {"order", {.fault = KERN_FAULT_HASH}, -1, "embed"},
    /* A neighbour is NaN from its attention on. */
    {"neighbour", {.fault = KERN_FAULT_NEIGHBOUR}, 0, "o"},
    {"chunk", {.fault = KERN_FAULT_SPLIT_EDGE, .batch = 1}, 0, "attention"},
    {"verify", {.fault = KERN_FAULT_CHUNK_ORDER}, 0, "down"},
    /* K and V of the first layer depend on the token alone: a wrong page shows in the second. */
    {"prefix", {.prefix = true}, 1, "attention"},
    {"poison", {.fault = KERN_FAULT_STALE}, 0, "act"},
    {"graph", {.fault = KERN_FAULT_LAUNCH}, 0, "down"},
    {"blocking", {.fault = KERN_FAULT_LAUNCH}, 0, "down"},
    {"path", {.fault = KERN_FAULT_PLAIN_C}, 0, "down"},
    {"expand", {.fault = KERN_FAULT_EXPAND}, -1, "embed"},
    {"oracle", {.fault = KERN_FAULT_DEVICE}, 0, "down"},
    {"oracle", {.fault = KERN_FAULT_HASH}, -1, "embed"},
};

START_TEST(a_planted_fault_turns_its_cell_red)
{
    struct plant plant = faults[_i].plant;
    struct self_report r;
    compare(&r, false, make_prompts(), faults[_i].cell, &plant);
    expect_found(&r, faults[_i].layer, faults[_i].op);
}
END_TEST

/* ---- repeats ------------------------------------------------------------------------------------
 */
#define MANY 64

static struct lm *open_lm(const char *dir, const char *device, int seqs)
{
    struct engine_options o = {.kern = {.device = device, .isa = "auto", .arith = KERN_MMA90},
                               .batch_seqs = seqs,
                               .kv_tokens = 64 * 256,
                               .top_k = 2};
    struct err e = {.text = ""};
    struct lm *m;
    ck_assert_msg(lm_open(&m, dir, &o, NULL, NULL, &e) == ERR_OK, "%s", e.text);
    return m;
}

static char *make_lines(int n, int tokens)
{
    char *path = io_join(test_folder(), "lines.jsonl");
    struct strbuf b = {0};
    for (int i = 0; i < n; i++)
        strbuf_printf(&b,
                      "{\"custom_id\":\"r%d\",\"prompt\":\"the %c%c\",\"max_tokens\":%d,"
                      "\"ignore_eos\":true}\n",
                      i, 'a' + i % 26, 'a' + i / 3 % 26, tokens + i % 3);
    ck_assert_int_eq(io_write_all(path, b.data, b.len, true, NULL), ERR_OK);
    strbuf_free(&b);
    return path;
}

/* A fault of replays alone is seen without a trace, and a trace has no replays to narrow it by. */
START_TEST(a_fault_of_replays_is_seen)
{
    struct plant plant = {.fault = KERN_FAULT_GRAPH};
    struct self_report r;
    compare(&r, false, make_lines(4, 40), "graph", &plant);
    ck_assert_int_eq(r.n_differ, 1);
    ck_assert(!r.cell[0].at.narrowed && r.cell[0].at.token >= 0);
}
END_TEST

START_TEST(a_hundred_repeats_beside_another_stream_are_one)
{
    char *dir = make_model(true), *prompts = make_lines(MANY, 5);
    struct self_options o = {.path = dir, .prompts = prompts};
    struct self_way way = {.name = "base"};
    struct self_prompts p = {.n = 0};
    struct self_log first, log;
    struct self_run_result res;
    struct self_load *load;
    struct err e = {.text = ""};
    uint64_t rounds = 0;
    size_t record, row;
    struct lm *m = open_lm(dir, "cuda:0", MANY);
    prompt_defaults_init(&o.defaults);
    fix_ok(self_prompts_read(&p, m, &o, &e), &e);
    ck_assert_uint_eq(p.n, MANY);
    fix_ok(self_run_batch(m, &p, &way, &o, false, &first, &res, &e), &e);
    fix_ok(self_load_start(&load, "cuda:0", &e), &e);
    for (int i = 0; i < 100; i++) {
        fix_ok(self_run_batch(m, &p, &way, &o, false, &log, &res, &e), &e);
        ck_assert_msg(!self_log_differ(&first, &log, &record, &row), "run %d: answer %zu row %zu",
                      i, record, row);
        self_log_free(&log);
    }
    fix_ok(self_load_stop(load, &rounds, &e), &e);
    ck_assert_uint_gt(rounds, 100);
    self_log_free(&first);
    self_prompts_free(&p);
    lm_close(m);
    free(dir);
    free(prompts);
}
END_TEST

/* ---- a device that fails ------------------------------------------------------------------------
 */
#define LINES 20

static void fail_soon(void *ctx, uint64_t done, uint64_t tokens)
{
    (void)ctx, (void)tokens;
    if (done >= LINES / 2)
        kern_plant(KERN_FAULT_TRAP);
}

static enum err_code run_lines(struct lm *m, struct batch_options *o, struct err *e)
{
    struct census census;
    struct batch_result res;
    fix_ok(batch_check(o, &census, e), e);
    enum err_code rc = batch_run(m, o, &census, &res, e);
    census_free(&census);
    return rc;
}

static char *read_file(const char *path)
{
    struct strbuf b = {0};
    ck_assert_int_eq(io_read_all(path, 1 << 24, &b, NULL), ERR_OK);
    return strbuf_take(&b);
}

/* What was finished stays, and the oracle finishes the rest to the bytes of a whole run. */
START_TEST(a_device_that_fails_within_a_batch_keeps_its_lines)
{
    char *dir = make_model(false), *prompts = make_lines(LINES, 6);
    char *whole = io_join(test_folder(), "whole.jsonl"), *cut = io_join(test_folder(), "cut.jsonl");
    struct batch_options o = {.prompts = prompts, .out = whole, .max_failures = -1};
    struct err e = {.text = ""};
    prompt_defaults_init(&o.defaults);
    struct lm *oracle = open_lm(dir, "cpu", 3), *device = open_lm(dir, "cuda:0", 3);
    fix_ok(run_lines(oracle, &o, &e), &e);
    o.out = cut;
    o.on_progress = fail_soon;
    enum err_code rc = run_lines(device, &o, &e);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_msg(rc == ERR_DEVICE, "%s: %s", err_name(rc), e.text);
    ck_assert_int_eq(err_exit_code(rc), 5);
    ck_assert_msg(strstr(e.text, "CUDA") && strstr(e.text, "launch failure"), "%s", e.text);
    lm_close(device);
    char *want = read_file(whole), *got = read_file(cut);
    size_t kept = 0;
    for (const char *at = got; *at; at++)
        kept += *at == '\n';
    ck_assert_msg(kept >= LINES / 2 && kept < LINES, "%zu lines", kept);
    ck_assert(strncmp(want, got, strlen(got)) == 0);
    free(got);
    o.on_progress = NULL;
    o.resume = true;
    fix_ok(run_lines(oracle, &o, &e), &e);
    got = read_file(cut);
    ck_assert_str_eq(want, got);
    lm_close(oracle);
    free(want);
    free(got);
    free(whole);
    free(cut);
    free(dir);
    free(prompts);
}
END_TEST

static void add_small(TCase *c)
{
    (void)c;
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, every_cell_is_the_same_bits, 0, 2);
    tcase_add_loop_test(c, a_planted_fault_turns_its_cell_red, 0, (int)ARRAY_LEN(faults));
    tcase_add_test(c, a_fault_of_replays_is_seen);
    tcase_add_test(c, a_hundred_repeats_beside_another_stream_are_one);
    tcase_add_test(c, a_device_that_fails_within_a_batch_keeps_its_lines);
}

Suite *test_suite(void)
{
    return rig_suite("cuda self", add_tests, add_small);
}
