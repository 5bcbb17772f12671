/* tiny_model.h: a small random Llama, Mistral, Mixtral or Qwen3-MoE folder for tests, the same
 * bytes for the same description.
 *
 * The packed form and its expansions hold the same weights: what differs is only how they are
 * stored. Matrices are drawn by element from (seed, tensor, index), so no form depends on another
 * having been written.
 */
#ifndef ASSAY_TESTS_TINY_MODEL_H
#define ASSAY_TESTS_TINY_MODEL_H

#include "common/err.h"

enum tiny_form {
    TINY_F32,           /* dense, random */
    TINY_BF16,          /* the same, rounded */
    TINY_PACKED,        /* affine codes in the MLX layout, bf16 scales */
    TINY_EXPANDED_BF16, /* the packed weights, expanded by rule 1 */
    TINY_EXPANDED_F32   /* the packed weights, fmaf(q, s, b) */
};

struct tiny_model {
    int d_model, d_ff, n_layer, n_head, n_kv, head_dim, n_vocab;
    int64_t ctx;
    bool tied, biases;
    int window; /* 0: family llama; else mistral with this window */
    /* Above 0: family mixtral, or qwen3_moe whose first layer is dense. Dense forms have a tensor
     * for each expert, the packed form has them stacked. */
    int n_expert, n_used, d_ff_expert;
    bool qwen3_moe;
    enum tiny_form form;
    int bits, group;          /* packed and expanded forms */
    const char *rope_scaling; /* JSON of config.json's key; NULL: none */
    int nan_token;            /* dense forms: its embedding is NaN; -1: none */
    uint64_t seed;
};

/* d 128, ff 640 (three chunks of a sum), 2 layers, 4 heads of 32 over 2, vocabulary 320, context
 * 4096, untied, f32. */
struct tiny_model tiny_model_default(void);

/* The same with experts: d 128, 4 experts of 576 (three chunks), two of which run. */
struct tiny_model tiny_model_experts(bool qwen3_moe);

/* Makes the folder `dir` with config.json and model.safetensors. */
MUST_USE enum err_code tiny_model_write(const char *dir, const struct tiny_model *m, struct err *e);

/* A fresh folder name in the system's place for temporary files; heap, NULL on failure. The folder
 * itself is made; models go in folders below it. */
char *tiny_temp_dir(void);
void tiny_remove(const char *dir); /* with everything in it */

#endif
