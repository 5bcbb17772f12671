/* batch_journal.c: the text of journal records. Owns their form; reads and writes no file.
 *
 * Every record is  {"run":"RUN","KIND":{...},"crc":"8 digits"}  and a DONE has  "reply":{...}  (the
 * output line, byte for byte) between the two. The order of the members is fixed: the checksum is
 * found from the end, and a reply is cut out without being parsed.
 */
#include "infer/batch_journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

static const char *const kinds[BATCH_REC_KINDS] = {"batch", "open", "start", "done", "out",
                                                   "cut",   "died", "stop",  "end"};
static const char *const outcomes[BATCH_OUTCOMES] = {"ok", "failed", "set_aside"};

static const char run_mark[] = "{\"run\":\"", crc_mark[] = ",\"crc\":\"",
                  reply_mark[] = "},\"reply\":";
#define RUN_LEN   (sizeof run_mark - 1)
#define CRC_LEN   (sizeof crc_mark - 1)
#define REPLY_LEN (sizeof reply_mark - 1)
#define TAIL_LEN  (CRC_LEN + 8 + 2) /* ,"crc":"01234567"} */

static uint32_t crc_of(const char *text, size_t len)
{
    return (uint32_t)crc32_z(0, (const uint8_t *)text, len);
}

uint32_t batch_line_sum(const char *text, size_t len)
{
    return (uint32_t)crc32_z(crc32_z(0, (const uint8_t *)text, len), (const uint8_t *)"\n", 1);
}

/* ---- writing ----------------------------------------------------------------------------------
 */

void batch_rec_begin(struct strbuf *b, const char *run, enum batch_rec_kind kind)
{
    strbuf_puts(b, run_mark);
    strbuf_puts(b, run);
    strbuf_puts(b, "\",\"");
    strbuf_puts(b, kinds[kind]);
    strbuf_puts(b, "\":{");
}

static void seal(struct strbuf *b, size_t start)
{
    if (b->failed)
        return;
    strbuf_printf(b, "%s%08x\"}\n", crc_mark, crc_of(b->data + start, b->len - start));
}

void batch_rec_end(struct strbuf *b, size_t start)
{
    strbuf_putc(b, '}');
    seal(b, start);
}

void batch_rec_head(struct strbuf *b, const char *run, uint64_t generation, const char *fingerprint,
                    const json_t *identity)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_HEAD);
    strbuf_printf(b, "\"version\":%d,\"generation\":%llu,\"fingerprint\":\"%s\",\"identity\":",
                  BATCH_JOURNAL_VERSION, (unsigned long long)generation, fingerprint);
    json_put(b, identity, 0);
    batch_rec_end(b, start);
}

static void put_input(struct strbuf *b, const struct batch_rec_input *in)
{
    strbuf_printf(b, "\"requests\":%llu,\"sums\":\"%s\",\"sha256\":\"%s\"",
                  (unsigned long long)in->requests, in->sums, in->sha256);
}

void batch_rec_open(struct strbuf *b, const char *run, const struct batch_rec_input *in, bool retry,
                    const char *boot, int64_t oom_kills)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_OPEN);
    put_input(b, in);
    strbuf_printf(b, ",\"retry\":%s,\"boot\":\"%s\",\"oom_kills\":%lld", retry ? "true" : "false",
                  boot, (long long)oom_kills);
    batch_rec_end(b, start);
}

void batch_rec_start(struct strbuf *b, const char *run, uint64_t n, uint64_t count)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_START);
    strbuf_printf(b, "\"n\":%llu,\"count\":%llu", (unsigned long long)n, (unsigned long long)count);
    batch_rec_end(b, start);
}

size_t batch_rec_done(struct strbuf *b, const char *run, uint64_t n, uint32_t in,
                      enum batch_outcome status, const char *reply, size_t len)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_DONE);
    strbuf_printf(b, "\"n\":%llu,\"in\":\"%08x\",\"status\":\"%s\"%s", (unsigned long long)n, in,
                  outcomes[status], reply_mark);
    size_t at = b->len;
    strbuf_append(b, reply, len);
    seal(b, start);
    return at;
}

