/* fuzz_ct.c: hostile configurations of compressed-tensors, and tensors that do not fit them.
 *
 * The input is config.json up to the first NUL, then bytes that replace the beginning of the data
 * section: weight_shape, scales, packed words, zero points.
 */
#include "tests/fuzz/ckpt_input.h"

#define MODULE   "model.layers.0.mlp.up_proj"
#define ROWS     8
#define DATA_MAX 624

static void write_tensors(const uint8_t *data, size_t n)
{
    static const char header[] =
        "{\"" MODULE ".weight_shape\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
        "\"" MODULE ".weight_scale\":{\"dtype\":\"BF16\",\"shape\":[8,2],\"data_offsets\":[16,48]},"
        "\"" MODULE ".weight_packed\":{\"dtype\":\"I32\",\"shape\":[8,10],"
        "\"data_offsets\":[48,368]},"
        "\"" MODULE ".weight_zero_point\":{\"dtype\":\"I32\",\"shape\":[2,2],"
        "\"data_offsets\":[368,384]},"
        "\"" MODULE ".weight_g_idx\":{\"dtype\":\"I32\",\"shape\":[60],"
        "\"data_offsets\":[384,624]}}";
    static const uint64_t shape[2] = {ROWS, 64};
    struct strbuf b = {0};
    uint8_t body[DATA_MAX] = {0};
    memcpy(body, shape, sizeof shape);
    memcpy(body, data, MIN2(n, sizeof body));
    make_u64(&b, sizeof header - 1);
    strbuf_append(&b, header, sizeof header - 1);
    strbuf_append(&b, body, sizeof body);
    write_file(input_folder(), "model.safetensors", b.data, b.len);
    strbuf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *nul = bytes ? memchr(data, 0, bytes) : NULL;
    size_t config = nul ? (size_t)(nul - data) : bytes;
    write_tensors(nul ? nul + 1 : data, nul ? bytes - config - 1 : 0);
    write_file(input_folder(), "config.json", data, config);
    open_input(input_folder());
    return 0;
}

#define CT_GROUP(weights)                                                                          \
    TINY_CONFIG ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","               \
                "\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{\"targets\":"       \
                "[\"Linear\",\"re:.*mlp\\\\.(up|down)_proj$\"],\"weights\":{" weights              \
                "},\"input_activations\":null}},\"ignore\":[\"lm_head\"]}}"

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const texts[] = {
        CT_GROUP("\"num_bits\":5,\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32"),
        CT_GROUP("\"num_bits\":4,\"symmetric\":true,\"strategy\":\"channel\",\"group_size\":null,"
                 "\"actorder\":\"weight\""),
        CT_GROUP("\"num_bits\":7,\"type\":\"int\",\"strategy\":\"tensor\",\"dynamic\":false"),
    };
    size_t n = MIN2(max, ARRAY_LEN(texts));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], texts[i]);
    return n;
}
