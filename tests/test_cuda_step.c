/* test_cuda_step.c: what a step of single tokens joins into one kernel, against the CPU oracle,
 * byte by byte: products with their gate, products of 9 to 16 rows, attention with rope in front;
 * and that their early starts wait.
 */
#include "kernels/cuda/cuda_product.h"
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 91};

/* ---- products -----------------------------------------------------------------------------------
 */
/* Two matrices of one shape on both sides, and biases. */
struct pair {
    struct kern_weight *w[2][2]; /* [side][gate, up] */
    void *bias[2][2];
    int64_t rows, k;
};

static struct pair open_pair(struct rig *r, int64_t rows, int64_t k, int bits, int up_bits,
                             int group, bool with_bias)
{
    struct pair p = {.rows = rows, .k = k};
    for (int i = 0; i < 2; i++) {
        struct qformat q = {i ? up_bits : bits, group, DT_BF16};
        struct fix_weight f = q.bits == CUDA_DENSE ? fix_dense(&rng, rows, k, DT_BF16)
                                                   : fix_affine(&rng, rows, k, q, 0.02f);
        float *bias = fix_floats(&rng, (size_t)rows, -1, 1);
        for (int s = 0; s < 2; s++) {
            p.w[s][i] = fix_load(r->side[s], &f);
            p.bias[s][i] = with_bias ? rig_put(r->side[s], bias, (size_t)rows * 4) : NULL;
        }
        free(bias);
        fix_weight_free(&f);
    }
    return p;
}

static void close_pair(struct rig *r, struct pair *p)
{
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 2; i++) {
            kern_weight_free(r->side[s], p->w[s][i]);
            kern_free(r->side[s], p->bias[s][i]);
        }
}

static void reserve(struct rig *r, int n_tok, int64_t k_max, int64_t rows_max)
{
    struct kern_limits l = {.n_tok = n_tok,
                            .n_seq = n_tok,
                            .pages_max = 64,
                            .n_head = 32,
                            .head_dim = 128,
                            .k_max = k_max,
                            .rows_max = rows_max};
    struct err e = {.text = ""};
    fix_ok(kern_reserve(r->side[1], &l, &e), &e);
}

/* The gated product of n rows on one side, bf16. */
static uint16_t *gated(struct rig *r, int s, const struct pair *p, const uint16_t *x, int n,
                       enum act_kind act)
{
    struct kern *k = r->side[s];
    size_t bytes = (size_t)(n * p->rows) * 2;
    struct linear_args a = {.n_tok = n, .x_stride = p->k, .n_parts = 2};
    float *both = rig_put(k, NULL, bytes * 4);
    struct err e = {.text = ""};
    a.x = rig_put(k, x, (size_t)(n * p->k) * 2);
    for (int i = 0; i < 2; i++)
        a.part[i] =
            (struct linear_part){p->w[s][i], p->bias[s][i], both + i * p->rows, 2 * p->rows};
    a.gate = (struct linear_gate){rig_put(k, NULL, bytes), act, 5.5f, 1.3f};
    fix_ok(kern_linear(k, &a, &e), &e);
    uint16_t *out = rig_get(k, a.gate.out, bytes);
    kern_free(k, both);
    kern_free(k, a.gate.out);
    kern_free(k, (void *)(uintptr_t)a.x);
    return out;
}

/* Rows, K, bits of gate and up, group. */
static const struct {
    int64_t rows, k;
    int bits, up_bits, group;
} shapes[] = {{144, 2048, 4, 4, 64},  {150, 4096, 4, 4, 64}, {440, 1536, 4, 4, 32},
              {960, 2048, 4, 4, 64},  {448, 4096, 4, 4, 64}, {450, 1536, 4, 4, 128},
              {300, 14336, 4, 4, 64}, {272, 2560, 8, 8, 64}, {96, 2048, 16, 16, 64},
              {72, 2048, 4, 8, 64},   {80, 640, 4, 4, 64},   {17, 9728, 4, 4, 64}};

/* As many multiprocessors as there are, or four: then blocks have tiles enough for several batches,
 * or for whole tiles of 9 to 16 rows, without large matrices. */
