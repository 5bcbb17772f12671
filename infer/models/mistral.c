/* mistral.c: Mistral: Llama's block, every layer with the window. */
#include "infer/decoder.h"

const struct model_family model_mistral = DECODER_FAMILY("mistral");
