/* sample.c: settings, and the number that a position draws. */
#include "infer/sample.h"

#include "common/rng.h"

struct sampling sampling_default(void)
{
    return (struct sampling){.top_p = 1, .repetition_penalty = 1};
}

bool sampling_is_plain(const struct sampling *s)
{
    return s->temperature <= 0 && s->n_bias == 0 && s->repetition_penalty == 1;
}

struct sample_row sampling_row(const struct sampling *s, const uint8_t stream_key[32], int64_t pos)
{
    return (struct sample_row){.top_k = s->top_k,
                               .temperature = s->temperature,
                               .top_p = s->top_p,
                               .min_p = (float)s->min_p,
                               .penalty = (float)s->repetition_penalty,
                               .u = rng_uniform(s->seed, stream_key, (uint64_t)pos)};
}
