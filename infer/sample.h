/* sample.h: from a row of logits to a token. Pure: no state but its arguments.
 *
 * Order: logit_bias, repetition penalty (over prompt and answer), then greedy argmax if temperature
 * is 0, else temperature, top_k, top_p, min_p and one draw keyed by (seed, stream, position), so
 * that the draw does not depend on the batch (rule 8 of docs/numerics.md).
 */
#ifndef ASSAY_INFER_SAMPLE_H
#define ASSAY_INFER_SAMPLE_H

#include "common/err.h"

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    double temperature;        /* 0: greedy */
    int64_t top_k;             /* 0: off */
    double top_p, min_p;       /* 1 and 0: off */
    double repetition_penalty; /* 1: off */
    uint64_t seed;
    const struct logit_bias *bias; /* borrowed; runner copies */
    int n_bias;
};

struct sampling sampling_default(void);
/* True when the argmax of the raw logits is the answer: no row needs to come to the host. */
bool sampling_is_plain(const struct sampling *s);

/* Scratch for one caller: n_vocab floats and ids. */
struct sampler;
struct sampler *sampler_new(int64_t n_vocab); /* NULL: out of memory */
void sampler_free(struct sampler *s);
/* history: every token of the sequence so far. Ties go to the lower id. */
int32_t sampler_pick(struct sampler *s, const struct sampling *p, const float *logits,
                     const int32_t *history, int64_t n_history, const uint8_t stream_key[32],
                     int64_t pos);

#endif
