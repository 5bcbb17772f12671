/* llama.c: Llama 2 and 3.x, SmolLM2: the plain decoder. Biases where the config says so. */
#include "infer/decoder.h"

const struct model_family model_llama = DECODER_FAMILY("llama");
