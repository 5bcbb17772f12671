/* names.c: the tables of tensor names, and roles and layers by name.
 *
 * Owns spelling only: which tensors a family must have is known by family_check.c.
 */
#include "ckpt/names.h"

#include <stdio.h>

#include "common/str.h"

enum {
    F_LLAMA = 1,
    F_MIXTRAL = 2,
    F_QWEN2 = 4,
    F_QWEN3 = 8,
    F_QWEN3_MOE = 16,
    F_GEMMA2 = 32,
    F_GEMMA3 = 64,
    F_GEMMA4 = 128,
    F_GPT_OSS = 256,
    F_GEMMA = F_GEMMA2 | F_GEMMA3 | F_GEMMA4,
    F_SPLIT = F_MIXTRAL | F_QWEN3_MOE | F_GEMMA4,
    F_ALL = 511
};

static const struct {
    const char *arch; /* NULL: not a GGUF architecture of its own */
    const char *family;
    int flag;
} families[] = {
    {"llama", "llama", F_LLAMA},
    {NULL, "mistral", F_LLAMA},
    {NULL, "mixtral", F_MIXTRAL},
    {"qwen2", "qwen2", F_QWEN2},
    {"qwen3", "qwen3", F_QWEN3},
    {"qwen3moe", "qwen3_moe", F_QWEN3_MOE},
    {"gemma2", "gemma2", F_GEMMA2},
    {"gemma3", "gemma3_text", F_GEMMA3},
    {NULL, "gemma3", F_GEMMA3},
    {"gemma4", "gemma4_text", F_GEMMA4},
    {NULL, "gemma4", F_GEMMA4},
    {NULL, "gemma4_unified", F_GEMMA4},
    {NULL, "gemma4_unified_text", F_GEMMA4},
    {"gpt-oss", "gpt_oss", F_GPT_OSS},
};

/* GGUF names outside the layers; NULL: derived at load, no weight. */
static const struct {
    const char *gguf, *hf;
} globals[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"rope_freqs.weight", NULL},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
};

/* GGUF "blk.N.<stem>" -> HF "model.layers.N.<stem>". A stem with a point is the whole rest of the
 * name; others keep what follows them (.weight, .bias). */
static const struct {
    const char *gguf, *hf;
    int families;
} layer_names[] = {
    {"attn_norm", "input_layernorm", F_ALL},
    {"attn_q", "self_attn.q_proj", F_ALL},
    {"attn_k", "self_attn.k_proj", F_ALL},
    {"attn_v", "self_attn.v_proj", F_ALL},
    {"attn_output", "self_attn.o_proj", F_ALL},
    {"attn_q_norm", "self_attn.q_norm", F_ALL},
    {"attn_k_norm", "self_attn.k_norm", F_ALL},
    {"attn_sinks.weight", "self_attn.sinks", F_GPT_OSS},
    {"post_attention_norm", "post_attention_layernorm", F_GEMMA | F_GPT_OSS},
    {"ffn_norm", "pre_feedforward_layernorm", F_GEMMA},
    {"ffn_norm", "post_attention_layernorm", F_ALL & ~(F_GEMMA | F_GPT_OSS)},
    {"post_ffw_norm", "post_feedforward_layernorm", F_GEMMA},
    {"post_ffw_norm_1", "post_feedforward_layernorm_1", F_GEMMA4},
    {"post_ffw_norm_2", "post_feedforward_layernorm_2", F_GEMMA4},
    {"pre_ffw_norm_2", "pre_feedforward_layernorm_2", F_GEMMA4},
    {"ffn_gate", "mlp.gate_proj", F_ALL},
    {"ffn_up", "mlp.up_proj", F_ALL},
    {"ffn_down", "mlp.down_proj", F_ALL},
    {"ffn_gate_inp", "block_sparse_moe.gate", F_MIXTRAL},
    {"ffn_gate_inp", "mlp.gate", F_QWEN3_MOE},
    {"ffn_gate_inp", "mlp.router", F_GPT_OSS},
    {"ffn_gate_inp.weight", "router.proj.weight", F_GEMMA4},
    {"ffn_gate_inp.scale", "router.scale", F_GEMMA4},
    {"ffn_gate_exps", "block_sparse_moe.experts.gate_proj", F_MIXTRAL},
    {"ffn_up_exps", "block_sparse_moe.experts.up_proj", F_MIXTRAL},
    {"ffn_down_exps", "block_sparse_moe.experts.down_proj", F_MIXTRAL},
    {"ffn_gate_exps", "mlp.experts.gate_proj", F_QWEN3_MOE | F_GPT_OSS},
    {"ffn_up_exps", "mlp.experts.up_proj", F_QWEN3_MOE | F_GPT_OSS},
    {"ffn_down_exps", "mlp.experts.down_proj", F_QWEN3_MOE | F_GPT_OSS},
    {"ffn_down_exps.scale", "router.per_expert_scale", F_GEMMA4},
    {"ffn_gate_up_exps", "experts.gate_up_proj", F_GEMMA4},
    {"ffn_gate_exps", "experts.gate_proj", F_GEMMA4},
    {"ffn_up_exps", "experts.up_proj", F_GEMMA4},
    {"ffn_down_exps", "experts.down_proj", F_GEMMA4},
    {"layer_output_scale.weight", "layer_scalar", F_GEMMA4},
    {"inp_gate", "per_layer_input_gate", F_GEMMA4},
    {"proj", "per_layer_projection", F_GEMMA4},
    {"post_norm", "post_per_layer_input_norm", F_GEMMA4},
};