static int with_sm(struct rig *r, int n_sm)
{
    int before = cuda_of(r->side[1])->n_sm;
    cuda_of(r->side[1])->n_sm = n_sm;
    return before;
}

START_TEST(gated_products_equal_oracle)
{
    static const int counts[] = {1, 2, 3, 5, 8, 9, 12, 15, 16, 17, 33};
    struct rig r = rig_open();
    int64_t rows = shapes[_i].rows, k = shapes[_i].k;
    struct pair p =
        open_pair(&r, rows, k, shapes[_i].bits, shapes[_i].up_bits, shapes[_i].group, _i % 2);
    uint16_t *x = rig_inputs(&rng, (size_t)(33 * k), 0);
    reserve(&r, 33, k, rows);
    for (int act = ACT_SILU; act <= ACT_GPTOSS; act++) {
        uint16_t *want = gated(&r, 0, &p, x, 33, (enum act_kind)act);
        for (size_t i = 0; i < 2 * ARRAY_LEN(counts); i++) {
            int n = counts[i / 2], before = i % 2 ? with_sm(&r, 4) : 0;
            uint16_t *got = gated(&r, 1, &p, x, n, (enum act_kind)act);
            int64_t at = rig_differ(want, got, (size_t)(n * rows), 2);
            ck_assert_msg(at < 0, "activation %d, %d rows, %zu: row %lld output %lld", act, n,
                          i % 2, (long long)(at / rows), (long long)(at % rows));
            free(got);
            if (before)
                with_sm(&r, before);
        }
        free(want);
    }
    free(x);
    close_pair(&r, &p);
    rig_close(&r);
}
END_TEST

/* One product of n rows on one side. */
static float *product(struct rig *r, int s, const struct pair *p, const uint16_t *x, int n)
{
    struct kern *k = r->side[s];
    size_t bytes = (size_t)(n * p->rows) * 4;
    struct linear_args a = {.n_tok = n, .x_stride = p->k, .n_parts = 1};
    struct err e = {.text = ""};
    a.x = rig_put(k, x, (size_t)(n * p->k) * 2);
    a.part[0] = (struct linear_part){p->w[s][0], p->bias[s][0], rig_put(k, NULL, bytes), p->rows};
    fix_ok(kern_linear(k, &a, &e), &e);
    float *out = rig_get(k, a.part[0].out, bytes);
    kern_free(k, a.part[0].out);
    kern_free(k, (void *)(uintptr_t)a.x);
    return out;
}

/* A bias takes row 0 of up to zero, bit for bit: so every wrong bit of its total is seen through
 * the rounding to bf16. */
START_TEST(a_planted_order_is_seen_in_gated_products)
{
    static const int counts[] = {2, 8, 12, 16, 33};
    enum { ROWS = 2400, LEN = 4096 };
    struct rig r = rig_open();
    struct pair p = open_pair(&r, ROWS, LEN, 4, 4, 64, false), up = p;
    uint16_t *x = rig_inputs(&rng, 33 * LEN, 0);
    reserve(&r, 33, LEN, ROWS);
    up.w[1][0] = p.w[1][1];
    float *bias = product(&r, 1, &up, x, 1);
    for (int i = 0; i < ROWS; i++)
        bias[i] = -bias[i];
    p.bias[1][1] = rig_put(r.side[1], bias, ROWS * sizeof *bias);
    with_sm(&r, _i ? 10 : cuda_of(r.side[1])->n_sm);
    for (size_t i = 0; i < 2 * ARRAY_LEN(counts); i++) {
        kern_plant(i % 2 ? KERN_FAULT_CHUNK_ORDER : KERN_FAULT_NONE);
        uint16_t *got = gated(&r, 1, &p, x, counts[i / 2], ACT_SILU);
        kern_plant(KERN_FAULT_NONE);
        int not_zero = 0;
        for (int j = 0; j < ROWS; j++)
            not_zero += (got[j] & 0x7fff) != 0;
        ck_assert_msg(i % 2 ? not_zero > ROWS / 8 : not_zero == 0, "%d rows, planted %zu: %d",
                      counts[i / 2], i % 2, not_zero);
        free(got);
    }
    free(bias);
    free(x);
    close_pair(&r, &p);
    rig_close(&r);
}
END_TEST

