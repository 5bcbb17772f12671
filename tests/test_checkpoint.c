/* test_checkpoint.c: folders, shards, packed modules, GGUF and its parts, archives; and what is
 * wrong with them, said with file, place, found and expected. */
#include "ckpt/checkpoint.h"

#include <math.h>

#include "common/hash.h"
#include "common/io.h"
#include "tests/archive_make.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

static char dir[64];
static struct err err;
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

static void good(const char *path)
{
    checkpoint_close(c);
    if (checkpoint_open(&c, path, &err) != ERR_OK)
        ck_abort_msg("%s", err.text);
}

static void good_and_runs(const char *path)
{
    good(path);
    if (!c->hp_ok)
        ck_abort_msg("%s", c->hp_err.text);
}

static void expect(const char *text, const char *words)
{
    if (!strstr(text, words))
        ck_abort_msg("'%s' does not say '%s'", text, words);
}

static void bad(const char *path, const char *words)
{
    checkpoint_close(c);
    ck_assert_int_eq(checkpoint_open(&c, path, &err), ERR_INPUT);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(err.text, dir)); /* the place */
    expect(err.text, words);
}

static void good_but(const char *path, const char *words)
{
    good(path);
    ck_assert(!c->hp_ok);
    expect(c->hp_err.text, words);
}

static const char *at(const char *name)
{
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put_st(const char *name, struct st_maker *m)
{
    struct strbuf b = {0};
    st_finish(m, &b);
    write_file(dir, name, b.data, b.len);
    strbuf_free(&b);
}

static void put_tiny(bool packed, const char *config)
{
    struct strbuf b = {0};
    tiny_st(&b, packed);
    write_file(dir, "model.safetensors", b.data, b.len);
    write_text(dir, "config.json", config);
    strbuf_free(&b);
}

/* ---- folders ------------------------------------------------------------------------------------
 */

START_TEST(hf_folder_opens)
{
    put_tiny(false, TINY_CONFIG "}");
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[1,7]}");
    write_text(dir, "tokenizer.json", "{\"x\":1}");
    write_text(dir, "tokenizer_config.json",
               "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
               "{\"name\":\"default\",\"template\":\"D\"}]}");
    write_text(dir, "assay.json", "{\"assay\":1}");
    good_and_runs(dir);
    ck_assert_int_eq(c->format, CKPT_FORMAT_HF);
    ck_assert_uint_eq(c->n_weights, 20);
    ck_assert_int_eq(c->hp.n_eos, 2);
    ck_assert_str_eq(c->tokenizer_json, "{\"x\":1}");
    ck_assert_uint_eq(c->tokenizer_len, 7);
    ck_assert_str_eq(c->chat_template, "D");
    ck_assert_ptr_nonnull(c->manifest);
    const struct ckpt_weight *w = checkpoint_find(c, "model.layers.1.mlp.down_proj.weight");
    ck_assert_ptr_nonnull(w);
    ck_assert(w->enc == CKPT_DENSE && w->dtype == DT_BF16 && w->role == ROLE_MLP && w->layer == 1);
    ck_assert_int_eq(ckpt_weight_rows(w), 64);
    ck_assert_int_eq(ckpt_weight_k(w), 96);
    float row[96];
    ck_assert_int_eq(ckpt_weight_decode(w, 3, 1, row, &err), ERR_OK);
    ck_assert(row[5] == bf16_to_f32(load_u16(w->data + 2 * (3 * 96 + 5))));
    ck_assert_int_eq(ckpt_weight_decode(w, 63, 2, row, &err), ERR_INTERNAL);
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n_weights; i++)
        sum += c->weights[i].bytes;
    ck_assert_uint_eq(checkpoint_bytes(c), sum);
    char hex[65], again[65];
    ck_assert_int_eq(checkpoint_file_sha256(c, 0, hex, &err), ERR_OK);
    ck_assert_int_eq(sha256_file(at("model.safetensors"), again, &err), ERR_OK);
    ck_assert_str_eq(hex, again);
    write_text(dir, "chat_template.jinja", "J"); /* replaces every inline one */
    good_and_runs(dir);
    ck_assert_str_eq(c->chat_template, "J");
}
END_TEST

