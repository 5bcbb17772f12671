/* test_published.c: config.json of published models gives their number of weights, their windows,
 * the memory that is planned for them and the list that inspect prints.
 *
 * The files under golden/configs hold the facts of docs/families.md. A published number counts
 * every weight of the files; what is not the text model's is `aside`, and the sum is exact. Numbers
 * were taken from what other programs print or quote of the files, none from a config.
 */
#include <stdio.h>

#include "ckpt/family_check.h"
#include "convert/inspect.h"
#include "infer/engine.h"
#include "infer/shapes.h"
#include "tests/check_main.h"

struct published {
    const char *name, *family;
    int64_t file, aside; /* weights of the published files; those that are no text model's */
    int64_t page_bytes;  /* of all layers: bf16 K and V of 64 tokens */
    int sliding;         /* layers that slide */
    int tensors;
};

/* Gemma 3 4B: the vision tower and its projector. */
#define GEMMA3_ASIDE (416866032 + 2950272)
/* Gemma 4's vision towers: patches and their places, 27 or 16 layers, and for the big one a vector
 * and a scale of the output; audio: two convolutions, 12 layers and the output. */
#define VISION_BIG   (768 * 1152 + 2 * 10240 * 1152 + INT64_C(27) * 20187792 + 2 * 1152)
#define VISION_SMALL (768 * 768 + 2 * 10240 * 768 + INT64_C(16) * 9440384)
#define AUDIO        (1086752 + INT64_C(12) * 25180288 + 1574400)
/* 12B has no towers: patches of 6912 values, places and three norms. */
#define UNIFIED                                                                                    \
    (2 * 6912 + INT64_C(6912) * 3840 + 3840 + 2 * 3840 + INT64_C(1120) * 2 * 3840 + 2 * 3840)
/* Keys, values and key norms that published files carry for layers that share them: sliding ones
 * with heads of 256, full ones with heads of 512. */
#define UNUSED(d, heads, slide, full)                                                              \
    ((slide) * (2 * INT64_C(d) * (heads)*256 + 256) + (full) * (2 * INT64_C(d) * (heads)*512 + 512))
#define E2B_ASIDE (VISION_SMALL + AUDIO + (768 + 1536) * 1536 + UNUSED(1536, 1, 16, 4))
#define E4B_ASIDE (VISION_SMALL + AUDIO + (768 + 1536) * 2560 + UNUSED(2560, 2, 15, 3))

static const struct published models[] = {
    {"llama-3.2-1b", "llama", 1235814400, 0, 2097152, 0, 146},
    {"llama-3.1-8b", "llama", 8030261248, 0, 8388608, 0, 291},
    {"smollm2-135m", "llama", 134515008, 0, 1474560, 0, 272},
    {"mistral-7b-v0.1", "mistral", 7241732096, 0, 8388608, 32, 291},
    {"qwen2.5-0.5b", "qwen2", 494032768, 0, 786432, 0, 290},
    {"qwen2.5-7b", "qwen2", 7615616512, 0, 3670016, 0, 339},
    {"qwen3-0.6b", "qwen3", 596049920, 0, 7340032, 0, 310},
    {"qwen3-4b", "qwen3", 4022468096, 0, 9437184, 0, 398},
    {"qwen3-30b-a3b", "qwen3_moe", 30532122624, 0, 6291456, 0, 579},
    {"mixtral-8x7b-v0.1", "mixtral", 46702792704, 0, 8388608, 0, 323},
    {"gpt-oss-20b", "gpt_oss", 20914757184, 0, 3145728, 12, 459},
    {"gemma-2-2b", "gemma2", 2614341888, 0, 6815744, 13, 288},
    {"gemma-2-9b", "gemma2", 9241705984, 0, 22020096, 21, 464},
    {"gemma-2-27b", "gemma2", 27227128320, 0, 24117248, 23, 508},
    {"gemma-3-270m", "gemma3_text", 268098176, 0, 1179648, 15, 236},
    {"gemma-3-1b", "gemma3_text", 999885952, 0, 1703936, 22, 340},
    {"gemma-3-4b", "gemma3_text", 4300079472, GEMMA3_ASIDE, 8912896, 29, 444},
    {"gemma-4-31b", "gemma4_text", 31273088876, VISION_BIG + 1152 * 5376, 57671680, 50, 832},
    {"gemma-4-12b", "gemma4_unified_text", 11959730224, UNIFIED + (3840 + 640) * 3840, 22020096, 40,
     666},
    {"gemma-4-26b-a4b", "gemma4_text", 25805936206, VISION_BIG + 1152 * 2816, 14417920, 25, 687},
    /* Of 35 and 42 layers 15 and 24 have pages. */
    {"gemma-4-e2b", "gemma4_text", 5123178051, E2B_ASIDE, 1179648, 28, 540},
    {"gemma-4-e4b", "gemma4_text", 7996156490, E4B_ASIDE, 3670016, 35, 665},
};

