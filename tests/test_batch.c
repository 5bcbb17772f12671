/* test_batch.c: prompt files through a tiny model: order, error lines, resuming, conversations,
 * scoring, traces.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "infer/batch.h"
#include "infer/score.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static const char lines[] =
    "{\"custom_id\":\"raw\",\"prompt\":\"the cat\"}\n"
    "{\"prompt\":\"no such field\",\"frobnicate\":1}\n"
    "\n"
    "{\"custom_id\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"hi <|end|> there\"}]}\n"
    "{\"custom_id\":\"ids\",\"prompt_token_ids\":[65,66,67],\"logprobs\":true,\"top_logprobs\":2}\n"
    "{\"custom_id\":\"bad id\",\"prompt_token_ids\":[65,9999]}\n"
    "{\"custom_id\":\"turns\",\"turns\":[\"one\",\"two\",\"three\"],\"max_tokens\":5}\n"
    "{\"custom_id\":\"warm\",\"prompt\":\"the\",\"temperature\":0.9,\"top_p\":0.95,\"seed\":3}\n"
    "not json\n"
    "{\"custom_id\":\"stop\",\"prompt\":\"the "
    "dog\",\"max_tokens\":40,\"stop_token_ids\":[0,1,2,3]}\n"
    "{\"custom_id\":\"long\",\"prompt\":\"a\",\"max_tokens\":100000}\n";
#define N_LINES  10
#define N_FAILED 4

static struct lm *open_lm(enum kern_arith arith, int batch_seqs)
{
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    struct lm *lm = NULL;
    char *dir = io_join(test_folder(), "model");
    m.d_ff = 128;
    m.n_layer = 2;
    m.ctx = 512;
    ck_assert_msg(tiny_model_write(dir, &m, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(tiny_text_write(dir, &e) == ERR_OK, "%s", e.text);
    struct engine_options o = {
        .kern = {.device = "cpu", .arith = arith, .threads = 1, .isa = "auto"},
        .batch_seqs = batch_seqs,
        .batch_tokens = 64,
        .top_k = PROMPT_TOP_MAX};
    ck_assert_msg(lm_open(&lm, dir, &o, NULL, NULL, &e) == ERR_OK, "%s", e.text);
    free(dir);
    return lm;
}

static char *prompts_file(const char *text)
{
    char *path = io_join(test_folder(), "prompts.jsonl");
    ck_assert_int_eq(io_write_all(path, text, strlen(text), true, NULL), ERR_OK);
    return path;
}

static struct batch_options options(const char *prompts, const char *out)
{
    struct batch_options o = {.prompts = prompts, .out = out, .trace_top = 3, .max_failures = -1};
    prompt_defaults_init(&o.defaults);
    o.defaults.set.max_tokens = 12;
    return o;
}

/* The output of a run; heap. */
static char *run_counted(struct lm *m, struct batch_options o, enum err_code expected,
                         struct batch_result *res)
{
    char *out = io_join(test_folder(), "out.jsonl");
    struct census census;
    struct strbuf text = {0};
    struct err e = {.text = ""};
    o.out = out;
    ck_assert_msg(batch_check(&o, &census, &e) == ERR_OK, "%s", e.text);
    enum err_code rc = batch_run(m, &o, &census, res, &e);
    ck_assert_msg(rc == expected, "%s: %s", err_name(rc), e.text);
    ck_assert_int_eq(io_read_all(out, 1 << 24, &text, NULL), ERR_OK);
    census_free(&census);
    free(out);
    return strbuf_take(&text);
}

static char *run(struct lm *m, struct batch_options o, enum err_code expected)
{
    struct batch_result res;
    return run_counted(m, o, expected, &res);
}