START_TEST(packed_folder_opens)
{
    put_tiny(true, TINY_CONFIG TINY_QUANT "}");
    good_and_runs(dir);
    ck_assert_int_eq(c->format, CKPT_FORMAT_MLX);
    ck_assert_uint_eq(c->n_weights, 20); /* scales and biases are not listed */
    const struct ckpt_weight *w = checkpoint_find(c, "model.layers.0.mlp.up_proj.weight");
    ck_assert_ptr_nonnull(w);
    ck_assert_int_eq(w->enc, CKPT_AFFINE);
    ck_assert(w->q.bits == 4 && w->q.group == 32 && w->q.scale == DT_BF16);
    ck_assert_int_eq(w->dim[0], 96);
    ck_assert_int_eq(w->dim[1], 64);
    ck_assert_uint_eq(w->bytes, 96 * 32 + 2 * 96 * 2 * 2);
    float row[64];
    ck_assert_int_eq(ckpt_weight_decode(w, 95, 1, row, &err), ERR_OK);
    for (int i = 0; i < 64; i++) {
        uint32_t code = w->data[95 * 32 + i / 2] >> (i % 2 * 4) & 15;
        float s = bf16_to_f32(load_u16(w->scales + 2 * (95 * 2 + i / 32)));
        float b = bf16_to_f32(load_u16(w->biases + 2 * (95 * 2 + i / 32)));
        ck_assert(row[i] == fmaf((float)code, s, b));
    }
}
END_TEST

START_TEST(a_copy_of_the_block_serves_too)
{
    put_tiny(true, TINY_CONFIG ",\"quantization_config\":{\"group_size\":32,\"bits\":4}}");
    good_and_runs(dir);
    ck_assert_int_eq(c->format, CKPT_FORMAT_MLX);
}
END_TEST

/* One packed module of 4 bits and groups of 32 beside what the configuration says of it. */
START_TEST(quantization_blocks_are_held_against_the_shapes)
{
    static const struct {
        const char *block; /* follows TINY_CONFIG */
        const char *words; /* NULL: opens */
    } cases[] = {
        {",\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"affine\"}", NULL},
        {",\"quantization\":{\"group_size\":64,\"bits\":8,\"m\":{\"group_size\":32,\"bits\":4}}",
         NULL},
        {",\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":true}", NULL},
        /* bits times group of 4 and 32 is that of 2 and 64: only the block can tell. */
        {",\"quantization\":{\"group_size\":64,\"bits\":2}", NULL},
        {"", "module 'm': packed, but config.json has no 'quantization' block"},
        {",\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":false}",
         "module 'm': config.json says not quantized, but its scales are there"},
        {",\"quantization\":{\"group_size\":32,\"bits\":4,\"m\":7}",
         "quantization of module 'm': expected an object, true or false"},
        {",\"quantization\":{\"group_size\":32,\"bits\":4,\"v\":{\"bits\":4}}",
         "module 'v': config.json says quantized, but 'v.scales' is missing"},
        {",\"quantization\":{\"group_size\":32,\"bits\":8}",
         "module 'm': 8 words and 2 groups in a row, but config.json says 8 bits in groups of 32: "
         "8 words would need 1 groups"},
        {",\"quantization\":{\"group_size\":128,\"bits\":4}", "4 bits in groups of 128"},
        {",\"quantization\":{\"group_size\":32,\"bits\":3}", "3 bits in groups of 32"},
        {",\"quantization\":{\"group_size\":32,\"bits\":7}",
         "module 'm': 7 bits in groups of 32, expected 2, 3, 4, 5, 6 or 8 bits"},
        {",\"quantization\":{\"group_size\":48,\"bits\":4}", "4 bits in groups of 48"},
        {",\"quantization\":{\"group_size\":32,\"bits\":\"4\"}", "'bits'"},
    };
    char config[1024];
    struct st_maker m = {.rng = {1, 0}};
    st_packed(&m, "m", 4, 32, 3, 64);
    st_tensor(&m, "v.weight", "F32", 4, 0, 5);
    put_st("model.safetensors", &m);
    snprintf(config, sizeof config, TINY_CONFIG "%s}", cases[_i].block);
    write_text(dir, "config.json", config);
    if (!cases[_i].words)
        good(dir);
    else
        bad(dir, cases[_i].words);
}
END_TEST

