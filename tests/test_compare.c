/* test_compare.c: what the comparison concludes, from tiny models and from doctored traces. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "evals/report.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static const char prompts_text[] =
    "{\"custom_id\":\"a\",\"prompt\":\"the cat\",\"max_tokens\":9}\n"
    "{\"custom_id\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":7}\n"
    "{\"custom_id\":\"c\",\"turns\":[\"one\",\"two\"],\"max_tokens\":4}\n";

static char *model(const char *name, enum tiny_form form)
{
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    char *dir = io_join(test_folder(), name);
    m.d_ff = 128;
    m.n_layer = 2;
    m.ctx = 256;
    m.form = form;
    ck_assert_msg(tiny_model_write(dir, &m, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(tiny_text_write(dir, &e) == ERR_OK, "%s", e.text);
    return dir;
}

static struct compare_gates gates; /* of the comparisons of a test */

static struct comparison *compare(const char *const *paths, size_t n, enum kern_arith arith,
                                  int batch, bool exact)
{
    char *prompts = io_join(test_folder(), "p.jsonl");
    struct compare_options o = {
        .paths = paths,
        .n_paths = n,
        .prompts = prompts,
        .engine = {.kern = {.device = "cpu", .arith = arith, .threads = 1, .isa = "auto"},
                   .batch_seqs = batch,
                   .top_k = PROMPT_TOP_MAX},
        .exact = exact,
        .forced_prompts = true,
        .gates = &gates,
        .trace_dir = test_folder()};
    struct comparison *c = NULL;
    struct err e = {.text = ""};
    prompt_defaults_init(&o.defaults);
    ck_assert_int_eq(io_write_all(prompts, prompts_text, strlen(prompts_text), true, NULL), ERR_OK);
    enum err_code rc = compare_run(&c, &o, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.text);
    free(prompts);
    return c;
}

START_TEST(packed_and_expanded_are_the_same_bits)
{
    bool f32 = _i == 0;
    char *a = model("a", TINY_PACKED),
         *b = model("b", f32 ? TINY_EXPANDED_F32 : TINY_EXPANDED_BF16);
    const char *paths[] = {a, b};
    struct comparison *c = compare(paths, 2, f32 ? KERN_F32 : KERN_MMA90, 2, true);
    ck_assert_int_eq(c->verdict, COMPARE_SAME);
    ck_assert(c->pairs[0].same_bits && c->pairs[0].n_records == 4);
    ck_assert(c->pairs[0].f.kl.value == 0 && c->pairs[0].f.agreement.value == 1);
    ck_assert_uint_eq(c->pairs[0].n_positions, 9 + 7 + 4 + 4);
    for (size_t i = 0; f32 && i < c->pairs[0].n_weights; i++)
        ck_assert(c->pairs[0].weights[i].relative_rms == 0);
    for (size_t i = 0; i < c->pairs[0].n_positions; i++)
        ck_assert(c->pairs[0].positions[i].same_bits);
    compare_free(c);
    free(a);
    free(b);
}
END_TEST

