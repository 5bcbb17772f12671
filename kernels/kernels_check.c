/* kernels_check.c: what every operation refuses, before any backend sees it: shapes that contradict
 * each other, missing pointers, values that no kernel is made for. Each is a fault of the caller.
 */
#include "kernels/kernels_private.h"
#include "kernels/sample_rule.h"

#define NEED(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond))                                                                               \
            return err_set(e, ERR_INTERNAL, __VA_ARGS__);                                          \
    } while (0)

static enum err_code check_rows(const struct kern_rows *r, struct err *e)
{
    NEED(r, "no rows");
    NEED(r->n_tok >= 0 && r->n_seq >= 0 && r->pages_max >= 0,
         "rows %d, sequences %d, pages %d: expected none negative", r->n_tok, r->n_seq,
         r->pages_max);
    NEED(r->keys_max >= 0 && r->keys_max <= (int64_t)r->pages_max * KERN_PAGE,
         "%lld keys in %d pages", (long long)r->keys_max, r->pages_max);
    return ERR_OK;
}

static enum err_code check_heads(int n_head, int n_kv, int head_dim, struct err *e)
{
    NEED(n_head > 0 && n_kv > 0 && n_head % n_kv == 0,
         "%d query heads over %d KV heads: expected a whole multiple", n_head, n_kv);
    NEED(head_dim > 0 && head_dim <= KERN_HEAD_MAX, "head_dim %d: expected 1..%d", head_dim,
         KERN_HEAD_MAX);
    return ERR_OK;
}

enum err_code kern_check_embed(const struct embed_args *a, struct err *e)
{
    enum err_code rc = check_rows(a->rows, e);
    if (rc != ERR_OK)
        return rc;
    NEED(a->w && a->out && a->rows->id, "a pointer is missing");
    return ERR_OK;
}

static enum err_code check_act(enum act_kind act, float limit, float alpha, struct err *e)
{
    NEED(act == ACT_SILU || act == ACT_GELU_TANH || act == ACT_GPTOSS, "activation %d is unknown",
         (int)act);
    NEED(act != ACT_GPTOSS || (limit > 0 && alpha > 0), "limit %g, alpha %g: expected positive",
         (double)limit, (double)alpha);
    return ERR_OK;
}

enum err_code kern_check_linear(const struct linear_args *a, struct err *e)
{
    NEED(a->n_tok >= 0 && a->n_parts >= 1 && a->n_parts <= LINEAR_PARTS_MAX,
         "%d rows, %d parts: expected 1..%d parts", a->n_tok, a->n_parts, LINEAR_PARTS_MAX);
    for (int i = 0; i < a->n_parts; i++) {
        const struct linear_part *p = &a->part[i];
        NEED(p->w && p->out && a->x, "part %d: a pointer is missing", i);
        NEED(p->w->k == a->part[0].w->k, "part %d: K %lld, part 0 has %lld", i, (long long)p->w->k,
             (long long)a->part[0].w->k);
        NEED(p->out_stride >= p->w->rows, "part %d: stride %lld below %lld rows", i,
             (long long)p->out_stride, (long long)p->w->rows);
        NEED(a->x_stride >= p->w->k, "input stride %lld below K %lld", (long long)a->x_stride,
             (long long)p->w->k);
    }
    if (!a->gate.out)
        return ERR_OK;
    NEED(a->n_parts == 2 && a->part[0].w->rows == a->part[1].w->rows &&
             a->part[0].out_stride == a->part[1].out_stride,
         "%d parts of different shapes: a gate takes two of one", a->n_parts);
    return check_act(a->gate.act, a->gate.limit, a->gate.alpha, e);
}

enum err_code kern_check_rms_norm(const struct rms_norm_args *a, struct err *e)
{
    NEED(a->n_rows >= 0 && a->inner > 0 && a->d > 0 && a->d < 1 << 24,
         "%lld rows of %lld (%lld inside one): expected d in 1..2^24", (long long)a->n_rows,
         (long long)a->d, (long long)a->inner);
    NEED(a->h && a->w && a->out, "a pointer is missing");
    NEED(a->out != a->h || a->out_f32, "only an f32 result may replace its input");
    return ERR_OK;
}

