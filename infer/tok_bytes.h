/* tok_bytes.h: the byte-level alphabet: each byte as one printable code point.
 *
 * 21-7E, A1-AC and AE-FF stand for themselves; the other 68 bytes, in order, are U+0100 and up.
 */
#ifndef ASSAY_INFER_TOK_BYTES_H
#define ASSAY_INFER_TOK_BYTES_H

#include "common/str.h"

/* Appends bytes in the alphabet. */
void tok_bytes_put(struct strbuf *out, const char *s, size_t len);
/* Appends the bytes that a token in the alphabet means; a token with any other character is
 * appended as it is. */
void tok_bytes_get(struct strbuf *out, const char *s, size_t len);

#endif
