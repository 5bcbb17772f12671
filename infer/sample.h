/* sample.h: the settings by which a token is chosen from a row of logits; kern_sample does it.
 *
 * Order, each step on what the one before left; docs/numerics.md, section 8, has the formulas.
 * - logit_bias: added to the logits (OpenAI's field; given to all that follows)
 * - repetition_penalty: each id of prompt and answer once: l < 0 becomes l * p, else l / p (HF)
 * - temperature 0: the answer is the argmax, ties to the lower id
 * - temperature T: weights exp((l - max) / T); masses are weights cut to multiples of 2^-43, so
 *   that their sums are exact; without mass no candidate
 * - top_k: keeps the k best; ties to the lower id, so that exactly k stay and top_k 1 is greedy (HF
 *   keeps every tie with the kth)
 * - top_p: keeps a candidate while the mass of all before it is below p of what top_k left; the
 *   best always stays (HF's nucleus)
 * - min_p: keeps weights >= RN_f32(min_p) times the largest (HF)
 * - draw: one uniform number keyed by (seed, stream, position), so the draw does not depend on the
 *   batch; candidates are walked in order until their mass exceeds it
 * A logit that is NaN is never chosen; with nothing else the answer is id 0.
 */
#ifndef ASSAY_INFER_SAMPLE_H
#define ASSAY_INFER_SAMPLE_H

#include "kernels/kernels.h"

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
/* True when the argmax of the raw logits is the answer. */
bool sampling_is_plain(const struct sampling *s);

/* The settings as the kernels take them (kernels.h), with the number drawn for position `pos`;
 * where lists stand is the caller's. */
struct sample_row sampling_row(const struct sampling *s, const uint8_t stream_key[32], int64_t pos);

#endif