START_TEST(other_weights_differ_and_have_figures)
{
    char *a = model("a", TINY_F32), *b = model("b", TINY_PACKED);
    const char *paths[] = {a, b};
    struct comparison *c = compare(paths, 2, KERN_F32, 4, false);
    const struct pair *p = &c->pairs[0];
    ck_assert_int_eq(c->verdict, COMPARE_DIFFER);
    ck_assert(p->forced && p->f.kl.value > 0 && p->f.kl_rev.value > 0);
    ck_assert(p->f.kl.lo <= p->f.kl.value && p->f.kl.value <= p->f.kl.hi);
    ck_assert(p->f.ref_ppl >= 1 && p->f.var_ppl >= 1);
    /* The floor is the reference's own bf16 path, and far below what the packed weights do. */
    ck_assert(c->has_floor && c->floor.kl.value > 0 && c->floor.kl.value < p->f.kl.value);
    ck_assert(c->decided > 0 && c->decided < COMPARE_DECIDED);
    ck_assert_str_eq(c->floor_path, "mma90");
    ck_assert(p->f.js.value > 0 && p->f.js.value < log(2) && p->f.top_shared.value < 1);
    ck_assert(p->f.kl_quantile[0].value <= p->f.kl_quantile[3].value);
    ck_assert(p->has_roles && p->by_role[ROLE_OF_ANSWER].n == 0);
    ck_assert(p->by_role[ROLE_OF_USER].n > 10 && p->by_role[ROLE_OF_USER].kl.value > 0);
    ck_assert(p->by_role[ROLE_OF_TEMPLATE].n > 1 && p->by_role[ROLE_OF_TEMPLATE].kl.value > 0);
    ck_assert_uint_eq(c->n_clusters, 3); /* the conversation's turns are one */
    ck_assert(p->n_weights > 10 && p->has_census);
    for (size_t i = 0; i < p->n_weights; i++)
        if (p->weights[i].role == ROLE_MLP)
            ck_assert(p->weights[i].relative_rms > 0 && isfinite(p->weights[i].sqnr));
    ck_assert_double_eq_tol(p->f.ppl_log_ratio.value, log(p->f.var_ppl / p->f.ref_ppl), 1e-9);
    compare_free(c);
    free(a);
    free(b);
}
END_TEST

START_TEST(gates_decide_whatever_the_tokens)
{
    static const struct {
        struct {
            enum compare_gate gate;
            double bound;
        } on[3];
        int n;
        enum compare_verdict verdict;
        const char *said;
    } cases[] = {
        {{{GATE_MAX_KL, 100}}, 1, COMPARE_SAME, ""},
        {{{GATE_MAX_KL, 1e-9}}, 1, COMPARE_DIFFER, "KL is "},
        {{{GATE_MAX_KL_P999, 100}, {GATE_MIN_TOP, 0}, {GATE_MAX_JS, 1}}, 3, COMPARE_SAME, ""},
        {{{GATE_MAX_PPL_RATIO, 1e6}, {GATE_MIN_EXACT, 1}}, 2, COMPARE_DIFFER, "exact match is "},
        {{{GATE_MIN_AGREEMENT, 1}}, 1, COMPARE_DIFFER, "expected at least 1"},
        {{{GATE_MIN_COHERENT, 0}}, 1, COMPARE_SAME, ""},
    };
    char *a = model("a", TINY_F32), *b = model("b", TINY_PACKED);
    const char *paths[] = {a, b};
    for (int i = 0; i < cases[_i].n; i++)
        gates.options.bound[cases[_i].on[i].gate] = cases[_i].on[i].bound;
    struct comparison *c = compare(paths, 2, KERN_F32, 4, false);
    ck_assert_int_eq(c->verdict, cases[_i].verdict);
    ck_assert_int_eq(c->pairs[0].n_gates, cases[_i].n);
    ck_assert_int_eq(c->pairs[0].verdict, VERDICT_QUANTIZATION);
    ck_assert_msg(strstr(c->gate, cases[_i].said) != NULL, "%s", c->gate);
    compare_free(c);
    free(a);
    free(b);
}
END_TEST

/* The figures of answer i of the first pair. */
static json_t *forced_of(json_t *report, size_t i)
{
    json_t *pair = json_array_get(json_object_get(report, "pairs"), 0);
    json_t *answer = json_array_get(json_object_get(pair, "per_answer"), i);
    return json_object_get(answer, "forced");
}

static double sum_of(json_t *report, const char *key)
{
    double sum = 0;
    for (size_t i = 0; i < 4; i++)
        sum += json_number_value(json_object_get(forced_of(report, i), key));
    return sum;
}

