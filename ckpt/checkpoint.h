/* checkpoint.h: a model as everybody above sees it: weights under canonical names, whatever the
 * container.
 *
 * Canonical names are those of the HF checkpoint ("model.layers.0.mlp.up_proj.weight"); MLX's and
 * GGUF's names are mapped (names.h). A packed MLX module is one weight: its scales and biases are
 * not listed. GGUF's permuted rope rows are hidden behind ckpt_weight_row. The checkpoint owns
 * everything; weights are views that die with it. Reading is thread-safe.
 */
#ifndef ASSAY_CKPT_CHECKPOINT_H
#define ASSAY_CKPT_CHECKPOINT_H

#include "ckpt/container.h"
#include "ckpt/hparams.h"
#include "ckpt/qformat.h"

enum ckpt_enc {
    CKPT_DENSE,  /* dtype says how: F32, F16, BF16 (others are listed, but not decoded) */
    CKPT_AFFINE, /* q says how */
    CKPT_MX,     /* block floats: q says how; no biases */
    CKPT_GGML,   /* ggml says how */
    CKPT_CT      /* packed by compressed-tensors: ct says how */
};

/*     role            text in recipes and reports */
#define CKPT_ROLES(X)                                                                              \
    X(ROLE_EMBEDDING, "embedding")                                                                 \
    X(ROLE_HEAD, "head")                                                                           \
    X(ROLE_ATTENTION, "attention")                                                                 \
    X(ROLE_MLP, "mlp")                                                                             \
    X(ROLE_ROUTER, "router")                                                                       \
    X(ROLE_EXPERT, "expert")                                                                       \
    X(ROLE_NORM, "norm")                                                                           \
    X(ROLE_OTHER, "other")

enum ckpt_role {
#define X(name, text) name,
    CKPT_ROLES(X)
#undef X
        ROLE_COUNT
};
const char *ckpt_role_name(enum ckpt_role r);
bool ckpt_role_find(const char *text, enum ckpt_role *r);

/* Where the elements of a dense weight stand that lies across a stored tensor: element k of row r
 * is number first + r / rows * matrix + r % rows * row + k * step. */
struct ckpt_strides {
    int64_t rows, matrix, row, step, first;
};

/* Where the rows of one expert begin. */
struct ckpt_block {
    const uint8_t *data, *scales, *biases, *globals;
};
struct ct_packed; /* ct_layout.h */

struct ckpt_weight {
    const char *name;   /* canonical, with ".weight" or ".bias" */
    const char *stored; /* the name in the container */
    enum ckpt_enc enc;
    enum dtype dtype;           /* CKPT_DENSE */
    struct qformat q;           /* CKPT_AFFINE, CKPT_MX */
    int ggml;                   /* CKPT_GGML */
    const struct ct_packed *ct; /* CKPT_CT */
    int n_dim;
    int64_t dim[CKPT_DIMS_MAX]; /* logical: [rows, k] for a matrix, [experts, rows, k] stacked */
    const uint8_t *data;        /* dense rows, packed codes or blocks; maybe unaligned */
    const uint8_t *scales, *biases; /* [rows, k/group] of q.scale; CKPT_MX: no biases */
    /* CKPT_MX, nvfp4: f32 a matrix of the stack (one when it is not stacked), which is 2688 times
     * what multiplies its values; NULL: none. */
    const uint8_t *globals;
    size_t bytes; /* data + scales + biases + globals; of a part of a tensor, that part's */
    /* Experts that lie apart (a tensor each, or gate between up): dim[0] blocks of rows, in order
     * of the experts; data, scales, biases and globals are NULL then. NULL: all rows lie together.
     */
    const struct ckpt_block *blocks;
    enum ckpt_role role;
    int layer;      /* -1: outside the layers */
    int rope_heads; /* GGUF llama q/k: rows are permuted inside this many heads; else 0 */
    bool minus_one; /* Gemma norms in GGUF are stored plus one */
    int row_step;   /* rows lie this many stored rows apart; 0: one behind another */
    bool mapped;    /* all data are views of mapped files: ckpt_weight_drop */
    const struct ckpt_strides *strides; /* CKPT_DENSE; NULL: elements lie one behind another */
};

static inline int64_t ckpt_weight_k(const struct ckpt_weight *w)
{
    return w->n_dim ? w->dim[w->n_dim - 1] : 1;
}
/* All leading dims together. */
int64_t ckpt_weight_rows(const struct ckpt_weight *w);
/* Packed in q, with biases or without. */
static inline bool ckpt_weight_packed(const struct ckpt_weight *w)
{
    return w->enc == CKPT_AFFINE || w->enc == CKPT_MX;
}
/* The rows lie one behind another in canonical order, and data is theirs alone. */
static inline bool ckpt_weight_in_order(const struct ckpt_weight *w)
{
    return w->rope_heads == 0 && w->row_step == 0 && !w->strides && !w->blocks;
}
/* What multiplies the values of row r beside their scales; 1 without global scales. */
float ckpt_weight_global(const struct ckpt_weight *w, int64_t r);
/* Where the file has it, or NULL. */
const uint8_t *ckpt_weight_stored_global(const struct ckpt_weight *w, int64_t r);
/* Global scales: how many there are. */
int64_t ckpt_weight_n_globals(const struct ckpt_weight *w);
/* Row r of a dense weight as it is stored: k elements of dtype. */
void ckpt_weight_stored_row(const struct ckpt_weight *w, int64_t r, void *out);
/* Stored row that holds canonical row r. (A permuted vector is put in order by
 * ckpt_weight_decode only.) */
