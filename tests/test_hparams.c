/* test_hparams.c: config.json in both generations of spelling, and what it must not say. */
#include "ckpt/hparams.h"

#include <math.h>
#include <stdio.h>

#include "tests/check_main.h"

#define BASE                                                                                       \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"                        \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"vocab_size\":32"
#define MISTRAL                                                                                    \
    "\"model_type\":\"mistral\",\"hidden_size\":64,\"intermediate_size\":96,"                      \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":32"
#define QWEN(family)                                                                               \
    "\"model_type\":\"" family "\",\"hidden_size\":64,\"intermediate_size\":96,"                   \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":32"

#define GEMMA(family)                                                                              \
    "\"model_type\":\"" family "\",\"hidden_size\":64,\"num_hidden_layers\":4,"                    \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":32"
#define GEMMA4                                                                                     \
    GEMMA("gemma4_text")                                                                           \
    ",\"hidden_size_per_layer_input\":0,\"global_head_dim\":32,\"layer_types\":["                  \
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]"

#define EXPERTS4                                                                                   \
    ",\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2,"                            \
    "\"moe_intermediate_size\":48"

static struct hparams hp;
static struct err err;

static enum err_code read_both(const char *config, const char *generation)
{
    json_t *c, *g = NULL;
    if (json_parse(config, strlen(config), &c, &err) != ERR_OK ||
        (generation && json_parse(generation, strlen(generation), &g, &err) != ERR_OK))
        ck_abort_msg("%s", err.text);
    enum err_code rc = hparams_from_config(&hp, c, g, &err);
    json_decref(c);
    json_decref(g);
    return rc;
}

static void good(const char *config)
{
    if (read_both(config, NULL) != ERR_OK)
        ck_abort_msg("%s: %s", config, err.text);
}

static void bad(const char *config, const char *words)
{
    ck_assert_int_eq(read_both(config, NULL), ERR_INPUT);
    if (!strstr(err.text, words))
        ck_abort_msg("'%s' does not say '%s'", err.text, words);
}

START_TEST(gpt_oss_defaults)
{
    good("{" QWEN("gpt_oss") "}");
    ck_assert(hp.act == ACT_GPTOSS && hp.act_limit == 7 && hp.act_alpha == 1.702f);
    ck_assert(hp.sinks && hp.router_bias && hp.expert_bias && hp.attn_bias && hp.o_bias);
    ck_assert(hp.n_expert == 128 && hp.n_expert_used == 4 && hp.d_ff_expert == 96);
    ck_assert(!hp.softmax_all && hp.head_dim == 64 && hp.rms_eps == 1e-5 && !hp.tied);
    ck_assert(hp.window == 128 && hp.sliding[0] && !hp.sliding[1] && hp.sliding[2]);
    /* Neither rope key: the published set. */
    ck_assert(hp.rope.kind == ROPE_YARN && hp.rope.factor == 32 && hp.rope.theta == 150000);
    ck_assert(!hp.rope.truncate && hp.rope.original_ctx == 4096);
    ck_assert(fabs(hp.rope.attention_factor - 1.3465735902799727) < 1e-12);
    good("{" QWEN("gpt_oss") ",\"rope_theta\":1000.0}");
    ck_assert(hp.rope.kind == ROPE_YARN && hp.rope.theta == 1000);
    /* An object is what it says: one that lacks `truncate` means true. */
    good("{" QWEN("gpt_oss") ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,"
                             "\"original_max_position_embeddings\":4096}}");
    ck_assert(hp.rope.truncate && hp.rope.theta == 150000);
    good("{" QWEN("gpt_oss") ",\"rope_parameters\":{\"rope_type\":\"default\"}}");
    ck_assert(hp.rope.kind == ROPE_DEFAULT && hp.rope.theta == 150000);
    good("{" QWEN("gpt_oss") ",\"attention_bias\":false,\"sliding_window\":null}");
    ck_assert(!hp.attn_bias && !hp.o_bias && hp.window == 0 && !hp.sliding[0]);
    bad("{" QWEN("gpt_oss") ",\"num_local_experts\":2}", "too few experts");
    bad("{" QWEN("gpt_oss") ",\"num_local_experts\":0}", "no experts, expected at least one");
    bad("{" QWEN("gpt_oss") ",\"swiglu_alpha\":0}", "swiglu_alpha");
    bad("{" QWEN("gpt_oss") ",\"hidden_act\":\"gelu\"}", "found 'gelu', expected 'silu'");
    bad("{" QWEN("gpt_oss") ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "'longrope'");
}
END_TEST

