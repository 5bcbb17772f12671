/* fuzz_config.c: hostile config.json beside good tensors. */
#include "tests/fuzz/ckpt_input.h"
#include "tests/gpt_oss_make.h"

#define GEMMA4_CONFIG                                                                              \
    "{\"model_type\":\"gemma4_text\",\"hidden_size\":64,\"intermediate_size\":96,"                 \
    "\"num_hidden_layers\":4,\"num_attention_heads\":2,\"num_key_value_heads\":2,"                 \
    "\"head_dim\":32,\"global_head_dim\":64,\"vocab_size\":16,\"sliding_window\":8,"               \
    "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","             \
    "\"full_attention\"]"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool have_tensors;
    const char *dir = input_folder();
    if (!have_tensors) {
        struct strbuf b = {0};
        tiny_st(&b, true);
        write_file(dir, "model.safetensors", b.data, b.len);
        strbuf_free(&b);
        have_tensors = true;
    }
    write_file(dir, "config.json", data, bytes);
    open_input(dir);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const texts[] = {
        TINY_CONFIG TINY_QUANT "}",
        TINY_CONFIG ",\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"affine\","
                    "\"model.embed_tokens\":{\"group_size\":null,\"bits\":8},"
                    "\"model.layers.0.mlp.up_proj\":false}}",
        TINY_CONFIG TINY_QUANT
        ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
        TINY_CONFIG TINY_QUANT
        ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":2,\"mscale\":1.0,"
        "\"mscale_all_dim\":0.5,\"beta_fast\":null,\"rope_theta\":1e6},"
        "\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"sliding_window\":16}",
        "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"vocab_size\":16,\"num_experts\":4,"
        "\"num_experts_per_tok\":2,\"mlp_only_layers\":[0],\"decoder_sparse_step\":1}",
        GEMMA4_CONFIG ",\"attention_k_eq_v\":true,\"num_global_key_value_heads\":1,"
                      "\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,"
                      "\"num_experts\":4,\"top_k_experts\":2,\"moe_intermediate_size\":32,"
                      "\"per_layer_config\":{\"1\":{\"head_dim\":64,"
                      "\"num_key_value_heads\":1},\"3\":{\"head_dim\":64,"
                      "\"num_key_value_heads\":1}}}",
        GEMMA4_CONFIG ",\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true,"
                      "\"hidden_size_per_layer_input\":16,\"vocab_size_per_layer_input\":16,"
                      "\"rope_parameters\":{\"full_attention\":{\"rope_type\":"
                      "\"proportional\",\"rope_theta\":1e6,\"partial_rotary_factor\":0.25},"
                      "\"sliding_attention\":{\"rope_type\":\"default\"}}}",
        OSS_CONFIG OSS_QUANT
        ",\"swiglu_limit\":7.0,\"swiglu_alpha\":1.702,\"attention_bias\":true,"
        "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"truncate\":false},"
        "\"layer_types\":[\"sliding_attention\"],\"sliding_window\":128}",
    };
    size_t n = MIN2(max, ARRAY_LEN(texts));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], texts[i]);
    return n;
}