/* Pieces of names that MLX spells otherwise. */
static const struct {
    const char *mlx, *hf;
    int families;
} mlx_pieces[] = {
    {".mlp.switch_mlp.", ".mlp.experts.", F_QWEN3_MOE},
    {".block_sparse_moe.switch_mlp.", ".block_sparse_moe.experts.", F_MIXTRAL},
    {".experts.switch_glu.", ".experts.", F_GEMMA4},
};

/* Where a checkpoint of several parts keeps its text model; the canonical names are those of the
 * text model alone. */
static const struct {
    const char *stored, *hf;
} wrappers[] = {
    {"language_model.model.", "model."},
    {"model.language_model.", "model."},
    {"language_model.lm_head.", "lm_head."},
};
#define MLX_WRAPPER "language_model."

/* Begins of the names of its other parts, also behind "model.". */
static const char *const asides[] = {"vision_tower.", "multi_modal_projector.", "audio_tower.",
                                     "embed_audio.",  "embed_vision.",          "vision_embedder."};
/* Pieces that HF's own writers spell otherwise: Mixtral's numbered experts, and experts fused by
 * transformers 5, which carry no ".weight". With `whole` the piece is the end of the name. */
static const struct {
    const char *stored, *canonical;
    bool whole;
    int families;
} folder_pieces[] = {
    {".mlp.gate.", ".block_sparse_moe.gate.", false, F_MIXTRAL},
    {".mlp.experts.", ".block_sparse_moe.experts.", false, F_MIXTRAL},
    {".w1.weight", ".gate_proj.weight", true, F_MIXTRAL},
    {".w3.weight", ".up_proj.weight", true, F_MIXTRAL},
    {".w2.weight", ".down_proj.weight", true, F_MIXTRAL},
    {".experts.gate_up_proj", ".experts.gate_up_proj.weight", true, F_SPLIT},
    {".experts.down_proj", ".experts.down_proj.weight", true, F_SPLIT},
};

static int family_flag(const char *family)
{
    for (size_t i = 0; family && i < ARRAY_LEN(families); i++) {
        if (strcmp(families[i].family, family) == 0)
            return families[i].flag;
    }
    return 0;
}

const char *names_family_of_arch(const char *arch, bool experts)
{
    if (experts && strcmp(arch, "llama") == 0)
        return "mixtral";
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        if (families[i].arch && strcmp(families[i].arch, arch) == 0)
            return families[i].family;
    }
    return NULL;
}

static bool put(char out[CKPT_NAME_MAX], const char *a, const char *b, const char *c)
{
    int n = snprintf(out, CKPT_NAME_MAX, "%s%s%s", a, b, c);
    return n >= 0 && n < CKPT_NAME_MAX;
}

/* Length of "<prefix>N." at the start of a name, 0 when it does not start so. */
static size_t layer_prefix(const char *name, const char *prefix)
{
    size_t n = strlen(prefix), at = n;
    if (!str_starts(name, prefix))
        return 0;
    while (name[at] >= '0' && name[at] <= '9')
        at++;
    return at > n && name[at] == '.' ? at + 1 : 0;
}

enum names_match names_from_gguf(const char *family, const char *stored, char out[CKPT_NAME_MAX])
{
    int flag = family_flag(family);
    for (size_t i = 0; i < ARRAY_LEN(globals); i++) {
        if (strcmp(globals[i].gguf, stored) == 0) {
            if (!globals[i].hf)
                return NAMES_DROPPED;
            put(out, globals[i].hf, "", "");
            return NAMES_KNOWN;
        }
    }
    size_t head = layer_prefix(stored, "blk.");
    const char *rest = stored + head;
    for (size_t i = 0; head && i < ARRAY_LEN(layer_names); i++) {
        const char *stem = layer_names[i].gguf;
        size_t n = strlen(stem);
        bool whole = strchr(stem, '.') != NULL;
        if (!(layer_names[i].families & flag) || strncmp(rest, stem, n) != 0 ||
            rest[n] != (whole ? 0 : '.'))
            continue;
        char layer[64];
        if (head - 4 >= sizeof layer)
            break;
        memcpy(layer, stored + 4, head - 4);
        layer[head - 4] = 0;
        char suffix[CKPT_NAME_MAX];
        if (put(suffix, layer, layer_names[i].hf, rest + n) &&
            put(out, "model.layers.", suffix, ""))
            return NAMES_KNOWN;
    }
    put(out, stored, "", "");
    return NAMES_OTHER;
}