START_TEST(llama_defaults)
{
    good("{" BASE "}");
    ck_assert_str_eq(hp.family, "llama");
    ck_assert_int_eq(hp.n_kv, 4);
    ck_assert_int_eq(hp.head_dim, 16);
    ck_assert(hp.rms_eps == 1e-6 && hp.rope.theta == 10000 && hp.rope.kind == ROPE_DEFAULT);
    ck_assert(!hp.tied && !hp.attn_bias && !hp.mlp_bias);
    ck_assert_int_eq(hp.ctx_max, 2048);
    ck_assert_int_eq(hp.window, 0);
    ck_assert_int_eq(hp.bos, -1);
    ck_assert_int_eq(hp.n_eos, 0);
    ck_assert(hp.attn_scale == 0.25f && hp.embed_scale == 1);
}
END_TEST

START_TEST(mistral_slides_by_4096_unless_told_otherwise)
{
    good("{" MISTRAL "}");
    ck_assert_int_eq(hp.window, 4096);
    ck_assert(hp.sliding[0] && hp.sliding[3] && !hp.sliding[4]);
    ck_assert_int_eq(hp.ctx_max, 131072);
    good("{" MISTRAL ",\"sliding_window\":null}");
    ck_assert_int_eq(hp.window, 0);
    ck_assert(!hp.sliding[0]);
    good("{" MISTRAL ",\"sliding_window\":100}");
    ck_assert_int_eq(hp.window, 100);
    good("{" BASE ",\"sliding_window\":100}"); /* Llama does not read the key */
    ck_assert_int_eq(hp.window, 0);
}
END_TEST

START_TEST(qwen_has_its_own_biases_norms_and_head_size)
{
    good("{" QWEN("qwen2") "}");
    ck_assert(hp.attn_bias && !hp.o_bias && !hp.mlp_bias && !hp.qk_norm);
    ck_assert_int_eq(hp.head_dim, 16);
    ck_assert_int_eq(hp.ctx_max, 32768);
    good("{" QWEN("qwen2") ",\"attention_bias\":false,\"mlp_bias\":true}"); /* not its keys */
    ck_assert(hp.attn_bias && !hp.mlp_bias);
    good("{" QWEN("qwen3") "}");
    ck_assert(!hp.attn_bias && !hp.o_bias && hp.qk_norm);
    ck_assert_int_eq(hp.head_dim, 128);
    ck_assert(hp.attn_scale == 1 / sqrtf(128));
    good("{" QWEN("qwen3") ",\"attention_bias\":true,\"head_dim\":32}");
    ck_assert(hp.attn_bias && hp.o_bias && hp.head_dim == 32);
}
END_TEST

START_TEST(qwen_slides_from_a_layer_on_when_told_to)
{
    good("{" QWEN("qwen2") ",\"sliding_window\":8,\"max_window_layers\":1}");
    ck_assert_int_eq(hp.window, 0);
    good("{" QWEN("qwen3") ",\"use_sliding_window\":true,\"sliding_window\":8,"
                           "\"max_window_layers\":2}");
    ck_assert_int_eq(hp.window, 8);
    ck_assert(!hp.sliding[0] && !hp.sliding[1] && hp.sliding[2] && hp.sliding[3]);
    good("{" QWEN("qwen2") ",\"use_sliding_window\":true}"); /* from layer 28 on */
    ck_assert(hp.window == 0 && !hp.sliding[3]);
    good("{" QWEN("qwen2") ",\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":"
                           "[\"sliding_attention\",\"full_attention\",\"full_attention\","
                           "\"full_attention\"]}");
    ck_assert(hp.window == 8 && hp.sliding[0] && !hp.sliding[3]);
    bad("{" QWEN("qwen2") ",\"layer_types\":[\"sliding_attention\",\"full_attention\","
                          "\"full_attention\",\"full_attention\"]}",
        "layer 0 slides, but 'sliding_window' is not set");
    bad("{" QWEN("qwen2") ",\"use_sliding_window\":1}", "'use_sliding_window'");
}
END_TEST

