/* checkpoint_priv.h: what the files that build a checkpoint share. */
#ifndef ASSAY_CKPT_CHECKPOINT_PRIV_H
#define ASSAY_CKPT_CHECKPOINT_PRIV_H

#include <pthread.h>

#include "ckpt/checkpoint.h"
#include "ckpt/container_open.h"
#include "common/arena.h"

struct checkpoint_private {
    struct arena *arena; /* names, weights, factors */
    struct source *source;
    char (*hex)[65]; /* one per file; empty until computed */
    pthread_mutex_t lock;
};

/* Lists the weights of all files under canonical names, sorted. Needs config and, when they could
 * be read, hyperparameters. */
MUST_USE enum err_code weight_list_build(struct checkpoint *c, struct err *e);
/* weight_experts.c: makes one stacked weight of the experts of a matrix, whether they came as a
 * tensor each, or as gate and up in one; the list is sorted before and after. What keeps them from
 * being stacked (a number left out, another shape or format) goes to hp_err. */
MUST_USE enum err_code weight_experts_stack(struct checkpoint *c, const char *family,
                                            struct err *e);
/* weight_gpt_oss.c: experts as HF stores them for gpt-oss. Does it take this stored name? */
bool weight_gpt_oss_takes(const char *name);
/* Adds the weights (none, one or two) of such a tensor of a folder behind the list, without their
 * layer; scales: the tensor "..._scales" that belongs to "..._blocks", or NULL. */
MUST_USE enum err_code weight_gpt_oss_add(struct checkpoint *c, const char *name,
                                          const struct tensor *t, const struct tensor *scales,
                                          struct err *e);
/* The HF family in force: config.json's model_type, or that of its text_config; NULL: none. */
const char *weight_list_family(const struct checkpoint *c);

#endif
