/* tiny_text.c: the text side of tiny models. */
#include "tests/tiny_text.h"

#include <stdlib.h>

#include "common/io.h"
#include "common/json.h"

/* The code point that stands for a byte in a byte-level vocabulary: printable bytes for
 * themselves, the others from U+0100 up in order. */
static uint32_t byte_code_point(int byte)
{
    uint32_t next = 256;
    for (int b = 0; b <= byte; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        if (b == byte)
            return shown ? (uint32_t)b : next;
        next += !shown;
    }
    return 0;
}

static void put_token(struct strbuf *b, int byte)
{
    char utf8[4];
    int n = str_utf8_put(utf8, byte_code_point(byte));
    json_put_string(b, utf8, (size_t)n);
}

static void put_tokenizer(struct strbuf *b)
{
    static const char *const added[] = {"<|end|>", "<|user|>", "<|assistant|>"};
    strbuf_puts(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int i = 0; i < 3; i++)
        strbuf_printf(b,
                      "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                      i ? "," : "", 258 + i, added[i]);
    strbuf_puts(b, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                   "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\","
                   "\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
                   "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
                   "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                   "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        if (i)
            strbuf_putc(b, ',');
        put_token(b, i);
        strbuf_printf(b, ":%d", i);
    }
    strbuf_puts(b, ",\"th\":256,\"the\":257},\"merges\":[\"t h\",\"th e\"]}}\n");
}

static enum err_code write_text(const char *dir, const char *name, const char *text, size_t len,
                                struct err *e)
{
    char *path = io_join(dir, name);
    enum err_code rc =
        path ? io_write_all(path, text, len, true, e) : err_set(e, ERR_NOMEM, "out of memory");
    free(path);
    return rc;
}

enum err_code tiny_text_write(const char *dir, struct err *e)
{
    static const char config[] =
        "{\"eos_token\": \"<|end|>\", \"chat_template\": \"{% for m in messages %}"
        "{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}\"}\n";
    static const char generation[] = "{\"eos_token_id\": 258}\n";
    struct strbuf b = {0};
    put_tokenizer(&b);
    enum err_code rc = strbuf_ok(&b, e);
    if (rc == ERR_OK)
        rc = write_text(dir, "tokenizer.json", b.data, b.len, e);
    if (rc == ERR_OK)
        rc = write_text(dir, "tokenizer_config.json", config, strlen(config), e);
    if (rc == ERR_OK)
        rc = write_text(dir, "generation_config.json", generation, strlen(generation), e);
    strbuf_free(&b);
    return rc;
}