START_TEST(answers_add_up_to_the_figures)
{
    char *a = model("a", TINY_F32), *b = model("b", TINY_PACKED);
    const char *ab[] = {a, b}, *ba[] = {b, a};
    struct strbuf text[2] = {{0}};
    json_t *r[2];
    for (int i = 0; i < 2; i++) {
        struct comparison *c = compare(i ? ba : ab, 2, KERN_F32, 4, false);
        const struct pair *p = &c->pairs[0];
        report_json(c, &text[i]);
        ck_assert_int_eq(json_parse(text[i].data, text[i].len, &r[i], NULL), ERR_OK);
        double n = sum_of(r[i], "positions");
        ck_assert(n == (double)p->n_positions);
        ck_assert_double_eq_tol(sum_of(r[i], "kl") / n, p->f.kl.value, 1e-8);
        ck_assert_double_eq_tol(sum_of(r[i], "agree") / n, p->f.agreement.value, 1e-12);
        ck_assert_double_eq_tol(sum_of(r[i], "nll_diff") / n, p->f.ppl_log_ratio.value, 1e-8);
        compare_free(c);
    }
    /* The two references answer otherwise, so other text was forced. */
    for (size_t i = 0; i < 4; i++)
        ck_assert_str_ne(json_string_value(json_object_get(forced_of(r[0], i), "text")),
                         json_string_value(json_object_get(forced_of(r[1], i), "text")));
    for (int i = 0; i < 2; i++) {
        json_decref(r[i]);
        strbuf_free(&text[i]);
    }
    free(a);
    free(b);
}
END_TEST

START_TEST(equal_inputs_give_equal_reports_whatever_the_batch)
{
    struct strbuf html[2] = {{0}}, json[2] = {{0}}, md[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        char *a = model("a", TINY_F32), *b = model("b", TINY_PACKED);
        const char *paths[] = {a, b, b};
        struct comparison *c = compare(paths, 3, KERN_F32, i ? 1 : 3, false);
        ck_assert_str_eq(c->variants[2].name, "b#2");
        report_json(c, &json[i]);
        report_markdown(c, &md[i]);
        ck_assert_int_eq(report_html(c, &html[i], NULL), ERR_OK);
        compare_free(c);
        free(a);
        free(b);
    }
    ck_assert_str_eq(json[0].data, json[1].data);
    ck_assert_str_eq(md[0].data, md[1].data);
    ck_assert_str_eq(html[0].data, html[1].data);
    json_t *parsed = NULL;
    ck_assert_int_eq(json_parse(json[0].data, json[0].len, &parsed, NULL), ERR_OK);
    ck_assert_uint_eq(json_array_size(json_object_get(parsed, "pairs")), 2);
    json_decref(parsed);
    ck_assert_ptr_null(strstr(html[0].data, P_tmpdir));
    for (int i = 0; i < 2; i++) {
        strbuf_free(&html[i]);
        strbuf_free(&json[i]);
        strbuf_free(&md[i]);
    }
}
END_TEST

/* A trace made of one line each, with the parts that a case changes. */
static char *trace(const char *name, const char *tokenizer, const char *prompts, const char *id,
                   int32_t first_prompt_id, int32_t answer, const char *arith)
{
    const bool other = strcmp(arith, "f32") != 0; /* other bits and another fingerprint */
    struct trace_header h = {.model = "m", .top_k = 0};
    struct trace_writer *w;
    struct err e = {.text = ""};
    char *path = io_join(test_folder(), name);
    snprintf(h.arith, sizeof h.arith, "%s", arith);
    memset(h.fingerprint, other ? 'b' : 'a', 64);
    snprintf(h.tokenizer, sizeof h.tokenizer, "%064d", atoi(tokenizer));
    snprintf(h.prompts, sizeof h.prompts, "%064d", atoi(prompts));
    memset(h.chat_template, 'c', 64);
    ck_assert_msg(trace_writer_open(&w, path, &h, true, &e) == ERR_OK, "%s", e.text);
    struct trace_token tok[] = {{.id = 7, .hash = 1}, {.id = answer, .hash = other ? 3 : 2}};
    int32_t ids[] = {first_prompt_id, 2};
    struct trace_record r = {.custom_id = (char *)(uintptr_t)id,
                             .prompt_ids = ids,
                             .n_prompt = 2,
                             .finish = "stop",
                             .text = (char *)"",
                             .tok = tok,
                             .n = 2};
    trace_prompt_hash(ids, 2, r.prompt);
    ck_assert_int_eq(trace_writer_record(w, &r, &e), ERR_OK);
    ck_assert_int_eq(trace_writer_close(w, &e), ERR_OK);
    return path;
}

