/* sample.h: from a row of logits to a token. Pure: no state but its arguments.
 *
 * Order, each step on what the one before left:
 *     logit_bias          added to the logits (OpenAI's field; given to all that follows)
 *     repetition_penalty  each id of prompt and answer once: l > 0 becomes l / p, else l * p (HF)
 *     temperature 0       the answer is the argmax, ties to the lower id
 *     temperature T       weights exp((l - max) / T)
 *     top_k               keeps the k best; ties to the lower id, so that exactly k stay and top_k
 * 1 is greedy (HF keeps every tie with the kth) top_p               keeps a candidate while the
 * mass of all before it is below p of what top_k left; the best always stays (HF's nucleus) min_p
 * keeps weights >= RN_f32(min_p) times the largest (HF) draw                one uniform number
 * keyed by (seed, stream, position), so the draw does not depend on the batch (rule 8 of
 * docs/numerics.md); candidates are walked in rank order until their mass exceeds it A logit that
 * is NaN is never chosen; with nothing else the answer is id 0.
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
size_t sampler_bytes(int64_t n_vocab); /* what sampler_new takes: the memory plan */
/* history: every token of the sequence so far. Ties go to the lower id. */
int32_t sampler_pick(struct sampler *s, const struct sampling *p, const float *logits,
                     const int32_t *history, int64_t n_history, const uint8_t stream_key[32],
                     int64_t pos);

#endif
