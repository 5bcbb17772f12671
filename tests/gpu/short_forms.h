/* short_forms.h: for how many floats a short form of cuda_attention_soften.cuh differs from that of
 * elem.h. Seen by C and CUDA.
 */
#ifndef ASSAY_TESTS_GPU_SHORT_FORMS_H
#define ASSAY_TESTS_GPU_SHORT_FORMS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum short_form {
    SHORT_EXP2,       /* up to 1/2, rounded to bf16, and NaN */
    SHORT_EXP2_EXACT, /* up to 1/2, not rounded */
    SHORT_EXP2_ABOVE, /* above 1/2, rounded */
    SHORT_SOFTCAP     /* from 2^-60 on, and NaN */
};

/* cap and its inverse: of SHORT_SOFTCAP. */
int64_t short_forms_differ(enum short_form form, float cap, float inverse);

#ifdef __cplusplus
}
#endif

#endif