static bool swap_piece(const char *name, const char *from, const char *to, char out[CKPT_NAME_MAX])
{
    const char *at = strstr(name, from);
    if (!at || (from[0] != '.' && at != name))
        return false;
    char head[CKPT_NAME_MAX];
    size_t n = (size_t)(at - name);
    if (n >= sizeof head)
        return false;
    memcpy(head, name, n);
    head[n] = 0;
    return put(out, head, to, at + strlen(from));
}

static bool is_aside(const char *stored)
{
    const char *name = str_starts(stored, "model.") ? stored + strlen("model.") : stored;
    for (size_t i = 0; i < ARRAY_LEN(asides); i++) {
        if (str_starts(name, asides[i]))
            return true;
    }
    return false;
}

enum names_match names_from_folder(const char *family, const char *stored, char out[CKPT_NAME_MAX])
{
    int flag = family_flag(family);
    char step[CKPT_NAME_MAX];
    if (str_ends(stored, ".rotary_emb.inv_freq"))
        return NAMES_DROPPED;
    put(out, stored, "", "");
    if ((flag & F_GEMMA) && is_aside(stored))
        return NAMES_ASIDE;
    for (size_t i = 0; (flag & F_GEMMA) && i < ARRAY_LEN(wrappers); i++) {
        if (swap_piece(out, wrappers[i].stored, wrappers[i].hf, step)) {
            memcpy(out, step, CKPT_NAME_MAX);
            break;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(mlx_pieces); i++) {
        if ((mlx_pieces[i].families & flag) &&
            swap_piece(out, mlx_pieces[i].mlx, mlx_pieces[i].hf, step))
            memcpy(out, step, CKPT_NAME_MAX);
    }
    for (size_t i = 0; i < ARRAY_LEN(folder_pieces); i++) {
        bool fits = !folder_pieces[i].whole || str_ends(out, folder_pieces[i].stored);
        if ((folder_pieces[i].families & flag) && fits &&
            swap_piece(out, folder_pieces[i].stored, folder_pieces[i].canonical, step))
            memcpy(out, step, CKPT_NAME_MAX);
    }
    return NAMES_KNOWN;
}

bool names_to_mlx(const char *family, bool wrapped, const char *canonical, char out[CKPT_NAME_MAX])
{
    int flag = family_flag(family);
    char step[CKPT_NAME_MAX];
    if (!put(out, wrapped && (flag & F_GEMMA) ? MLX_WRAPPER : "", canonical, ""))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(mlx_pieces); i++) {
        if (!(mlx_pieces[i].families & flag))
            continue;
        /* Experts that are not stacked keep their number, and their name. */
        const char *at = strstr(out, mlx_pieces[i].hf);
        const char *after = at ? at + strlen(mlx_pieces[i].hf) : NULL;
        bool numbered = after && mlx_pieces[i].hf[0] == '.' && *after >= '0' && *after <= '9';
        if (!numbered && swap_piece(out, mlx_pieces[i].hf, mlx_pieces[i].mlx, step))
            memcpy(out, step, CKPT_NAME_MAX);
    }
    return true;
}

static bool has_part(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

enum ckpt_role names_role(const char *name)
{
    static const struct {
        const char *part;
        enum ckpt_role role;
    } parts[] = {
        /* A norm is a norm wherever it sits, so the first two rows come first. */
        {"norm.weight", ROLE_NORM},       {"layernorm", ROLE_NORM},
        {"norm_1.weight", ROLE_NORM},     {"norm_2.weight", ROLE_NORM},
        {"embed_tokens", ROLE_EMBEDDING}, {"lm_head.", ROLE_HEAD},
        {".self_attn.", ROLE_ATTENTION},  {".experts.", ROLE_EXPERT},
        {".switch_mlp.", ROLE_EXPERT},    {".switch_glu.", ROLE_EXPERT},
        {".mlp.gate.", ROLE_ROUTER},      {".block_sparse_moe.gate.", ROLE_ROUTER},
        {".router.", ROLE_ROUTER},        {".mlp.", ROLE_MLP},
        {"per_layer_", ROLE_MLP},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (has_part(name, parts[i].part))
            return parts[i].role;
    }
    return ROLE_OTHER;
}

int names_layer(const char *name)
{
    const char *at = strstr(name, "layers.");
    int layer = 0, digits = 0;
    if (!at || (at != name && at[-1] != '.'))
        return -1;
    for (at += 7; *at >= '0' && *at <= '9' && digits < 6; at++, digits++)
        layer = 10 * layer + (*at - '0');
    return digits && *at == '.' ? layer : -1;
}

bool names_gate_then_up(const char *family)
{
    return (family_flag(family) & F_SPLIT) != 0;
}

bool names_gguf_plus_one(const char *family, const char *canonical)
{
    return (family_flag(family) & (F_GEMMA2 | F_GEMMA3)) && str_ends(canonical, "norm.weight");
}