/* Chunks in slots of one block, of two, of four; whole tiles; each kind of input. */
START_TEST(nine_to_sixteen_rows_equal_oracle)
{
    static const int counts[] = {9, 10, 11, 12, 13, 14, 15, 16};
    static const int64_t sizes[][2] = {{144, 1536},  {900, 4096},  {1930, 2048}, {4300, 2048},
                                       {1200, 1536}, {300, 14336}, {300, 9216},  {520, 5120}};
    struct rig r = rig_open();
    int64_t rows = sizes[_i][0], k = sizes[_i][1];
    struct pair p = open_pair(&r, rows, k, 4, 4, 32 << _i % 3, _i % 2);
    int all = cuda_of(r.side[1])->n_sm;
    reserve(&r, 16, k, rows);
    for (int kind = 0; kind < 4; kind++) {
        uint16_t *x = rig_inputs(&rng, (size_t)(16 * k), kind);
        float *want = product(&r, 0, &p, x, 16);
        for (size_t i = 0; i < 3 * ARRAY_LEN(counts); i++) {
            int n = counts[i / 3], n_sm = i % 3 == 0 ? all : i % 3 == 1 ? 4 : 8;
            with_sm(&r, n_sm);
            float *got = product(&r, 1, &p, x, n);
            int64_t at = rig_differ(want, got, (size_t)(n * rows), 4);
            ck_assert_msg(at < 0, "%d rows, %d multiprocessors, inputs %d: row %lld output %lld", n,
                          n_sm, kind, (long long)(at / rows), (long long)(at % rows));
            free(got);
        }
        for (int i = 0; kind == 0 && i < 3; i++) {
            with_sm(&r, i == 0 ? all : i == 1 ? 4 : 8);
            kern_plant(KERN_FAULT_CHUNK_ORDER);
            float *got = product(&r, 1, &p, x, 13);
            kern_plant(KERN_FAULT_NONE);
            ck_assert(rig_differ(want, got, (size_t)(13 * rows), 4) >= 0);
            free(got);
        }
        free(want);
        free(x);
    }
    close_pair(&r, &p);
    rig_close(&r);
}
END_TEST

/* ---- attention with rope, and with norms of its heads -------------------------------------------
 */
enum attend_norms { NORMS_NONE, NORMS_QK, NORMS_Q, NORMS_QKV, NORMS_V_OF_K };

struct attend {
    int n_head, n_kv, hd, rot, window;
    float softcap;
    bool sinks;
    enum attend_norms norms;
    int n, last[4]; /* sequences, and the position of each one's new token */
};

/* Pages, inputs and rows of a step on one kern. */
struct attend_side {
    struct kern *k;
    struct kern_rows rows;
    struct rope_kv_args rope;
    struct norm_heads_args norm;
    float *x, *sinks; /* x: [n tokens][q, k, v] of the step */
    void *kv, *q, *out;
    size_t kv_bytes, out_bytes;
};

static int64_t stride_of(const struct attend *s)
{
    return (int64_t)(s->n_head + 2 * s->n_kv) * s->hd;
}

/* Weights of the norms are values of `old`. */
static void open_norms(const struct attend *s, struct attend_side *d, const float *old)
{
    const size_t hd = (size_t)s->hd;
    float *w = rig_put(d->k, old, hd * 12);
    d->norm = (struct norm_heads_args){.n_tok = s->n, .n_head = s->n_head, .n_kv = s->n_kv};
    d->norm.head_dim = s->hd;
    d->norm.q = d->x;
    d->norm.k = d->x + s->n_head * s->hd;
    d->norm.v = d->x + (s->n_head + s->n_kv) * s->hd;
    d->norm.stride = stride_of(s);
    d->norm.q_norm = s->norms ? w : NULL;
    d->norm.k_norm = s->norms && s->norms != NORMS_Q ? w + hd : NULL;
    d->norm.v_norm = s->norms >= NORMS_QKV ? w + 2 * hd : NULL;
    d->norm.v_of_k = s->norms == NORMS_V_OF_K;
    d->norm.eps = 1e-6f;
    d->norm.plus_one = s->n_kv == 2;
}

