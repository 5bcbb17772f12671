/* qwen3.c: Qwen3, dense: Llama's block with norms on the heads of q and k. */
#include "infer/decoder.h"

const struct model_family model_qwen3 = DECODER_FAMILY("qwen3");
