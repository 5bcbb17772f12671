/* test_kernels_rows.c: the operations that both arithmetics share, against plain references written
 * from docs/numerics.md: norm, activations, add, routing, combine, gather, logits, hashes; and the
 * embedding of the f32 arithmetic. Every variant, lengths with and without a tail.
 */
#include <math.h>

#include "common/hash.h"
#include "kernels/elem.h"
#include "tests/kernels_fixture.h"

/* Runs `body` with `k` open for every variant, both arithmetics and 1 to 2 threads. */
#define EACH_KERN(k)                                                                               \
    for (const char *const *isa = kern_isa_list(); *isa; isa++)                                    \
        for (int mode_ = 0; mode_ < 4; mode_++)                                                    \
            for (struct kern *k = fix_open((enum kern_arith)(mode_ / 2), *isa, 1 + mode_ % 2); k;  \
                 kern_close(k), k = NULL)

/* lane i % lanes, then halves: the tree of elem.h, spelled out. */
static float tree(float *lane, int lanes)
{
    for (int n = lanes / 2; n; n /= 2)
        for (int j = 0; j < n; j++)
            lane[j] += lane[j + n];
    return lane[0];
}

/* Element i of an act output as f32. */
static float act_at(const struct kern *k, const void *p, int64_t i, bool f32)
{
    return f32 || kern_arith(k) == KERN_F32 ? ((const float *)p)[i]
                                            : bf16_to_f32(((const uint16_t *)p)[i]);
}

static float as_act(const struct kern *k, float x, bool f32)
{
    return f32 || kern_arith(k) == KERN_F32 ? x : bf16_to_f32(bf16_from_f32(x));
}

START_TEST(norm_equals_the_reference)
{
    static const int64_t d_all[] = {5, 64, 100, 256, 576, 2881};
    int64_t d = d_all[_i];
    enum { N = 12, INNER = 3 };
    struct rng r = {.seed = 1};
    int64_t stride = INNER * d + 7, total = N / INNER * stride;
    float *h0 = fix_floats(&r, (size_t)total, -3, 3), *add = fix_floats(&r, (size_t)total, -1, 1);
    float *w = fix_floats(&r, (size_t)d, -1, 1), *h = malloc((size_t)total * 4);
    float *out = malloc((size_t)(N * d) * 4);
    EACH_KERN(k)
    {
        for (int m = 0; m < 8; m++) {
            bool with_add = m & 1, plus = m & 2, f32 = m & 4;
            struct err e = {.text = ""};
            memcpy(h, h0, (size_t)total * 4);
            struct rms_norm_args a = {N, INNER, stride, INNER * d, d,  h, with_add ? add : NULL,
                                      w, 1e-5f, plus,   f32,       out};
            fix_ok(kern_rms_norm(k, &a, &e), &e);
            for (int row = 0; row < N; row++) {
                int64_t at = row / INNER * stride + row % INNER * d;
                float lane[256] = {0}, x[3000];
                for (int64_t i = 0; i < d; i++) {
                    x[i] = with_add ? h0[at + i] + add[at + i] : h0[at + i];
                    lane[i % 256] = fmaf(x[i], x[i], lane[i % 256]);
                }
                float f = 1.0f / sqrtf(tree(lane, 256) / (float)d + 1e-5f);
                for (int64_t i = 0; i < d; i++) {
                    float want = as_act(k, (x[i] * f) * (plus ? 1.0f + w[i] : w[i]), f32);
                    ck_assert(fix_same(act_at(k, out, row * d + i, f32), want));
                    ck_assert(fix_same(h[at + i], x[i]));
                }
            }
        }
    }
    free(h0);
    free(add);
    free(w);
    free(h);
    free(out);
}
END_TEST