/* Sequence i has tokens [0, last[i]) of `old`; the place of its new token holds NaN. */
static void open_attend(const struct attend *s, struct attend_side *d, const float *old,
                        const float *x, const float *table, const float *sinks, int len)
{
    int np = (len + KERN_PAGE - 1) / KERN_PAGE, total = 0;
    int64_t stride = stride_of(s);
    int32_t *page = malloc((size_t)(s->n * np) * 4), *pos, *seq;
    for (int i = 0; i < s->n; i++)
        total += s->last[i] + 1;
    pos = malloc((size_t)total * 4);
    seq = malloc((size_t)total * 4);
    float *past = malloc((size_t)(total * stride) * 4);
    for (int i = 0; i < s->n * np; i++)
        page[i] = s->n * np - 1 - i;
    for (int i = 0, at = 0; i < s->n; i++)
        for (int t = 0; t <= s->last[i]; t++, at++) {
            pos[at] = t;
            seq[at] = i;
            for (int64_t j = 0; j < stride; j++)
                past[at * stride + j] = t == s->last[i] ? NAN : old[(i * len + t) * stride + j];
        }
    struct kern *k = d->k;
    float *dx = rig_put(k, past, (size_t)(total * stride) * 4);
    d->kv_bytes = kern_page_bytes(k, s->n_kv, s->hd) * (size_t)(s->n * np);
    d->out_bytes = (size_t)(s->n * s->n_head * s->hd) * 2;
    d->kv = rig_put(k, NULL, d->kv_bytes);
    struct kern_rows rows = {.n_tok = total,
                             .pos = rig_put(k, pos, (size_t)total * 4),
                             .seq = rig_put(k, seq, (size_t)total * 4),
                             .pages = rig_put(k, page, (size_t)(s->n * np) * 4),
                             .n_seq = s->n,
                             .pages_max = np,
                             .keys_max = len};
    struct rope_kv_args a = {.rows = &rows,
                             .n_head = s->n_head,
                             .n_kv = s->n_kv,
                             .head_dim = s->hd,
                             .rot_dim = s->rot,
                             .q = dx,
                             .k = dx + s->n_head * s->hd,
                             .v = dx + (s->n_head + s->n_kv) * s->hd,
                             .stride = stride,
                             .cos_sin = rig_put(k, table, (size_t)(len * s->rot + 1) * 4),
                             .q_out = rig_put(k, NULL, (size_t)(total * s->n_head * s->hd) * 2),
                             .kv = d->kv};
    struct err e = {.text = ""};
    fix_ok(kern_rope_kv(k, &a, &e), &e);
    for (int i = 0; i < s->n; i++) {
        pos[i] = s->last[i];
        seq[i] = i;
    }
    d->rows = rows;
    d->rows.n_tok = s->n;
    d->rows.pos = rig_put(k, pos, (size_t)s->n * 4);
    d->rows.seq = rig_put(k, seq, (size_t)s->n * 4);
    d->x = rig_put(k, x, (size_t)(s->n * stride) * 4);
    d->sinks = s->sinks ? rig_put(k, sinks, (size_t)s->n_head * 4) : NULL;
    d->q = rig_put(k, NULL, d->out_bytes);
    d->out = rig_put(k, NULL, d->out_bytes);
    d->rope = a;
    d->rope.rows = &d->rows;
    d->rope.q = d->x;
    d->rope.k = d->x + s->n_head * s->hd;
    d->rope.v = d->x + (s->n_head + s->n_kv) * s->hd;
    d->rope.q_out = d->q;
    open_norms(s, d, old);
    free(page);
    free(pos);
    free(seq);
    free(past);
}