int64_t ckpt_weight_row(const struct ckpt_weight *w, int64_t r);
/* Where stored row r begins (scales NULL unless packed, biases unless affine), and how many rows
 * lie together from there on. Not for weights with strides. */
int64_t ckpt_weight_at(const struct ckpt_weight *w, int64_t r, struct ckpt_block *at);
/* Bytes of one stored row, without scales; 0 when rows are no whole bytes. */
size_t ckpt_weight_row_bytes(const struct ckpt_weight *w);
/* Bytes of one stored row's scales, which are those of its biases; 0 unless packed. */
size_t ckpt_weight_scale_bytes(const struct ckpt_weight *w);
/* Stored rows [row0, row0 + n) are not needed for now: of a mapped file, their pages leave this
 * process's memory, and come back when they are read again. */
void ckpt_weight_drop(const struct ckpt_weight *w, int64_t row0, int64_t n);
/* Exact f32 values of canonical rows [row0, row0 + n) into out[n * k]: dense as it is, affine as
 * fmaf(q, s, b), block floats as element * s, GGML as its reference, compressed-tensors as
 * (q - zero) * s. ERR_INPUT for a type that cannot be decoded. */
MUST_USE enum err_code ckpt_weight_decode(const struct ckpt_weight *w, int64_t row0, int64_t n,
                                          float *out, struct err *e);

enum ckpt_format { CKPT_FORMAT_HF, CKPT_FORMAT_MLX, CKPT_FORMAT_GGUF };

struct checkpoint {
    char *path;
    enum ckpt_format format;
    struct hparams hp;
    /* Can the model be run as it is: family known, and every tensor there in its shape? A
     * checkpoint that cannot is still listed; hp_err says why, and hp is not to be used. */
    bool hp_ok;
    struct err hp_err;
    struct ckpt_weight *weights; /* sorted by canonical name */
    size_t n_weights;
    /* Tensors of a checkpoint's other parts, vision and audio: listed, not run, not copied. */
    struct ckpt_aside {
        const char *name;
        uint64_t bytes;
        int64_t elems;
    } * asides;
    size_t n_asides;
    json_t *config;       /* config.json; made from the keys for a GGUF */
    json_t *generation;   /* generation_config.json or NULL */
    char *tokenizer_json; /* text; made from the vocabulary for a GGUF; NULL: none */
    size_t tokenizer_len;
    struct err tokenizer_err; /* why a GGUF's vocabulary gave none; else empty */
    json_t *tokenizer_config; /* or NULL */
    char *chat_template;      /* text or NULL: chat_template.jinja, tokenizer_config, GGUF key */
    json_t *manifest;         /* assay.json or NULL */
    struct container **files; /* sorted by name */
    size_t n_files;
    struct checkpoint_private *priv;
};

/* path: a folder, a GGUF (first of a split), an archive (folder or GGUF inside), archive:member.
 * What is wrong with a checkpoint is said with file, place, found and expected. */
MUST_USE enum err_code checkpoint_open(struct checkpoint **c, const char *path, struct err *e);
void checkpoint_close(struct checkpoint *c);
const struct ckpt_weight *checkpoint_find(const struct checkpoint *c, const char *name);
/* Lower-case SHA-256 of one of the files, computed on first call. */
MUST_USE enum err_code checkpoint_file_sha256(const struct checkpoint *c, size_t file, char hex[65],
                                              struct err *e);
/* Bytes of all weights; bits per weight over the quantizable matrices and over all. */
uint64_t checkpoint_bytes(const struct checkpoint *c);

/* The packed format that holds a weight exactly: its own, or that which GGML blocks and matrices of
 * compressed-tensors are repacked to. False when there is none. */
bool ckpt_weight_packed_format(const struct ckpt_weight *w, struct qformat *q);
/* Canonical rows [row0, row0 + n) in that format (CKPT_GGML and CKPT_CT); buffers sized by q; a
 * block float has no biases. Exact. */
void ckpt_weight_repack(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                        uint8_t *codes, uint8_t *scales, uint8_t *biases);

/* GGUF -> packed where the grid allows (docs/formats.md): the format that a GGML tensor has
 * exactly: affine, f16 scales when they hold, else f32; MXFP4 is mxfp4, NVFP4 nvfp4. False when
 * there is none. */
bool ggml_affine_format(const struct ckpt_weight *w, struct qformat *q);
/* Repacks canonical rows [row0, row0+n) into MLX layout; buffers sized by q. Exact. A block float
 * has no biases. */
void ggml_affine_rows(const struct ckpt_weight *w, struct qformat q, int64_t row0, int64_t n,
                      uint8_t *codes, uint8_t *scales, uint8_t *biases);
#endif
