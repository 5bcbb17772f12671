/* trace.c: writing traces. Owns the form of the lines, nothing of what they mean; reading is
 * trace_read.c's, the binary form trace_block.c's.
 */
#include "ckpt/trace_private.h"

#include <math.h>
#include <stdlib.h>
#include <zlib.h>

#include "ckpt/dtype.h"
#include "common/hash.h"
#include "common/io.h"

const char *const trace_level_names[] = {"tokens", "layers"};

void trace_record_free(struct trace_record *r)
{
    free(r->custom_id);
    free(r->text);
    free(r->prompt_ids);
    for (size_t i = 0; r->tok && i < r->n; i++)
        free(r->tok[i].full);
    free(r->tok);
    *r = (struct trace_record){.n = 0};
}

void trace_prompt_hash(const int32_t *ids, size_t n, char hex[65])
{
    uint8_t digest[32];
    sha256_of(ids ? (const void *)ids : "", n * sizeof *ids, digest);
    sha256_hex(digest, hex);
}

/* ---- writer -----------------------------------------------------------------------------------
 */

struct trace_writer {
    struct io_out *out;
    bool gz, blocks;
    int64_t n_vocab;
    z_stream z;
    struct strbuf line;
};

static enum err_code flush_line(struct trace_writer *w, bool last, struct err *e)
{
    enum err_code rc = strbuf_ok(&w->line, e);
    if (rc != ERR_OK)
        return rc;
    if (!w->gz) {
        rc = io_out_write(w->out, w->line.data, w->line.len, e);
        strbuf_clear(&w->line);
        return rc;
    }
    uint8_t piece[1 << 14];
    w->z.next_in = (Bytef *)w->line.data;
    w->z.avail_in = (uInt)w->line.len;
    do {
        w->z.next_out = piece;
        w->z.avail_out = sizeof piece;
        deflate(&w->z, last ? Z_FINISH : Z_NO_FLUSH);
        rc = io_out_write(w->out, piece, sizeof piece - w->z.avail_out, e);
    } while (rc == ERR_OK && w->z.avail_out == 0);
    strbuf_clear(&w->line);
    return rc;
}

static void put_text(struct strbuf *b, const char *key, const char *value)
{
    strbuf_printf(b, ",\"%s\":", key);
    json_put_string(b, value, strlen(value));
}

static enum err_code put_header(struct trace_writer *w, const struct trace_header *h, struct err *e)
{
    strbuf_printf(&w->line, "{\"assay_trace\":%d", TRACE_VERSION);
    put_text(&w->line, "model", h->model);
    put_text(&w->line, "arith", h->arith);
    put_text(&w->line, "fingerprint", h->fingerprint);
    put_text(&w->line, "tokenizer", h->tokenizer);
    put_text(&w->line, "template", h->chat_template);
    put_text(&w->line, "prompts", h->prompts);
    put_text(&w->line, "settings", h->settings);
    put_text(&w->line, "build", h->build);
    put_text(&w->line, "level", trace_level_names[h->level]);
    strbuf_printf(&w->line, ",\"n_vocab\":%lld,\"top_k\":%d}\n", (long long)h->n_vocab, h->top_k);
    return flush_line(w, false, e);
}

enum err_code trace_writer_open(struct trace_writer **out, const char *path,
                                const struct trace_header *h, bool replace, struct err *e)
{
    *out = NULL;
    struct trace_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "out of memory");
    enum err_code rc = ERR_OK;
    w->blocks = !str_ends(path, ".jsonl") && !str_ends(path, ".jsonl.gz");
    w->n_vocab = h->n_vocab;
    if (str_ends(path, ".gz")) {
        if (deflateInit2(&w->z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
            free(w);
            return err_set(e, ERR_NOMEM, "out of memory");
        }
        w->gz = true;
    }
    rc = io_out_open(&w->out, path, replace, e);
    if (rc == ERR_OK)
        rc = put_header(w, h, e);
    if (rc != ERR_OK)
        trace_writer_abort(w);
    else
        *out = w;
    return rc;
}

static void put_number(struct strbuf *b, float v)
{
    json_put_double(b, (double)v);
}

/* One array over the tokens. */
static void put_figures(struct strbuf *b, const char *key, const struct trace_record *r,
                        size_t offset)
{
    strbuf_printf(b, ",\"%s\":[", key);
    for (size_t i = 0; i < r->n; i++) {
        float v;
        memcpy(&v, (const char *)&r->tok[i] + offset, sizeof v);
        strbuf_puts(b, i ? "," : "");
        put_number(b, v);
    }
    strbuf_putc(b, ']');
}

