/* batch_journal.h: the records of OUT.journal and OUT.run: text to record and back. Pure.
 *
 * A record is one line of JSON (docs/formats.md): the run it belongs to, one object named after its
 * kind, and at its end the CRC-32 of every byte before. A line is taken only when all of that is
 * right, so a torn or altered one is never mistaken for a record.
 */
#ifndef ASSAY_INFER_BATCH_JOURNAL_H
#define ASSAY_INFER_BATCH_JOURNAL_H

#include "common/json.h"

#define BATCH_JOURNAL_VERSION 1
#define BATCH_RUN_HEX         17 /* 16 digits of a fingerprint and the end */

enum batch_rec_kind {
    BATCH_REC_HEAD,  /* whose journal this is */
    BATCH_REC_OPEN,  /* a process took it up, with this input */
    BATCH_REC_START, /* requests n .. n + count - 1 are about to run */
    BATCH_REC_DONE,  /* the output line of request n, which waits for its turn */
    BATCH_REC_OUT,   /* requests n .. stand in OUT from byte `at` on */
    BATCH_REC_CUT,   /* what stood in OUT for request n and later is void */
    BATCH_REC_DIED,  /* the process ended while requests ran, and by them */
    BATCH_REC_STOP,  /* the process ended in order */
    BATCH_REC_END,   /* OUT.run: the last line */
    BATCH_REC_KINDS
};

enum batch_outcome {
    BATCH_OK,
    BATCH_FAILED,
    BATCH_SET_ASIDE, /* an error line, because the request ended the process twice */
    BATCH_OUTCOMES
};

#define BATCH_LEN_MAX ((int64_t)1 << 31) /* bytes of an output line */
#define BATCH_AT_MAX  ((int64_t)1 << 47) /* bytes of a file */
#define BATCH_N_MAX   ((int64_t)1 << 40)

/* One output line: bytes with its "\n", their CRC-32, the input line's sum (census.h). */
struct batch_rec_line {
    uint32_t len, sum, in;
    enum batch_outcome status;
};

/* What a run is asked for: how many requests, the hash of their sums, and of the lines. */
struct batch_rec_input {
    uint64_t requests;
    char sums[65], sha256[65];
};

struct batch_rec {
    enum batch_rec_kind kind;
    char run[BATCH_RUN_HEX];
    uint64_t n, count, at;        /* START, DONE, OUT, CUT; END: count requests, at bytes */
    struct batch_rec_line one;    /* DONE; its len and sum are those of the line in OUT */
    size_t reply_at;              /* DONE: where in the record's line the reply begins */
    struct batch_rec_line *lines; /* OUT: [count] */
    uint64_t generation;          /* HEAD */
    const json_t *identity;       /* HEAD: object of strings */
    struct batch_rec_input input; /* OPEN, END */
    bool retry;                   /* OPEN: what was held against requests is forgotten */
    char boot[64];                /* OPEN: this start of the machine */
    int64_t oom_kills;            /* OPEN: processes that its kernel had ended for memory */
    json_t *root;                 /* owns identity */
};

/* Starts a record; the caller appends the members of its object, then ends it. */
void batch_rec_begin(struct strbuf *b, const char *run, enum batch_rec_kind kind);
/* start: where in b the record began. */
void batch_rec_end(struct strbuf *b, size_t start);
void batch_rec_head(struct strbuf *b, const char *run, uint64_t generation, const char *fingerprint,
                    const json_t *identity);
void batch_rec_open(struct strbuf *b, const char *run, const struct batch_rec_input *in, bool retry,
                    const char *boot, int64_t oom_kills);
void batch_rec_start(struct strbuf *b, const char *run, uint64_t n, uint64_t count);
/* reply: the output line without its "\n". Returns where in b the reply begins. */
size_t batch_rec_done(struct strbuf *b, const char *run, uint64_t n, uint32_t in,
                      enum batch_outcome status, const char *reply, size_t len);
void batch_rec_out(struct strbuf *b, const char *run, uint64_t n, uint64_t at,
                   const struct batch_rec_line *lines, size_t count);
void batch_rec_cut(struct strbuf *b, const char *run, uint64_t n);
void batch_rec_died(struct strbuf *b, const char *run, const char *how);
void batch_rec_stop(struct strbuf *b, const char *run);
void batch_rec_finish(struct strbuf *b, const char *run, const struct batch_rec_input *in,
                      uint64_t bytes);

/* line: without its "\n". ERR_INPUT says what is wrong with it; ERR_NOMEM. */
MUST_USE enum err_code batch_rec_parse(struct batch_rec *r, const char *line, size_t len,
                                       struct err *e);
void batch_rec_free(struct batch_rec *r);
/* CRC-32 of an output line: its text and "\n". */
uint32_t batch_line_sum(const char *text, size_t len);

#endif