/* Attention with rope and norms, in one operation or one after the other; its outputs. */
static uint16_t *run_attend(const struct attend *s, struct attend_side *d, bool joined)
{
    struct attention_args a = {.rows = &d->rows, .n_head = s->n_head, .n_kv = s->n_kv};
    struct err e = {.text = ""};
    a.head_dim = s->hd;
    a.q = d->q;
    a.kv = d->kv;
    a.scale = 1.0f / sqrtf((float)s->hd);
    a.window = s->window;
    a.softcap = s->softcap;
    a.sinks = d->sinks;
    a.out = d->out;
    a.rope = joined ? &d->rope : NULL;
    a.norm = joined && s->norms ? &d->norm : NULL;
    if (!joined && s->norms)
        fix_ok(kern_norm_heads(d->k, &d->norm, &e), &e);
    if (!joined)
        fix_ok(kern_rope_kv(d->k, &d->rope, &e), &e);
    fix_ok(kern_attention(d->k, &a, &e), &e);
    return rig_get(d->k, d->out, d->out_bytes);
}

static const struct attend attends[] = {
    /* heads, kv, dim, rotated, window, cap, sinks, norms, sequences, last positions */
    {32, 8, 128, 128, 0, 0, false, NORMS_NONE, 4, {0, 63, 64, 1023}},
    {32, 8, 128, 128, 0, 0, false, NORMS_NONE, 1, {1024}},
    {8, 2, 128, 64, 0, 0, false, NORMS_NONE, 3, {255, 256, 257}},
    {14, 2, 64, 64, 0, 0, true, NORMS_NONE, 3, {62, 65, 700}}, /* 7 heads a block */
    {24, 2, 64, 64, 0, 0, false, NORMS_NONE, 2, {300, 127}},   /* two blocks of the same keys */
    {6, 2, 80, 80, 0, 0, false, NORMS_NONE, 2, {319, 128}},
    {4, 4, 96, 48, 0, 0, false, NORMS_NONE, 2, {511, 512}},
    {8, 4, 256, 256, 0, 50, false, NORMS_NONE, 3, {530, 1, 64}},
    {8, 2, 128, 128, 100, 0, false, NORMS_NONE, 3, {99, 356, 640}},
    {4, 2, 256, 256, 500, 0, true, NORMS_NONE, 3, {511, 767, 300}}, /* places of cleared V are used
                                                                       again */
    {16, 2, 512, 512, 0, 0, false, NORMS_NONE, 3, {530, 1, 255}},
    {4, 1, 512, 128, 450, 0, false, NORMS_NONE, 3, {511, 700, 64}},
    {4, 2, 112, 112, 0, 0, false, NORMS_NONE, 2, {200, 70}}, /* not for the row kernel */
    {8, 2, 64, 0, 0, 0, false, NORMS_NONE, 2, {90, 64}},     /* nothing rotates */
    {8, 2, 128, 128, 0, 0, false, NORMS_NONE, 1, {2047}}, /* as many splits as may meet; one more */
    {8, 2, 128, 128, 0, 0, true, NORMS_NONE, 2, {2048, 5}},
    {8, 1, 128, 128, 300, 0, true, NORMS_NONE, 4, {2000, 300, 299, 556}}, /* the first splits are
                                                                             not seen */
    {12, 4, 64, 64, 0, 20, true, NORMS_NONE, 3, {1500, 40, 700}},
    /* with norms */
    {32, 4, 128, 128, 0, 0, false, NORMS_QK, 1, {1024}},
    {32, 4, 128, 128, 0, 0, false, NORMS_QK, 4, {0, 63, 64, 1023}},
    {16, 8, 128, 128, 0, 0, true, NORMS_Q, 3, {255, 256, 257}},
    {24, 2, 128, 128, 0, 0, false, NORMS_QK, 2, {300, 127}}, /* two blocks of the same keys */
    {14, 2, 64, 64, 0, 0, false, NORMS_QKV, 3, {62, 65, 700}},
    {4, 2, 256, 256, 500, 0, false, NORMS_QK, 3, {511, 767, 300}},
    {8, 1, 256, 256, 0, 0, false, NORMS_QKV, 2, {511, 0}},
    /* norms that have a launch of their own */
    {8, 2, 128, 64, 0, 0, false, NORMS_QK, 3, {255, 256, 257}},
    {8, 4, 256, 256, 0, 50, false, NORMS_QK, 3, {530, 1, 64}},
    {4, 1, 512, 128, 450, 0, false, NORMS_V_OF_K, 3, {511, 700, 64}},
    {4, 2, 128, 128, 0, 0, false, NORMS_V_OF_K, 2, {511, 300}},
    {4, 2, 112, 112, 0, 0, false, NORMS_QK, 2, {200, 70}}};

