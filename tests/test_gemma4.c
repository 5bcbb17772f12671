/* test_gemma4.c: the parts that Gemma 4 alone has, at their edges: keys of a GGUF, tensors bound
 * by name, roles in a recipe. What they compute is held in tests/families. */
#include <stdlib.h>

#include "common/rng.h"
#include "infer/engine.h"
#include "infer/model.h"
#include "infer/shapes.h"
#include "quant/plan.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

/* ---- GGUF --------------------------------------------------------------------------------------
 */

enum { LAYERS = 5, SHARED = 2 };

/* Opens a GGUF of these widths, by layer or (n 1) one for all. */
static struct checkpoint *open_gguf(const int32_t *widths, size_t n, int experts)
{
    struct gguf_maker m = {.rng = {1, 0}};
    struct strbuf b = {0};
    struct checkpoint *c = NULL;
    struct err e = {.text = ""};
    const char *path = test_path(test_folder(), "m.gguf");
    gguf_string(&m, "general.architecture", "gemma4");
    gguf_u32(&m, "gemma4.embedding_length", 64);
    gguf_u32(&m, "gemma4.block_count", LAYERS);
    gguf_u32(&m, "gemma4.context_length", 128);
    gguf_f32(&m, "gemma4.attention.layer_norm_rms_epsilon", 1e-6F);
    gguf_f32(&m, "gemma4.rope.freq_base", 1e6F);
    if (n == 1)
        gguf_u32(&m, "gemma4.feed_forward_length", (uint32_t)widths[0]);
    else
        gguf_words(&m, "gemma4.feed_forward_length", GGUF_I32, widths, n);
    gguf_u32(&m, "gemma4.attention.head_count", 4);
    gguf_u32(&m, "gemma4.attention.head_count_kv", 1);
    gguf_u32(&m, "gemma4.attention.key_length", 32);
    gguf_u32(&m, "gemma4.attention.key_length_swa", 16);
    gguf_u32(&m, "gemma4.attention.sliding_window", 40);
    gguf_u32(&m, "gemma4.attention.sliding_window_pattern", 2);
    gguf_u32(&m, "gemma4.attention.shared_kv_layers", SHARED);
    gguf_u32(&m, "gemma4.embedding_length_per_layer_input", 32);
    if (experts) {
        gguf_u32(&m, "gemma4.expert_count", 8);
        gguf_u32(&m, "gemma4.expert_used_count", (uint32_t)experts);
        gguf_u32(&m, "gemma4.expert_feed_forward_length", 48);
    }
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, 16, 64, NULL);
    gguf_tensor(&m, "per_layer_token_embd.weight", GGML_Q8_0, 24, LAYERS * 32, NULL);
    gguf_tensor(&m, "blk.1.attn_v.weight", GGML_Q8_0, 32, 64, NULL);
    gguf_finish(&m, &b);
    test_spill(path, b.data, b.len);
    strbuf_free(&b);
    ck_assert_msg(checkpoint_open(&c, path, &e) == ERR_OK, "%s", e.text);
    return c;
}

static int64_t number_of(const struct checkpoint *c, const char *key)
{
    return json_integer_value(json_object_get(c->config, key));
}

START_TEST(a_gguf_says_what_its_layers_have)
{
    static const int32_t wide[LAYERS] = {96, 96, 96, 192, 192}, even[LAYERS] = {96, 96, 96, 96, 96};
    struct checkpoint *c = open_gguf(wide, LAYERS, 2);
    ck_assert_int_eq(number_of(c, "intermediate_size"), 96);
    ck_assert(json_is_true(json_object_get(c->config, "use_double_wide_mlp")));
    ck_assert(json_is_true(json_object_get(c->config, "enable_moe_block")));
    ck_assert(json_is_false(json_object_get(c->config, "attention_k_eq_v")));
    ck_assert_int_eq(number_of(c, "num_experts"), 8);
    ck_assert_int_eq(number_of(c, "top_k_experts"), 2);
    ck_assert_int_eq(number_of(c, "moe_intermediate_size"), 48);
    ck_assert_int_eq(number_of(c, "num_kv_shared_layers"), SHARED);
    ck_assert_int_eq(number_of(c, "hidden_size_per_layer_input"), 32);
    ck_assert_int_eq(number_of(c, "vocab_size_per_layer_input"), 24);
    ck_assert(!json_object_get(c->config, "num_local_experts"));
    checkpoint_close(c);
    c = open_gguf(even, LAYERS, 0);
    ck_assert(json_is_false(json_object_get(c->config, "use_double_wide_mlp")));
    ck_assert(!json_object_get(c->config, "enable_moe_block"));
    checkpoint_close(c);
    c = open_gguf(even, 1, 0);
    ck_assert_int_eq(number_of(c, "intermediate_size"), 96);
    ck_assert(!json_object_get(c->config, "use_double_wide_mlp"));
    checkpoint_close(c);
}
END_TEST