void batch_rec_out(struct strbuf *b, const char *run, uint64_t n, uint64_t at,
                   const struct batch_rec_line *lines, size_t count)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_OUT);
    strbuf_printf(b, "\"n\":%llu,\"at\":%llu,\"lines\":[", (unsigned long long)n,
                  (unsigned long long)at);
    for (size_t i = 0; i < count; i++)
        strbuf_printf(b, "%s[%u,\"%08x\",\"%08x\",\"%s\"]", i ? "," : "", lines[i].len,
                      lines[i].sum, lines[i].in, outcomes[lines[i].status]);
    strbuf_putc(b, ']');
    batch_rec_end(b, start);
}

void batch_rec_cut(struct strbuf *b, const char *run, uint64_t n)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_CUT);
    strbuf_printf(b, "\"n\":%llu", (unsigned long long)n);
    batch_rec_end(b, start);
}

void batch_rec_died(struct strbuf *b, const char *run, const char *how)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_DIED);
    strbuf_puts(b, "\"how\":");
    json_put_string(b, how, strlen(how));
    batch_rec_end(b, start);
}

void batch_rec_stop(struct strbuf *b, const char *run)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_STOP);
    batch_rec_end(b, start);
}

void batch_rec_finish(struct strbuf *b, const char *run, const struct batch_rec_input *in,
                      uint64_t bytes)
{
    size_t start = b->len;
    batch_rec_begin(b, run, BATCH_REC_END);
    put_input(b, in);
    strbuf_printf(b, ",\"bytes\":%llu", (unsigned long long)bytes);
    batch_rec_end(b, start);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static bool hex_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
    return true;
}

static bool hex_u32(const char *s, uint32_t *out)
{
    if (!s || strlen(s) != 8 || !hex_digits(s, 8))
        return false;
    *out = (uint32_t)strtoul(s, NULL, 16);
    return true;
}

static enum err_code get_u64(const json_t *o, const char *key, int64_t max, uint64_t *out,
                             struct err *e)
{
    int64_t v = 0;
    enum err_code rc = json_get_int(o, key, JSON_REQUIRED, 0, max, &v, e);
    *out = (uint64_t)v;
    return rc;
}

static enum err_code get_hex(const json_t *o, const char *key, size_t n, char *out, struct err *e)
{
    const char *s = "";
    enum err_code rc = json_get_string(o, key, JSON_REQUIRED, &s, e);
    if (rc != ERR_OK)
        return rc;
    if (strlen(s) != n || !hex_digits(s, n))
        return err_set(e, ERR_INPUT, "key '%s': expected %zu hexadecimal digits", key, n);
    memcpy(out, s, n + 1);
    return ERR_OK;
}

static bool get_status(const json_t *v, enum batch_outcome *out)
{
    for (int i = 0; i < BATCH_OUTCOMES; i++) {
        if (json_is_string(v) && strcmp(json_string_value(v), outcomes[i]) == 0) {
            *out = (enum batch_outcome)i;
            return true;
        }
    }
    return false;
}

static enum err_code read_input(const json_t *o, struct batch_rec_input *in, struct err *e)
{
    enum err_code rc = get_u64(o, "requests", BATCH_N_MAX, &in->requests, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "sums", 64, in->sums, e);
    return rc == ERR_OK ? get_hex(o, "sha256", 64, in->sha256, e) : rc;
}

