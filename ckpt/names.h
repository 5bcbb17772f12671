/* names.h: tensor names of HF, MLX and GGUF checkpoints, as tables.
 *
 * Canonical is the HF name. Experts that are stacked in one tensor have no HF name of their own in
 * most families; they are called "<block>.experts.{gate,up,down}_proj.weight".
 */
#ifndef ASSAY_CKPT_NAMES_H
#define ASSAY_CKPT_NAMES_H

#include "ckpt/checkpoint.h"

/* config.json's model_type for GGUF's general.architecture ("qwen3moe": "qwen3_moe"); Mixtral is
 * "llama" with experts. NULL: unknown. */
const char *names_family_of_arch(const char *arch, bool experts);

enum names_match {
    NAMES_KNOWN,   /* out is the canonical name */
    NAMES_OTHER,   /* not in the tables: out is the stored name */
    NAMES_DROPPED, /* no weight: derived at load */
    NAMES_ASIDE    /* of another part than the text model: vision, audio; out is the stored name */
};
/* stored must be shorter than CKPT_NAME_MAX / 2; family may be NULL. */
enum names_match names_from_gguf(const char *family, const char *stored, char out[CKPT_NAME_MAX]);
enum names_match names_from_folder(const char *family, const char *stored, char out[CKPT_NAME_MAX]);
/* The name that MLX's loader expects; the canonical one where the two agree. wrapped: config.json
 * keeps the text model under text_config. False: too long. */
bool names_to_mlx(const char *family, bool wrapped, const char *canonical, char out[CKPT_NAME_MAX]);

enum ckpt_role names_role(const char *canonical);
int names_layer(const char *canonical); /* -1: outside the layers */
/* GGUF keeps this norm with one added. */
bool names_gguf_plus_one(const char *family, const char *canonical);

#endif