START_TEST(a_gguf_that_no_config_says_is_refused)
{
    static const struct {
        int32_t widths[LAYERS];
        size_t n;
        int experts;
        const char *words;
    } cases[] = {{{96, 96, 192, 192, 192}, LAYERS, 0, "layer 2 has 192, expected 96"},
                 {{96, 96, 96, 192, 96}, LAYERS, 0, "layer 3 has 192, expected 96"},
                 {{96, 96, 96, 144, 144}, LAYERS, 0, "layer 3 has 144, expected 192"},
                 {{96, 96, 192}, 3, 0, "3 entries for 5 layers"},
                 {{96}, 1, 9, "'top_k_experts'"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct checkpoint *c = open_gguf(cases[i].widths, cases[i].n, cases[i].experts);
        ck_assert_msg(!c->hp_ok && strstr(c->hp_err.text, cases[i].words), "'%s' lacks '%s'",
                      c->hp_err.text, cases[i].words);
        checkpoint_close(c);
    }
}
END_TEST

/* ---- binding -----------------------------------------------------------------------------------
 */

/* The shape's weights without one, with one of another name, or with one of another shape. */
START_TEST(every_tensor_is_bound_by_name_and_shape)
{
    static const char *const e_names[] = {"model.embed_tokens_per_layer.weight",
                                          "model.per_layer_model_projection.weight",
                                          "model.per_layer_projection_norm.weight",
                                          "model.layers.4.per_layer_input_gate.weight",
                                          "model.layers.4.per_layer_projection.weight",
                                          "model.layers.4.post_per_layer_input_norm.weight",
                                          "model.layers.4.self_attn.q_norm.weight",
                                          "model.layers.2.self_attn.k_norm.weight"};
    static const char *const a4b_names[] = {"model.layers.1.router.scale",
                                            "model.layers.1.router.per_expert_scale",
                                            "model.layers.1.router.proj.weight",
                                            "model.layers.1.experts.gate_proj.weight",
                                            "model.layers.1.experts.down_proj.weight",
                                            "model.layers.1.post_feedforward_layernorm_1.weight",
                                            "model.layers.1.post_feedforward_layernorm_2.weight",
                                            "model.layers.1.pre_feedforward_layernorm_2.weight",
                                            "model.layers.1.post_feedforward_layernorm.weight"};
    const char *const *names = _i ? a4b_names : e_names;
    const size_t n = _i ? ARRAY_LEN(a4b_names) : ARRAY_LEN(e_names);
    struct checkpoint *c;
    ck_assert(shapes_checkpoint(&c, _i ? "tiny-gemma4-a4b" : "tiny-gemma4-e", NULL) == ERR_OK);
    for (size_t i = 0; i < n; i++) {
        struct ckpt_weight *w = (struct ckpt_weight *)checkpoint_find(c, names[i]);
        struct err e = {.text = ""};
        struct model *m;
        char words[CKPT_NAME_MAX + 32];
        ck_assert_msg(w != NULL, "%s", names[i]);
        const char *name = w->name;
        w->dim[0]++;
        ck_assert_int_eq(model_bind(&m, c, &e), ERR_INPUT);
        snprintf(words, sizeof words, "tensor %s: found [", names[i]);
        ck_assert_msg(strstr(e.text, words) != NULL, "'%s' lacks '%s'", e.text, words);
        w->dim[0]--;
        char *other = strdup(name); /* sorts where the name did */
        other[strlen(other) - 1]++;
        w->name = other;
        ck_assert_int_eq(model_bind(&m, c, &e), ERR_INPUT);
        snprintf(words, sizeof words, "missing tensor %s, expected [", names[i]);
        ck_assert_msg(strstr(e.text, words) != NULL, "'%s' lacks '%s'", e.text, words);
        ck_assert_ptr_nonnull(strstr(e.text, "extra tensor"));
        w->name = name;
        free(other);
    }
    shapes_free(c);
}
END_TEST

START_TEST(keys_and_values_of_sharing_layers_are_extra)
{
    struct checkpoint *c;
    struct model *m = NULL;
    struct err e = {.text = ""};
    ck_assert(shapes_checkpoint(&c, "tiny-gemma4-e", NULL) == ERR_OK);
    ck_assert(!checkpoint_find(c, "model.layers.3.self_attn.k_proj.weight"));
    c->hp.n_kv_shared = 3; /* then layer 2 shares, too */
    ck_assert_int_eq(model_bind(&m, c, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "extra tensor model.layers.2.self_attn.k_"));
    shapes_free(c);
}
END_TEST

/* ---- rows that give no logits ------------------------------------------------------------------
 */

enum { N = 150, OTHER = 40 }; /* past the window of 100 and two pages */

struct feed {
    struct engine *en;
    struct checkpoint *c;
    int32_t ids[N];
    uint64_t hash[N]; /* of the logits of rows that gave some; else 0 */
};

static void feed_open(struct feed *f, int arith)
{
    struct err e = {.text = ""};
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto", .threads = 2}};
    struct rng r = {9, 0};
    *f = (struct feed){.en = NULL};
    o.kern.arith = arith ? KERN_MMA90 : KERN_F32;
    o.batch_tokens = o.out_rows = 256;
    o.batch_seqs = 3;
    o.ctx = 256;
    ck_assert_msg(shapes_checkpoint(&f->c, "tiny-gemma4-e", &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(engine_new(&f->en, f->c, &o, &e) == ERR_OK, "%s", e.text);
    for (int i = 0; i < N; i++)
        f->ids[i] = (int32_t)rng_below(&r, 512);
    for (int32_t page = 0; page < 9; page++)
        ck_assert(engine_zero_page(f->en, page, &e) == ERR_OK);
    ck_assert(engine_poison(f->en, &e) == ERR_OK);
}

/* Tokens from..to of the sequence, of which the last `outs` give logits, between two others. */
static void feed_step(struct feed *f, int from, int to, int outs, int others)
{
    static const int32_t own[] = {0, 1, 2}, before[] = {3}, after[] = {4};
    struct err e = {.text = ""};
    struct step_piece p[3] = {
        {.ids = f->ids, .n = others, .pages = before, .n_pages = 1, .out_from = others},
        {.ids = f->ids + from,
         .n = to - from,
         .pos = from,
         .pages = own,
         .n_pages = 3,
         .out_from = to - from - outs},
        {.ids = f->ids + 5,
         .n = others,
         .pages = after,
         .n_pages = 1,
         .out_from = others - MIN2(others, 1)}};
    struct step s = {.pieces = others ? p : p + 1, .n_pieces = others ? 3 : 1};
    ck_assert_msg(engine_step(f->en, &s, &e) == ERR_OK, "%s", e.text);
    for (int i = 0; i < s.n_rows; i++)
        if (s.rows[i].piece == (others ? 1 : 0))
            f->hash[from + s.rows[i].index] = s.rows[i].hash;
}

static void feed_close(struct feed *f)
{
    engine_free(f->en);
    shapes_free(f->c);
}

/* Layers that share keys and values see fewer rows then, and the bits are the same. */
START_TEST(rows_without_logits_are_left_behind_and_change_nothing)
{
    struct feed all, some;
    feed_open(&all, _i);
    feed_open(&some, _i);
    feed_step(&all, 0, N, N, 0);
    feed_step(&some, 0, 70, 0, 0);
    feed_step(&some, 70, 129, 3, OTHER);
    feed_step(&some, 129, 149, 0, OTHER);
    feed_step(&some, 149, N, 1, 0);
    for (int i = 0; i < N; i++) {
        const bool gives = (i >= 126 && i < 129) || i == 149;
        ck_assert_msg((some.hash[i] != 0) == gives, "row %d", i);
        ck_assert_msg(!gives || some.hash[i] == all.hash[i], "row %d", i);
    }
    for (int layer = 0; layer < 3; layer++) {
        const size_t bytes = engine_page_bytes(all.en, layer);
        void *a = malloc(bytes), *b = malloc(bytes);
        for (int32_t page = 0; page < 3; page++) {
            ck_assert(engine_read_page(all.en, layer, page, a, NULL) == ERR_OK);
            ck_assert(engine_read_page(some.en, layer, page, b, NULL) == ERR_OK);
            ck_assert_msg(memcmp(a, b, bytes) == 0, "layer %d, page %d", layer, (int)page);
        }
        free(a);
        free(b);
    }
    feed_close(&all);
    feed_close(&some);
}
END_TEST

/* ---- roles -------------------------------------------------------------------------------------
 */

static int bits_of(const struct plan *p, const char *name)
{
    for (size_t i = 0; i < p->n_items; i++)
        if (strcmp(p->items[i].w->name, name) == 0)
            return p->items[i].q.bits;
    ck_abort_msg("%s", name);
}

/* The head is the embedding, and not the table of inputs, which has the same role. */
START_TEST(recipes_reach_the_new_tensors_by_role)
{
    static const char *const text = "why: test\nrules:\n  - bits: 3\n  - role: embedding\n"
                                    "    bits: 5\n  - role: head\n    bits: 6\n  - role: mlp\n"
                                    "    bits: 2\n  - role: router\n    bits: 8\n";
    struct checkpoint *c;
    struct recipe *r = NULL;
    struct plan *p = NULL;
    struct err e = {.text = ""};
    ck_assert(shapes_checkpoint(&c, "tiny-gemma4-e", NULL) == ERR_OK);
    ck_assert(recipe_parse(&r, text, strlen(text), "test.yaml", &e) == ERR_OK);
    ck_assert_int_eq(plan_from_recipe(&p, c, r, &e), ERR_INPUT); /* it has no router */
    ck_assert_ptr_nonnull(strstr(e.text, "rule 5"));
    recipe_free(r);
    const size_t without = (size_t)(strstr(text, "  - role: router") - text);
    ck_assert(recipe_parse(&r, text, without, "test.yaml", &e) == ERR_OK);
    ck_assert_msg(plan_from_recipe(&p, c, r, &e) == ERR_OK, "%s", e.text);
    ck_assert_int_eq(bits_of(p, "model.embed_tokens.weight"), 6);
    ck_assert_int_eq(bits_of(p, "model.embed_tokens_per_layer.weight"), 5);
    ck_assert_int_eq(bits_of(p, "model.per_layer_model_projection.weight"), 2);
    ck_assert_int_eq(bits_of(p, "model.layers.4.per_layer_input_gate.weight"), 2);
    ck_assert_int_eq(bits_of(p, "model.layers.4.per_layer_projection.weight"), 2);
    ck_assert_int_eq(bits_of(p, "model.layers.4.self_attn.q_proj.weight"), 3);
    plan_free(p);
    recipe_free(r);
    shapes_free(c);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gemma4");
    TCase *t = tcase_create("gemma4");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_gguf_says_what_its_layers_have);
    tcase_add_test(t, a_gguf_that_no_config_says_is_refused);
    tcase_add_loop_test(t, every_tensor_is_bound_by_name_and_shape, 0, 2);
    tcase_add_test(t, keys_and_values_of_sharing_layers_are_extra);
    tcase_add_loop_test(t, rows_without_logits_are_left_behind_and_change_nothing, 0, 2);
    tcase_add_test(t, recipes_reach_the_new_tensors_by_role);
    suite_add_tcase(s, t);
    return s;
}
