/* qwen2.c: Qwen2 and Qwen2.5, dense: Llama's block with biases on q, k and v, none on o. */
#include "infer/decoder.h"

const struct model_family model_qwen2 = DECODER_FAMILY("qwen2");
