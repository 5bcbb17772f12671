/* test_judge.c: known faults, told apart: each constructed case must get its verdict. */
#include "evals/judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "infer/runner_private.h"
#include "kernels/kernels_private.h"
#include "quant/quantize.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static const char prompts_text[] =
    "{\"custom_id\":\"a\",\"prompt\":\"the cat\",\"max_tokens\":24,\"ignore_eos\":true}\n"
    "{\"custom_id\":\"b\",\"prompt\":\"over the old bridge\",\"max_tokens\":24,"
    "\"ignore_eos\":true}\n"
    "{\"custom_id\":\"c\",\"turns\":[\"one\",\"two\"],\"max_tokens\":12,\"ignore_eos\":true}\n";

/* What is changed in the variant's folder after it is written. */
enum edit {
    EDIT_NONE,
    EDIT_ROPE,
    EDIT_TEMPLATE,
    EDIT_TOKENIZER,
    EDIT_BOS,
    EDIT_EPS,
    EDIT_SCALES, /* the scales of 64 groups of the head, damaged */
    EDIT_SCALE,  /* of one group */
    EDIT_HEAD,   /* the head packed with 3 bits, all else as it was */
    EDIT_LAYER,  /* layer 1 packed with 2 bits */
};

static void replace_text(const char *dir, const char *file, const char *from, const char *to)
{
    char *path = io_join(dir, file);
    struct strbuf in = {0}, out = {0};
    ck_assert_int_eq(io_read_all(path, 1 << 22, &in, NULL), ERR_OK);
    const char *at = strstr(in.data, from);
    ck_assert_msg(at != NULL, "%s: no '%s' in %s", file, from, in.data);
    strbuf_append(&out, in.data, (size_t)(at - in.data));
    strbuf_puts(&out, to);
    strbuf_puts(&out, at + strlen(from));
    ck_assert_int_eq(io_write_all(path, out.data, out.len, true, NULL), ERR_OK);
    strbuf_free(&in);
    strbuf_free(&out);
    free(path);
}

/* Overwrites the first n scales of the head. */
static void damage(const char *dir, int n)
{
    char *path = io_join(dir, "model.safetensors");
    struct strbuf b = {0};
    ck_assert_int_eq(io_read_all(path, 1 << 26, &b, NULL), ERR_OK);
    const char *name = strstr(b.data + 8, "lm_head.scales");
    ck_assert_ptr_nonnull(name);
    const char *off = strstr(name, "data_offsets\":[");
    ck_assert_ptr_nonnull(off);
    size_t at = (size_t)strtoull(off + strlen("data_offsets\":["), NULL, 10);
    uint8_t *data = (uint8_t *)b.data + 8 + load_u64(b.data) + at;
    for (int i = 0; i < n; i++)
        store_u16(data + 2 * i, 0x4200); /* bf16 32 */
    ck_assert_int_eq(io_write_all(path, b.data, b.len, true, NULL), ERR_OK);
    strbuf_free(&b);
    free(path);
}

