/* names.h: tensor names of HF, MLX and GGUF checkpoints, as tables.
 *
 * Canonical is the HF name. Experts are seen stacked, a weight for all of them, which has no HF
 * name in most families: it is called "<block>.experts.{gate,up,down}_proj.weight". Single experts
 * that a folder holds are "<block>.experts.E.{gate,up,down}_proj.weight" until they are stacked.
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
/* True for families whose "<block>.experts.gate_up_proj.weight" holds the rows of gate, then those
 * of up. */
bool names_gate_then_up(const char *family);
/* GGUF keeps this norm with one added. */
bool names_gguf_plus_one(const char *family, const char *canonical);

#endif
