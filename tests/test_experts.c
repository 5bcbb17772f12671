/* test_experts.c: checkpoints with experts: a tensor each, fused or stacked is one weight with the
 * same rows; what is missing, extra, misshapen or contradictory is named; published shapes count
 * right.
 */
#include <stdlib.h>

#include "ckpt/checkpoint.h"
#include "infer/model.h"
#include "infer/shapes.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

enum { EXPERTS = 12, FF = 32, D = 64 };

#define EXPERT_CONFIG                                                                              \
    "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":32,"                     \
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"vocab_size\":16,\"tie_word_embeddings\":true"
#define COUNTS(n, used) ",\"num_local_experts\":" n ",\"num_experts_per_tok\":" used

static char dir[64];
static struct checkpoint *c;

static void setup(void)
{
    ck_assert_ptr_nonnull(make_folder(dir));
    c = NULL;
}

static void teardown(void)
{
    checkpoint_close(c);
    remove_folder(dir);
}

/* Which single expert is written otherwise. */
struct oddity {
    int left_out, wide, typed; /* a number that is left out, has more rows, is F32; -1: none */
};
static const struct oddity none = {-1, -1, -1};

static void put_matrix(struct st_maker *m, const char *stored, int64_t rows, int64_t k,
                       struct oddity odd)
{
    char name[128];
    for (int i = 0; i < EXPERTS; i++) {
        snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.%s.weight", i,
                 stored);
        bool typed = i == odd.typed;
        if (i != odd.left_out)
            st_tensor(m, name, typed ? "F32" : "BF16", typed ? 4 : 2, rows + (i == odd.wide), k);
    }
}

static void put_folder(const char *config, struct oddity odd)
{
    static const struct {
        const char *name;
        int64_t rows, k;
    } parts[] = {{"input_layernorm", 0, D},
                 {"self_attn.q_proj", 64, D},
                 {"self_attn.k_proj", 32, D},
                 {"self_attn.v_proj", 32, D},
                 {"self_attn.o_proj", D, 64},
                 {"post_attention_layernorm", 0, D},
                 {"block_sparse_moe.gate", EXPERTS, D}};
    struct st_maker m = {.rng = {3, 0}};
    struct strbuf b = {0};
    char name[128];
    st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, 16, D);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        snprintf(name, sizeof name, "model.layers.0.%s.weight", parts[i].name);
        st_tensor(&m, name, "BF16", 2, parts[i].rows, parts[i].k);
    }
    put_matrix(&m, "w1", FF, D, none);
    put_matrix(&m, "w3", FF, D, odd);
    put_matrix(&m, "w2", D, FF, none);
    st_tensor(&m, "model.norm.weight", "BF16", 2, 0, D);
    st_finish(&m, &b);
    write_file(dir, "model.safetensors", b.data, b.len);
    write_text(dir, "config.json", config);
    strbuf_free(&b);
}

static void open_folder(void)
{
    struct err e = {.text = ""};
    checkpoint_close(c);
    if (checkpoint_open(&c, dir, &e) != ERR_OK)
        ck_abort_msg("%s", e.text);
}

static void cannot_run(const char *words)
{
    open_folder();
    ck_assert_msg(!c->hp_ok, "runs, expected '%s'", words);
    ck_assert_msg(strstr(c->hp_err.text, words) != NULL, "'%s' does not say '%s'", c->hp_err.text,
                  words);
    ck_assert_ptr_nonnull(strstr(c->hp_err.text, dir)); /* the place */
}

/* ---- stacking ----------------------------------------------------------------------------------
 */