/* Outputs equal the oracle's; pages equal those that rope by itself makes. n_sm: multiprocessors
 * that the device is told to have; with one no splits meet. */
static void check_attend(const struct attend *s, int n_sm)
{
    struct rig r = rig_open();
    with_sm(&r, n_sm ? n_sm : cuda_of(r.side[1])->n_sm);
    struct attend_side side[3] = {{.k = r.side[0]}, {.k = r.side[1]}, {.k = r.side[1]}};
    int len = 1;
    for (int i = 0; i < s->n; i++)
        len = MAX2(len, s->last[i] + 1);
    reserve(&r, 16, 4096, 4096);
    float *old = fix_floats(&rng, (size_t)(s->n * len * stride_of(s)), -2, 2);
    float *x = fix_floats(&rng, (size_t)(s->n * stride_of(s)), -2, 2);
    float *table = fix_floats(&rng, (size_t)(len * s->rot + 1), -1, 1);
    float *sinks = fix_floats(&rng, (size_t)s->n_head, -3, 3);
    uint16_t *out[3];
    for (int i = 0; i < 3; i++) {
        open_attend(s, &side[i], old, x, table, sinks, len);
        out[i] = run_attend(s, &side[i], i != 2);
    }
    int64_t at = rig_differ(out[0], out[1], side[0].out_bytes / 2, 2);
    ck_assert_msg(at < 0, "row %lld value %lld", (long long)(at / (s->n_head * s->hd)),
                  (long long)(at % (s->n_head * s->hd)));
    ck_assert(rig_differ(out[0], out[2], side[0].out_bytes / 2, 2) < 0);
    void *pages[2] = {rig_get(r.side[1], side[1].kv, side[1].kv_bytes),
                      rig_get(r.side[1], side[2].kv, side[2].kv_bytes)};
    ck_assert_msg(memcmp(pages[0], pages[1], side[1].kv_bytes) == 0, "pages differ");
    for (int i = 0; i < 3; i++)
        free(out[i]);
    free(pages[0]);
    free(pages[1]);
    free(old);
    free(x);
    free(table);
    free(sinks);
    rig_close(&r);
}

START_TEST(attention_with_rope_equals_oracle)
{
    check_attend(&attends[_i], 0);
    check_attend(&attends[_i], 1);
}
END_TEST

/* All splits but the first take their time: nobody may join before they have sent. Other inputs
 * each time, since what a block finds may be what the one before it has left. */
START_TEST(splits_of_a_row_meet)
{
    static const struct attend s = {32, 8, 128, 128, 0, 0, false, NORMS_NONE, 1, {1300}};
    struct rig r = rig_open();
    struct cuda_kern *c = cuda_of(r.side[1]);
    struct attend_side side[2] = {{.k = r.side[0]}, {.k = r.side[1]}};
    float *old = fix_floats(&rng, (size_t)(1301 * stride_of(&s)), -2, 2);
    float *table = fix_floats(&rng, 1301 * 128 + 1, -1, 1);
    reserve(&r, 16, 4096, 4096);
    for (int i = 0; i < 2; i++)
        open_attend(&s, &side[i], old, old, table, NULL, 1301);
    for (int fault = 0; fault < 2; fault++) {
        float *x = fix_floats(&rng, (size_t)stride_of(&s), -2, 2);
        uint16_t *out[2];
        c->plant_delay_ns = 50000;
        c->plant_no_wait = fault == 1;
        for (int i = 0; i < 2; i++) {
            struct err e = {.text = ""};
            fix_ok(kern_upload(side[i].k, side[i].x, x, (size_t)stride_of(&s) * 4, &e), &e);
            out[i] = run_attend(&s, &side[i], true);
        }
        ck_assert_int_eq(rig_differ(out[0], out[1], side[0].out_bytes / 2, 2) >= 0, fault);
        free(out[0]);
        free(out[1]);
        free(x);
    }
    free(old);
    free(table);
    rig_close(&r);
}
END_TEST