START_TEST(a_norm_may_replace_its_input)
{
    struct rng r = {.seed = 2};
    float *x = fix_floats(&r, 4 * 72, -1, 1), *w = fix_floats(&r, 72, 0, 2), out[4 * 72];
    EACH_KERN(k)
    {
        float h[4 * 72];
        struct err e = {.text = ""};
        memcpy(h, x, sizeof h);
        struct rms_norm_args a = {.n_rows = 4,
                                  .inner = 1,
                                  .stride = 72,
                                  .out_stride = 72,
                                  .d = 72,
                                  .h = h,
                                  .w = w,
                                  .eps = 1e-6f,
                                  .out_f32 = true,
                                  .out = out};
        fix_ok(kern_rms_norm(k, &a, &e), &e);
        a.out = h;
        fix_ok(kern_rms_norm(k, &a, &e), &e);
        ck_assert_int_eq(fix_diff(h, out, 4 * 72), -1);
    }
    free(x);
    free(w);
}
END_TEST

START_TEST(activations_equal_elem_h)
{
    enum { N = 3, D = 1077, STRIDE = 1100 };
    struct rng r = {.seed = 3};
    float *gate = fix_floats(&r, N * STRIDE, -12, 12), *up = fix_floats(&r, N * STRIDE, -9, 9);
    float *out = malloc(N * D * sizeof(float));
    gate[5] = NAN;
    up[6] = INFINITY;
    EACH_KERN(k)
    {
        for (int act = ACT_SILU; act <= ACT_GPTOSS; act++) {
            struct err e = {.text = ""};
            struct act_mul_args a = {N, D, STRIDE, (enum act_kind)act, gate, up, out, 5.5f, 1.3f};
            fix_ok(kern_act_mul(k, &a, &e), &e);
            for (int i = 0; i < N * D; i++) {
                int at = i / D * STRIDE + i % D;
                float want = act == ACT_SILU        ? elem_silu_mul(gate[at], up[at])
                             : act == ACT_GELU_TANH ? elem_gelu_tanh_mul(gate[at], up[at])
                                                    : elem_gptoss_mul(gate[at], up[at], 5.5f, 1.3f);
                ck_assert(fix_same(act_at(k, out, i, false), as_act(k, want, false)));
            }
        }
    }
    free(gate);
    free(up);
    free(out);
}
END_TEST

START_TEST(add_combine_and_gather_equal_the_reference)
{
    enum { N = 7, USED = 3, D = 1029 };
    struct rng r = {.seed = 4};
    float *y = fix_floats(&r, N * USED * D, -1, 1), *w = fix_floats(&r, N * USED, 0, 1);
    float *h0 = fix_floats(&r, N * D, -1, 1), *out = malloc(N * D * 4), *h = malloc(N * D * 4);
    float *cast = malloc(N * D * 4);
    static const int32_t pick[] = {6, 0, 3, 3};
    EACH_KERN(k)
    {
        struct err e = {.text = ""};
        fix_ok(kern_combine(k, &(struct combine_args){N, USED, D, y, w, out}, &e), &e);
        for (int i = 0; i < N * D; i++) {
            const float *at = y + (i / D) * USED * D + i % D, *wt = w + i / D * USED;
            ck_assert(fix_same(out[i], fmaf(wt[2], at[2 * D], fmaf(wt[1], at[D], wt[0] * at[0]))));
        }
        memcpy(h, h0, N * D * 4);
        fix_ok(kern_add(k, &(struct add_args){.n = N * D, .h = h, .x = out}, &e), &e);
        for (int i = 0; i < N * D; i++)
            ck_assert(fix_same(h[i], h0[i] + out[i]));
        memcpy(h, h0, N * D * 4);
        struct add_args scaled = {.n = N * D, .h = h, .x = out, .scale = 0.7F};
        fix_ok(kern_add(k, &scaled, &e), &e);
        for (int i = 0; i < N * D; i++) {
            float sum = h0[i] + out[i];
            ck_assert(fix_same(h[i], sum * 0.7F));
        }
        memcpy(h, h0, N * D * 4);
        scaled.out = cast;
        fix_ok(kern_add(k, &scaled, &e), &e);
        for (int i = 0; i < N * D; i++)
            ck_assert(fix_same(act_at(k, cast, i, false), as_act(k, h[i], false)) &&
                      h[i] == (h0[i] + out[i]) * 0.7F);
        fix_ok(kern_add(k, &(struct add_args){.n = N * D, .h = h0, .out = cast}, &e), &e);
        for (int i = 0; i < N * D; i++)
            ck_assert(fix_same(act_at(k, cast, i, false), as_act(k, h0[i], false)));
        fix_ok(kern_gather(k, &(struct gather_args){4, D, pick, h0, out}, &e), &e);
        for (int i = 0; i < 4; i++)
            ck_assert_mem_eq(out + i * D, h0 + pick[i] * D, D * 4);
    }
    free(y);
    free(w);
    free(h0);
    free(out);
    free(h);
    free(cast);
}
END_TEST