START_TEST(gemma_defaults_are_those_of_its_classes)
{
    good("{\"model_type\":\"gemma2\"}");
    ck_assert(hp.d_model == 2304 && hp.d_ff == 9216 && hp.n_vocab == 256000 && hp.n_layer == 26);
    ck_assert(hp.n_head == 8 && hp.n_kv == 4 && hp.head_dim == 256 && hp.ctx_max == 8192);
    ck_assert(hp.tied && hp.norm_plus_one && hp.post_norms && !hp.qk_norm && !hp.attn_bias);
    ck_assert(hp.act == ACT_GELU_TANH && hp.window == 4096 && hp.sliding[0] && !hp.sliding[1]);
    ck_assert(hp.attn_softcap == 50 && hp.logit_softcap == 30 && hp.attn_scale == 0.0625F);
    ck_assert(hp.embed_scale == 48 && !hp.two_ropes && hp.rope.theta == 10000);
    good("{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null,"
         "\"final_logit_softcapping\":null}");
    ck_assert(hp.attn_softcap == 0 && hp.logit_softcap == 0);
    good("{\"model_type\":\"gemma3\",\"text_config\":{}}");
    ck_assert_str_eq(hp.family, "gemma3_text");
    ck_assert(hp.wrapped && hp.n_vocab == 262208 && hp.qk_norm && hp.attn_softcap == 0);
    ck_assert(hp.two_ropes && hp.rope.theta == 1e6 && hp.rope_sliding.theta == 1e4);
    ck_assert(hp.sliding[4] && !hp.sliding[5] && !hp.sliding[11] && hp.sliding[25]);
    good("{" GEMMA4 "}");
    ck_assert(!hp.norm_plus_one && hp.v_norm && hp.layer_scalar && hp.attn_scale == 1);
    ck_assert(hp.head_dim_full == 32 && hp.n_kv_full == 2 && !hp.k_eq_v && hp.logit_softcap == 0);
    ck_assert(hp.rope.kind == ROPE_PROPORTIONAL && hp.rope.turning_pairs == 4);
    good("{" GEMMA4 ",\"num_global_key_value_heads\":1}"); /* only if k is v */
    ck_assert_int_eq(hp.n_kv_full, 2);
    good("{" GEMMA4 ",\"num_global_key_value_heads\":1,\"attention_k_eq_v\":true}");
    ck_assert(hp.n_kv_full == 1 && hp.k_eq_v);
    ck_assert(hp.n_expert == 0 && !hp.mlp_beside && hp.d_input == 0 && hp.n_kv_shared == 0);
    good("{" GEMMA("gemma4_text") "}"); /* inputs of 256 unless the file says 0 */
    ck_assert(hp.d_input == 256 && hp.n_vocab_input == 262144 && hp.input_scale == 16);
    good("{" GEMMA("gemma4_unified_text") "}"); /* which has no such key */
    ck_assert(hp.d_input == 0 && hp.n_vocab_input == 0);
}
END_TEST

START_TEST(gemma_4_has_experts_beside_the_mlp_and_layers_that_share)
{
    static const int source[] = {0, 1, 0, 1};
    good("{" GEMMA4 EXPERTS4 "}");
    ck_assert(hp.mlp_beside && hp.n_expert == 8 && hp.n_expert_used == 2 && hp.d_ff_expert == 48);
    ck_assert(hp.softmax_all && hp.norm_topk && hp.sparse[0] && hp.sparse[3] && !hp.router_bias);
    good("{" GEMMA4 ",\"num_experts\":8}"); /* without enable_moe_block they mean nothing */
    ck_assert(hp.n_expert == 0 && !hp.sparse[0]);
    good("{" GEMMA4 ",\"num_kv_shared_layers\":2}");
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(hparams_kv_layer(&hp, i), source[i]);
        ck_assert(hparams_has_kv(&hp, i) == (i < 2) && hparams_d_ff(&hp, i) == 9216);
    }
    good("{" GEMMA4 ",\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true}");
    ck_assert(hparams_d_ff(&hp, 1) == 9216 && hparams_d_ff(&hp, 2) == 18432);
    good("{" GEMMA4 ",\"use_double_wide_mlp\":true}"); /* layers that share are wide, no others */
    ck_assert(hparams_d_ff(&hp, 3) == 9216);
    good("{" GEMMA4 ",\"attention_k_eq_v\":true,\"num_kv_shared_layers\":2}");
    ck_assert(hparams_has_v(&hp, 0) && !hparams_has_v(&hp, 1) && !hparams_has_v(&hp, 2));
}
END_TEST

