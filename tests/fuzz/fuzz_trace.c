/* fuzz_trace.c: hostile traces. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/trace.h"
#include "tests/fuzz/fuzz.h"

static char path[64];

static void remove_file(void)
{
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct trace *t;
    struct err e = {.text = ""};
    if (!path[0]) {
        snprintf(path, sizeof path, "%s/assay-fuzz-XXXXXX", P_tmpdir);
        int fd = mkstemp(path);
        if (fd < 0)
            abort();
        close(fd);
        atexit(remove_file);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0)
        abort();
    enum err_code rc = trace_read(&t, path, &e);
    if (rc == ERR_OK)
        trace_free(t);
    else if (!e.text[0] || t)
        abort();
    return 0;
}

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
/* SHA-256 of the ids 1 and 2 as little-endian 32-bit integers. */
#define PROMPT "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char head[] =
        "{\"assay_trace\":1,\"model\":\"m\",\"arith\":\"f32\",\"fingerprint\":\"" HEX
        "\",\"tokenizer\":\"" HEX "\",\"template\":\"" HEX "\",\"prompts\":\"" HEX
        "\",\"level\":\"tokens\",\"top_k\":2}\n";
    static const char record[] = "{\"custom_id\":\"a\",\"turn\":0,\"prompt\":\"" PROMPT
                                 "\",\"finish\":\"stop\",\"text\":\"x\",\"prompt_ids\":[1,2],"
                                 "\"ids\":[5,6],\"logprob\":[-0.5,"
                                 "null],\"margin\":[1,2.5],\"hash\":[\"0123456789abcdef\","
                                 "\"0123456789abcdef\"],\"top\":[[[5,"
                                 "-0.5],[6,-1]],[]]}\n";
    static const char layers[] = "{\"layers_of\":\"a\",\"turn\":0,\"pos\":1,\"ops\":[[-1,\"embed\","
                                 "\"0123456789abcdef\"]]}\n";
    /* One prompt id, one token with one best, one row of two logits in full. */
    static const char head2[] =
        "{\"assay_trace\":2,\"model\":\"m\",\"arith\":\"f32\",\"fingerprint\":\"" HEX
        "\",\"tokenizer\":\"" HEX "\",\"template\":\"" HEX "\",\"prompts\":\"" HEX
        "\",\"settings\":\"\",\"build\":\"x\",\"level\":\"tokens\",\"n_vocab\":2,\"top_k\":1}\n";
    static const char line2[] = "{\"custom_id\":\"a\",\"turn\":0,\"prompt\":\"" PROMPT
                                "\",\"finish\":\"stop\",\"text\":\"x\",\"prompt_tokens\":2,"
                                "\"tokens\":1,\"tops\":1,\"full\":1}\n";
    static const uint8_t block[] = {1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0,    0, 0x80, 0xbf, 0,
                                    0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6,    7, 8,    1,    5,
                                    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3c, 0, 0,    '\n'};
    if (max < 3)
        return 0;
    strbuf_printf(&seeds[2], "%s%s", head2, line2);
    strbuf_append(&seeds[2], block, sizeof block);
    strbuf_printf(&seeds[0], "%s%s", head, record);
    strbuf_printf(&seeds[1], "%s%s%s%s", head, layers, record, layers);
    return 3;
}
