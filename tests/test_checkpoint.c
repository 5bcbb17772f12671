/* test_checkpoint.c: folders, shards, packed modules, archives; and what is wrong with them, said
 * with file, place, found and expected. GGUF: test_checkpoint_gguf.c. */
#include "common/hash.h"
#include "common/io.h"
#include "tests/archive_make.h"
#include "tests/checkpoint_rig.h"

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

/* ---- archives -----------------------------------------------------------------------------------
 */

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
    tcase_add_loop_test(t, checkpoints_open_inside_archives, MAKE_TAR, MAKE_ZIP_STORED + 1);
    tcase_add_test(t, a_failing_allocation_is_said_and_leaks_nothing);
    suite_add_tcase(s, t);
    return s;
}