static void read_model(const char *name, struct hparams *hp)
{
    char path[512];
    static char text[8192];
    struct err e = {.text = ""};
    json_t *config = NULL;
    snprintf(path, sizeof path, "%s/configs/%s.json", TEST_GOLDEN, name);
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s", path);
    size_t len = fread(text, 1, sizeof text, f);
    fclose(f);
    ck_assert(len > 0 && len < sizeof text);
    ck_assert_msg(json_parse(text, len, &config, &e) == ERR_OK, "%s: %s", name, e.text);
    ck_assert_msg(hparams_from_config(hp, config, NULL, &e) == ERR_OK, "%s: %s", name, e.text);
    json_decref(config);
}

static void add_weights(void *ctx, const char *name, int n_dim, const int64_t *dim)
{
    (void)name;
    int64_t n = 1;
    for (int i = 0; i < n_dim; i++)
        n *= dim[i];
    *(int64_t *)ctx += n;
}

START_TEST(a_published_config_has_its_weights_windows_and_pages)
{
    const struct published *m = &models[_i];
    struct hparams hp;
    int64_t weights = 0, page = 0;
    int sliding = 0;
    read_model(m->name, &hp);
    ck_assert_str_eq(hp.family, m->family);
    family_list(&hp, add_weights, &weights);
    for (int i = 0; i < hp.n_layer; i++) {
        sliding += hp.sliding[i];
        if (hparams_has_kv(&hp, i))
            page += (int64_t)64 * 2 * 2 * hparams_n_kv(&hp, hp.sliding[i]) *
                    hparams_head_dim(&hp, hp.sliding[i]);
    }
    ck_assert_msg(weights + m->aside == m->file, "%s: %lld weights and %lld aside, published %lld",
                  m->name, (long long)weights, (long long)m->aside, (long long)m->file);
    ck_assert_msg(page == m->page_bytes, "%s: pages of %lld bytes", m->name, (long long)page);
    ck_assert_int_eq(sliding, m->sliding);
}
END_TEST

START_TEST(inspect_lists_every_tensor_and_adds_them_up)
{
    const struct published *m = &models[_i];
    struct err e = {.text = ""};
    struct strbuf text = {0};
    json_t *f = NULL, *item;
    char path[512];
    int64_t bytes = 0, weights = 0, by_role = 0;
    size_t i;
    snprintf(path, sizeof path, "%s/configs/%s.json", TEST_GOLDEN, m->name);
    ck_assert_msg(inspect_config(path, &f, &e) == ERR_OK, "%s", e.text);
    const json_t *list = json_object_get(f, "tensors"), *all = json_object_get(f, "totals");
    inspect_text(f, &text);
    ck_assert_uint_eq(json_array_size(list), (size_t)m->tensors);
    json_array_foreach((json_t *)(uintptr_t)list, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        bytes += json_integer_value(json_object_get(item, "bytes"));
        ck_assert_msg(name && strstr(text.data, name), "%s: %s is not printed", m->name, name);
    }
    weights = json_integer_value(json_object_get(all, "weights"));
    ck_assert_int_eq(weights, m->file - m->aside);
    ck_assert_int_eq(json_integer_value(json_object_get(all, "bytes")), bytes);
    json_array_foreach(json_object_get(f, "roles"), i, item) by_role +=
        json_integer_value(json_object_get(item, "weights"));
    ck_assert_int_eq(by_role, weights);
    /* gpt-oss is published with experts in mxfp4: the size that its index of shards states. */
    ck_assert_int_eq(bytes,
                     strcmp(m->name, "gpt-oss-20b") == 0 ? INT64_C(13761264768) : 2 * weights);
    strbuf_free(&text);
    json_decref(f);
}
END_TEST

/* In 4 bits with groups of 64, which is 4.5 bits a weight, and the router in 8; gpt-oss in 8 with
 * experts in mxfp4. A machine that is too small says so, with the same sizes. */
