/* test_published.c: config.json of published models gives their number of weights, their windows
 * and the memory of their pages.
 *
 * The files under golden/configs hold the facts of docs/families.md; counts are the published ones
 * of the text model.
 */
#include <stdio.h>

#include "ckpt/family_check.h"
#include "tests/check_main.h"

struct published {
    const char *name, *family;
    int64_t weights, page_bytes; /* of all layers: bf16 K and V of 64 tokens */
    int sliding;                 /* layers that slide */
};

static const struct published models[] = {
    {"llama-3.2-1b", "llama", 1235814400, 2097152, 0},
    {"llama-3.1-8b", "llama", 8030261248, 8388608, 0},
    {"smollm2-135m", "llama", 134515008, 1474560, 0},
    {"mistral-7b-v0.1", "mistral", 7241732096, 8388608, 32},
    {"qwen2.5-0.5b", "qwen2", 494032768, 786432, 0},
    {"qwen2.5-7b", "qwen2", 7615616512, 3670016, 0},
    {"qwen3-0.6b", "qwen3", 596049920, 7340032, 0},
    {"qwen3-4b", "qwen3", 4022468096, 9437184, 0},
    {"gemma-2-2b", "gemma2", 2614341888, 6815744, 13},
    {"gemma-2-9b", "gemma2", 9241705984, 22020096, 21},
    {"gemma-2-27b", "gemma2", 27227128320, 24117248, 23},
    {"gemma-3-270m", "gemma3_text", 268098176, 1179648, 15},
    {"gemma-3-1b", "gemma3_text", 999885952, 1703936, 22},
    /* 4,300,079,472 with the vision tower's 416,866,032 and the projector's 2,950,272. */
    {"gemma-3-4b", "gemma3_text", 3880263168, 8912896, 29},
    /* Published as 30.7 and 11.9 thousand million: the sums of the shapes. */
    {"gemma-4-31b", "gemma4_text", 30697345340, 57671680, 50},
    {"gemma-4-12b", "gemma4_unified_text", 11907350320, 22020096, 40},
    /* 25.2 thousand million. */
    {"gemma-4-26b-a4b", "gemma4_text", 25233141790, 14417920, 25},
    /* 5.1 and 8.0 with vision and audio; 2.3 and 4.5 without these and both tables of tokens. Of
     * 35 and 42 layers 15 and 24 have pages. */
    {"gemma-4-e2b", "gemma4_text", 4628569379, 1179648, 28},
    {"gemma-4-e4b", "gemma4_text", 7463013418, 3670016, 35},
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
    ck_assert_msg(weights == m->weights, "%s: %lld weights, published %lld", m->name,
                  (long long)weights, (long long)m->weights);
    ck_assert_msg(page == m->page_bytes, "%s: pages of %lld bytes", m->name, (long long)page);
    ck_assert_int_eq(sliding, m->sliding);
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
    tcase_add_test(t, scales_and_bases_are_those_of_the_family);
    suite_add_tcase(s, t);
    return s;
}
