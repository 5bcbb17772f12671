/* gemma4.c: Gemma 4, dense text: Gemma 3's block with plain norms, scores as they are, heads of
 * another size in full layers, where v may be what k is before its norm, and a scalar behind each
 * layer. */
#include "infer/decoder.h"

const struct model_family model_gemma4 = DECODER_FAMILY("gemma4_text");
const struct model_family model_gemma4_unified = DECODER_FAMILY("gemma4_unified_text");
