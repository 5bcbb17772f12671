/* container.h: one file of tensors, as it lies on disk: safetensors or GGUF, plain or inside an
 * archive.
 *
 * A container owns its map (or, for a compressed archive member, its memory); tensors borrow from
 * it. Data pointers may be unaligned. Nothing is believed before it is checked against the size of
 * the file.
 */
#ifndef ASSAY_CKPT_CONTAINER_H
#define ASSAY_CKPT_CONTAINER_H

#include "ckpt/dtype.h"
#include "common/err.h"
#include "common/json.h"

/* GGML block types keep their own numbers (formats page). */
enum ggml_type {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_I8 = 24,
    GGML_I16 = 25,
    GGML_I32 = 26,
    GGML_I64 = 27,
    GGML_F64 = 28,
    GGML_BF16 = 30,
    GGML_MXFP4 = 39,
    GGML_NVFP4 = 40,
    GGML_NONE = -1 /* the tensor is of a plain dtype */
};

const char *ggml_type_name(int type);                               /* "Q4_1"; NULL: unknown */
bool ggml_type_block(int type, int *block_elems, int *block_bytes); /* false: unknown */
/* Dequantizes n elements (a multiple of the block) as the reference does: f32, its own order of
 * operations. False for a type that is not imported. A block the format forbids (MXFP4 exponent
 * 255, NVFP4 scale 0x7f) gives NaN. */
bool ggml_type_decode(int type, const uint8_t *blocks, int64_t n, float *out);

#define CKPT_DIMS_MAX 8
#define CKPT_NAME_MAX 512

struct tensor {
    const char *name;
    enum dtype dtype; /* DT_UNKNOWN for GGML blocks */
    int ggml;         /* enum ggml_type, or GGML_NONE */
    int n_dim;
    int64_t dim[CKPT_DIMS_MAX]; /* row-major: the last one is contiguous, in GGUF too */
    const uint8_t *data;
    size_t bytes;
};

int64_t tensor_elems(const struct tensor *t);

enum container_kind { CONTAINER_SAFETENSORS, CONTAINER_GGUF };

struct gguf_meta; /* key-value pairs of a GGUF, see gguf.h */

struct container {
    enum container_kind kind;
    char *path;             /* as given, member included */
    struct tensor *tensors; /* sorted by name */
    size_t n_tensors;
    size_t file_bytes;
    const uint8_t *file_data; /* the whole member, for hashing */
    struct gguf_meta *gguf;   /* GGUF only */
    json_t *metadata;         /* safetensors __metadata__, or NULL */
    struct container_private *priv;
};

/* path: a file, or "archive:member" (tar, tar.gz, tar.zst, tar.xz, zip; whl is a zip). A stored
 * member is read in place. */
MUST_USE enum err_code container_open(struct container **c, const char *path, struct err *e);
void container_close(struct container *c);
const struct tensor *container_find(const struct container *c, const char *name);

#endif