/* ---- routing
 * --------------------------------------------------------------------------------------- */
START_TEST(routing_takes_the_best_with_ties_to_the_lower_and_sorts_stably)
{
    enum { N = 40, EXPERTS = 11, USED = 3 };
    struct rng r = {.seed = 5};
    float logits[N * EXPERTS], weight[N * USED];
    int32_t expert[N * USED], order[N * USED], first[EXPERTS + 1];
    for (int i = 0; i < N * EXPERTS; i++)
        logits[i] = (float)rng_below(&r, 4) - 1.5f; /* many ties */
    EACH_KERN(k)
    {
        for (int m = 0; m < 3; m++) {
            bool softmax_first = m > 0, norm = m == 2;
            struct err e = {.text = ""};
            struct route_args a = {N,    EXPERTS, USED,   logits, softmax_first,
                                   norm, expert,  weight, order,  first};
            fix_ok(kern_route(k, &a, &e), &e);
            for (int t = 0; t < N; t++) {
                const float *l = logits + t * EXPERTS, *w = weight + t * USED;
                const int32_t *x = expert + t * USED;
                bool taken[EXPERTS] = {false};
                double all = 0, sum = 0;
                for (int s = 0; s < USED; s++) {
                    int best = -1;
                    for (int i = 0; i < EXPERTS; i++)
                        if (!taken[i] && (best < 0 || l[i] > l[best]))
                            best = i;
                    ck_assert_int_eq(x[s], best);
                    taken[best] = true;
                    sum += exp((double)l[best]);
                }
                for (int i = 0; i < EXPERTS; i++)
                    all += exp((double)l[i]);
                for (int s = 0; s < USED; s++) {
                    double want = exp((double)l[x[s]]) / (softmax_first && !norm ? all : sum);
                    ck_assert_double_eq_tol((double)w[s], want, 1e-6);
                }
            }
            int at = 0;
            for (int x = 0; x < EXPERTS; x++) {
                ck_assert_int_eq(first[x], at);
                for (int p = 0; p < N * USED; p++)
                    if (expert[p] == x)
                        ck_assert_int_eq(order[at++], p);
            }
            ck_assert_int_eq(first[EXPERTS], N * USED);
        }
    }
}
END_TEST

/* Also whether the planted fault is seen: what then stands in out and in the weights. */
START_TEST(weights_take_the_scale_of_their_expert)
{
    enum { N = 50, EXPERTS = 7 };
    struct rng r = {.seed = 8};
    float *scale = fix_floats(&r, EXPERTS, 0.5f, 1.5f), *w0 = fix_floats(&r, N, 0, 1), w[N];
    float out[N];
    int32_t expert[N];
    for (int i = 0; i < N; i++)
        expert[i] = (int32_t)rng_below(&r, EXPERTS);
    EACH_KERN(k)
    {
        for (int planted = 0; planted < 2; planted++) {
            struct err e = {.text = ""};
            int scaled = 0, cast = 0;
            memcpy(w, w0, sizeof w);
            memset(out, 0, sizeof out);
            kern_plant(planted ? KERN_FAULT_IDLE : KERN_FAULT_NONE);
            fix_ok(
                kern_route_scale(k, &(struct route_scale_args){N, EXPERTS, expert, scale, w}, &e),
                &e);
            fix_ok(kern_add(k, &(struct add_args){.n = N, .h = w0, .out = out}, &e), &e);
            kern_plant(KERN_FAULT_NONE);
            for (int i = 0; i < N; i++) {
                scaled += fix_same(w[i], w0[i] * scale[expert[i]]);
                cast += fix_same(act_at(k, out, i, false), as_act(k, w0[i], false));
            }
            ck_assert_int_eq(scaled, planted ? 0 : N);
            ck_assert_int_eq(cast, planted ? 0 : N);
        }
    }
    free(scale);
    free(w0);
}
END_TEST