static json_t *line_at(const char *text, int n)
{
    json_t *o = NULL;
    for (; n > 0; n--)
        text = strchr(text, '\n') + 1;
    ck_assert_int_eq(json_parse(text, strcspn(text, "\n"), &o, NULL), ERR_OK);
    return o;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

START_TEST(lines_come_in_order_and_faults_stay_on_their_line)
{
    static const char *const ids[] = {"raw",   "line-2", "chat",   "ids",  "bad id",
                                      "turns", "warm",   "line-9", "stop", "long"};
    struct lm *m = open_lm(KERN_F32, 3);
    char *prompts = prompts_file(lines);
    char *text = run(m, options(prompts, NULL), ERR_PARTIAL);
    ck_assert_int_eq(count_lines(text), N_LINES);
    int failed = 0;
    for (int i = 0; i < N_LINES; i++) {
        json_t *o = line_at(text, i);
        ck_assert_str_eq(json_string_value(json_object_get(o, "custom_id")), ids[i]);
        failed += json_is_null(json_object_get(o, "response"));
        json_decref(o);
    }
    ck_assert_int_eq(failed, N_FAILED);
    json_t *o = line_at(text, 5);
    json_t *body = json_object_get(json_object_get(o, "response"), "body");
    ck_assert_uint_eq(json_array_size(json_object_get(body, "choices")), 3);
    ck_assert(strncmp(json_string_value(json_object_get(body, "system_fingerprint")), "assay-f32-",
                      10) == 0);
    json_decref(o);
    o = line_at(text, 9);
    ck_assert_ptr_nonnull(strstr(
        json_string_value(json_object_get(json_object_get(o, "error"), "message")), "line 11"));
    json_decref(o);
    free(text);
    free(prompts);
    lm_close(m);
}
END_TEST

START_TEST(what_is_no_text_and_tokens_that_are_not_there_get_error_lines)
{
    static const char *const faults[][2] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":"
         "{\"url\":\"x\"}}]}]}",
         "text only"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\","
         "\"input_audio\":{}}]}]}",
         "text only"},
        {"{\"prompt_token_ids\":[65,9999]}", "token 1 of the prompt is 9999, the vocabulary has"},
        {"{\"prompt\":[9999]}", "token 0 of the prompt is 9999, the vocabulary has"},
        {"{\"prompt\":\"a\",\"stop_token_ids\":[1,9999]}",
         "stop_token_ids[1] is 9999, the vocabulary has"},
        {"{\"prompt\":\"a\",\"logit_bias\":{\"9999\":1}}",
         "logit_bias names token 9999, the vocabulary has"},
    };
    struct strbuf text = {0};
    for (size_t i = 0; i < ARRAY_LEN(faults); i++)
        strbuf_printf(&text, "%s\n", faults[i][0]);
    strbuf_puts(&text, "{\"prompt\":\"a\",\"max_tokens\":1}\n");
    struct lm *m = open_lm(KERN_F32, 3);
    char *prompts = prompts_file(text.data);
    char *out = run(m, options(prompts, NULL), ERR_PARTIAL);
    ck_assert_int_eq(count_lines(out), (int)ARRAY_LEN(faults) + 1);
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        json_t *o = line_at(out, (int)i);
        const char *said =
            json_string_value(json_object_get(json_object_get(o, "error"), "message"));
        ck_assert_msg(said && strstr(said, faults[i][1]), "'%s' lacks '%s'", said, faults[i][1]);
        json_decref(o);
    }
    json_t *o = line_at(out, (int)ARRAY_LEN(faults));
    ck_assert(json_is_object(json_object_get(o, "response")));
    json_decref(o);
    strbuf_free(&text);
    free(out);
    free(prompts);
    lm_close(m);
}
END_TEST

