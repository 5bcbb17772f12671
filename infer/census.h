/* census.h: one pass over a prompt file before anything is loaded.
 *
 * Counts the requests, refuses duplicate ids, an empty file and gzip damage, and remembers a
 * checksum of every request, so that a later pass (or a later run) sees what has changed. Memory:
 * 4 bytes a request that stay, 8 more while the file is read; 24 more for each id that stands
 * twice, while the error is made. Ten million requests: 120 MB, then 40 MB.
 */
#ifndef ASSAY_INFER_CENSUS_H
#define ASSAY_INFER_CENSUS_H

#include "common/err.h"

struct census {
    uint64_t n_requests; /* lines that are not blank */
    char sha256[65];     /* of the lines, blank ones too, each with "\n" */
    uint32_t *sums;      /* [n_requests]: census_sum of each */
};

/* ERR_INPUT names both lines of an id that stands twice. */
MUST_USE enum err_code census_take(struct census *c, const char *path, struct err *e);
void census_free(struct census *c);

/* CRC-32 of a line's number and bytes; of a line that is too long, of its first bytes. */
uint32_t census_sum(uint64_t number, const char *line, size_t len);
/* SHA-256 hex of the sums of the first n requests: two files that begin alike agree in it. */
void census_prefix(const struct census *c, uint64_t n, char hex[65]);

#endif