static const struct {
    const char *tokenizer, *prompts, *id;
    int32_t prompt_id, answer;
    enum compare_verdict verdict;
    const char *why;
} cases[] = {
    {"1", "1", "x", 1, 8, COMPARE_SAME, ""},
    {"1", "1", "x", 1, 9, COMPARE_DIFFER, ""},
    {"2", "1", "x", 1, 8, COMPARE_NOT_COMPARABLE, "the tokenizer"},
    {"1", "2", "x", 1, 8, COMPARE_NOT_COMPARABLE, "the prompt file"},
    {"1", "1", "y", 1, 8, COMPARE_NOT_COMPARABLE, "'x' turn 0 and 'y'"},
    {"1", "1", "x", 5, 8, COMPARE_NOT_COMPARABLE, "the tokens of prompt 'x'"},
};

START_TEST(traces_are_judged_and_other_questions_are_not)
{
    char *a = trace("a.jsonl", "1", "1", "x", 1, 8, "f32");
    char *b = trace("b.jsonl.gz", cases[_i].tokenizer, cases[_i].prompts, cases[_i].id,
                    cases[_i].prompt_id, cases[_i].answer, "f32");
    const char *paths[] = {a, b};
    struct comparison *c = compare(paths, 2, KERN_F32, 1, false);
    struct strbuf json = {0}, html = {0};
    ck_assert_int_eq(c->verdict, cases[_i].verdict);
    ck_assert_msg(strstr(c->pairs[0].not_comparable, cases[_i].why) != NULL, "%s",
                  c->pairs[0].not_comparable);
    ck_assert(!c->pairs[0].forced);
    report_json(c, &json);
    ck_assert_int_eq(report_html(c, &html, NULL), ERR_OK);
    ck_assert((strstr(json.data, "per_answer") == NULL) ==
              (cases[_i].verdict == COMPARE_NOT_COMPARABLE));
    strbuf_free(&json);
    strbuf_free(&html);
    compare_free(c);
    free(a);
    free(b);
}
END_TEST

/* Two arithmetics are two numeric paths, and the verdict says which: 8 is the reference's token. */
START_TEST(another_numeric_path_is_named)
{
    const bool same = _i == 0;
    char *a = trace("a.jsonl", "1", "1", "x", 1, 8, "f32");
    char *b = trace("b.jsonl", "1", "1", "x", 1, same ? 8 : 9, "mma80");
    const char *paths[] = {a, b};
    struct comparison *c = compare(paths, 2, KERN_F32, 1, false);
    ck_assert_int_eq(c->pairs[0].verdict, same ? VERDICT_SAME : VERDICT_UNKNOWN);
    ck_assert_msg(strstr(c->pairs[0].evidence, "another numeric path, f32 and mma80") != NULL, "%s",
                  c->pairs[0].evidence);
    compare_free(c);
    free(a);
    free(b);
}
END_TEST

static void no_gates(void)
{
    gates = (struct compare_gates){compare_bounds_none, compare_bounds_none, NULL, 0};
}

Suite *test_suite(void)
{
    Suite *s = suite_create("compare");
    TCase *t = tcase_create("compare");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, no_gates, NULL);
    tcase_add_loop_test(t, packed_and_expanded_are_the_same_bits, 0, 2);
    tcase_add_test(t, other_weights_differ_and_have_figures);
    tcase_add_test(t, answers_add_up_to_the_figures);
    tcase_add_test(t, equal_inputs_give_equal_reports_whatever_the_batch);
    tcase_add_loop_test(t, traces_are_judged_and_other_questions_are_not, 0, ARRAY_LEN(cases));
    tcase_add_loop_test(t, another_numeric_path_is_named, 0, 2);
    tcase_add_loop_test(t, gates_decide_whatever_the_tokens, 0, 6);
    suite_add_tcase(s, t);
    return s;
}
