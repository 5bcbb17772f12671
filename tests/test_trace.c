/* test_trace.c: what is written is what is read, and damage is named. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/trace.h"
#include "common/io.h"
#include "tests/check_main.h"

static struct trace_header header(void)
{
    struct trace_header h = {.model = "m", .arith = "f32", .level = TRACE_LAYERS, .top_k = 2};
    memset(h.fingerprint, 'a', 64);
    memset(h.tokenizer, 'b', 64);
    memset(h.chat_template, 'c', 64);
    memset(h.prompts, 'd', 64);
    return h;
}

static void write_trace(const char *path, int n)
{
    struct trace_header h = header();
    struct trace_writer *w;
    struct err e = {.text = ""};
    ck_assert_int_eq(trace_writer_open(&w, path, &h, false, &e), ERR_OK);
    for (int i = 0; i < n; i++) {
        int32_t prompt[] = {1, 2, i};
        struct trace_token tok[2] = {
            {5, -0.25f, 1.5f, 0xfedcba9876543210ull, 2, {5, 6}, {-0.25f, -1.75f}},
            {7, -3.4028235e38f, NAN, 1, 0, {0}, {0}}};
        struct trace_record r = {.custom_id = (char *)"a \"quoted\" id",
                                 .turn = i,
                                 .prompt_ids = prompt,
                                 .n_prompt = 3,
                                 .finish = "stop",
                                 .text = (char *)"x\0y",
                                 .text_len = 3,
                                 .tok = tok,
                                 .n = 2};
        const struct trace_layer_op ops[] = {{-1, "embed", 3}, {0, "attention", UINT64_MAX}};
        trace_prompt_hash(prompt, 3, r.prompt);
        ck_assert_int_eq(trace_writer_layers(w, r.custom_id, i, 3, ops, 2, &e), ERR_OK);
        ck_assert_int_eq(trace_writer_record(w, &r, &e), ERR_OK);
    }
    ck_assert_int_eq(trace_writer_close(w, &e), ERR_OK);
}

static void round_trip(const char *name)
{
    char *path = io_join(test_folder(), name);
    struct trace *t;
    struct err e = {.text = ""};
    write_trace(path, 3);
    ck_assert_msg(trace_read(&t, path, &e) == ERR_OK, "%s", e.text);
    ck_assert_uint_eq(t->n, 3);
    ck_assert_str_eq(t->head.arith, "f32");
    ck_assert_int_eq(t->head.level, TRACE_LAYERS);
    const struct trace_record *r = &t->records[2];
    ck_assert_str_eq(r->custom_id, "a \"quoted\" id");
    ck_assert_int_eq(r->turn, 2);
    ck_assert_int_eq(r->prompt_ids[2], 2);
    ck_assert_uint_eq(r->text_len, 3);
    ck_assert_int_eq(memcmp(r->text, "x\0y", 4), 0);
    ck_assert(r->tok[0].hash == 0xfedcba9876543210ull);
    ck_assert(r->tok[0].logprob == -0.25f && r->tok[1].logprob == -3.4028235e38f);
    ck_assert(isnan(r->tok[1].margin));
    ck_assert_int_eq(r->tok[0].top_id[1], 6);
    trace_free(t);
    free(path);
}

START_TEST(plain_traces_round_trip)
{
    round_trip("t.jsonl");
}
END_TEST

START_TEST(gzip_traces_round_trip)
{
    round_trip("t.jsonl.gz");
}
END_TEST

START_TEST(equal_runs_give_equal_bytes)
{
    char *a = io_join(test_folder(), "a.gz"), *b = io_join(test_folder(), "b.gz");
    struct strbuf x = {0}, y = {0};
    write_trace(a, 4);
    write_trace(b, 4);
    ck_assert_int_eq(io_read_all(a, 1 << 20, &x, NULL), ERR_OK);
    ck_assert_int_eq(io_read_all(b, 1 << 20, &y, NULL), ERR_OK);
    ck_assert_uint_eq(x.len, y.len);
    ck_assert_int_eq(memcmp(x.data, y.data, x.len), 0);
    strbuf_free(&x);
    strbuf_free(&y);
    free(a);
    free(b);
}
END_TEST

/* Each line of a good trace with one piece of it replaced. */
static const struct {
    const char *from, *to, *says;
} damage[] = {
    {"\"assay_trace\":1", "\"assay_trace\":9", "line 1"},
    {"\"arith\":\"f32\"", "\"arith\":3", "line 1"},
    {"\"ids\":[5,7]", "\"ids\":[5,-7]", "token 1"},
    {"\"ids\":[5,7]", "\"ids\":5", "line 3"},
    {"fedcba9876543210", "fedcba987654321", "token 0"},
    {"\"prompt_ids\":[1,2,0]", "\"prompt_ids\":[1,2,1]", "hash"},
    {"\"logprob\":[-0.25,", "\"logprob\":[\"x\",", "token 0"},
    {"\"top\":[[[5,", "\"top\":[[[5.5,", "token 0"},
};

START_TEST(damage_is_named_with_its_line)
{
    char *path = io_join(test_folder(), "t.jsonl"), *bad = io_join(test_folder(), "bad.jsonl");
    struct strbuf text = {0}, out = {0};
    struct trace *t;
    struct err e = {.text = ""};
    write_trace(path, 1);
    ck_assert_int_eq(io_read_all(path, 1 << 20, &text, NULL), ERR_OK);
    const char *at = strstr(text.data, damage[_i].from);
    ck_assert_msg(at != NULL, "%s", damage[_i].from);
    strbuf_append(&out, text.data, (size_t)(at - text.data));
    strbuf_puts(&out, damage[_i].to);
    strbuf_puts(&out, at + strlen(damage[_i].from));
    ck_assert_int_eq(io_write_all(bad, out.data, out.len, true, NULL), ERR_OK);
    ck_assert_int_eq(trace_read(&t, bad, &e), ERR_INPUT);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(e.text, damage[_i].says) && strstr(e.text, "bad.jsonl"), "%s", e.text);
    strbuf_free(&text);
    strbuf_free(&out);
    free(path);
    free(bad);
}
END_TEST

START_TEST(an_unfinished_trace_leaves_nothing)
{
    struct trace_header h = header();
    struct trace_writer *w;
    char *path = io_join(test_folder(), "t.jsonl");
    ck_assert_int_eq(trace_writer_open(&w, path, &h, false, NULL), ERR_OK);
    trace_writer_abort(w);
    ck_assert(!io_exists(path));
    free(path);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("trace");
    TCase *t = tcase_create("trace");
    tcase_add_test(t, plain_traces_round_trip);
    tcase_add_test(t, gzip_traces_round_trip);
    tcase_add_test(t, equal_runs_give_equal_bytes);
    tcase_add_loop_test(t, damage_is_named_with_its_line, 0, ARRAY_LEN(damage));
    tcase_add_test(t, an_unfinished_trace_leaves_nothing);
    suite_add_tcase(s, t);
    return s;
}
