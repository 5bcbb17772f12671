/* fuzz_archive.c: hostile archives around good and mutated checkpoints. */
#include "tests/archive_make.h"
#include "tests/fuzz/ckpt_input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/m.tar", input_folder());
    write_file(input_folder(), "m.tar", data, bytes);
    open_input(path);
    snprintf(path, sizeof path, "%s/m.tar:x/m.gguf", input_folder());
    open_input(path);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    struct strbuf gguf = {0}, st = {0};
    tiny_gguf(&gguf);
    tiny_st(&st, true);
    const struct archive_part single[] = {{"x/m.gguf", gguf.data, gguf.len},
                                          {"x/README", "hello", 5}};
    const char *config = TINY_CONFIG TINY_QUANT "}";
    const struct archive_part folder[] = {{"x/config.json", config, strlen(config)},
                                          {"x/model.safetensors", st.data, st.len}};
    size_t n = 0;
    for (int kind = MAKE_TAR; kind <= MAKE_ZIP_STORED && n + 2 <= max; kind++) {
        if (!make_archive(&seeds[n++], (enum archive_kind)kind, single, 2) ||
            !make_archive(&seeds[n++], (enum archive_kind)kind, folder, 2))
            abort();
    }
    strbuf_free(&gguf);
    strbuf_free(&st);
    return n;
}
