/* gpt_oss_make.h: a tiny gpt-oss folder's tensors as HF stores them, for tests and as a seed of
 * mutation: 1 layer, d 64, ff 32, 3 experts of which 2 run, 2 heads of 32 over 1, vocabulary 16.
 */
#ifndef ASSAY_TESTS_GPT_OSS_MAKE_H
#define ASSAY_TESTS_GPT_OSS_MAKE_H

#include "tests/ckpt_make.h"

#define OSS_CONFIG                                                                                 \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"intermediate_size\":32,"                     \
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"head_dim\":32,\"vocab_size\":16,\"num_local_experts\":3,\"num_experts_per_tok\":2,"         \
    "\"max_position_embeddings\":128,\"eos_token_id\":1"
#define OSS_QUANT ",\"quantization_config\":{\"quant_method\":\"mxfp4\"}"
#define OSS_LAYER "model.layers.0."
#define OSS_MLP   OSS_LAYER "mlp.experts."

enum { OSS_D = 64, OSS_FF = 32, OSS_EXPERTS = 3, OSS_WEIGHTS = 21 };

MAKE_FN void oss_dense(struct st_maker *m)
{
    static const struct {
        const char *name;
        int64_t rows, k;
    } parts[] = {
        {"model.embed_tokens.weight", 16, 64},
        {"lm_head.weight", 16, 64},
        {"model.norm.weight", 0, 64},
        {OSS_LAYER "input_layernorm.weight", 0, 64},
        {OSS_LAYER "post_attention_layernorm.weight", 0, 64},
        {OSS_LAYER "self_attn.sinks", 0, 2},
        {OSS_LAYER "self_attn.q_proj.weight", 64, 64},
        {OSS_LAYER "self_attn.q_proj.bias", 0, 64},
        {OSS_LAYER "self_attn.k_proj.weight", 32, 64},
        {OSS_LAYER "self_attn.k_proj.bias", 0, 32},
        {OSS_LAYER "self_attn.v_proj.weight", 32, 64},
        {OSS_LAYER "self_attn.v_proj.bias", 0, 32},
        {OSS_LAYER "self_attn.o_proj.weight", 64, 64},
        {OSS_LAYER "self_attn.o_proj.bias", 0, 64},
        {OSS_LAYER "mlp.router.weight", 3, 64},
        {OSS_LAYER "mlp.router.bias", 0, 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        st_tensor(m, parts[i].name, "BF16", 2, parts[i].rows, parts[i].k);
}

MAKE_FN void oss_packed(struct st_maker *m, const char *part, int64_t rows, int64_t k)
{
    const int64_t dim[4] = {OSS_EXPERTS, rows, k / 32, 16};
    char name[128];
    snprintf(name, sizeof name, OSS_MLP "%s_blocks", part);
    st_shaped(m, name, "U8", 1, 4, dim);
    snprintf(name, sizeof name, OSS_MLP "%s_scales", part);
    st_shaped(m, name, "U8", 1, 3, dim);
    snprintf(name, sizeof name, OSS_MLP "%s_bias", part);
    st_shaped(m, name, "BF16", 2, 2, dim);
}

/* Not quantized: input by output. */
MAKE_FN void oss_float(struct st_maker *m, const char *part, int64_t rows, int64_t k)
{
    const int64_t dim[3] = {OSS_EXPERTS, k, rows}, bias[2] = {OSS_EXPERTS, rows};
    char name[128];
    snprintf(name, sizeof name, OSS_MLP "%s", part);
    st_shaped(m, name, "BF16", 2, 3, dim);
    snprintf(name, sizeof name, OSS_MLP "%s_bias", part);
    st_shaped(m, name, "BF16", 2, 2, bias);
}

MAKE_FN void oss_all(struct strbuf *out, bool packed)
{
    struct st_maker m = {.rng = {4, 0}};
    oss_dense(&m);
    (packed ? oss_packed : oss_float)(&m, "gate_up_proj", 2 * OSS_FF, OSS_D);
    (packed ? oss_packed : oss_float)(&m, "down_proj", OSS_D, OSS_FF);
    st_finish(&m, out);
}

#endif
