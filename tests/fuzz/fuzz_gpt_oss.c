/* fuzz_gpt_oss.c: hostile tensors under the configurations of gpt-oss: HF's blocks and scales, HF's
 * experts that are not quantized, and MLX's block floats. */
#include "tests/fuzz/ckpt_input.h"
#include "tests/gpt_oss_make.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const configs[] = {
        OSS_CONFIG OSS_QUANT "}",
        OSS_CONFIG "}",
        OSS_CONFIG ",\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\","
                   "\"n\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"},"
                   "\"e\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp8\"}}}",
    };
    static int turn;
    const char *dir = input_folder();
    write_text(dir, "config.json", configs[turn++ % 3]);
    write_file(dir, "model.safetensors", data, bytes);
    open_input(dir);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    const int64_t stack[3] = {2, 3, 8}, scales[3] = {2, 3, 4}, two[1] = {2};
    if (max < 3)
        return 0;
    oss_all(&seeds[0], true);
    oss_all(&seeds[1], false);
    struct st_maker m = {.rng = {5, 0}};
    st_shaped(&m, "n.weight", "U32", 4, 3, stack);
    st_shaped(&m, "n.scales", "U8", 1, 3, scales);
    st_shaped(&m, "n.global_scale", "F32", 4, 1, two);
    st_tensor(&m, "e.weight", "U32", 4, 3, 16);
    st_tensor(&m, "e.scales", "U8", 1, 3, 2);
    st_finish(&m, &seeds[2]);
    return 3;
}
