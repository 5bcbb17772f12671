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
    memset(h.settings, 'e', 64);
    snprintf(h.build, sizeof h.build, "test 1");
    h.n_vocab = 3;
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
        uint16_t full[] = {0x3c00, 0xbc00, 0x7bff}; /* 1, -1, 65504 */
        struct trace_token tok[2] = {
            {5, -0.25f, 1.5f, 3.5f, 0xfedcba9876543210ull, 2, {5, 6}, {-0.25f, -1.75f}, NULL},
            {7, -3.4028235e38f, NAN, -1.25f, 1, 0, {0}, {0}, i ? full : NULL}};
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
    ck_assert(r->tok[0].lse == 3.5f && r->tok[1].lse == -1.25f);
    ck_assert(!r->tok[0].full && !t->records[0].tok[1].full && r->tok[1].full);
    ck_assert_uint_eq(r->tok[1].full[1], 0xbc00);
    ck_assert_uint_eq(r->tok[1].full[2], 0x7bff);
    ck_assert_int_eq(t->head.n_vocab, 3);
    ck_assert_str_eq(t->head.build, "test 1");
    ck_assert_int_eq(t->head.settings[63], 'e');
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

START_TEST(blocks_round_trip)
{
    round_trip(_i ? "t.trace.gz" : "t.trace");
}
END_TEST

START_TEST(traces_of_version_1_are_read)
{
    char *path = io_join(test_folder(), "old.jsonl"), zeros[65];
    struct strbuf b = {0};
    struct trace *t;
    struct err e = {.text = ""};
    int32_t ids[] = {1, 2};
    char prompt[65];
    memset(zeros, '0', 64);
    zeros[64] = 0;
    trace_prompt_hash(ids, 2, prompt);
    strbuf_printf(
        &b,
        "{\"assay_trace\":1,\"model\":\"m\",\"arith\":\"f32\",\"fingerprint\":\"%s\","
        "\"tokenizer\":\"%s\",\"template\":\"%s\",\"prompts\":\"%s\",\"level\":\"tokens\","
        "\"top_k\":0}\n{\"custom_id\":\"a\",\"turn\":0,\"prompt\":\"%s\",\"finish\":\"stop\","
        "\"text\":\"\",\"prompt_ids\":[1,2],\"ids\":[7],\"logprob\":[-1],\"margin\":[2],"
        "\"hash\":[\"0000000000000001\"],\"top\":[[]]}\n",
        zeros, zeros, zeros, zeros, prompt);
    ck_assert_int_eq(io_write_all(path, b.data, b.len, true, NULL), ERR_OK);
    ck_assert_msg(trace_read(&t, path, &e) == ERR_OK, "%s", e.text);
    ck_assert(t->n == 1 && t->records[0].tok[0].id == 7 && isnan(t->records[0].tok[0].lse));
    ck_assert_str_eq(t->head.settings, "");
    trace_free(t);
    strbuf_free(&b);
    free(path);
}
END_TEST

/* A block's bytes at `at` from its beginning, overwritten; -1: the file ends there. */
static const struct {
    int at;
    uint8_t to;
    bool cut;
    const char *says;
} block_damage[] = {
    {11, 0x80, false, "no ids"}, /* a prompt id */
    {15, 0xff, false, "no ids"}, /* an id */
    {3 * 4 + 2 * 4 + 6 * 4 + 16, 3, false, "best tokens"},
    {0, 9, false, "hash"}, /* another prompt */
    {20, 0, true, "missing"},
};

START_TEST(damaged_blocks_are_named)
{
    char *path = io_join(test_folder(), "t.trace"), *bad = io_join(test_folder(), "bad.trace");
    struct strbuf text = {0};
    struct trace *t;
    struct err e = {.text = ""};
    write_trace(path, 1);
    ck_assert_int_eq(io_read_all(path, 1 << 20, &text, NULL), ERR_OK);
    char *at = strstr(text.data, "\"full\":0}\n");
    ck_assert_ptr_nonnull(at);
    at += (int)strlen("\"full\":0}\n") + block_damage[_i].at;
    *at = (char)block_damage[_i].to;
    size_t len = block_damage[_i].cut ? (size_t)(at - text.data) : text.len;
    ck_assert_int_eq(io_write_all(bad, text.data, len, true, NULL), ERR_OK);
    ck_assert_int_eq(trace_read(&t, bad, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, block_damage[_i].says) && strstr(e.text, "bad.trace: line 3"),
                  "%s", e.text);
    strbuf_free(&text);
    free(path);
    free(bad);
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
    {"\"assay_trace\":2", "\"assay_trace\":9", "line 1"},
    {"\"arith\":\"f32\"", "\"arith\":3", "line 1"},
    {"\"ids\":[5,7]", "\"ids\":[5,-7]", "token 1"},
    {"\"ids\":[5,7]", "\"ids\":5", "line 3"},
    {"fedcba9876543210", "fedcba987654321", "token 0"},
    {"\"prompt_ids\":[1,2,0]", "\"prompt_ids\":[1,2,1]", "hash"},
    {"\"logprob\":[-0.25,", "\"logprob\":[\"x\",", "token 0"},
    {"\"top\":[[[5,", "\"top\":[[[5.5,", "token 0"},
    {"\"lse\":[3.5,", "\"lse\":[true,", "token 0"},
    {"\"full\":[[1,[", "\"full\":[[1,[7,", "expected [token, [3 logits]]"},
    {"\"full\":[[1,", "\"full\":[[2,", "expected [token, [3 logits]]"},
};

START_TEST(damage_is_named_with_its_line)
{
    char *path = io_join(test_folder(), "t.jsonl"), *bad = io_join(test_folder(), "bad.jsonl");
    struct strbuf text = {0}, out = {0};
    struct trace *t;
    struct err e = {.text = ""};
    write_trace(path, 2);
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
    tcase_add_loop_test(t, blocks_round_trip, 0, 2);
    tcase_add_test(t, traces_of_version_1_are_read);
    tcase_add_loop_test(t, damaged_blocks_are_named, 0, ARRAY_LEN(block_damage));
    tcase_add_test(t, equal_runs_give_equal_bytes);
    tcase_add_loop_test(t, damage_is_named_with_its_line, 0, ARRAY_LEN(damage));
    tcase_add_test(t, an_unfinished_trace_leaves_nothing);
    suite_add_tcase(s, t);
    return s;
}
