/* judge_rig.h: constructed cases of compare's verdict: two models of one seed, a fault in the runs
 * of either, an edit of the variant's folder, and the verdict that the pair must get.
 *
 * test_judge.c has the cases of the CPU, test_cuda_judge.c those of a CUDA device.
 */
#ifndef ASSAY_TESTS_JUDGE_RIG_H
#define ASSAY_TESTS_JUDGE_RIG_H

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "evals/judge.h"
#include "kernels/kernels_private.h"
#include "quant/quantize.h"
#include "tests/kernels_fixture.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static const char judge_prompts[] =
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

FIX_FN void judge_replace_text(const char *dir, const char *file, const char *from, const char *to)
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
FIX_FN void judge_damage(const char *dir, int n)
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
FIX_FN void judge_quantize(const char *dir, const char *rule)
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

FIX_FN void judge_edit(const char *dir, enum edit edit)
{
    switch (edit) {
    case EDIT_NONE:
        break;
    case EDIT_ROPE:
        judge_replace_text(dir, "config.json", "\"rope_theta\": 10000", "\"rope_theta\": 20000");
        break;
    case EDIT_TEMPLATE:
        judge_replace_text(dir, "tokenizer_config.json", "<|assistant|>", "<|assistant|> ");
        break;
    case EDIT_TOKENIZER:
        judge_replace_text(dir, "tokenizer.json", "\"version\"", "\"Version\": 2, \"version\"");
        break;
    case EDIT_BOS:
        judge_replace_text(dir, "config.json", "\"bos_token_id\": 0", "\"bos_token_id\": 7");
        break;
    case EDIT_EPS:
        judge_replace_text(dir, "config.json", "\"rms_norm_eps\": ", "\"rms_norm_eps\": 3");
        break;
    case EDIT_SCALES:
        judge_damage(dir, 64);
        break;
    case EDIT_SCALE:
        judge_damage(dir, 1);
        break;
    case EDIT_HEAD:
        judge_quantize(dir, "- role: head\n    bits: 3\n");
        break;
    case EDIT_LAYER:
        judge_quantize(dir, "- layers: 1\n    role: attention,mlp\n    bits: 2\n");
        break;
    }
}

struct judge_case {
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
};

FIX_FN char *judge_model(const char *name, enum tiny_form form, int bits, uint64_t more)
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

FIX_FN void judge_before(void *ctx, size_t variant)
{
    const struct judge_case *k = ctx;
    kern_plant(k->planted == 2 || k->planted == variant ? k->fault : KERN_FAULT_NONE);
}

FIX_FN void judge_check(const struct judge_case *k, const char *device, bool oracle)
{
    char *ref = judge_model("reference", k->ref, k->ref_bits, 0);
    char *var = judge_model("variant", k->var, k->var_bits, k->other_seed);
    char *prompts = io_join(test_folder(), "p.jsonl");
    const char *paths[] = {ref, var};
    struct err e = {.text = ""};
    struct comparison *c;
    struct compare_options o = {.paths = paths,
                                .n_paths = 2,
                                .prompts = prompts,
                                .engine = {.kern = {.device = device, .threads = 2, .isa = "auto"},
                                           .kv_tokens = 4096,
                                           .top_k = PROMPT_TOP_MAX},
                                .no_floor = true,
                                .oracle = oracle,
                                .force_compare = k->force,
                                .trace_dir = test_folder(),
                                .before = judge_before,
                                .ctx = (void *)(uintptr_t)k};
    o.engine.kern.arith = k->arith ? KERN_MMA90 : KERN_F32;
    prompt_defaults_init(&o.defaults);
    judge_edit(var, k->edit);
    ck_assert_int_eq(io_write_all(prompts, judge_prompts, strlen(judge_prompts), true, NULL),
                     ERR_OK);
    judge_before(o.ctx, 0);
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

#endif