/* Packs the folder by one rule, in its place. */
static void quantize(const char *dir, const char *rule)
{
    char text[200], *out = io_join(test_folder(), "packed");
    struct checkpoint *c;
    struct recipe *r;
    struct plan *p;
    struct quantize_summary s;
    struct err e = {.text = ""};
    snprintf(text, sizeof text, "why: test\nrules:\n  %s", rule);
    ck_assert_msg(checkpoint_open(&c, dir, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(recipe_parse(&r, text, strlen(text), "test.yaml", &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(plan_from_recipe(&p, c, r, &e) == ERR_OK, "%s", e.text);
    struct quantize_job j = {.plan = p, .out = out, .command = "quantize", .force = true};
    j.pack.threads = 1;
    j.pack.isa = affine_isa_best();
    ck_assert_msg(quantize_run(&j, &s, &e) == ERR_OK, "%s", e.text);
    plan_free(p);
    recipe_free(r);
    checkpoint_close(c);
    tiny_remove(dir);
    ck_assert_int_eq(rename(out, dir), 0);
    free(out);
}

static void apply_edit(const char *dir, enum edit edit)
{
    switch (edit) {
    case EDIT_NONE:
        break;
    case EDIT_ROPE:
        replace_text(dir, "config.json", "\"rope_theta\": 10000", "\"rope_theta\": 20000");
        break;
    case EDIT_TEMPLATE:
        replace_text(dir, "tokenizer_config.json", "<|assistant|>", "<|assistant|> ");
        break;
    case EDIT_TOKENIZER:
        replace_text(dir, "tokenizer.json", "\"version\"", "\"Version\": 2, \"version\"");
        break;
    case EDIT_BOS:
        replace_text(dir, "config.json", "\"bos_token_id\": 0", "\"bos_token_id\": 7");
        break;
    case EDIT_EPS:
        replace_text(dir, "config.json", "\"rms_norm_eps\": ", "\"rms_norm_eps\": 3");
        break;
    case EDIT_SCALES:
        damage(dir, 64);
        break;
    case EDIT_SCALE:
        damage(dir, 1);
        break;
    case EDIT_HEAD:
        quantize(dir, "- role: head\n    bits: 3\n");
        break;
    case EDIT_LAYER:
        quantize(dir, "- layers: 1\n    role: attention,mlp\n    bits: 2\n");
        break;
    }
}

static const struct known {
    const char *name;
    enum tiny_form ref, var; /* of one seed: the same values where the forms allow it */
    int ref_bits, var_bits, arith;
    enum kern_fault fault;
    size_t planted; /* in the runs of this side; 2: of both */
    bool other_seed;
    enum edit edit;
    bool force;
    enum pair_verdict verdict;
    const char *word; /* in the evidence */
} cases[] = {
    /* Same: a copy, a repacked copy, expanded copies. */
    {"copy", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"expanded", TINY_PACKED, TINY_EXPANDED_F32, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    {"expanded", TINY_PACKED, TINY_EXPANDED_BF16, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    {"expanded", TINY_EXPANDED_BF16, TINY_PACKED, 8, 8, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    /* Nondeterministic: a race in either side, or in both. */
    {"race", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_RACE, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"race", TINY_F32, TINY_PACKED, 4, 4, 0, KERN_FAULT_RACE, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"race", TINY_PACKED, TINY_PACKED, 4, 3, 1, KERN_FAULT_RACE, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "down"},
    {"race", TINY_BF16, TINY_PACKED, 4, 2, 1, KERN_FAULT_RACE, 1, true, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"race", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_RACE, 1, false, EDIT_ROPE, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    /* Threads that race each other: nothing but their timing decides. */
    {"threads", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_THREADS, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"threads", TINY_PACKED, TINY_PACKED, 4, 3, 0, KERN_FAULT_THREADS, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"threads", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_THREADS, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "down"},
    /* Path: K and V of fewer bits, an order that depends on the batch, a damaged expansion. */
    {"kv8", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_KV8, 1, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"kv8", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_KV8, 1, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"kv8", TINY_PACKED, TINY_EXPANDED_F32, 4, 4, 0, KERN_FAULT_KV8, 1, false, 0, false,
     VERDICT_PATH, "equal values"},
    {"kv8", TINY_PACKED, TINY_PACKED, 4, 4, 0, KERN_FAULT_KV8, 0, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"order", TINY_PACKED, TINY_PACKED, 4, 3, 0, KERN_FAULT_CHUNK_ORDER, 1, false, 0, false,
     VERDICT_PATH, "batch"},
    {"order", TINY_F32, TINY_PACKED, 4, 4, 1, KERN_FAULT_CHUNK_ORDER, 0, false, 0, false,
     VERDICT_PATH, "batch"},
    {"expander", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_EXPAND, 1, false, 0, false,
     VERDICT_PATH, "expand"},
    /* Quantization: fewer bits, a damaged scale, other weights. */
    {"4 bits", TINY_F32, TINY_PACKED, 4, 4, 0, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"3 bits", TINY_PACKED, TINY_PACKED, 8, 3, 0, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"2 bits", TINY_PACKED, TINY_PACKED, 4, 2, 1, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"scales", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, EDIT_SCALES, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"a scale", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, EDIT_SCALE, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"a scale", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, EDIT_SCALE, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"the head", TINY_BF16, TINY_BF16, 4, 4, 0, 0, 2, false, EDIT_HEAD, false, VERDICT_QUANTIZATION,
     "most in lm_head"},
    {"the head", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_HEAD, false, VERDICT_QUANTIZATION,
     "most in lm_head"},
    {"a layer", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_LAYER, false, VERDICT_QUANTIZATION,
     "most in model.layers.1."},
    {"other weights", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, true, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    /* NOT COMPARABLE, the field named; forced, another model. */
    {"rope", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_ROPE, false, VERDICT_NOT_COMPARABLE,
     "rope base differs: 10000 and 20000"},
    {"template", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TEMPLATE, false,
     VERDICT_NOT_COMPARABLE, "the chat template"},
    {"tokenizer", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TOKENIZER, false,
     VERDICT_NOT_COMPARABLE, "the tokenizer"},
    {"bos", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_BOS, false, VERDICT_NOT_COMPARABLE,
     "bos"},
    {"epsilon", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_EPS, false, VERDICT_NOT_COMPARABLE,
     "epsilon"},
    {"rope", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_ROPE, true, VERDICT_OTHER_MODEL,
     "rope base"},
    {"template", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TEMPLATE, true, VERDICT_OTHER_MODEL,
     "the chat template"},
    {"bos", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_BOS, true, VERDICT_OTHER_MODEL, "bos"},
};

static char *write_model(const char *name, enum tiny_form form, int bits, uint64_t more)
{
    struct tiny_model m = tiny_model_default();
    struct err e = {.text = ""};
    char *dir = io_join(test_folder(), name);
    m.form = form;
    m.bits = bits;
    m.ctx = 256;
    m.seed += more;
    if (io_exists(dir))
        tiny_remove(dir);
    ck_assert_msg(tiny_model_write(dir, &m, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(tiny_text_write(dir, &e) == ERR_OK, "%s", e.text);
    return dir;
}

static void before(void *ctx, size_t variant)
{
    const struct known *k = ctx;
    kern_plant(k->planted == 2 || k->planted == variant ? k->fault : KERN_FAULT_NONE);
}

START_TEST(a_known_fault_gets_its_verdict)
{
    const struct known *k = &cases[_i];
    char *ref = write_model("reference", k->ref, k->ref_bits, 0);
    char *var = write_model("variant", k->var, k->var_bits, k->other_seed);
    char *prompts = io_join(test_folder(), "p.jsonl");
    const char *paths[] = {ref, var};
    struct err e = {.text = ""};
    struct comparison *c;
    struct compare_options o = {.paths = paths,
                                .n_paths = 2,
                                .prompts = prompts,
                                .engine = {.kern = {.device = "cpu", .threads = 2, .isa = "auto"},
                                           .kv_tokens = 4096,
                                           .top_k = PROMPT_TOP_MAX},
                                .no_floor = true,
                                .force_compare = k->force,
                                .trace_dir = test_folder(),
                                .before = before,
                                .ctx = (void *)(uintptr_t)k};
    o.engine.kern.arith = k->arith ? KERN_MMA90 : KERN_F32;
    prompt_defaults_init(&o.defaults);
    apply_edit(var, k->edit);
    ck_assert_int_eq(io_write_all(prompts, prompts_text, strlen(prompts_text), true, NULL), ERR_OK);
    before(o.ctx, 0);
    enum err_code rc = compare_run(&c, &o, &e);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_msg(rc == ERR_OK, "%s: %s", k->name, e.text);
    const struct pair *p = &c->pairs[0];
    ck_assert_msg(p->verdict == k->verdict, "%s: %s (%s), expected %s", k->name,
                  pair_verdict_name(p->verdict), p->evidence, pair_verdict_name(k->verdict));
    ck_assert_msg(strstr(p->evidence, k->word) != NULL, "%s: '%s' is not in: %s", k->name, k->word,
                  p->evidence);
    ck_assert_int_eq(c->verdict, k->verdict == VERDICT_NONDETERMINISTIC ? COMPARE_NONDETERMINISTIC
                                 : k->verdict == VERDICT_NOT_COMPARABLE ? COMPARE_NOT_COMPARABLE
                                 : p->same_ids                          ? COMPARE_SAME
                                                                        : COMPARE_DIFFER);
    compare_free(c);
    free(ref);
    free(var);
    free(prompts);
}
END_TEST

/* What some families alone have makes models NOT COMPARABLE too, and is named. */
START_TEST(a_field_of_a_family_is_named)
{
    static const char *const words[] = {"KV heads of full layers", "head's width in full layers",
                                        "layers that share keys", "width of layer inputs",
                                        "experts of a token"};
    struct checkpoint *m = calloc(2, sizeof *m);
    char why[200];
    ck_assert_ptr_nonnull(m);
    snprintf(m[0].hp.family, sizeof m[0].hp.family, "gemma4_text");
    m[1].hp = m[0].hp;
    judge_fields(&m[0], &m[1], why, sizeof why);
    ck_assert_str_eq(why, "");
    struct hparams *hp = &m[1].hp;
    hp->n_kv_full = _i == 0;
    hp->head_dim_full = _i == 1;
    hp->n_kv_shared = _i == 2;
    hp->d_input = _i == 3;
    hp->n_expert_used = _i == 4;
    judge_fields(&m[0], &m[1], why, sizeof why);
    ck_assert_msg(strstr(why, words[_i]) != NULL, "'%s' is not in: %s", words[_i], why);
    free(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("judge");
    TCase *t = tcase_create("judge");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_known_fault_gets_its_verdict, 0, (int)ARRAY_LEN(cases));
    tcase_add_loop_test(t, a_field_of_a_family_is_named, 0, 5);
    suite_add_tcase(s, t);
    return s;
}
