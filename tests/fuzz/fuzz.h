/* fuzz.h: what a file of hostile inputs for one parser gives.
 *
 * fuzz_<parser>.c is linked twice: with libFuzzer (-DASSAY_FUZZ=ON) as fuzz_<parser>, and with
 * mutate.c as mutate_<parser>, which needs no special compiler.
 */
#ifndef ASSAY_TESTS_FUZZ_H
#define ASSAY_TESTS_FUZZ_H

#include "common/str.h"

/* Gives the bytes to the parser. Whatever they are: no crash, no leak, and an error has a text. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Well-formed inputs to start from, at most max; returns how many. */
size_t fuzz_seeds(struct strbuf *seeds, size_t max);

#endif