/* Twelve experts: their names do not sort as their numbers do. */
START_TEST(single_experts_are_one_weight_in_the_order_of_their_numbers)
{
    put_folder(EXPERT_CONFIG COUNTS("12", "2") "}", none);
    open_folder();
    ck_assert_msg(c->hp_ok, "%s", c->hp_err.text);
    ck_assert_uint_eq(c->n_weights, 2 + 7 + 3);
    const struct ckpt_weight *w =
        checkpoint_find(c, "model.layers.0.block_sparse_moe.experts.up_proj.weight");
    ck_assert(w && w->n_dim == 3 && w->dim[0] == EXPERTS && w->dim[1] == FF && w->dim[2] == D);
    ck_assert(w->role == ROLE_EXPERT && w->layer == 0 && w->blocks && !w->data);
    ck_assert_uint_eq(w->bytes, EXPERTS * FF * D * 2);
    for (int i = 0; i < EXPERTS; i++) {
        char name[128];
        float row[D];
        struct ckpt_block at;
        snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.w3.weight", i);
        const struct tensor *t = container_find(c->files[0], name);
        ck_assert_int_eq(ckpt_weight_at(w, i * FF + 5, &at), FF - 5);
        ck_assert(t && at.data == t->data + (size_t)5 * D * 2);
        ck_assert(ckpt_weight_decode(w, i * FF + 5, 1, row, NULL) == ERR_OK);
        ck_assert(row[3] == bf16_to_f32(load_u16(t->data + ((size_t)5 * D + 3) * 2)));
    }
}
END_TEST

START_TEST(experts_that_do_not_fit_together_are_named)
{
    const char *config = EXPERT_CONFIG COUNTS("12", "2") "}";
    put_folder(config, (struct oddity){4, -1, -1});
    cannot_run("experts.4.up_proj.weight' is missing: experts are numbered up to 11");
    put_folder(config, (struct oddity){-1, 7, -1});
    cannot_run("experts.7.up_proj.weight' differ in shape or format");
    put_folder(config, (struct oddity){-1, -1, 3});
    cannot_run("experts.3.up_proj.weight' differ in shape or format");
    put_folder(config, (struct oddity){11, -1, -1}); /* the last one: too few */
    cannot_run("experts.up_proj.weight': shape [11, 32, 64], expected [12, 32, 64]");
}
END_TEST

START_TEST(configs_that_contradict_themselves_or_the_shapes_are_refused)
{
    put_folder(EXPERT_CONFIG COUNTS("12", "13") "}", none);
    cannot_run("num_experts_per_tok 13 of num_local_experts 12: too few experts");
    put_folder(EXPERT_CONFIG COUNTS("0", "1") "}", none);
    cannot_run("no experts, expected at least one");
    put_folder(EXPERT_CONFIG COUNTS("16", "2") "}", none);
    cannot_run("expected [16, ");
    put_folder(EXPERT_CONFIG COUNTS("\"12\"", "2") "}", none);
    cannot_run("num_local_experts");
    put_folder(EXPERT_CONFIG COUNTS("12", "0") "}", none);
    cannot_run("num_experts_per_tok");
    put_folder(EXPERT_CONFIG COUNTS("12", "2") ",\"hidden_act\":\"relu\"}", none);
    cannot_run("relu");
}
END_TEST

START_TEST(layers_without_experts_are_read)
{
    static const struct {
        const char *keys, *pattern;
    } cases[] = {{"", "eeeee"},
                 {",\"decoder_sparse_step\":2", ".e.e."},
                 {",\"mlp_only_layers\":[0,4,77]", ".eee."},
                 {",\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]", "...e."},
                 {",\"num_experts\":0", "....."}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[512];
        struct hparams hp;
        json_t *config = NULL;
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"intermediate_size\":32,"
                 "\"num_hidden_layers\":5,\"num_attention_heads\":4,\"vocab_size\":16%s}",
                 cases[i].keys);
        ck_assert(json_parse(text, strlen(text), &config, NULL) == ERR_OK);
        ck_assert(hparams_from_config(&hp, config, NULL, NULL) == ERR_OK);
        for (int l = 0; l < 5; l++)
            ck_assert_msg(hp.sparse[l] == (cases[i].pattern[l] == 'e'), "case %zu, layer %d", i, l);
        ck_assert(hp.softmax_all && !hp.norm_topk && hp.d_ff_expert == 768 && hp.qk_norm);
        json_decref(config);
    }
    struct hparams hp;
    struct err e = {.text = ""};
    json_t *bad = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:[s]}", "model_type", "qwen3_moe",
                            "hidden_size", 64, "intermediate_size", 32, "num_hidden_layers", 2,
                            "num_attention_heads", 4, "vocab_size", 16, "mlp_only_layers", "one");
    ck_assert(hparams_from_config(&hp, bad, NULL, &e) == ERR_INPUT);
    ck_assert_msg(strstr(e.text, "mlp_only_layers") != NULL, "%s", e.text);
    json_decref(bad);
}
END_TEST

/* ---- GGUF --------------------------------------------------------------------------------------
 */

