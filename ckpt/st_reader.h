/* st_reader.h: reads safetensors (docs/formats.md, chapter 1). */
#ifndef ASSAY_CKPT_ST_READER_H
#define ASSAY_CKPT_ST_READER_H

#include "ckpt/container.h"
#include "common/arena.h"

/* Fills tensors and metadata of a container whose file_data and file_bytes are set. */
MUST_USE enum err_code st_reader_parse(struct container *c, struct arena *a, struct err *e);

#endif