START_TEST(packed_tensors_must_fit_each_other)
{
    static const char *const words[] = {
        "module 'm': biases are missing",
        "module 'm': biases differ from scales",
        "module 'm': scales are U8, expected BF16, F16 or F32",
        "module 'm': weight is BF16, expected U32 for a packed module",
        "3 rows, scales have 2 and 4",
        "tensor 'm.biases': module 'm' has no weight",
    };
    struct st_maker m = {.rng = {1, 0}};
    if (_i != 5)
        st_tensor(&m, "m.weight", _i == 3 ? "BF16" : "U32", _i == 3 ? 2 : 4, 3, 8);
    if (_i != 5)
        st_tensor(&m, "m.scales", _i == 2 ? "U8" : "F16", _i == 2 ? 1 : 2, _i == 4 ? 4 : 3, 2);
    if (_i != 0)
        st_tensor(&m, "m.biases", "F16", 2, _i == 4 ? 4 : 3, _i == 1 ? 1 : 2);
    put_st("model.safetensors", &m);
    write_text(dir, "config.json", TINY_CONFIG TINY_QUANT "}");
    bad(dir, words[_i]);
}
END_TEST

START_TEST(other_modes_and_methods_are_listed_but_do_not_run)
{
    put_tiny(true, TINY_CONFIG ",\"quantization\":{\"group_size\":32,\"bits\":4,"
                               "\"mode\":\"mxfp3\"}}");
    good_but(dir, "quantization mode 'mxfp3' is not supported");
    ck_assert_ptr_nonnull(checkpoint_find(c, "model.embed_tokens.scales"));
    put_tiny(false, TINY_CONFIG ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
                                "\"group_size\":128}}");
    good_but(dir, "quantization method 'gptq' is not supported");
    put_tiny(false, "{\"model_type\":\"rwkv\"}");
    good_but(dir, "config.json: family 'rwkv' is not supported; supported: llama, mistral");
    ck_assert_uint_eq(c->n_weights, 20);
}
END_TEST

START_TEST(weights_must_fit_the_family)
{
    put_tiny(false, TINY_CONFIG ",\"head_dim\":16}");
    good_but(dir, "weight 'model.layers.0.self_attn.q_proj.weight': shape [64, 64], expected "
                  "[32, 64]");
    put_tiny(false, TINY_CONFIG ",\"attention_bias\":true}");
    good_but(dir, "weight 'model.layers.0.self_attn.q_proj.bias' is missing");
    struct st_maker m = {.rng = {1, 0}};
    st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, TINY_VOCAB, 64);
    st_tensor(&m, "model.norm.weight", "BF16", 2, 0, 64);
    tiny_st_layers(&m, 0, 3, false);
    put_st("model.safetensors", &m);
    write_text(dir, "config.json", TINY_CONFIG "}");
    good_but(dir, "weight 'model.layers.2.input_layernorm.weight' is none of family llama");
    st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, TINY_VOCAB, 64);
    tiny_st_layers(&m, 0, 2, false);
    put_st("model.safetensors", &m);
    good_but(dir, "weight 'model.norm.weight' is missing");
}
END_TEST

START_TEST(tied_head_and_rope_tables_are_no_weights)
{
    struct st_maker m = {.rng = {1, 0}};
    st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, TINY_VOCAB, 64);
    st_tensor(&m, "lm_head.weight", "BF16", 2, TINY_VOCAB, 64);
    st_tensor(&m, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 4, 0, 16);
    st_tensor(&m, "model.norm.weight", "BF16", 2, 0, 64);
    tiny_st_layers(&m, 0, 2, false);
    put_st("model.safetensors", &m);
    write_text(dir, "config.json", TINY_CONFIG "}");
    good_and_runs(dir);
    ck_assert_uint_eq(c->n_weights, 20);
    ck_assert_ptr_null(checkpoint_find(c, "lm_head.weight"));
}
END_TEST

