/* test_gguf_keys.c: a GGUF without a key that its family needs is refused by that key. */
#include "ckpt/gguf_keys.h"

#include <stdio.h>

#include "ckpt/checkpoint.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

struct key {
    const char *name;
    uint32_t value; /* 0: a real number */
};

static const struct key keys[] = {
    {"embedding_length", 64},
    {"block_count", 2},
    {"attention.head_count", 2},
    {"context_length", 128},
    {"attention.layer_norm_rms_epsilon", 0},
    {"feed_forward_length", 96},
    {"rope.freq_base", 0},
    {"attention.sliding_window", 32},
    {"expert_count", 8},
    {"expert_used_count", 2},
    {"expert_feed_forward_length", 32},
    {"attention.sliding_window_pattern", 2},
    {"attention.key_length_swa", 32},
};

/* Bit i: keys[i] is needed. */
static const struct arch {
    const char *name;
    bool experts;
    unsigned needed;
} archs[] = {
    {"llama", false, 0x3f},  {"llama", true, 0x33f},    {"qwen2", false, 0x7f},
    {"qwen3", false, 0x7f},  {"qwen3moe", true, 0x75f}, {"gemma2", false, 0x3f},
    {"gemma3", false, 0xff}, {"gemma4", false, 0x18ff}, {"gpt-oss", true, 0x3df},
};

/* Why the file without keys[missing] cannot be run. */
static void reason(const struct arch *a, size_t missing, char text[512])
{
    char dir[64], path[128], key[128];
    struct gguf_maker m = {.rng = {1, 0}};
    struct strbuf b = {0};
    struct checkpoint *c = NULL;
    struct err e = {.text = ""};
    ck_assert_ptr_nonnull(make_folder(dir));
    gguf_string(&m, "general.architecture", a->name);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        snprintf(key, sizeof key, "%s.%s", a->name, keys[i].name);
        if (i == missing || (!a->experts && strncmp(keys[i].name, "expert", 6) == 0))
            continue;
        if (keys[i].value)
            gguf_u32(&m, key, keys[i].value);
        else
            gguf_f32(&m, key, strstr(key, "eps") ? 1e-5F : 1e4F);
    }
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, 16, 64, NULL);
    gguf_finish(&m, &b);
    write_file(dir, "m.gguf", b.data, b.len);
    strbuf_free(&b);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    ck_assert_msg(checkpoint_open(&c, path, &e) == ERR_OK, "%s", e.text);
    ck_assert(!c->hp_ok); /* a model of one tensor, in any case */
    /* What no key says: as many heads of keys and values as of queries, sharing the width. */
    if (missing == SIZE_MAX && strcmp(a->name, "gemma4") != 0)
        ck_assert(c->hp.n_kv == 2 && c->hp.head_dim == 32);
    snprintf(text, 512, "%.511s", c->hp_err.text);
    checkpoint_close(c);
}

START_TEST(each_family_names_the_key_that_it_needs)
{
    const struct arch *a = &archs[_i];
    char text[512], words[160];
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!a->experts && strncmp(keys[i].name, "expert", 6) == 0)
            continue;
        reason(a, i, text);
        snprintf(words, sizeof words, "key '%s.%s' is missing", a->name, keys[i].name);
        /* llama without a number of experts is another family. */
        bool other = a->experts && strcmp(a->name, "llama") == 0 && i == 8;
        bool said = strstr(text, words) != NULL;
        ck_assert_msg(said == ((a->needed >> i & 1) && !other), "%s: '%s'", words, text);
    }
}
END_TEST

START_TEST(with_all_keys_the_tensors_are_what_is_missing)
{
    char text[512];
    reason(&archs[_i], SIZE_MAX, text);
    ck_assert_msg(strstr(text, "weight '") && strstr(text, "is missing"), "%s: %s", archs[_i].name,
                  text);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gguf_keys");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, each_family_names_the_key_that_it_needs, 0, ARRAY_LEN(archs));
    tcase_add_loop_test(t, with_all_keys_the_tensors_are_what_is_missing, 0, ARRAY_LEN(archs));
    suite_add_tcase(s, t);
    return s;
}