/* ---- early starts -------------------------------------------------------------------------------
 */
static void norm(struct kern *k, int64_t rows, int64_t d, int64_t stride, float *h, float *w,
                 bool out_f32, void *out)
{
    struct rms_norm_args a = {.n_rows = rows, .inner = 1, .stride = stride, .out_stride = stride};
    struct err e = {.text = ""};
    a.d = d;
    a.h = h;
    a.w = w;
    a.eps = 1e-5f;
    a.out_f32 = out_f32;
    a.out = out;
    fix_ok(kern_rms_norm(k, &a, &e), &e);
}

/* A norm that takes its time and the gated product, or the product of whole tiles, of what it
 * gives, with other rows each time: how many differ from the oracle's. */
static int chained_products(struct rig *r, const struct pair *p, int n, int repeats)
{
    size_t in = (size_t)(n * p->k), bytes = (size_t)(n * p->rows) * 2;
    float *weight = fix_floats(&rng, (size_t)p->k, 0.5f, 1.5f);
    struct linear_args a[2];
    void *h[2], *w[2];
    int differ = 0;
    for (int s = 0; s < 2; s++) {
        struct kern *k = r->side[s];
        float *both = rig_put(k, NULL, bytes * 4);
        h[s] = rig_put(k, NULL, in * 4);
        w[s] = rig_put(k, weight, (size_t)p->k * 4);
        a[s] = (struct linear_args){.n_tok = n, .x_stride = p->k, .n_parts = 2};
        a[s].x = rig_put(k, NULL, in * 2);
        for (int i = 0; i < 2; i++)
            a[s].part[i] = (struct linear_part){p->w[s][i], NULL, both + i * p->rows, 2 * p->rows};
        a[s].gate = (struct linear_gate){.out = rig_put(k, NULL, bytes), .act = ACT_SILU};
    }
    for (int i = 0; i < repeats; i++) {
        float *rows = fix_floats(&rng, in, -1, 1);
        uint16_t *got[2];
        for (int s = 0; s < 2; s++) {
            struct err e = {.text = ""};
            fix_ok(kern_upload(r->side[s], h[s], rows, in * 4, &e), &e);
            norm(r->side[s], n, p->k, p->k, h[s], w[s], false, (void *)(uintptr_t)a[s].x);
            fix_ok(kern_linear(r->side[s], &a[s], &e), &e);
            got[s] = rig_get(r->side[s], a[s].gate.out, bytes);
        }
        differ += rig_differ(got[0], got[1], bytes / 2, 2) >= 0;
        free(got[0]);
        free(got[1]);
        free(rows);
    }
    free(weight);
    return differ;
}

START_TEST(a_gated_product_waits_for_its_input)
{
    static const int counts[] = {1, 8, 12};
    struct rig r = rig_open();
    struct cuda_kern *c = cuda_of(r.side[1]);
    struct pair p = open_pair(&r, 1056, 2048, 4, 4, 64, false);
    with_sm(&r, _i ? 5 : c->n_sm);
    for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
        ck_assert_int_eq(chained_products(&r, &p, counts[i], 5), 0);
        c->plant_delay_ns = 50000;
        ck_assert_int_eq(chained_products(&r, &p, counts[i], 5), 0);
        c->plant_no_wait = true;
        rig_saw_no_wait(chained_products(&r, &p, counts[i], 5), "a gated product");
        c->plant_no_wait = false;
        c->plant_delay_ns = 0;
    }
    close_pair(&r, &p);
    rig_close(&r);
}
END_TEST