START_TEST(broken_texts_are_named)
{
    put_tiny(false, "{");
    bad(dir, "config.json: line 1");
    put_tiny(false, "[]");
    bad(dir, "config.json: expected an object");
    put_tiny(false, TINY_CONFIG "}");
    write_text(dir, "tokenizer.json", "\xff");
    bad(dir, "tokenizer.json: not well-formed UTF-8 at byte 0");
    bad(at("none"), "no such file or folder");
    ck_assert_int_eq(mkdir(at("empty"), 0700), 0);
    bad(at("empty"), "no file model*.safetensors");
}
END_TEST

/* ---- shards -------------------------------------------------------------------------------------
 */

#define INDEX(a, b)                                                                                \
    "{\"metadata\":{},\"weight_map\":{\"model.norm.weight\":\"" a "\","                            \
    "\"model.layers.1.mlp.up_proj.weight\":\"" b "\"}}"
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"

static void put_shards(void)
{
    struct st_maker m = {.rng = {1, 0}};
    st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, TINY_VOCAB, 64);
    st_tensor(&m, "model.norm.weight", "BF16", 2, 0, 64);
    tiny_st_layers(&m, 0, 1, false);
    put_st(SHARD_1, &m);
    m.rng = (struct rng){2, 0};
    tiny_st_layers(&m, 1, 2, false);
    put_st(SHARD_2, &m);
    write_text(dir, "config.json", TINY_CONFIG "}");
}

START_TEST(shards_are_one_checkpoint)
{
    put_shards();
    good_and_runs(dir); /* by name */
    ck_assert_uint_eq(c->n_files, 2);
    write_text(dir, "model.safetensors.index.json", INDEX(SHARD_1, SHARD_2));
    good_and_runs(dir); /* by index */
    ck_assert_uint_eq(c->n_files, 2);
    ck_assert_uint_eq(c->n_weights, 20);
    /* A stale index, none of whose files exist, is ignored. */
    write_text(dir, "model.safetensors.index.json",
               INDEX("old-1.safetensors", "old-2.safetensors"));
    good_and_runs(dir);
}
END_TEST

START_TEST(broken_indexes_are_refused)
{
    static const struct {
        const char *index, *words;
    } cases[] = {
        {INDEX(SHARD_1, "model-00003-of-00003.safetensors"),
         "tensor 'model.layers.1.mlp.up_proj.weight' lies in 'model-00003-of-00003.safetensors', "
         "which is missing"},
        {INDEX(SHARD_2, SHARD_2), "no tensor 'model.norm.weight', which the index expects here"},
        {INDEX(SHARD_1, "../x.safetensors"), "'../x.safetensors' is no name of a shard"},
        {INDEX(SHARD_1, "/etc/passwd"), "'/etc/passwd' is no name of a shard"},
        {"{\"weight_map\":{\"a\":3}}", "tensor 'a': 'no string' is no name of a shard"},
        {"{}", "'weight_map'"},
        {"{", "index.json: line 1"},
    };
    put_shards();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        write_text(dir, "model.safetensors.index.json", cases[i].index);
        bad(dir, cases[i].words);
    }
}
END_TEST

START_TEST(a_missing_shard_is_named)
{
    put_shards();
    ck_assert_int_eq(unlink(at(SHARD_1)), 0);
    bad(dir, "shard '" SHARD_1 "' is missing beside '" SHARD_2 "'");
}
END_TEST

START_TEST(a_tensor_twice_must_be_the_same)
{
    put_shards();
    struct st_maker m = {.rng = {2, 0}};
    tiny_st_layers(&m, 1, 2, false);
    put_st("model-copy.safetensors", &m);
    good_and_runs(dir);
    ck_assert_uint_eq(c->n_weights, 20);
    m.rng = (struct rng){3, 0};
    tiny_st_layers(&m, 1, 2, false);
    put_st("model-copy.safetensors", &m);
    bad(dir, "differs between");
}
END_TEST

/* ---- GGUF -------------------------------------------------------------------------------------
 */

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

/* ---- archives
 * ------------------------------------------------------------------------------------ */

