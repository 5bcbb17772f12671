/* trace_private.h: the binary form of an answer's arrays, between the writer and the reader.
 *
 * Little-endian, without gaps, in this order:
 *
 *   i32 prompt_ids[P]; i32 ids[N]; f32 logprob[N], margin[N], lse[N]; u64 hash[N]; u8 n_top[N];
 *   i32 top_id[T]; f32 top_logprob[T]; i32 full_index[F]; f16 full[F][n_vocab]
 *
 * Figures that are not finite are NaN. P, N, T (the sum of n_top) and F stand in the JSON before
 * it.
 */
#ifndef ASSAY_CKPT_TRACE_PRIVATE_H
#define ASSAY_CKPT_TRACE_PRIVATE_H

#include "ckpt/trace.h"

extern const char *const trace_level_names[];

struct trace_block_size {
    int64_t n_prompt, n, tops, full;
};
struct trace_block_size trace_block_size_of(const struct trace_record *r);
/* Bytes of a block; false: more than a file holds. */
bool trace_block_bytes(const struct trace_block_size *s, int64_t n_vocab, size_t *bytes);
void trace_block_put(struct strbuf *b, const struct trace_record *r, int64_t n_vocab);
/* Fills prompt_ids and tok of r from a block of that size. */
MUST_USE enum err_code trace_block_get(const uint8_t *block, const struct trace_block_size *s,
                                       int64_t n_vocab, struct trace_record *r, struct err *e);

#endif