/* A norm of the query heads that takes its time, then attention with rope. */
static int chained_attention(const struct attend *s, struct attend_side side[2], void *const w[2],
                             int repeats)
{
    size_t n = (size_t)(s->n * stride_of(s));
    int differ = 0;
    for (int i = 0; i < repeats; i++) {
        float *x = fix_floats(&rng, n, -2, 2);
        uint16_t *out[2];
        for (int j = 0; j < 2; j++) {
            struct err e = {.text = ""};
            fix_ok(kern_upload(side[j].k, side[j].x, x, n * 4, &e), &e);
            norm(side[j].k, s->n, s->n_head * s->hd, stride_of(s), side[j].x, w[j], true,
                 side[j].x);
            out[j] = run_attend(s, &side[j], true);
        }
        differ += rig_differ(out[0], out[1], side[0].out_bytes / 2, 2) >= 0;
        free(out[0]);
        free(out[1]);
        free(x);
    }
    return differ;
}

/* With norms of its own (odd) or without, where splits meet and (2, 3) where they leave records. */
START_TEST(attention_with_rope_waits_for_its_input)
{
    static const struct attend ways[] = {{32, 8, 128, 128, 0, 0, false, NORMS_NONE, 2, {700, 64}},
                                         {32, 8, 128, 128, 0, 0, false, NORMS_QK, 2, {700, 64}}};
    const struct attend s = ways[_i % 2];
    struct rig r = rig_open();
    struct cuda_kern *c = cuda_of(r.side[1]);
    struct attend_side side[2] = {{.k = r.side[0]}, {.k = r.side[1]}};
    float *old = fix_floats(&rng, (size_t)(2 * 701 * stride_of(&s)), -2, 2);
    float *table = fix_floats(&rng, 701 * 128 + 1, -1, 1);
    float *weight = fix_floats(&rng, 32 * 128, 0.5f, 1.5f);
    void *w[2];
    if (_i >= 2)
        with_sm(&r, 1);
    reserve(&r, 16, 4096, 4096);
    for (int i = 0; i < 2; i++) {
        open_attend(&s, &side[i], old, old, table, NULL, 701);
        w[i] = rig_put(side[i].k, weight, 32 * 128 * 4);
    }
    ck_assert_int_eq(chained_attention(&s, side, w, 20), 0);
    c->plant_delay_ns = 50000;
    ck_assert_int_eq(chained_attention(&s, side, w, 10), 0);
    c->plant_no_wait = true;
    rig_saw_no_wait(chained_attention(&s, side, w, 10), "attention with rope");
    free(old);
    free(table);
    free(weight);
    rig_close(&r);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, gated_products_equal_oracle, 0, 1);
}

static void add_small_rows(TCase *c)
{
    tcase_add_loop_test(c, nine_to_sixteen_rows_equal_oracle, 0, 1);
}

static void add_small_attention(TCase *c)
{
    tcase_add_loop_test(c, attention_with_rope_equals_oracle, 2, 5);
}

static void add_small_norms(TCase *c)
{
    tcase_add_loop_test(c, attention_with_rope_equals_oracle, 21, 24);
}

static void add_tests(TCase *c)
{
    tcase_add_test(c, splits_of_a_row_meet);
    tcase_add_loop_test(c, attention_with_rope_waits_for_its_input, 0, 4);
    tcase_add_loop_test(c, attention_with_rope_equals_oracle, 0, 2);
    tcase_add_loop_test(c, attention_with_rope_equals_oracle, 5, 21);
    tcase_add_loop_test(c, attention_with_rope_equals_oracle, 24, ARRAY_LEN(attends));
    tcase_add_loop_test(c, gated_products_equal_oracle, 1, ARRAY_LEN(shapes));
    tcase_add_loop_test(c, nine_to_sixteen_rows_equal_oracle, 1, 8);
    tcase_add_loop_test(c, a_gated_product_waits_for_its_input, 0, 2);
    tcase_add_loop_test(c, a_planted_order_is_seen_in_gated_products, 0, 2);
}

Suite *test_suite(void)
{
    static void (*const small[RIG_SMALLS])(TCase *) = {add_small, add_small_rows,
                                                       add_small_attention, add_small_norms};
    return rig_suite_of("cuda step", add_tests, small);
}