/* ---- logits and hashes
 * -------------------------------------------------------------------------------- */
static void check_logits_row(const float *x, int64_t n, int top_n, const int32_t *id,
                             const float *top, float lse, uint64_t hash)
{
    float lane[1024] = {0}, max = -INFINITY;
    uint64_t h = 0;
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) {
        lane[i % 1024] += elem_exp(x[i] - max);
        h += hash_row_word((uint64_t)i, f32_bits(x[i]));
    }
    ck_assert(fix_same(lse, fmaf(elem_log2(tree(lane, 1024)), ELEM_LN2, max)));
    ck_assert_uint_eq(hash, h);
    for (int j = 0; j < top_n; j++) {
        ck_assert(fix_same(top[j], x[id[j]]));
        int64_t before = 0; /* how many stand before it in the order: exactly j */
        for (int64_t i = 0; i < n; i++)
            before += x[i] > x[id[j]] || (x[i] == x[id[j]] && i < id[j]);
        ck_assert_int_eq(before, j);
    }
}

START_TEST(logits_equal_the_reference)
{
    static const int64_t n_all[] = {2, 7, 1000, 1024, 5003};
    int64_t n = n_all[_i];
    enum { N = 3 };
    struct rng r = {.seed = 6};
    float *x0 = fix_floats(&r, (size_t)(N * n), -40, 40), *x = malloc((size_t)(N * n) * 4);
    for (int64_t i = 0; i < N * n; i++)
        x0[i] = roundf(x0[i] * 4) / 4; /* many ties */
    int top_n = (int)MIN2(n, (int64_t)9);
    int32_t id[N * 9];
    float top[N * 9], lse[N];
    uint64_t hash[N];
    EACH_KERN(k)
    {
        for (int cap = 0; cap <= 30; cap += 30) {
            struct err e = {.text = ""};
            memcpy(x, x0, (size_t)(N * n) * 4);
            struct logits_args a = {N, n, (float)cap, x, top_n, id, top, lse, hash};
            fix_ok(kern_logits(k, &a, &e), &e);
            for (int64_t i = 0; i < N * n; i++)
                ck_assert(fix_same(x[i], cap ? elem_softcap(x0[i], 30.0f) : x0[i]));
            for (int t = 0; t < N; t++)
                check_logits_row(x + t * n, n, top_n, id + t * top_n, top + t * top_n, lse[t],
                                 hash[t]);
        }
    }
    free(x0);
    free(x);
}
END_TEST

START_TEST(nan_logits_come_last_and_in_order)
{
    float x[6] = {NAN, -INFINITY, NAN, 1, -0.0f, 0.0f}, top[6], lse;
    int32_t id[6];
    static const int32_t want[6] = {3, 4, 5, 1, 0, 2};
    uint64_t hash;
    EACH_KERN(k)
    {
        struct err e = {.text = ""};
        struct logits_args a = {1, 6, 0, x, 6, id, top, &lse, &hash};
        fix_ok(kern_logits(k, &a, &e), &e);
        ck_assert_mem_eq(id, want, sizeof want);
        ck_assert_float_nan(lse);
    }
}
END_TEST