START_TEST(a_gguf_must_have_the_keys_of_its_experts)
{
    static const char *const keys[] = {"qwen3moe.expert_count", "qwen3moe.expert_used_count",
                                       "qwen3moe.expert_feed_forward_length"};
    for (size_t missing = 0; missing < ARRAY_LEN(keys); missing++) {
        struct gguf_maker m = {.rng = {1, 0}};
        struct strbuf b = {0};
        gguf_string(&m, "general.architecture", "qwen3moe");
        gguf_u32(&m, "qwen3moe.embedding_length", 64);
        gguf_u32(&m, "qwen3moe.block_count", 1);
        gguf_u32(&m, "qwen3moe.context_length", 128);
        gguf_f32(&m, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6F);
        gguf_f32(&m, "qwen3moe.rope.freq_base", 1e6F);
        gguf_u32(&m, "qwen3moe.feed_forward_length", 96);
        gguf_u32(&m, "qwen3moe.attention.head_count", 2);
        for (size_t i = 0; i < ARRAY_LEN(keys); i++)
            if (i != missing)
                gguf_u32(&m, keys[i], 4);
        gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, 16, 64, NULL);
        gguf_finish(&m, &b);
        write_file(dir, "m.gguf", b.data, b.len);
        strbuf_free(&b);
        cannot_run(keys[missing]);
    }
}
END_TEST

/* ---- published shapes --------------------------------------------------------------------------
 */

START_TEST(published_shapes_have_the_published_numbers_of_parameters)
{
    static const struct {
        const char *name;
        int64_t params;
    } published[] = {{"llama3-8b", 8030261248},      {"qwen3-4b", 4022468096},
                     {"qwen3-30b-a3b", 30532122624}, {"mixtral-8x7b", 46702792704},
                     {"gemma4-31b", 30697345340},    {"gemma4-26b-a4b", 25233141790},
                     {"gemma4-e4b", 7463013418},     {"smollm2-135m", 134515008}};
    struct kern *k = NULL;
    const struct kern_options o = {.device = "cpu", .arith = KERN_MMA90, .threads = 1};
    ck_assert(kern_open(&k, &o, NULL) == ERR_OK);
    for (size_t i = 0; i < ARRAY_LEN(published); i++) {
        struct checkpoint *s = NULL;
        struct model *m = NULL;
        struct err e = {.text = ""};
        int64_t params = 0;
        if (shapes_checkpoint(&s, published[i].name, &e) != ERR_OK)
            ck_abort_msg("%s", e.text);
        for (size_t j = 0; j < s->n_weights; j++)
            params += ckpt_weight_rows(&s->weights[j]) * ckpt_weight_k(&s->weights[j]);
        ck_assert_msg(params == published[i].params, "%s: %lld, expected %lld", published[i].name,
                      (long long)params, (long long)published[i].params);
        if (model_bind(&m, s, &e) != ERR_OK)
            ck_abort_msg("%s", e.text);
        double bits = 8.0 * (double)model_weight_bytes(m, k) / (double)params;
        ck_assert_msg(bits > 4.49 && bits < 4.6, "%s: %g bits per parameter", published[i].name,
                      bits);
        model_free(m, NULL);
        shapes_free(s);
    }
    kern_close(k);
}
END_TEST

START_TEST(an_unknown_shape_names_those_that_there_are)
{
    struct checkpoint *s = NULL;
    struct err e = {.text = ""};
    ck_assert_int_eq(shapes_checkpoint(&s, "gpt-7", &e), ERR_USAGE);
    ck_assert(!s && strstr(e.text, "gpt-7") && strstr(e.text, "mixtral-8x7b"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("experts");
    TCase *t = tcase_create("experts");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, single_experts_are_one_weight_in_the_order_of_their_numbers);
    tcase_add_test(t, experts_that_do_not_fit_together_are_named);
    tcase_add_test(t, configs_that_contradict_themselves_or_the_shapes_are_refused);
    tcase_add_test(t, layers_without_experts_are_read);
    tcase_add_test(t, a_gguf_must_have_the_keys_of_its_experts);
    tcase_add_test(t, published_shapes_have_the_published_numbers_of_parameters);
    tcase_add_test(t, an_unknown_shape_names_those_that_there_are);
    suite_add_tcase(s, t);
    return s;
}