START_TEST(what_a_gemma_cannot_run_is_refused_by_its_key)
{
    bad("{" GEMMA("gemma3_text") ",\"attn_logit_softcapping\":50}", "'attn_logit_softcapping'");
    bad("{" GEMMA("gemma2") ",\"hidden_activation\":\"gelu\"}",
        "'hidden_activation': found 'gelu', expected 'gelu_pytorch_tanh'");
    bad("{" GEMMA("gemma3_text") ",\"use_bidirectional_attention\":true}",
        "'use_bidirectional_attention'");
    bad("{" GEMMA4 ",\"use_bidirectional_attention\":\"all\"}", "found all, expected causal");
    bad("{" GEMMA("gemma3_text") ",\"rope_parameters\":{\"rope_type\":\"default\"}}",
        "'full_attention'");
    bad("{" GEMMA("gemma3_text") ",\"rope_parameters\":{\"full_attention\":{},"
                                 "\"sliding_attention\":{\"rope_type\":\"dynamic\"}}}",
        "rope_type 'dynamic' is not supported");
    bad("{" GEMMA("gemma2") ",\"sliding_window\":null,\"layer_types\":[\"sliding_attention\","
                            "\"full_attention\",\"full_attention\",\"full_attention\"]}",
        "layer 0 slides, but 'sliding_window' is not set");
    bad("{" GEMMA("gemma2") ",\"query_pre_attn_scalar\":0}", "'query_pre_attn_scalar'");
    bad("{" GEMMA("gemma3_text") ",\"sliding_window_pattern\":0}", "'sliding_window_pattern'");
    bad("{" GEMMA("gemma4_text") ",\"vocab_size_per_layer_input\":31}",
        "vocab_size_per_layer_input is 31, expected at least vocab_size 32");
    bad("{" GEMMA("gemma4_text") ",\"hidden_size_per_layer_input\":-1}",
        "'hidden_size_per_layer_input'");
    bad("{" GEMMA("gemma4_unified_text") ",\"hidden_size_per_layer_input\":256}",
        "hidden_size_per_layer_input is 256, expected 0 for gemma4_unified_text");
    bad("{" GEMMA("gemma4_unified_text") EXPERTS4 "}",
        "'enable_moe_block' is true, expected false for gemma4_unified_text");
    bad("{" GEMMA4 ",\"enable_moe_block\":true}", "'num_experts'");
    bad("{" GEMMA4 ",\"enable_moe_block\":true,\"num_experts\":8}", "'top_k_experts'");
    bad("{" GEMMA4 ",\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":9}",
        "'top_k_experts'");
    bad("{" GEMMA4 ",\"enable_moe_block\":true,\"num_experts\":8,\"top_k_experts\":2}",
        "'moe_intermediate_size'");
    bad("{" GEMMA4 ",\"use_double_wide_mlp\":2}", "'use_double_wide_mlp'");
    bad("{" GEMMA4 ",\"num_kv_shared_layers\":4}", "'num_kv_shared_layers'");
    bad("{" GEMMA4 ",\"num_kv_shared_layers\":3}",
        "num_kv_shared_layers is 3: layer 1 has no full_attention layer before it");
    bad("{" GEMMA4 ",\"activation_sparsity_pattern\":[0.95,0,0,0]}",
        "'activation_sparsity_pattern'");
    bad("{" GEMMA4 ",\"per_layer_config\":{\"0\":{\"head_dim\":32}}}", "layer 0, which slides");
    bad("{" GEMMA4 ",\"per_layer_config\":{\"1\":{\"head_dim\":32}}}",
        "layer 3 has 2 KV heads of 16, the full layer before it 2 of 32");
    bad("{" GEMMA4 ",\"per_layer_config\":{\"1\":{\"num_key_value_heads\":3},"
        "\"3\":{\"num_key_value_heads\":3}}}",
        "3 KV heads of 16 dims, expected a divisor of 4 heads");
    bad("{" GEMMA("gemma4_text") ",\"hidden_size_per_layer_input\":0,\"global_head_dim\":31}",
        "full layers have 2 KV heads of 31 dims");
}
END_TEST