START_TEST(row_hashes_are_sums_over_words_with_one_nan)
{
    enum { N = 5, D = 131, STRIDE = 140 };
    struct rng r = {.seed = 7};
    float *x = fix_floats(&r, N * STRIDE, -1, 1);
    uint16_t half[N * STRIDE];
    uint64_t hash[N];
    x[3] = f32_from_bits(0xffc00001u);
    for (int i = 0; i < N * STRIDE; i++)
        half[i] = bf16_from_f32(x[i]);
    half[4] = 0xffffu;
    EACH_KERN(k)
    {
        struct err e = {.text = ""};
        fix_ok(kern_row_hash(k, &(struct row_hash_args){N, D, STRIDE, 4, x, hash}, &e), &e);
        for (int t = 0; t < N; t++) {
            uint64_t h = 0;
            for (int i = 0; i < D; i++) {
                float v = x[t * STRIDE + i];
                h += hash_row_word((uint64_t)i, v != v ? 0x7fffffffu : f32_bits(v));
            }
            ck_assert_uint_eq(hash[t], h);
        }
        fix_ok(kern_row_hash(k, &(struct row_hash_args){N, D, STRIDE, 2, half, hash}, &e), &e);
        for (int t = 0; t < N; t++) {
            uint64_t h = 0;
            for (int i = 0; i < D; i++) {
                uint16_t v = half[t * STRIDE + i];
                h += hash_row_word((uint64_t)i, (v & 0x7fffu) > 0x7f80u ? 0x7fffu : v);
            }
            ck_assert_uint_eq(hash[t], h);
        }
    }
    free(x);
}
END_TEST

/* ---- embedding
 * ------------------------------------------------------------------------------------------ */
START_TEST(embedding_rows_are_the_weights)
{
    enum { ROWS = 70, K = 96, N = 5 };
    static const int bits_all[] = {2, 3, 4, 5, 6, 8};
    static const int32_t id[N] = {0, 69, 31, 32, 31};
    struct rng r = {.seed = 8};
    struct kern_rows rows = {.n_tok = N, .id = id};
    float out[N * K];
    for (int b = 0; b <= (int)ARRAY_LEN(bits_all); b++) {
        struct fix_weight w =
            b < 6 ? fix_affine(&r, ROWS, K, (struct qformat){bits_all[b], 32, DT_F16}, 0.1f)
                  : fix_dense(&r, ROWS, K, DT_BF16);
        for (const char *const *isa = kern_isa_list(); *isa; isa++) {
            struct kern *k = fix_open(KERN_F32, *isa, 2);
            struct kern_weight *kw = fix_load(k, &w);
            struct err e = {.text = ""};
            fix_ok(kern_embed(k, &(struct embed_args){&rows, kw, 3.3f, out}, &e), &e);
            for (int i = 0; i < N * K; i++)
                ck_assert(fix_same(out[i], w.value[id[i / K] * K + i % K] * 3.3f));
            static const int32_t bad[1] = {ROWS};
            struct kern_rows wrong = {.n_tok = 1, .id = bad};
            ck_assert_int_eq(kern_embed(k, &(struct embed_args){&wrong, kw, 1, out}, &e),
                             ERR_INTERNAL);
            kern_weight_free(k, kw);
            kern_close(k);
        }
        fix_weight_free(&w);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("kernels_rows");
    TCase *t = tcase_create("rows");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, norm_equals_the_reference, 0, 6);
    tcase_add_test(t, a_norm_may_replace_its_input);
    tcase_add_test(t, activations_equal_elem_h);
    tcase_add_test(t, add_combine_and_gather_equal_the_reference);
    tcase_add_test(t, routing_takes_the_best_with_ties_to_the_lower_and_sorts_stably);
    tcase_add_test(t, weights_take_the_scale_of_their_expert);
    tcase_add_loop_test(t, logits_equal_the_reference, 0, 5);
    tcase_add_test(t, nan_logits_come_last_and_in_order);
    tcase_add_test(t, row_hashes_are_sums_over_words_with_one_nan);
    tcase_add_test(t, embedding_rows_are_the_weights);
    suite_add_tcase(s, t);
    return s;
}
