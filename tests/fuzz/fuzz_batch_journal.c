/* fuzz_batch_journal.c: hostile journals and run files: records, and what they do to a table.
 *
 * The checksum of a line is mended in half of all inputs, or hardly any would get past it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#include "infer/batch_table.h"
#include "tests/fuzz/fuzz.h"

#define REQUESTS 50
#define TAIL     18 /* ,"crc":"01234567"} */

static void mend(char *line, size_t len)
{
    char crc[9];
    if (len < TAIL)
        return;
    snprintf(crc, sizeof crc, "%08lx", crc32(0, (const uint8_t *)line, (unsigned)(len - TAIL)));
    memcpy(line + len - TAIL, ",\"crc\":\"", 8);
    memcpy(line + len - 10, crc, 8);
    memcpy(line + len - 2, "\"}", 2);
}

static void apply(struct batch_table *t, const char *line, size_t len, size_t at)
{
    struct batch_rec r;
    struct err e = {.text = ""};
    enum err_code rc = batch_rec_parse(&r, line, len, &e);
    if (rc != ERR_OK) {
        if (rc != ERR_INPUT || !e.text[0])
            abort();
        return;
    }
    if (r.kind >= BATCH_REC_KINDS || strlen(r.run) != 16 || r.reply_at > len)
        abort();
    e.text[0] = 0;
    rc = batch_table_apply(t, &r, at, &e);
    if (rc != ERR_OK && (rc != ERR_INPUT || !e.text[0]))
        abort();
    batch_rec_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint32_t sums[REQUESTS] = {0};
    struct census c = {.n_requests = REQUESTS, .sums = sums};
    struct batch_table t;
    if (batch_table_new(&t, &c, NULL) != ERR_OK)
        return 0;
    for (size_t at = 0; at < bytes;) {
        const uint8_t *end = memchr(data + at, '\n', bytes - at);
        size_t len = end ? (size_t)(end - data) - at : bytes - at;
        char *line = malloc(len ? len : 1); /* of exactly its size: reads past it are seen */
        if (!line)
            break;
        memcpy(line, data + at, len);
        if (bytes & 1)
            mend(line, len);
        apply(&t, line, len, at);
        free(line);
        at += len + 1;
    }
    for (size_t n = 0; n < REQUESTS; n++)
        if (t.line[n].deaths > BATCH_DEATHS_MAX || t.line[n].place > BATCH_IN_OUT ||
            t.line[n].status >= BATCH_OUTCOMES)
            abort();
    batch_table_free(&t);
    return 0;
}

#define RUN "0123456789abcdef"
#define SHA RUN RUN RUN RUN

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    struct batch_rec_input in = {.requests = REQUESTS, .sums = SHA, .sha256 = SHA};
    struct batch_rec_line lines[3] = {{10, 1, 0, BATCH_OK}, {20, 2, 0, BATCH_FAILED}, {5, 3, 0, 2}};
    static const char reply[] = "{\"custom_id\":\"a\",\"error\":null}";
    if (max < 3)
        return 0;
    json_t *identity = json_pack("{s:s, s:s}", "build", "assay", "model", "m");
    for (int i = 0; i < 3; i++) {
        struct strbuf *b = &seeds[i];
        batch_rec_head(b, RUN, (uint64_t)i + 1, SHA, identity);
        if (i != 1)
            batch_rec_open(b, RUN, &in, i == 2, "some-boot", 3);
        batch_rec_start(b, RUN, 3, 9);
        batch_rec_done(b, RUN, 4, 0, BATCH_OK, reply, sizeof reply - 1);
        batch_rec_died(b, RUN, "SIGSEGV");
        batch_rec_out(b, RUN, 0, 0, lines, 3);
        batch_rec_cut(b, RUN, 2);
        batch_rec_stop(b, RUN);
        if (i == 1)
            batch_rec_finish(b, RUN, &in, 35);
        if (i == 2)
            strbuf_putc(b, '\n'); /* both parities of the length */
    }
    json_decref(identity);
    return 3;
}