/* Every family, the text part of an outer config too, names a word that it does not know. */
START_TEST(unknown_words_are_named_by_every_family)
{
    static const struct {
        const char *family, *more, *act;
    } cases[] = {
        {"llama", "", "hidden_act"},
        {"mistral", "", "hidden_act"},
        {"mixtral", ",\"num_local_experts\":4", "hidden_act"},
        {"qwen2", "", "hidden_act"},
        {"qwen3", "", "hidden_act"},
        {"qwen3_moe", ",\"num_experts\":4,\"num_experts_per_tok\":2", "hidden_act"},
        {"gpt_oss", ",\"num_local_experts\":4", "hidden_act"},
        {"gemma2", "", "hidden_activation"},
        {"gemma3_text", "", "hidden_activation"},
        {"gemma4_text", ",\"hidden_size_per_layer_input\":0", "hidden_activation"},
        {"gemma4_unified_text", "", "hidden_activation"},
    };
    static const char *const types[] = {"chunked_attention", "linear_attention", "mamba"};
    char base[512], config[1024], words[64];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(base, sizeof base,
                 "{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":96,"
                 "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
                 "\"head_dim\":16,\"vocab_size\":32%s",
                 cases[i].family, cases[i].more);
        const bool nested = str_starts(cases[i].family, "gemma");
        const bool scaling = !str_starts(cases[i].family, "gemma4");
        snprintf(config, sizeof config,
                 nested && !scaling
                     ? "%s,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"spiral\"},"
                       "\"sliding_attention\":{\"rope_type\":\"default\"}}}"
                     : "%s,\"rope_scaling\":{\"rope_type\":\"spiral\",\"factor\":2}}",
                 base);
        bad(config, "'spiral'");
        snprintf(config, sizeof config, "%s,\"%s\":\"mish\"}", base, cases[i].act);
        bad(config, "'mish'");
        for (size_t j = 0; j < ARRAY_LEN(types); j++) {
            snprintf(config, sizeof config, "%s,\"layer_types\":[\"%s\"]}", base, types[j]);
            snprintf(words, sizeof words, "'%s'", types[j]);
            bad(config, words);
        }
    }
}
END_TEST

START_TEST(missing_kv_heads_are_the_familys_null_is_all_heads)
{
    static const char *const config =
        "{\"model_type\":\"%s\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":32,\"vocab_size\":32%s}";
    static const struct {
        const char *family, *more;
        int n_kv;
    } cases[] = {{"llama", "", 32},
                 {"mistral", "", 8},
                 {"qwen2", "", 32},
                 {"mistral", ",\"num_key_value_heads\":null", 32}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[400];
        snprintf(text, sizeof text, config, cases[i].family, cases[i].more);
        good(text);
        ck_assert_int_eq(hp.n_kv, cases[i].n_kv);
    }
}
END_TEST

START_TEST(layer_types_win)
{
    good("{" MISTRAL ",\"sliding_window\":8,\"layer_types\":[\"full_attention\","
         "\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}");
    ck_assert(!hp.sliding[0] && hp.sliding[1] && !hp.sliding[2] && hp.sliding[3]);
    ck_assert_int_eq(hp.window, 8);
    bad("{" MISTRAL ",\"layer_types\":[\"full_attention\"]}", "1 entries for 4 layers");
    bad("{" MISTRAL ",\"layer_types\":[\"full_attention\",\"x\",\"x\",\"x\"]}",
        "entry 1 is 'x', expected 'full_attention' or 'sliding_attention'");
    bad("{" MISTRAL ",\"sliding_window\":null,\"layer_types\":[\"sliding_attention\","
        "\"full_attention\",\"full_attention\",\"full_attention\"]}",
        "layer 0 slides, but 'sliding_window' is not set");
}
END_TEST

