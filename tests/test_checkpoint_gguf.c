/* test_checkpoint_gguf.c: GGUF files and their parts as checkpoints, and what is wrong with them.
 */
#include <math.h>

#include "tests/checkpoint_rig.h"

static void put_gguf(const char *name, struct gguf_maker *m)
{
    struct strbuf b = {0};
    gguf_finish(m, &b);
    write_file(dir, name, b.data, b.len);
    strbuf_free(&b);
}

START_TEST(gguf_opens_under_canonical_names)
{
    struct strbuf b = {0};
    tiny_gguf(&b);
    write_file(dir, "m.gguf", b.data, b.len);
    strbuf_free(&b);
    good_and_runs(at("m.gguf"));
    ck_assert_int_eq(c->format, CKPT_FORMAT_GGUF);
    ck_assert_uint_eq(c->n_weights, 20);
    ck_assert(c->hp.rms_eps == 1e-5 && c->hp.tied && c->hp.n_vocab == TINY_VOCAB);
    ck_assert_str_eq(c->chat_template, "{{ messages[0].content }}");
    ck_assert_ptr_nonnull(c->tokenizer_json);
    ck_assert_str_eq(json_string_value(json_object_get(c->tokenizer_config, "eos_token")), "</s>");
    const struct ckpt_weight *q = checkpoint_find(c, "model.layers.0.self_attn.q_proj.weight");
    const struct ckpt_weight *k = checkpoint_find(c, "model.layers.0.self_attn.k_proj.weight");
    const struct ckpt_weight *v = checkpoint_find(c, "model.layers.0.self_attn.v_proj.weight");
    ck_assert(q && k && v && q->rope_heads == 2 && k->rope_heads == 1 && v->rope_heads == 0);
    ck_assert_str_eq(q->stored, "blk.0.attn_q.weight");
    /* HF row h*32 + r*16 + i is stored at h*32 + 2*i + r. */
    ck_assert_int_eq(ckpt_weight_row(q, 32 + 16 + 5), 32 + 11);
    float row[64], raw[64];
    ck_assert_int_eq(ckpt_weight_decode(q, 53, 1, row, &err), ERR_OK);
    ck_assert(ggml_type_decode(GGML_Q4_0, q->data + 43 * 36, 64, raw));
    ck_assert_int_eq(memcmp(row, raw, sizeof row), 0);
    good_and_runs(dir); /* the one GGUF of a folder */
}
END_TEST

START_TEST(split_gguf_is_one_checkpoint)
{
    struct gguf_maker m = {.rng = {1, 0}};
    tiny_gguf_keys(&m);
    gguf_u32(&m, "split.count", 2);
    gguf_u32(&m, "split.no", 0);
    gguf_u32(&m, "split.tensors.count", 20);
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, TINY_VOCAB, 64, NULL);
    gguf_tensor(&m, "output_norm.weight", GGML_F32, 0, 64, NULL);
    tiny_gguf_layers(&m, 0, 1);
    put_gguf("x-00001-of-00002.gguf", &m);
    bad(at("x-00001-of-00002.gguf"), "part 'x-00002-of-00002.gguf' is missing");
    m.rng = (struct rng){2, 0};
    gguf_u32(&m, "split.count", 2);
    gguf_u32(&m, "split.no", 1);
    tiny_gguf_layers(&m, 1, 2);
    put_gguf("x-00002-of-00002.gguf", &m);
    good_and_runs(at("x-00001-of-00002.gguf"));
    ck_assert_uint_eq(c->n_files, 2);
    ck_assert_uint_eq(c->n_weights, 20);
    good_and_runs(dir);
    bad(at("x-00002-of-00002.gguf"), "part 2 of a split GGUF, expected the first part");
    gguf_u32(&m, "split.count", 3);
    gguf_u32(&m, "split.no", 1);
    put_gguf("x-00002-of-00002.gguf", &m);
    bad(at("x-00001-of-00002.gguf"), "part 2 of 3, expected part 2 of 2");
    gguf_u32(&m, "split.count", 2);
    gguf_u32(&m, "split.no", 1);
    put_gguf("x-00002-of-00002.gguf", &m);
    bad(at("x-00001-of-00002.gguf"), "11 tensors in its parts, expected 20");
}
END_TEST

static void put_rope_gguf(const float factors[16])
{
    struct gguf_maker m = {.rng = {1, 0}};
    tiny_gguf_keys(&m);
    gguf_tensor(&m, "rope_freqs.weight", GGML_F32, 0, 16, factors);
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, TINY_VOCAB, 64, NULL);
    gguf_tensor(&m, "output_norm.weight", GGML_F32, 0, 64, NULL);
    tiny_gguf_layers(&m, 0, 2);
    put_gguf("m.gguf", &m);
}