enum err_code kern_check_norm_heads(const struct norm_heads_args *a, struct err *e)
{
    NEED(a->n_tok >= 0 && a->stride > 0, "%d rows, stride %lld", a->n_tok, (long long)a->stride);
    NEED(!a->q_norm || (a->q && a->n_head > 0), "q is missing");
    NEED(!a->k_norm || (a->k && a->n_kv > 0), "k is missing");
    NEED(!a->v_norm || (a->v && a->n_kv > 0 && (!a->v_of_k || a->k)), "v is missing");
    NEED(a->head_dim > 0 && a->head_dim <= KERN_HEAD_MAX, "head_dim %d: expected 1..%d",
         a->head_dim, KERN_HEAD_MAX);
    return ERR_OK;
}

enum err_code kern_check_rope_kv(const struct rope_kv_args *a, struct err *e)
{
    enum err_code rc = check_rows(a->rows, e);
    if (rc == ERR_OK)
        rc = check_heads(a->n_head, a->n_kv ? a->n_kv : 1, a->head_dim, e);
    if (rc != ERR_OK)
        return rc;
    NEED(a->rot_dim >= 0 && a->rot_dim <= a->head_dim && a->rot_dim % 2 == 0,
         "rot_dim %d: expected even, at most head_dim %d", a->rot_dim, a->head_dim);
    NEED(a->q && a->q_out && a->cos_sin, "a pointer is missing");
    NEED(a->n_kv ? a->k && a->v && a->kv : !a->k && !a->v && !a->kv,
         "%d KV heads: expected k, v and pages for some, and for none no such pointers", a->n_kv);
    return ERR_OK;
}

enum err_code kern_check_attention(const struct attention_args *a, struct err *e)
{
    enum err_code rc = check_rows(a->rows, e);
    if (rc == ERR_OK)
        rc = check_heads(a->n_head, a->n_kv, a->head_dim, e);
    if (rc != ERR_OK)
        return rc;
    NEED(a->scale > 0 && a->softcap >= 0 && a->window >= 0,
         "scale %g, softcap %g, window %d: expected positive, none negative", (double)a->scale,
         (double)a->softcap, a->window);
    NEED(a->q && a->kv && a->out, "a pointer is missing");
    NEED(!a->norm || a->rope, "norms of heads without their rope");
    if (!a->rope)
        return ERR_OK;
    NEED(a->rope->rows == a->rows && a->rope->n_head == a->n_head && a->rope->n_kv == a->n_kv &&
             a->rope->head_dim == a->head_dim && a->rope->q_out == a->q && a->rope->kv == a->kv,
         "rope of another attention");
    rc = kern_check_rope_kv(a->rope, e);
    if (rc != ERR_OK || !a->norm)
        return rc;
    NEED(a->norm->n_tok == a->rows->n_tok && a->norm->n_head == a->n_head &&
             a->norm->n_kv == a->n_kv && a->norm->head_dim == a->head_dim &&
             a->norm->stride == a->rope->stride,
         "norms of %d rows, %d heads over %d of %d, stride %lld: not those of its rope",
         a->norm->n_tok, a->norm->n_head, a->norm->n_kv, a->norm->head_dim,
         (long long)a->norm->stride);
    NEED(a->norm->q == a->rope->q && a->norm->k == a->rope->k && a->norm->v == a->rope->v,
         "norms of other heads than those of its rope");
    return kern_check_norm_heads(a->norm, e);
}

enum err_code kern_check_act_mul(const struct act_mul_args *a, struct err *e)
{
    NEED(a->n_rows >= 0 && a->d > 0 && a->stride >= a->d, "%lld rows of %lld, stride %lld",
         (long long)a->n_rows, (long long)a->d, (long long)a->stride);
    NEED(a->gate && a->up && a->out, "a pointer is missing");
    return check_act(a->act, a->limit, a->alpha, e);
}

