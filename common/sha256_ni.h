/* sha256_ni.h: SHA-256 with the processor's SHA instructions, two messages at once. Internal to
 * common: callers use sha256_update2 of hash.h. */
#ifndef ASSAY_COMMON_SHA256_NI_H
#define ASSAY_COMMON_SHA256_NI_H

#include "common/base.h"

bool sha256_ni_here(void); /* this processor has the instructions */
/* Compresses `blocks` blocks of 64 bytes of each message into its eight words of state. */
void sha256_ni_pair(uint32_t state_a[8], const uint8_t *a, uint32_t state_b[8], const uint8_t *b,
                    size_t blocks);

#endif