START_TEST(the_plan_has_the_weights_and_pages)
{
    const struct published *m = &models[_i];
    const struct engine_options o = {.kern = {.device = "cpu", .arith = KERN_MMA90, .threads = 1},
                                     .ctx = 1024,
                                     .kv_tokens = 1024,
                                     .batch_seqs = 1};
    struct engine_plan plan = {0};
    struct checkpoint *c = NULL;
    struct err e = {.text = ""};
    char path[512];
    snprintf(path, sizeof path, "%s/configs/%s.json", TEST_GOLDEN, m->name);
    ck_assert_msg(shapes_checkpoint(&c, path, &e) == ERR_OK, "%s", e.text);
    if (engine_plan(c, &o, &plan, &e) != ERR_OK && !strstr(e.text, "does not fit by"))
        ck_abort_msg("%s: %s", m->name, e.text);
    ck_assert_int_eq(plan.pages, 16);
    ck_assert_uint_eq(plan.kv, (uint64_t)(16 * m->page_bytes));
    double bits = 8.0 * (double)plan.weights / (double)(m->file - m->aside);
    ck_assert_msg(bits > 4.4 && bits < 4.7, "%s: %g bits a weight", m->name, bits);
    shapes_free(c);
}
END_TEST

START_TEST(scales_and_bases_are_those_of_the_family)
{
    struct hparams hp;
    read_model("gemma-2-27b", &hp);
    ck_assert(hp.attn_scale == 1.0F / 12 && hp.attn_softcap == 50 && hp.logit_softcap == 30);
    ck_assert(hp.sliding[0] && !hp.sliding[1] && hp.embed_scale == 68);
    read_model("gemma-3-4b", &hp);
    ck_assert(hp.wrapped && hp.two_ropes && hp.rope.kind == ROPE_LINEAR && hp.rope.factor == 8);
    ck_assert(hp.rope.theta == 1e6 && hp.rope_sliding.theta == 1e4 && hp.n_head == 8);
    ck_assert(hp.embed_scale == 50.5F && hp.attn_scale == 0.0625F && hp.n_eos == 2);
    ck_assert(hp.rope_sliding.kind == ROPE_DEFAULT && hp.sliding[4] && !hp.sliding[5]);
    read_model("gemma-4-31b", &hp);
    ck_assert(hp.embed_scale == 73.5F && hp.attn_scale == 1 && !hp.norm_plus_one && hp.v_norm);
    ck_assert(hp.head_dim_full == 512 && hp.n_kv_full == 4 && hp.k_eq_v && !hp.sliding[59]);
    ck_assert(hp.rope.kind == ROPE_PROPORTIONAL && hp.rope.turning_pairs == 64);
    read_model("gemma-4-26b-a4b", &hp);
    ck_assert(hp.embed_scale == 53 && hp.mlp_beside && hp.n_expert == 128 && hp.n_expert_used == 8);
    ck_assert(hp.d_ff == 2112 && hp.d_ff_expert == 704 && hp.n_kv_full == 2 && hp.k_eq_v);
    read_model("gemma-4-e2b", &hp);
    ck_assert(hp.embed_scale == 39.25F && hp.d_input == 256 && hp.input_scale == 16);
    ck_assert(!hp.k_eq_v && hp.n_kv == 1 && hp.n_kv_full == 1 && hp.window == 512);
    ck_assert(hparams_kv_layer(&hp, 14) == 14 && hparams_kv_layer(&hp, 15) == 13);
    ck_assert(hparams_kv_layer(&hp, 34) == 14 && hparams_kv_layer(&hp, 33) == 13);
    ck_assert(hparams_d_ff(&hp, 14) == 6144 && hparams_d_ff(&hp, 15) == 12288);
    read_model("gemma-4-e4b", &hp);
    ck_assert(hp.embed_scale == 50.5F && hparams_kv_layer(&hp, 24) == 22);
    ck_assert(hparams_kv_layer(&hp, 41) == 23 && hparams_d_ff(&hp, 41) == 10240);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("published");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, a_published_config_has_its_weights_windows_and_pages, 0,
                        ARRAY_LEN(models));
    tcase_add_loop_test(t, inspect_lists_every_tensor_and_adds_them_up, 0, ARRAY_LEN(models));
    tcase_add_loop_test(t, the_plan_has_the_weights_and_pages, 0, ARRAY_LEN(models));
    tcase_add_test(t, scales_and_bases_are_those_of_the_family);
    suite_add_tcase(s, t);
    return s;
}