enum err_code kern_check_add(const struct add_args *a, struct err *e)
{
    NEED(a->n >= 0 && a->h && (a->x || a->out), "%lld elements, or a pointer is missing",
         (long long)a->n);
    NEED(a->x || a->scale == 0, "scale %g of what nothing is added to", (double)a->scale);
    return ERR_OK;
}

enum err_code kern_check_route(const struct route_args *a, struct err *e)
{
    NEED(a->n_tok >= 0 && a->n_expert > 0 && a->n_used > 0 && a->n_used <= a->n_expert,
         "%d of %d experts: expected 1..all", a->n_used, a->n_expert);
    NEED(a->logits && a->expert && a->weight && a->order && a->first, "a pointer is missing");
    return ERR_OK;
}

enum err_code kern_check_route_scale(const struct route_scale_args *a, struct err *e)
{
    NEED(a->n_pairs >= 0 && a->n_expert > 0 && a->expert && a->scale && a->weight,
         "%d pairs, %d experts, or a pointer is missing", a->n_pairs, a->n_expert);
    return ERR_OK;
}

enum err_code kern_check_expert_linear(const struct expert_linear_args *a, struct err *e)
{
    NEED(a->w && a->x && a->out && a->order && a->first, "a pointer is missing");
    NEED(a->n_pairs >= 0 && a->n_expert > 0 && a->x_div > 0 && a->rows > 0,
         "%d pairs, %d experts, divisor %d, %lld rows", a->n_pairs, a->n_expert, a->x_div,
         (long long)a->rows);
    NEED(a->w->rows == a->rows * a->n_expert, "matrix of %lld rows: expected %d x %lld",
         (long long)a->w->rows, a->n_expert, (long long)a->rows);
    NEED(a->out_stride >= a->rows, "stride %lld below %lld rows", (long long)a->out_stride,
         (long long)a->rows);
    return ERR_OK;
}

enum err_code kern_check_expert_gated(const struct expert_gated_args *a, struct err *e)
{
    NEED(a->gate && a->up && a->x && a->room && a->out && a->order && a->first,
         "a pointer is missing");
    if (a->route) {
        const struct route_args *r = a->route;
        enum err_code rc = kern_check_route(r, e);
        if (rc != ERR_OK)
            return rc;
        NEED(r->order == a->order && r->first == a->first && r->n_expert == a->n_expert &&
                 r->n_tok * r->n_used == a->n_pairs,
             "a route of %d x %d pairs, or other lists: expected %d", r->n_tok, r->n_used,
             a->n_pairs);
    }
    NEED(a->n_pairs >= 0 && a->n_expert > 0 && a->x_div > 0 && a->rows > 0,
         "%d pairs, %d experts, divisor %d, %lld rows", a->n_pairs, a->n_expert, a->x_div,
         (long long)a->rows);
    NEED(a->gate->rows == a->rows * a->n_expert && a->up->rows == a->gate->rows &&
             a->up->k == a->gate->k,
         "matrices of %lld x %lld and %lld x %lld: expected %d x %lld rows of one length",
         (long long)a->gate->rows, (long long)a->gate->k, (long long)a->up->rows,
         (long long)a->up->k, a->n_expert, (long long)a->rows);
    NEED(a->act == ACT_SILU || a->act == ACT_GELU_TANH || a->act == ACT_GPTOSS,
         "activation %d is unknown", (int)a->act);
    NEED(a->act != ACT_GPTOSS || (a->limit > 0 && a->alpha > 0),
         "limit %g, alpha %g: expected positive", (double)a->limit, (double)a->alpha);
    return ERR_OK;
}

enum err_code kern_check_combine(const struct combine_args *a, struct err *e)
{
    NEED(a->n_tok >= 0 && a->n_used > 0 && a->d > 0, "%d rows, %d slots of %lld", a->n_tok,
         a->n_used, (long long)a->d);
    NEED(a->y && a->weight && a->out, "a pointer is missing");
    return ERR_OK;
}