static enum err_code read_head(const json_t *o, struct batch_rec *r, struct err *e)
{
    int64_t version = 0;
    json_t *identity = NULL;
    enum err_code rc = json_get_int(o, "version", JSON_REQUIRED, INT64_MIN, INT64_MAX, &version, e);
    if (rc == ERR_OK && version != BATCH_JOURNAL_VERSION)
        rc = err_set(e, ERR_INPUT, "written by another version of assay: form %lld, expected %d",
                     (long long)version, BATCH_JOURNAL_VERSION);
    if (rc == ERR_OK)
        rc = get_u64(o, "generation", BATCH_N_MAX, &r->generation, e);
    if (rc == ERR_OK)
        rc = json_get_object(o, "identity", JSON_REQUIRED, &identity, e);
    r->identity = identity;
    return rc;
}

static enum err_code read_open(const json_t *o, struct batch_rec *r, struct err *e)
{
    const char *boot = "";
    enum err_code rc = read_input(o, &r->input, e);
    if (rc == ERR_OK)
        rc = json_get_bool(o, "retry", JSON_REQUIRED, &r->retry, e);
    if (rc == ERR_OK)
        rc = json_get_string(o, "boot", JSON_REQUIRED, &boot, e);
    if (rc == ERR_OK && strlen(boot) >= sizeof r->boot)
        rc = err_set(e, ERR_INPUT, "key 'boot': longer than %zu bytes", sizeof r->boot - 1);
    if (rc == ERR_OK)
        snprintf(r->boot, sizeof r->boot, "%s", boot);
    return rc == ERR_OK
               ? json_get_int(o, "oom_kills", JSON_REQUIRED, 0, INT64_MAX, &r->oom_kills, e)
               : rc;
}

static enum err_code read_done(const json_t *o, struct batch_rec *r, const char *reply, size_t len,
                               struct err *e)
{
    char in[9];
    enum err_code rc = get_u64(o, "n", BATCH_N_MAX, &r->n, e);
    if (rc == ERR_OK)
        rc = get_hex(o, "in", 8, in, e);
    if (rc != ERR_OK)
        return rc;
    if (!get_status(json_object_get(o, "status"), &r->one.status))
        return err_set(e, ERR_INPUT, "key 'status': expected ok, failed or set_aside");
    if ((int64_t)len + 1 > BATCH_LEN_MAX)
        return err_set(e, ERR_INPUT, "a reply of %zu bytes", len);
    hex_u32(in, &r->one.in);
    r->one.len = (uint32_t)len + 1;
    r->one.sum = batch_line_sum(reply, len);
    return ERR_OK;
}

static enum err_code read_out(const json_t *o, struct batch_rec *r, struct err *e)
{
    json_t *list = NULL;
    enum err_code rc = get_u64(o, "n", BATCH_N_MAX, &r->n, e);
    if (rc == ERR_OK)
        rc = get_u64(o, "at", BATCH_AT_MAX, &r->at, e);
    if (rc == ERR_OK)
        rc = json_get_array(o, "lines", JSON_REQUIRED, &list, e);
    if (rc != ERR_OK)
        return rc;
    size_t n = json_array_size(list);
    r->lines = calloc(n + 1, sizeof *r->lines);
    if (!r->lines)
        return err_set(e, ERR_NOMEM, "out of memory for %zu lines", n);
    r->count = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        struct batch_rec_line *l = &r->lines[i];
        json_int_t len = json_integer_value(json_array_get(v, 0));
        if (json_array_size(v) != 4 || len < 1 || len > BATCH_LEN_MAX ||
            !hex_u32(json_string_value(json_array_get(v, 1)), &l->sum) ||
            !hex_u32(json_string_value(json_array_get(v, 2)), &l->in) ||
            !get_status(json_array_get(v, 3), &l->status))
            return err_set(e, ERR_INPUT,
                           "key 'lines'[%zu]: expected [bytes, checksum, input, status]", i);
        l->len = (uint32_t)len;
    }
    return ERR_OK;
}

