/* fuzz_safetensors.c: hostile safetensors files in a folder with a good configuration. */
#include "tests/fuzz/ckpt_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static int turn;
    const char *dir = input_folder();
    /* Packed and dense configurations in turn: the same tensors mean different things. */
    write_text(dir, "config.json", turn++ % 2 ? TINY_CONFIG "}" : TINY_CONFIG TINY_QUANT "}");
    write_file(dir, "model.safetensors", data, bytes);
    open_input(dir);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    if (max < 3)
        return 0;
    tiny_st(&seeds[0], false);
    tiny_st(&seeds[1], true);
    struct st_maker m = {.rng = {3, 0}};
    st_tensor(&m, "a", "F32", 4, 2, 3);
    st_tensor(&m, "b", "I64", 8, 0, 1);
    st_tensor(&m, "c", "F4_NEW", 1, 0, 5);
    st_finish(&m, &seeds[2]);
    return 3;
}