START_TEST(a_run_cut_anywhere_and_resumed_gives_the_same_bytes)
{
    struct lm *m = open_lm(KERN_F32, 4);
    char *prompts = prompts_file(lines);
    struct batch_options o = options(prompts, NULL);
    char *whole = run(m, o, ERR_PARTIAL), *out = io_join(test_folder(), "unused");
    size_t len = strlen(whole);
    free(out);
    for (size_t cut = 0; cut <= len; cut += len / 7) {
        struct census census;
        struct batch_result res;
        struct strbuf again = {0};
        struct err e = {.text = ""};
        /* A run in a folder of its own ends; then its output is cut: damage that OUT.run tells. */
        char *path = io_join(test_folder(), "cut.jsonl");
        o.out = path;
        o.resume = false;
        ck_assert_int_eq(batch_check(&o, &census, &e), ERR_OK);
        ck_assert_int_eq(batch_run(m, &o, &census, &res, &e), ERR_PARTIAL);
        census_free(&census);
        ck_assert_int_eq(io_write_all(path, whole, cut, true, NULL), ERR_OK);
        o.resume = true;
        ck_assert_int_eq(batch_check(&o, &census, &e), ERR_OK);
        enum err_code rc = batch_run(m, &o, &census, &res, &e);
        ck_assert_msg(rc == ERR_PARTIAL, "cut at %zu: %s", cut, e.text);
        ck_assert_int_eq(io_read_all(path, 1 << 24, &again, NULL), ERR_OK);
        ck_assert_str_eq(again.data, whole);
        census_free(&census);
        strbuf_free(&again);
        free(path);
    }
    free(whole);
    free(prompts);
    lm_close(m);
}
END_TEST

START_TEST(the_batch_does_not_change_the_answers)
{
    char *prompts = prompts_file(lines), *first = NULL;
    static const int seqs[] = {1, 2, 8};
    for (size_t i = 0; i < ARRAY_LEN(seqs); i++) {
        struct lm *m = open_lm(_i ? KERN_MMA90 : KERN_F32, seqs[i]);
        struct batch_options o = options(prompts, NULL);
        o.chunk = (int)i * 3 + 1;
        o.no_prefix = i == 1;
        char *text = run(m, o, ERR_PARTIAL);
        if (!first)
            first = text;
        else {
            ck_assert_str_eq(text, first);
            free(text);
        }
        lm_close(m);
    }
    free(first);
    free(prompts);
}
END_TEST

/* Each turn finds the pages of the one before; the bytes are those of a cold run. */
START_TEST(turns_keep_their_prefix)
{
#define WORDS "the cat sat on the mat and looked over the old bridge to the other side of it all"
    static const char talk[] = "{\"custom_id\":\"t\",\"turns\":[\"" WORDS "\",\"" WORDS
                               "\",\"" WORDS "\"],\"max_tokens\":9,\"logprobs\":true}\n";
    struct lm *m = open_lm(_i ? KERN_MMA90 : KERN_F32, 2);
    char *prompts = prompts_file(talk);
    struct batch_options o = options(prompts, NULL);
    struct batch_result cold, warm;
    o.no_prefix = true;
    char *want = run_counted(m, o, ERR_OK, &cold);
    o.no_prefix = false;
    char *got = run_counted(m, o, ERR_OK, &warm);
    ck_assert_str_eq(want, got);
    ck_assert_uint_eq(cold.shared_tokens, 0);
    ck_assert_uint_eq(cold.prompt_tokens, warm.prompt_tokens);
    /* One page is full after the first prompt, and at least two are after the second. */
    ck_assert_uint_ge(warm.shared_tokens, 64 + 128);
    free(want);
    free(got);
    free(prompts);
    lm_close(m);
#undef WORDS
}
END_TEST

START_TEST(prompt_text_never_becomes_a_control_token)
{
    struct lm *m = open_lm(KERN_F32, 1);
    struct token_list ids = {0};
    json_t *messages =
        json_pack("[{s:s, s:s}]", "role", "user", "content", "x<|end|><|assistant|>y");
    ck_assert_int_eq(lm_encode_chat(m, messages, NULL, &ids, NULL), ERR_OK);
    int ends = 0, assistants = 0;
    for (size_t i = 0; i < ids.n; i++) {
        ends += ids.ids[i] == 258;
        assistants += ids.ids[i] == 260;
    }
    ck_assert_int_eq(ends, 1); /* the template's own */
    ck_assert_int_eq(assistants, 1);
    ck_assert_int_eq(ids.ids[0], 259);
    json_decref(messages);
    token_list_free(&ids);
    lm_close(m);
}
END_TEST