static enum err_code read_object(const json_t *o, struct batch_rec *r, const char *reply,
                                 size_t reply_len, struct err *e)
{
    enum err_code rc;
    switch (r->kind) {
    case BATCH_REC_HEAD:
        return read_head(o, r, e);
    case BATCH_REC_OPEN:
        return read_open(o, r, e);
    case BATCH_REC_START:
        rc = get_u64(o, "n", BATCH_N_MAX, &r->n, e);
        return rc == ERR_OK ? get_u64(o, "count", BATCH_N_MAX, &r->count, e) : rc;
    case BATCH_REC_DONE:
        return read_done(o, r, reply, reply_len, e);
    case BATCH_REC_OUT:
        return read_out(o, r, e);
    case BATCH_REC_CUT:
        return get_u64(o, "n", BATCH_N_MAX, &r->n, e);
    case BATCH_REC_END:
        rc = read_input(o, &r->input, e);
        return rc == ERR_OK ? get_u64(o, "bytes", BATCH_AT_MAX, &r->at, e) : rc;
    case BATCH_REC_DIED:
    case BATCH_REC_STOP:
    case BATCH_REC_KINDS:
        break;
    }
    return ERR_OK;
}

/* The frame: marks, run and checksum. body is what stands between. */
static enum err_code open_frame(struct batch_rec *r, const char *line, size_t len, struct err *e)
{
    uint32_t crc;
    char digits[9] = "";
    if (len < RUN_LEN + 16 + TAIL_LEN || memcmp(line, run_mark, RUN_LEN) != 0 ||
        memcmp(line + len - TAIL_LEN, crc_mark, CRC_LEN) != 0 ||
        memcmp(line + len - 2, "\"}", 2) != 0)
        return err_set(e, ERR_INPUT, "is no record: expected {\"run\": ..., \"crc\": ...}");
    memcpy(digits, line + len - 10, 8);
    if (!hex_u32(digits, &crc) || crc != crc_of(line, len - TAIL_LEN))
        return err_set(e, ERR_INPUT, "its checksum is wrong: torn or altered");
    if (!hex_digits(line + RUN_LEN, 16))
        return err_set(e, ERR_INPUT, "key 'run': expected 16 hexadecimal digits");
    memcpy(r->run, line + RUN_LEN, 16);
    r->run[16] = 0;
    return ERR_OK;
}

enum err_code batch_rec_parse(struct batch_rec *r, const char *line, size_t len, struct err *e)
{
    *r = (struct batch_rec){.root = NULL};
    enum err_code rc = open_frame(r, line, len, e);
    if (rc != ERR_OK)
        return rc;
    /* A reply is cut out: no text before it comes from a request, so the first mark is its own. */
    const char *end = line + len - TAIL_LEN;
    const char *mark = memmem(line, (size_t)(end - line), reply_mark, REPLY_LEN);
    const char *reply = mark ? mark + REPLY_LEN : end;
    struct strbuf text = {0};
    strbuf_append(&text, line, (size_t)((mark ? mark + 1 : end) - line));
    strbuf_putc(&text, '}');
    rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = json_parse(text.data, text.len, &r->root, e);
    strbuf_free(&text);
    if (rc != ERR_OK)
        goto out;
    const json_t *object = NULL;
    for (int k = 0; k < BATCH_REC_KINDS && !object; k++) {
        object = json_object_get(r->root, kinds[k]);
        r->kind = (enum batch_rec_kind)k;
    }
    if (!json_is_object(object) || json_object_size(r->root) != 2 ||
        (mark != NULL) != (r->kind == BATCH_REC_DONE)) {
        rc = err_set(e, ERR_INPUT, "is a record of no known kind");
        goto out;
    }
    r->reply_at = (size_t)(reply - line);
    rc = read_object(object, r, reply, (size_t)(end - reply), e);
out:
    if (rc != ERR_OK)
        batch_rec_free(r);
    return rc;
}

void batch_rec_free(struct batch_rec *r)
{
    json_decref(r->root);
    free(r->lines);
    r->root = NULL;
    r->lines = NULL;
    r->identity = NULL;
}