START_TEST(both_spellings_of_rope_agree)
{
    static const char *const forms[] = {
        "{" BASE ",\"rope_theta\":5e5,\"max_position_embeddings\":999,\"rope_scaling\":"
        "{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}}",
        "{" BASE ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1,"
        "\"high_freq_factor\":4,\"rope_theta\":500000},"
        "\"original_max_position_embeddings\":8192}",
        "{" BASE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":500000.0,"
        "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
        "\"original_max_position_embeddings\":8192}}",
        "{" BASE ",\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"llama3\","
        "\"rope_theta\":500000,\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}}",
        "{" BASE ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"llama3\","
        "\"rope_theta\":500000,\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        good(forms[i]);
        ck_assert_int_eq(hp.rope.kind, ROPE_LLAMA3);
        ck_assert(hp.rope.theta == 500000 && hp.rope.factor == 8);
        ck_assert(hp.rope.low_freq_factor == 1 && hp.rope.high_freq_factor == 4);
        ck_assert(hp.rope.original_ctx == 8192);
    }
}
END_TEST

START_TEST(old_rope_key_wins_and_the_outer_context_too)
{
    good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3,\"rope_theta\":7}}");
    ck_assert(hp.rope.kind == ROPE_LINEAR && hp.rope.factor == 2 && hp.rope.theta == 10000);
    good("{" BASE ",\"original_max_position_embeddings\":111,\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":2,\"original_max_position_embeddings\":222}}");
    ck_assert(hp.rope.original_ctx == 111);
    good("{" BASE ",\"max_position_embeddings\":333,\"rope_scaling\":{\"type\":\"yarn\","
         "\"factor\":2}}");
    ck_assert(hp.rope.original_ctx == 333);
}
END_TEST

START_TEST(yarn_defaults_and_attention_factor)
{
    good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":null,"
         "\"beta_slow\":0}}");
    ck_assert(hp.rope.beta_fast == 32 && hp.rope.beta_slow == 1 && hp.rope.truncate);
    ck_assert(fabs(hp.rope.attention_factor - (0.1 * log(4) + 1)) < 1e-15);
    good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.5,"
         "\"mscale_all_dim\":2,\"truncate\":false}}");
    double want = (0.1 * 0.5 * log(4) + 1) / (0.1 * 2 * log(4) + 1);
    ck_assert(fabs(hp.rope.attention_factor - want) < 1e-15 && !hp.rope.truncate);
    good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
         "\"attention_factor\":0.75,\"mscale\":0.5,\"mscale_all_dim\":2}}");
    ck_assert(hp.rope.attention_factor == 0.75);
    good("{" BASE ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":0.5}}");
    ck_assert(hp.rope.attention_factor == 1);
}
END_TEST

