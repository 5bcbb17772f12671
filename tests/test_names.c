/* test_names.c: names across HF, MLX and GGUF; roles and layers. */
#include "ckpt/names.h"

#include "tests/check_main.h"

static const struct {
    const char *family, *gguf, *hf;
} gguf_names[] = {
    {"llama", "token_embd.weight", "model.embed_tokens.weight"},
    {"llama", "output_norm.weight", "model.norm.weight"},
    {"llama", "output.weight", "lm_head.weight"},
    {"llama", "blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
    {"llama", "blk.117.ffn_down.weight", "model.layers.117.mlp.down_proj.weight"},
    {"llama", "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"},
    {"qwen2", "blk.3.attn_k.bias", "model.layers.3.self_attn.k_proj.bias"},
    {"qwen3", "blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"},
    {"gemma3_text", "blk.3.ffn_norm.weight", "model.layers.3.pre_feedforward_layernorm.weight"},
    {"gemma3_text", "blk.3.post_attention_norm.weight",
     "model.layers.3.post_attention_layernorm.weight"},
    {"gpt_oss", "blk.1.post_attention_norm.weight",
     "model.layers.1.post_attention_layernorm.weight"},
    {"gpt_oss", "blk.1.attn_sinks.weight", "model.layers.1.self_attn.sinks"},
    {"gpt_oss", "blk.1.ffn_gate_inp.bias", "model.layers.1.mlp.router.bias"},
    {"gpt_oss", "blk.1.ffn_up_exps.bias", "model.layers.1.mlp.experts.up_proj.bias"},
    {"mixtral", "blk.1.ffn_gate_inp.weight", "model.layers.1.block_sparse_moe.gate.weight"},
    {"mixtral", "blk.1.ffn_gate_exps.weight",
     "model.layers.1.block_sparse_moe.experts.gate_proj.weight"},
    {"qwen3_moe", "blk.1.ffn_gate_inp.weight", "model.layers.1.mlp.gate.weight"},
    {"gemma4_text", "blk.1.layer_output_scale.weight", "model.layers.1.layer_scalar"},
    {"gemma4_text", "blk.1.ffn_down_exps.scale", "model.layers.1.router.per_expert_scale"},
    {"gemma4_text", "blk.1.ffn_gate_inp.scale", "model.layers.1.router.scale"},
    {"gemma4_text", "blk.1.ffn_gate_inp.weight", "model.layers.1.router.proj.weight"},
    {"gemma4_text", "blk.1.ffn_gate_up_exps.weight", "model.layers.1.experts.gate_up_proj.weight"},
    {"gemma4_text", "blk.1.post_ffw_norm_1.weight",
     "model.layers.1.post_feedforward_layernorm_1.weight"},
    {"gemma4_text", "blk.1.inp_gate.weight", "model.layers.1.per_layer_input_gate.weight"},
    {"gemma4_text", "blk.1.proj.weight", "model.layers.1.per_layer_projection.weight"},
    {"gemma4_text", "blk.1.post_norm.weight", "model.layers.1.post_per_layer_input_norm.weight"},
    {"gemma4_text", "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
};

START_TEST(gguf_names_become_those_of_hf)
{
    char out[CKPT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(gguf_names); i++) {
        ck_assert_int_eq(names_from_gguf(gguf_names[i].family, gguf_names[i].gguf, out),
                         NAMES_KNOWN);
        ck_assert_str_eq(out, gguf_names[i].hf);
    }
    ck_assert_int_eq(names_from_gguf("llama", "rope_freqs.weight", out), NAMES_DROPPED);
}
END_TEST

START_TEST(unknown_gguf_names_stay_as_they_are)
{
    static const char *const names[] = {"blk.0.strange.weight",
                                        "blk.x.attn_q.weight",
                                        "blk..attn_q",
                                        "blk.0.attn_q",
                                        "blk.0.attn_qq.weight",
                                        "",
                                        "blk.0.ffn_gate_exps.weight"};
    char out[CKPT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        ck_assert_int_eq(names_from_gguf("llama", names[i], out), NAMES_OTHER);
        ck_assert_str_eq(out, names[i]);
    }
    ck_assert_int_eq(names_from_gguf(NULL, "blk.0.attn_q.weight", out), NAMES_OTHER);
}
END_TEST

START_TEST(mlx_names_go_there_and_back)
{
    static const struct {
        const char *family, *mlx, *hf;
    } names[] = {
        {"llama", "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"},
        {"qwen3_moe", "model.layers.1.mlp.switch_mlp.up_proj.weight",
         "model.layers.1.mlp.experts.up_proj.weight"},
        {"mixtral", "model.layers.1.block_sparse_moe.switch_mlp.up_proj.weight",
         "model.layers.1.block_sparse_moe.experts.up_proj.weight"},
        {"gemma4_text", "model.layers.1.experts.switch_glu.up_proj.weight",
         "model.layers.1.experts.up_proj.weight"},
        {"gpt_oss", "model.layers.1.mlp.experts.up_proj.weight",
         "model.layers.1.mlp.experts.up_proj.weight"},
    };
    char out[CKPT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        ck_assert_int_eq(names_from_folder(names[i].family, names[i].mlx, out), NAMES_KNOWN);
        ck_assert_str_eq(out, names[i].hf);
        ck_assert(names_to_mlx(names[i].family, false, names[i].hf, out));
        ck_assert_str_eq(out, names[i].mlx);
    }
    ck_assert(names_to_mlx("qwen3_moe", false, "model.layers.1.mlp.experts.7.up_proj.weight", out));
    ck_assert_str_eq(out, "model.layers.1.mlp.experts.7.up_proj.weight");
    ck_assert_int_eq(
        names_from_folder("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", out),
        NAMES_DROPPED);
}
END_TEST

START_TEST(a_text_model_is_found_inside_a_checkpoint_of_several_parts)
{
    static const char *const stored[] = {"language_model.model.layers.1.mlp.up_proj.weight",
                                         "model.language_model.layers.1.mlp.up_proj.weight",
                                         "model.layers.1.mlp.up_proj.weight"};
    static const char *const aside[] = {"vision_tower.encoder.layers.1.mlp.fc1.weight",
                                        "model.vision_tower.encoder.layers.1.mlp.fc1.weight",
                                        "multi_modal_projector.mm_soft_emb_norm.weight"};
    char out[CKPT_NAME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(stored); i++) {
        ck_assert_int_eq(names_from_folder("gemma3_text", stored[i], out), NAMES_KNOWN);
        ck_assert_str_eq(out, "model.layers.1.mlp.up_proj.weight");
    }
    ck_assert(names_to_mlx("gemma3_text", true, "model.layers.1.mlp.up_proj.weight", out));
    ck_assert_str_eq(out, "language_model.model.layers.1.mlp.up_proj.weight");
    ck_assert_int_eq(names_from_folder("gemma3_text", "language_model.lm_head.weight", out),
                     NAMES_KNOWN);
    ck_assert_str_eq(out, "lm_head.weight");
    for (size_t i = 0; i < ARRAY_LEN(aside); i++) {
        ck_assert_int_eq(names_from_folder("gemma3_text", aside[i], out), NAMES_ASIDE);
        ck_assert_str_eq(out, aside[i]);
        ck_assert_int_eq(names_from_folder("llama", aside[i], out), NAMES_KNOWN);
    }
}
END_TEST

START_TEST(every_weight_has_a_role_and_a_layer)
{
    static const struct {
        const char *name;
        enum ckpt_role role;
        int layer;
    } names[] = {
        {"model.embed_tokens.weight", ROLE_EMBEDDING, -1},
        {"lm_head.weight", ROLE_HEAD, -1},
        {"model.norm.weight", ROLE_NORM, -1},
        {"model.layers.0.input_layernorm.weight", ROLE_NORM, 0},
        {"model.layers.11.self_attn.q_norm.weight", ROLE_NORM, 11},
        {"model.layers.11.self_attn.q_proj.bias", ROLE_ATTENTION, 11},
        {"model.layers.2.self_attn.sinks", ROLE_ATTENTION, 2},
        {"model.layers.2.mlp.gate_proj.weight", ROLE_MLP, 2},
        {"model.layers.2.mlp.gate.weight", ROLE_ROUTER, 2},
        {"model.layers.2.mlp.router.bias", ROLE_ROUTER, 2},
        {"model.layers.2.block_sparse_moe.gate.weight", ROLE_ROUTER, 2},
        {"model.layers.2.router.proj.weight", ROLE_ROUTER, 2},
        {"model.layers.2.router.per_expert_scale", ROLE_ROUTER, 2},
        {"model.layers.2.post_feedforward_layernorm_1.weight", ROLE_NORM, 2},
        {"model.embed_tokens_per_layer.weight", ROLE_EMBEDDING, -1},
        {"model.per_layer_model_projection.weight", ROLE_MLP, -1},
        {"model.per_layer_projection_norm.weight", ROLE_NORM, -1},
        {"model.layers.2.per_layer_input_gate.weight", ROLE_MLP, 2},
        {"model.layers.2.per_layer_projection.weight", ROLE_MLP, 2},
        {"model.layers.2.post_per_layer_input_norm.weight", ROLE_NORM, 2},
        {"model.layers.2.experts.up_proj.weight", ROLE_EXPERT, 2},
        {"model.layers.2.mlp.experts.5.up_proj.weight", ROLE_EXPERT, 2},
        {"model.layers.2.mlp.experts.up_proj.weight", ROLE_EXPERT, 2},
        {"model.layers.2.block_sparse_moe.experts.5.w1.weight", ROLE_EXPERT, 2},
        {"vision_tower.x.weight", ROLE_OTHER, -1},
        {"sublayers.3.x", ROLE_OTHER, -1},
        {"model.layers.9999999999.x", ROLE_OTHER, -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        ck_assert_msg(names_role(names[i].name) == names[i].role, "%s", names[i].name);
        ck_assert_msg(names_layer(names[i].name) == names[i].layer, "%s", names[i].name);
    }
}
END_TEST

START_TEST(role_texts_go_there_and_back)
{
    for (int i = 0; i < ROLE_COUNT; i++) {
        enum ckpt_role r;
        ck_assert(ckpt_role_find(ckpt_role_name((enum ckpt_role)i), &r));
        ck_assert_int_eq((int)r, i);
    }
    enum ckpt_role r;
    ck_assert(!ckpt_role_find("heads", &r));
}
END_TEST

START_TEST(architectures_name_families)
{
    ck_assert_str_eq(names_family_of_arch("llama", false), "llama");
    ck_assert_str_eq(names_family_of_arch("llama", true), "mixtral");
    ck_assert_str_eq(names_family_of_arch("qwen3moe", true), "qwen3_moe");
    ck_assert_str_eq(names_family_of_arch("gpt-oss", true), "gpt_oss");
    ck_assert_ptr_null(names_family_of_arch("rwkv", false));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("names");
    TCase *t = tcase_create("all");
    tcase_add_test(t, gguf_names_become_those_of_hf);
    tcase_add_test(t, unknown_gguf_names_stay_as_they_are);
    tcase_add_test(t, mlx_names_go_there_and_back);
    tcase_add_test(t, a_text_model_is_found_inside_a_checkpoint_of_several_parts);
    tcase_add_test(t, every_weight_has_a_role_and_a_layer);
    tcase_add_test(t, role_texts_go_there_and_back);
    tcase_add_test(t, architectures_name_families);
    suite_add_tcase(s, t);
    return s;
}