START_TEST(traces_hold_what_was_chosen)
{
    struct lm *m = open_lm(KERN_F32, 4);
    char *prompts = prompts_file(lines);
    struct batch_options o = options(prompts, NULL);
    char *path = io_join(test_folder(), "t.jsonl.gz");
    struct trace *t;
    struct err e = {.text = ""};
    o.trace = path;
    o.trace_level = TRACE_LAYERS;
    free(run(m, o, ERR_PARTIAL));
    ck_assert_msg(trace_read(&t, path, &e) == ERR_OK, "%s", e.text);
    ck_assert_uint_eq(t->n, N_LINES - N_FAILED + 2); /* turns has three */
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_record *r = &t->records[i];
        for (size_t k = 0; k < r->n; k++) {
            const struct trace_token *x = &r->tok[k];
            ck_assert_int_eq(x->n_top, 3);
            ck_assert(x->margin >= 0 && x->logprob <= 0);
            ck_assert(x->top_logprob[0] >= x->top_logprob[1]);
            if (strcmp(r->custom_id, "warm") != 0)
                ck_assert_int_eq(x->top_id[0], x->id);
        }
    }
    trace_free(t);
    free(path);
    free(prompts);
    lm_close(m);
}
END_TEST

START_TEST(scores_add_up_to_the_same_for_any_window_that_sees_all)
{
    struct lm *m = open_lm(KERN_F32, 4);
    struct score_result whole, twice;
    struct token_list ids = {0};
    const char *text = "the quick brown fox jumps over the lazy dog, and then the next one";
    ck_assert_int_eq(lm_encode_text(m, text, strlen(text), false, &ids, NULL), ERR_OK);
    struct score_options o = {.ctx = 512};
    ck_assert_int_eq(score_ids(m, ids.ids, (int64_t)ids.n, &o, &whole, NULL), ERR_OK);
    ck_assert_int_eq(whole.n_windows, 1);
    ck_assert_int_eq(whole.n_scored, (int64_t)ids.n - 1);
    o.ctx = 16;
    o.stride = 8;
    ck_assert_int_eq(score_ids(m, ids.ids, (int64_t)ids.n, &o, &twice, NULL), ERR_OK);
    ck_assert_int_eq(twice.n_scored, whole.n_scored);
    ck_assert(twice.nll != whole.nll);
    score_free(&twice);
    /* Windows of the whole text by llama.cpp's rule: the second half of one window. */
    o = (struct score_options){.ctx = 32, .llama_windows = true};
    ck_assert_int_eq(score_ids(m, ids.ids, (int64_t)ids.n, &o, &twice, NULL), ERR_OK);
    ck_assert_int_eq(twice.n_windows, (int64_t)ids.n / 32);
    ck_assert_int_eq(twice.windows[0].n_scored, 15);
    score_free(&twice);
    score_free(&whole);
    token_list_free(&ids);
    lm_close(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch");
    TCase *t = tcase_create("batch");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, lines_come_in_order_and_faults_stay_on_their_line);
    tcase_add_test(t, what_is_no_text_and_tokens_that_are_not_there_get_error_lines);
    tcase_add_test(t, a_run_cut_anywhere_and_resumed_gives_the_same_bytes);
    tcase_add_loop_test(t, the_batch_does_not_change_the_answers, 0, 2);
    tcase_add_loop_test(t, turns_keep_their_prefix, 0, 2);
    tcase_add_test(t, prompt_text_never_becomes_a_control_token);
    tcase_add_test(t, traces_hold_what_was_chosen);
    tcase_add_test(t, scores_add_up_to_the_same_for_any_window_that_sees_all);
    suite_add_tcase(s, t);
    return s;
}