START_TEST(rope_divisors_become_llama3_only_when_they_are_those)
{
    float f[16];
    for (int i = 0; i < 16; i++) {
        double wave = 2 * 3.141592653589793 * pow(10000, i / 16.0);
        double t = (8192 / wave - 1) / 3;
        f[i] = wave < 2048 ? 1 : wave > 8192 ? 32 : (float)(1 / ((1 - t) / 32 + t));
    }
    put_rope_gguf(f);
    good_and_runs(at("m.gguf"));
    ck_assert_int_eq(c->hp.rope.kind, ROPE_LLAMA3);
    ck_assert(c->hp.rope.factor == 32 && c->hp.rope.original_ctx == 8192);
    ck_assert_uint_eq(c->n_weights, 20);
    f[10] *= 1.001f;
    put_rope_gguf(f);
    good_and_runs(at("m.gguf"));
    ck_assert_int_eq(c->hp.rope.kind, ROPE_FACTORS);
    ck_assert_int_eq(memcmp(c->hp.rope.factors, f, sizeof f), 0);
    f[3] = 0;
    put_rope_gguf(f);
    good_but(at("m.gguf"), "rope_freqs.weight': value 3 is 0");
}
END_TEST

START_TEST(rope_scaling_keys_of_a_gguf_are_read)
{
    for (int yarn = 0; yarn < 2; yarn++) {
        struct gguf_maker m = {.rng = {1, 0}};
        tiny_gguf_keys(&m);
        gguf_string(&m, "llama.rope.scaling.type", yarn ? "yarn" : "linear");
        gguf_f32(&m, "llama.rope.scaling.factor", 4);
        gguf_u32(&m, "llama.rope.scaling.original_context_length", 77);
        gguf_f32(&m, "llama.rope.scaling.yarn_beta_fast", 16);
        gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, TINY_VOCAB, 64, NULL);
        gguf_tensor(&m, "output_norm.weight", GGML_F32, 0, 64, NULL);
        tiny_gguf_layers(&m, 0, 2);
        put_gguf("m.gguf", &m);
        good_and_runs(at("m.gguf"));
        ck_assert_int_eq(c->hp.rope.kind, yarn ? ROPE_YARN : ROPE_LINEAR);
        ck_assert(c->hp.rope.factor == 4);
        if (yarn)
            ck_assert(c->hp.rope.original_ctx == 77 && c->hp.rope.beta_fast == 16);
    }
}
END_TEST

START_TEST(a_vocabulary_that_cannot_be_used_is_said)
{
    static const char *const tokens[] = {"a", "b", "a"};
    struct gguf_maker m = {.rng = {1, 0}};
    tiny_gguf_keys(&m);
    gguf_string(&m, "tokenizer.ggml.model", "gpt2");
    gguf_string(&m, "tokenizer.ggml.pre", "unheard-of");
    gguf_strings(&m, "tokenizer.ggml.tokens", tokens, 3);
    put_gguf("m.gguf", &m);
    good(at("m.gguf"));
    ck_assert_ptr_null(c->tokenizer_json);
    expect(c->tokenizer_err.text, "'unheard-of' is not a pre-tokenizer that is known");
    gguf_string(&m, "general.architecture", "llama");
    gguf_string(&m, "tokenizer.ggml.model", "gpt2");
    gguf_string(&m, "tokenizer.ggml.pre", "gpt-2");
    gguf_strings(&m, "tokenizer.ggml.tokens", tokens, 3);
    put_gguf("m.gguf", &m);
    good(at("m.gguf"));
    expect(c->tokenizer_err.text, "entries 0 and 2 are equal");
    gguf_string(&m, "general.architecture", "llama");
    gguf_string(&m, "tokenizer.ggml.model", "gpt2");
    gguf_string(&m, "tokenizer.ggml.pre", "gpt-2");
    gguf_strings(&m, "tokenizer.ggml.tokens", tokens, 2);
    put_gguf("m.gguf", &m);
    good(at("m.gguf"));
    expect(c->tokenizer_err.text, "'tokenizer.ggml.merges' is missing");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("checkpoint_gguf");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, gguf_opens_under_canonical_names);
    tcase_add_test(t, split_gguf_is_one_checkpoint);
    tcase_add_test(t, rope_divisors_become_llama3_only_when_they_are_those);
    tcase_add_test(t, rope_scaling_keys_of_a_gguf_are_read);
    tcase_add_test(t, a_vocabulary_that_cannot_be_used_is_said);
    suite_add_tcase(s, t);
    return s;
}