/* Rows that are there in full: [token, [logits]]. */
static void put_full(struct strbuf *b, const struct trace_record *r, int64_t n_vocab)
{
    bool any = false;
    for (size_t i = 0; i < r->n; i++) {
        if (!r->tok[i].full)
            continue;
        strbuf_printf(b, any ? ",[%zu,[" : ",\"full\":[[%zu,[", i);
        for (int64_t k = 0; k < n_vocab; k++) {
            strbuf_puts(b, k ? "," : "");
            put_number(b, f16_to_f32(r->tok[i].full[k]));
        }
        strbuf_puts(b, "]]");
        any = true;
    }
    strbuf_puts(b, any ? "]" : "");
}

static void put_arrays(struct strbuf *b, const struct trace_record *r, int64_t n_vocab)
{
    strbuf_puts(b, ",\"prompt_ids\":[");
    for (int64_t i = 0; i < r->n_prompt; i++)
        strbuf_printf(b, "%s%d", i ? "," : "", r->prompt_ids[i]);
    strbuf_puts(b, "],\"ids\":[");
    for (size_t i = 0; i < r->n; i++)
        strbuf_printf(b, "%s%d", i ? "," : "", r->tok[i].id);
    strbuf_putc(b, ']');
    put_figures(b, "logprob", r, offsetof(struct trace_token, logprob));
    put_figures(b, "margin", r, offsetof(struct trace_token, margin));
    put_figures(b, "lse", r, offsetof(struct trace_token, lse));
    strbuf_puts(b, ",\"hash\":[");
    for (size_t i = 0; i < r->n; i++)
        strbuf_printf(b, "%s\"%016llx\"", i ? "," : "", (unsigned long long)r->tok[i].hash);
    strbuf_puts(b, "],\"top\":[");
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(b, i ? ",[" : "[");
        for (int k = 0; k < r->tok[i].n_top; k++) {
            strbuf_printf(b, "%s[%d,", k ? "," : "", r->tok[i].top_id[k]);
            put_number(b, r->tok[i].top_logprob[k]);
            strbuf_putc(b, ']');
        }
        strbuf_putc(b, ']');
    }
    strbuf_putc(b, ']');
    put_full(b, r, n_vocab);
}

enum err_code trace_writer_record(struct trace_writer *w, const struct trace_record *r,
                                  struct err *e)
{
    struct strbuf *b = &w->line;
    strbuf_puts(b, "{\"custom_id\":");
    json_put_string(b, r->custom_id, strlen(r->custom_id));
    strbuf_printf(b, ",\"turn\":%d,\"prompt\":\"%s\",\"finish\":\"%s\",\"text\":", r->turn,
                  r->prompt, r->finish);
    json_put_string(b, r->text ? r->text : "", r->text_len);
    if (w->blocks) {
        struct trace_block_size size = trace_block_size_of(r);
        strbuf_printf(b, ",\"prompt_tokens\":%lld,\"tokens\":%lld,\"tops\":%lld,\"full\":%lld}\n",
                      (long long)size.n_prompt, (long long)size.n, (long long)size.tops,
                      (long long)size.full);
        trace_block_put(b, r, w->n_vocab);
    } else {
        put_arrays(b, r, w->n_vocab);
        strbuf_putc(b, '}');
    }
    strbuf_putc(b, '\n');
    return flush_line(w, false, e);
}

enum err_code trace_writer_layers(struct trace_writer *w, const char *custom_id, int turn,
                                  int64_t pos, const struct trace_layer_op *ops, size_t n,
                                  struct err *e)
{
    struct strbuf *b = &w->line;
    strbuf_puts(b, "{\"layers_of\":");
    json_put_string(b, custom_id, strlen(custom_id));
    strbuf_printf(b, ",\"turn\":%d,\"pos\":%lld,\"ops\":[", turn, (long long)pos);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(b, "%s[%d,\"%s\",\"%016llx\"]", i ? "," : "", ops[i].layer, ops[i].op,
                      (unsigned long long)ops[i].hash);
    strbuf_puts(b, "]}\n");
    return flush_line(w, false, e);
}

enum err_code trace_writer_close(struct trace_writer *w, struct err *e)
{
    enum err_code rc = w->gz ? flush_line(w, true, e) : ERR_OK;
    if (rc != ERR_OK) {
        trace_writer_abort(w);
        return rc;
    }
    rc = io_out_commit(w->out, e);
    w->out = NULL;
    trace_writer_abort(w);
    return rc;
}

void trace_writer_abort(struct trace_writer *w)
{
    if (!w)
        return;
    io_out_abort(w->out);
    if (w->gz)
        deflateEnd(&w->z);
    strbuf_free(&w->line);
    free(w);
}