START_TEST(checkpoints_open_inside_archives)
{
    struct strbuf st = {0}, gguf = {0}, b = {0};
    tiny_st(&st, true);
    tiny_gguf(&gguf);
    const char *config = TINY_CONFIG TINY_QUANT "}";
    const struct archive_part parts[] = {{"m/config.json", config, strlen(config)},
                                         {"m/model.safetensors", st.data, st.len},
                                         {"other/n.gguf", gguf.data, gguf.len}};
    char path[256];
    ck_assert(make_archive(&b, (enum archive_kind)_i, parts, 2));
    write_file(dir, "a.bin", b.data, b.len);
    good_and_runs(at("a.bin"));
    ck_assert_int_eq(c->format, CKPT_FORMAT_MLX);
    snprintf(path, sizeof path, "%s:m", at("a.bin"));
    good_and_runs(path);
    strbuf_clear(&b);
    ck_assert(make_archive(&b, (enum archive_kind)_i, parts, 3));
    write_file(dir, "a.bin", b.data, b.len);
    bad(at("a.bin"), "holds more than one checkpoint ('m/config.json', 'other/n.gguf')");
    snprintf(path, sizeof path, "%s:other/n.gguf", at("a.bin"));
    good_and_runs(path);
    ck_assert_int_eq(c->format, CKPT_FORMAT_GGUF);
    snprintf(path, sizeof path, "%s:nowhere", at("a.bin"));
    bad(path, "no member 'nowhere'");
    strbuf_clear(&b);
    ck_assert(make_archive(&b, (enum archive_kind)_i, parts, 1));
    write_file(dir, "a.bin", b.data, b.len);
    bad(at("a.bin"), "no checkpoint among its 1 members");
    strbuf_free(&st);
    strbuf_free(&gguf);
    strbuf_free(&b);
}
END_TEST

START_TEST(a_failing_allocation_is_said_and_leaks_nothing)
{
    struct strbuf b = {0};
    tiny_gguf(&b);
    write_file(dir, "m.gguf", b.data, b.len);
    put_tiny(true, TINY_CONFIG TINY_QUANT "}");
    strbuf_free(&b);
    int failed = 0;
    for (int turn = 0; turn < 2; turn++) {
        enum err_code rc = ERR_NOMEM;
        for (int64_t nth = 1; rc != ERR_OK; nth++) {
            checkpoint_close(c);
            io_fault_set(IO_FAULT_ALLOC, nth);
            rc = checkpoint_open(&c, turn ? at("m.gguf") : dir, &err);
            io_fault_set(IO_FAULT_ALLOC, 0);
            if (rc != ERR_OK && rc != ERR_NOMEM)
                ck_abort_msg("allocation %lld: %s", (long long)nth, err.text);
            failed += rc != ERR_OK;
        }
    }
    ck_assert_int_gt(failed, 10);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("checkpoint");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, hf_folder_opens);
    tcase_add_test(t, packed_folder_opens);
    tcase_add_test(t, a_copy_of_the_block_serves_too);
    tcase_add_loop_test(t, quantization_blocks_are_held_against_the_shapes, 0, 14);
    tcase_add_loop_test(t, packed_tensors_must_fit_each_other, 0, 6);
    tcase_add_test(t, other_modes_and_methods_are_listed_but_do_not_run);
    tcase_add_test(t, weights_must_fit_the_family);
    tcase_add_test(t, tied_head_and_rope_tables_are_no_weights);
    tcase_add_test(t, broken_texts_are_named);
    tcase_add_test(t, shards_are_one_checkpoint);
    tcase_add_test(t, broken_indexes_are_refused);
    tcase_add_test(t, a_missing_shard_is_named);
    tcase_add_test(t, a_tensor_twice_must_be_the_same);
    tcase_add_test(t, gguf_opens_under_canonical_names);
    tcase_add_test(t, split_gguf_is_one_checkpoint);
    tcase_add_test(t, rope_divisors_become_llama3_only_when_they_are_those);
    tcase_add_test(t, rope_scaling_keys_of_a_gguf_are_read);
    tcase_add_test(t, a_vocabulary_that_cannot_be_used_is_said);
    tcase_add_loop_test(t, checkpoints_open_inside_archives, MAKE_TAR, MAKE_ZIP_STORED + 1);
    tcase_add_test(t, a_failing_allocation_is_said_and_leaks_nothing);
    suite_add_tcase(s, t);
    return s;
}