enum err_code kern_check_residual(const struct residual_args *a, struct err *e)
{
    NEED(a->n_rows >= 0 && a->d > 0 && a->d < 1 << 24 && a->n_norms >= 0 &&
             a->n_norms <= RESIDUAL_NORMS_MAX,
         "%lld rows of %lld, %d norms: expected 0..%d", (long long)a->n_rows, (long long)a->d,
         a->n_norms, RESIDUAL_NORMS_MAX);
    NEED(a->h && a->delta, "a pointer is missing");
    for (int i = 0; i < a->n_norms; i++)
        NEED(a->norm[i] && a->x[i], "norm %d: a pointer is missing", i);
    if (a->router) {
        const struct linear_args *r = a->router;
        bool found = false;
        for (int i = 0; i < a->n_norms; i++)
            found |= r->x == a->x[i];
        NEED(found && r->n_tok == a->n_rows && r->x_stride == a->d && r->n_parts == 1 &&
                 !r->gate.out,
             "a router of %d rows and %d parts, or of another input", r->n_tok, r->n_parts);
        enum err_code rc = kern_check_linear(r, e);
        if (rc != ERR_OK)
            return rc;
    }
    if (!a->combine) {
        NEED(!a->scale && !a->branch_norm && !a->delta_norm, "norms or scales of no sum");
        return ERR_OK;
    }
    const struct combine_args *c = a->combine;
    NEED(c->n_tok == a->n_rows && c->d == a->d, "a sum of %d rows of %lld", c->n_tok,
         (long long)c->d);
    NEED(c->out != a->delta || !a->delta_norm, "a norm of what the sum replaces");
    enum err_code rc = kern_check_combine(c, e);
    if (rc != ERR_OK || !a->scale)
        return rc;
    NEED(a->scale->weight == c->weight && a->scale->n_pairs == c->n_tok * c->n_used,
         "scales of %d other pairs", a->scale->n_pairs);
    return kern_check_route_scale(a->scale, e);
}

enum err_code kern_check_gather(const struct gather_args *a, struct err *e)
{
    NEED(a->n >= 0 && a->d > 0 && a->row && a->in && a->out,
         "%d rows of %lld, or a pointer is missing", a->n, (long long)a->d);
    return ERR_OK;
}

enum err_code kern_check_logits(const struct logits_args *a, struct err *e)
{
    NEED(a->n >= 0 && a->n_vocab > 0 && a->n_vocab <= INT32_MAX && a->softcap >= 0,
         "%d rows of %lld logits, softcap %g", a->n, (long long)a->n_vocab, (double)a->softcap);
    NEED(a->k >= 2 && a->k <= LOGITS_TOP_MAX && a->k <= a->n_vocab,
         "top %d of %lld: expected 2..%d", a->k, (long long)a->n_vocab, LOGITS_TOP_MAX);
    NEED(a->logits && a->top_id && a->top && a->lse && a->hash, "a pointer is missing");
    return ERR_OK;
}

enum err_code kern_check_sample(const struct sample_args *a, struct err *e)
{
    NEED(a->n >= 0 && a->n <= SAMPLE_ROWS_MAX && a->n_vocab > 0 && a->n_vocab <= SAMPLE_VOCAB_MAX,
         "%d rows of %lld logits: expected at most %d of %d", a->n, (long long)a->n_vocab,
         SAMPLE_ROWS_MAX, SAMPLE_VOCAB_MAX);
    NEED(a->logits && a->rows && a->lists && a->room && a->id && a->logit, "a pointer is missing");
    return ERR_OK;
}

enum err_code kern_check_row_hash(const struct row_hash_args *a, struct err *e)
{
    NEED(a->n_rows >= 0 && a->d > 0 && a->stride >= a->d && a->x && a->hash,
         "%lld rows of %lld, stride %lld, or a pointer is missing", (long long)a->n_rows,
         (long long)a->d, (long long)a->stride);
    NEED(a->word_bytes == 4 || a->word_bytes == 2, "words of %d bytes: expected 4 or 2",
         a->word_bytes);
    return ERR_OK;
}
