/* st_writer.h: writes one safetensors file as a stream.
 *
 * All tensors are declared first; the header lists them by name, data lies in name order without
 * holes, and the data section starts at a multiple of 64 (spaces in the header). Then the bytes
 * come in that order, in pieces of any size. Same declarations and bytes, same file.
 */
#ifndef ASSAY_CKPT_ST_WRITER_H
#define ASSAY_CKPT_ST_WRITER_H

#include "ckpt/container.h"
#include "common/hash.h"

struct st_writer;

/* `path` must not exist: it lies in a folder that is being made. Synced on finish. */
MUST_USE enum err_code st_writer_open(struct st_writer **w, const char *path, struct err *e);
/* Names in any order, each once. */
MUST_USE enum err_code st_writer_declare(struct st_writer *w, const char *name, enum dtype dtype,
                                         int n_dim, const int64_t *dim, struct err *e);
/* Writes the header (metadata {"format": "mlx"}) and fixes the order of data. */
MUST_USE enum err_code st_writer_begin(struct st_writer *w, struct err *e);
/* The tensor whose bytes come next, or NULL when all are there. */
const char *st_writer_next(const struct st_writer *w);
/* Appends to the tensor `name`, which must be the next one. */
MUST_USE enum err_code st_writer_data(struct st_writer *w, const char *name, const void *data,
                                      size_t bytes, struct err *e);
/* Hashes the file's next bytes beside *p, nearly for nothing, before st_writer_data gets them: the
 * same bytes, in the same order. */
void st_writer_hash(struct st_writer *w, const void *data, size_t bytes, struct sha256_piece *p);
/* ERR_INTERNAL when bytes are missing. Gives the file's SHA-256. Frees w. */
MUST_USE enum err_code st_writer_finish(struct st_writer *w, char hex[65], struct err *e);
void st_writer_abort(struct st_writer *w);

#endif
