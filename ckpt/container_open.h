/* container_open.h: a container over bytes that somebody else keeps alive. */
#ifndef ASSAY_CKPT_CONTAINER_OPEN_H
#define ASSAY_CKPT_CONTAINER_OPEN_H

#include "ckpt/container.h"
#include "ckpt/source.h"
#include "common/str.h"

/* `data` must outlive the container; path names it in errors and, by its end, its kind. */
MUST_USE enum err_code container_view(struct container **c, const char *path, const uint8_t *data,
                                      size_t bytes, struct err *e);

#endif
