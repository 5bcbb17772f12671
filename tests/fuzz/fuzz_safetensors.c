/* fuzz_safetensors.c: hostile safetensors files in a folder with a good configuration. */
#include "tests/fuzz/ckpt_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int turn;
    const char *dir = input_folder();
    /* Dense, packed and sparse configurations in turn: the same tensors mean different things. */
    static const char *const configs[] = {
        TINY_CONFIG TINY_QUANT "}", TINY_CONFIG "}",
        "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":16,\"num_experts\":3,"
        "\"num_experts_per_tok\":2}"};
    write_text(dir, "config.json", configs[turn++ % (int)ARRAY_LEN(configs)]);
    write_file(dir, "model.safetensors", data, bytes);
    open_input(dir);
    return 0;
}

/* Experts of one matrix that are a tensor each, and of two that are fused. */
static void expert_seed(struct strbuf *out)
{
    struct st_maker m = {.rng = {4, 0}};
    st_tensor(&m, "model.layers.0.mlp.experts.0.up_proj.weight", "BF16", 2, 32, 64);
    st_tensor(&m, "model.layers.0.mlp.experts.1.up_proj.weight", "BF16", 2, 32, 64);
    st_packed(&m, "model.layers.0.mlp.experts.0.down_proj", 4, 32, 64, 32);
    st_packed(&m, "model.layers.0.mlp.experts.1.down_proj", 4, 32, 64, 32);
    size_t at = m.data.len;
    strbuf_append(&m.data, m.data.data, 3 * 4 * 8 * 2);
    strbuf_printf(
        &m.header,
        ",\"model.layers.0.mlp.experts.gate_up_proj\":{\"dtype\":\"BF16\",\"shape\":[3,4,8],"
        "\"data_offsets\":[%zu,%zu]}",
        at, m.data.len);
    st_finish(&m, out);
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    if (max < 4)
        return 0;
    tiny_st(&seeds[0], false);
    tiny_st(&seeds[1], true);
    struct st_maker m = {.rng = {3, 0}};
    st_tensor(&m, "a", "F32", 4, 2, 3);
    st_tensor(&m, "b", "I64", 8, 0, 1);
    st_tensor(&m, "c", "F4_NEW", 1, 0, 5);
    st_finish(&m, &seeds[2]);
    expert_seed(&seeds[3]);
    return 4;
}
