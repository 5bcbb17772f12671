/* gemma3.c: Gemma 3, text: Gemma 2's block with norms on the heads of q and k and no softcaps; five
 * of six layers have the window and a rope table of their own. */
#include "infer/decoder.h"

const struct model_family model_gemma3 = DECODER_FAMILY("gemma3_text");
