/* tool_tokenize.c: the tokenizer on standard input, for comparison with other implementations.
 *
 *   tool_tokenize FILE
 *
 * FILE is a tokenizer.json or a GGUF, whose vocabulary is used.
 *
 * Input is a row of records: u8 mode, u32 count, then `count` bytes of text (modes e, E, p, P) or
 * `count` ids of 32 bits (modes d, D, s). The answer to a text is u32 n and n ids; to ids u32 n and
 * n bytes. Lower case p and upper case P parse control tokens, upper case E and P add what the
 * post-processor adds, D skips special tokens, s decodes as a stream, one token at a time. An error
 * is n = 0xffffffff, its text goes to stderr.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/container.h"
#include "ckpt/gguf_tokenizer.h"
#include "common/io.h"
#include "infer/tokenizer.h"

static bool put(const void *bytes, size_t n)
{
    return fwrite(bytes, 1, n, stdout) == n;
}

static bool put_count(uint32_t n)
{
    return put(&n, sizeof n);
}

static bool answer_error(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    return put_count(UINT32_MAX);
}

static bool encode(const struct tokenizer *t, char mode, const char *text, size_t len)
{
    struct token_list out = {0};
    struct err e;
    int flags = mode == 'E' || mode == 'P' ? TOK_ADD_SPECIAL : 0;
    flags |= mode == 'p' || mode == 'P' ? TOK_PARSE_SPECIAL : 0;
    bool ok;
    if (tokenizer_encode(t, text, len, flags, &out, &e) != ERR_OK)
        ok = answer_error(&e);
    else
        ok = put_count((uint32_t)out.n) && put(out.ids, out.n * sizeof *out.ids);
    token_list_free(&out);
    return ok;
}

static enum err_code decode_stream(const struct tokenizer *t, const int32_t *ids, size_t n,
                                   struct strbuf *out, struct err *e)
{
    struct tok_stream s = {0};
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < n && rc == ERR_OK; i++)
        rc = tok_stream_push(t, &s, ids[i], out, e);
    if (rc == ERR_OK)
        rc = tok_stream_end(t, &s, out, e);
    tok_stream_free(&s);
    return rc;
}

static bool decode(const struct tokenizer *t, char mode, const int32_t *ids, size_t n)
{
    struct strbuf out = {0};
    struct err e;
    bool ok;
    enum err_code rc = mode == 's' ? decode_stream(t, ids, n, &out, &e)
                                   : tokenizer_decode(t, ids, n, mode == 'D', &out, &e);
    if (rc != ERR_OK)
        ok = answer_error(&e);
    else
        ok = put_count((uint32_t)out.len) && put(out.data, out.len);
    strbuf_free(&out);
    return ok;
}

static int run(const struct tokenizer *t)
{
    struct strbuf in = {0};
    char mode;
    uint32_t count;
    bool ok = true;
    while (ok && fread(&mode, 1, 1, stdin) == 1 && fread(&count, 1, sizeof count, stdin) == 4) {
        bool ids = mode == 'd' || mode == 'D' || mode == 's';
        size_t bytes = ids ? (size_t)count * sizeof(int32_t) : count;
        strbuf_clear(&in);
        ok = strbuf_reserve(&in, bytes + 1) && fread(in.data, 1, bytes, stdin) == bytes;
        if (ok && ids)
            ok = decode(t, mode, (const int32_t *)(const void *)in.data, count);
        else if (ok)
            ok = encode(t, mode, in.data, bytes);
    }
    strbuf_free(&in);
    return ok && fflush(stdout) == 0 ? 0 : 1;
}

static enum err_code open_json(struct tokenizer **t, const char *path, struct err *e)
{
    struct strbuf text = {0};
    enum err_code rc = io_read_all(path, (size_t)1 << 30, &text, e);
    if (rc == ERR_OK)
        rc = tokenizer_new(t, text.data, text.len, NULL, e);
    strbuf_free(&text);
    return rc;
}

/* A vocabulary file has no tensors, so it is no checkpoint: its keys alone are read. */
static enum err_code open_gguf(struct tokenizer **t, const char *path, struct err *e)
{
    struct container *c = NULL;
    struct strbuf text = {0};
    json_t *config = NULL;
    enum err_code rc = container_open(&c, path, e);
    if (rc == ERR_OK && !c->gguf)
        rc = err_set(e, ERR_INPUT, "%s: found no GGUF", path);
    if (rc == ERR_OK)
        rc = gguf_tokenizer_make(c->gguf, &text, &config, e);
    if (rc == ERR_OK)
        rc = tokenizer_new(t, text.data, text.len, config, e);
    container_close(c);
    json_decref(config);
    strbuf_free(&text);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct err e;
    if (argc != 2) {
        fprintf(stderr, "usage: tool_tokenize FILE\n");
        return 2;
    }
    enum err_code rc =
        str_ends(argv[1], ".json") ? open_json(&t, argv[1], &e) : open_gguf(&t, argv[1], &e);
    if (rc != ERR_OK)
        fprintf(stderr, "%s\n", e.text);
    int status = rc == ERR_OK ? run(t) : 2;
    tokenizer_free(t);
    return status;
}
