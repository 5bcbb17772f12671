/* engine_rig.h: a model, an engine on it, and ways to feed tokens by hand, for tests.
 *
 * Rows are compared by a 64-bit hash over every bit of every operation's output for them, logits
 * included (with `quiet`, of the logits alone, and the engine's tap stays free). Faults abort the
 * test, so nothing here returns an error.
 */
#ifndef ASSAY_TESTS_ENGINE_RIG_H
#define ASSAY_TESTS_ENGINE_RIG_H

#include "infer/engine.h"
#include "tests/tiny_model.h"

struct rig {
    struct checkpoint *c;
    struct engine *en;
    char *temp; /* removed at the end; NULL: a model that was there */
    int pages_used;
    bool quiet;
};

struct rig_options {
    enum kern_arith arith;
    int threads, batch_tokens, batch_seqs, out_rows;
    int64_t ctx, kv_tokens;
};

/* Writes the tiny model and opens it. NULL options: f32, all defaults but a context of 2048. */
void rig_open(struct rig *r, const struct tiny_model *m, const struct rig_options *o);
void rig_open_path(struct rig *r, const char *path, const struct rig_options *o);
/* The same checkpoint under other options. */
void rig_reopen(struct rig *r, const struct rig_options *o);
void rig_close(struct rig *r);

/* A sequence fed by hand; pages come from the rig, one after the other. */
struct rig_seq {
    const int32_t *ids;
    int n, done;
    int32_t *page; /* heap */
    int n_pages;
    uint64_t *hash; /* [n] of the rows fed so far; heap */
};
void rig_seq_start(struct rig *r, struct rig_seq *s, const int32_t *ids, int n);
void rig_seq_end(struct rig_seq *s);
/* Forgets which pages are taken. */
void rig_clear(struct rig *r);

/* One step: n[i] tokens more of each of the sequences, in this order. */
void rig_step(struct rig *r, struct rig_seq *const *seqs, const int *n, int n_seqs);
/* All of a sequence in pieces of `chunk` tokens. */
void rig_feed(struct rig *r, struct rig_seq *s, int chunk);

/* True when the rows fed to both and the bytes of their pages in every layer are the same. */
bool rig_same_rows(const struct rig_seq *a, const struct rig_seq *b);
bool rig_same_pages(struct rig *ra, const struct rig_seq *a, struct rig *rb,
                    const struct rig_seq *b);

/* Random ids below n_vocab. */
int32_t *rig_ids(uint64_t seed, int n, int n_vocab);

#endif