START_TEST(incomplete_rope_is_refused)
{
    bad("{" BASE ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", "'factor'");
    bad("{" BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
        "\"high_freq_factor\":4}}",
        "'low_freq_factor'");
    bad("{" BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
        "\"low_freq_factor\":4,\"high_freq_factor\":4}}",
        "high_freq_factor 4");
    bad("{" BASE ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":8}}",
        "rope_type 'dynamic' is not supported; supported: default, linear, llama3, yarn");
    bad("{" BASE ",\"rope_scaling\":[]}", "'rope_scaling'");
    bad("{" BASE ",\"rope_scaling\":{\"rope_type\":\"factors\",\"factors\":[1,2]}}",
        "2 entries, expected 8");
}
END_TEST

START_TEST(partial_rotation)
{
    good("{" BASE ",\"partial_rotary_factor\":0.5}");
    ck_assert_int_eq(hp.rope.partial_dims, 8);
    good("{" BASE ",\"partial_rotary_factor\":1.0}");
    ck_assert_int_eq(hp.rope.partial_dims, 0);
    bad("{" BASE ",\"partial_rotary_factor\":0.0}", "rotates 0 dims of a head of 16");
}
END_TEST

START_TEST(eos_ids_are_united)
{
    ck_assert_int_eq(read_both("{" BASE ",\"eos_token_id\":[5,6],\"bos_token_id\":1}",
                               "{\"eos_token_id\":[6,7]}"),
                     ERR_OK);
    ck_assert_int_eq(hp.n_eos, 3);
    ck_assert(hp.eos[0] == 5 && hp.eos[1] == 6 && hp.eos[2] == 7 && hp.bos == 1);
    ck_assert_int_eq(read_both("{" BASE ",\"eos_token_id\":null}", "{\"eos_token_id\":9}"), ERR_OK);
    ck_assert_int_eq(hp.n_eos, 1);
    ck_assert_int_eq(hp.eos[0], 9);
    bad("{" BASE ",\"eos_token_id\":\"</s>\"}", "expected a token id or a list of them");
    bad("{" BASE ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
        "more than 16 ids");
}
END_TEST

START_TEST(text_config_is_followed)
{
    good("{\"model_type\":\"wrapper\",\"eos_token_id\":3,\"text_config\":{" BASE "}}");
    ck_assert_str_eq(hp.family, "llama");
    ck_assert_int_eq(hp.d_model, 64);
    ck_assert_int_eq(hp.eos[0], 3);
}
END_TEST

START_TEST(numbers_are_bounded_and_fit_each_other)
{
    bad("{\"model_type\":\"rwkv\"}",
        "family 'rwkv' is not supported; supported: llama, mistral, qwen2");
    bad("{}", "'model_type'");
    bad("{\"model_type\":7}", "'model_type'");
    bad("{\"model_type\":\"llama\"}", "'hidden_size'");
    bad("[]", "expected an object");
    bad("{" BASE ",\"num_key_value_heads\":3}", "num_attention_heads 4 is no multiple");
    bad("{" BASE ",\"num_key_value_heads\":0}", "'num_key_value_heads'");
    bad("{" BASE ",\"head_dim\":15}", "head_dim 15, expected an even number");
    bad("{" BASE ",\"head_dim\":1e3}", "'head_dim'");
    bad("{" BASE ",\"rms_norm_eps\":-1}", "'rms_norm_eps'");
    bad("{" BASE ",\"hidden_act\":\"gelu\"}", "found 'gelu', expected 'silu'");
    bad("{" BASE ",\"tie_word_embeddings\":1}", "'tie_word_embeddings'");
    bad("{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":513,\"num_attention_heads\":4,\"vocab_size\":32}",
        "'num_hidden_layers'");
    bad("{\"model_type\":\"llama\",\"hidden_size\":65,\"intermediate_size\":96,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"vocab_size\":32}",
        "hidden_size 65 over 4 heads");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hparams");
    TCase *t = tcase_create("all");
    tcase_add_test(t, llama_defaults);
    tcase_add_test(t, gpt_oss_defaults);
    tcase_add_test(t, mistral_slides_by_4096_unless_told_otherwise);
    tcase_add_test(t, qwen_has_its_own_biases_norms_and_head_size);
    tcase_add_test(t, qwen_slides_from_a_layer_on_when_told_to);
    tcase_add_test(t, gemma_defaults_are_those_of_its_classes);
    tcase_add_test(t, gemma_4_has_experts_beside_the_mlp_and_layers_that_share);
    tcase_add_test(t, what_a_gemma_cannot_run_is_refused_by_its_key);
    tcase_add_test(t, unknown_words_are_named_by_every_family);
    tcase_add_test(t, missing_kv_heads_are_the_familys_null_is_all_heads);
    tcase_add_test(t, layer_types_win);
    tcase_add_test(t, both_spellings_of_rope_agree);
    tcase_add_test(t, old_rope_key_wins_and_the_outer_context_too);
    tcase_add_test(t, yarn_defaults_and_attention_factor);
    tcase_add_test(t, incomplete_rope_is_refused);
    tcase_add_test(t, partial_rotation);
    tcase_add_test(t, eos_ids_are_united);
    tcase_add_test(t, text_config_is_followed);
    tcase_add_test(t, numbers_are_bounded_and_fit_each_other);
    suite_add_tcase(s, t);
    return s;
}
