/* gemma2.c: Gemma 2: norms before and behind each part, every other layer with the window, softcaps
 * on scores and logits. */
#include "infer/decoder.h"

const struct model_family model_gemma2 = DECODER_FAMILY("gemma2");
