/* folder.h: everything of a packed checkpoint's folder beside its tensors and its manifest:
 * config.json with the quantization block, tokenizer, chat template, generation settings.
 */
#ifndef ASSAY_QUANT_FOLDER_H
#define ASSAY_QUANT_FOLDER_H

#include "quant/pack.h"

#define FOLDER_FILES_MAX 8

struct folder_files {
    struct pack_file file[FOLDER_FILES_MAX];
    size_t n;
};

/* The source's config with one `quantization` block (and its copy `quantization_config`) that has
 * an entry for every packed module, or without any when nothing is packed. torch_dtype: "bfloat16"
 * and so on to replace the source's, or NULL. A new reference. */
MUST_USE enum err_code folder_config(const struct plan *p, const char *torch_dtype, json_t **out,
                                     struct err *e);

MUST_USE enum err_code folder_write(const struct plan *p, const char *torch_dtype, const char *dir,
                                    struct folder_files *files, struct err *e);

#endif
