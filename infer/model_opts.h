/* model_opts.h: the options that say on what and how a model runs, once for every command that
 * opens one (infer, compare, bench).
 */
#ifndef ASSAY_INFER_MODEL_OPTS_H
#define ASSAY_INFER_MODEL_OPTS_H

#include "common/opt.h"
#include "infer/engine.h"
#include "infer/prompts.h"

struct model_opts {
    const char *device, *isa;
    int arith;
    int64_t threads, batch_seqs, batch_tokens, kv_tokens, ctx;
};

#define MODEL_OPTS_ROWS 9 /* rows that model_opts_rows writes */
void model_opts_init(struct model_opts *m);
/* Appends the heading and the options at rows[*n]. */
void model_opts_rows(struct model_opts *m, struct opt *rows, size_t *n);
/* arith defaults to f32 on the CPU and to the card's own on CUDA; f32 on CUDA is ERR_USAGE. Says so
 * where the arithmetic was not measured. */
MUST_USE enum err_code model_opts_engine(const struct model_opts *m, struct engine_options *o,
                                         struct err *e);

/* Every field of a request as an option. */
struct request_opts {
    int64_t max_tokens, top_k, seed, top_logprobs;
    double temperature, top_p, min_p, repetition_penalty;
    bool logprobs, ignore_eos, chat, special, ignore_fields;
    const char *date;
    struct opt_list stop, stop_ids, bias;
};

#define REQUEST_OPTS_ROWS 18
void request_opts_init(struct request_opts *r);
void request_opts_rows(struct request_opts *r, struct opt *rows, size_t *n);
/* The lists of d are on the heap: request_opts_free with the same d. */
MUST_USE enum err_code request_opts_defaults(const struct request_opts *r,
                                             struct prompt_defaults *d, struct err *e);
void request_opts_free(struct request_opts *r, struct prompt_defaults *d);

#endif
