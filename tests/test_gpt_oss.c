/* test_gpt_oss.c: gpt-oss: the published shape, HF's layout of experts and what is wrong with one,
 * and the invariances of docs/numerics.md on a tiny model with experts in mxfp4. Its logits are
 * held against other programs by tests/reference/gpt_oss.py.
 */
#include <math.h>

#include "infer/model.h"
#include "infer/shapes.h"
#include "kernels/kernels_private.h"
#include "tests/check_main.h"
#include "tests/engine_rig.h"
#include "tests/gpt_oss_make.h"

/* ---- the published shape ------------------------------------------------------------------------
 */

static int64_t elements(const struct model_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        n *= t->dim[i];
    return n;
}

START_TEST(the_20b_shape_has_the_published_parameters)
{
    struct hparams hp;
    struct model_tensor *list = NULL;
    struct err e = {.text = ""};
    json_t *config = NULL;
    size_t n = 0;
    int64_t all = 0, active = 0;
    ck_assert_int_eq(shapes_config("gpt-oss-20b", &config, &e), ERR_OK);
    ck_assert_msg(hparams_from_config(&hp, config, NULL, &e) == ERR_OK, "%s", e.text);
    ck_assert_int_eq(model_list_tensors(&hp, &list, &n, &e), ERR_OK);
    for (size_t i = 0; i < n; i++) {
        bool expert = strstr(list[i].name, ".experts.") != NULL;
        all += elements(&list[i]);
        active += expert ? elements(&list[i]) / hp.n_expert * hp.n_expert_used : elements(&list[i]);
    }
    ck_assert_uint_eq(n, 459);
    ck_assert_int_eq(all, 20914757184);
    /* 3.61 B: the embedding is a look-up and does not count as active. */
    ck_assert_int_eq(active - 201088 * 2880, 3608307264);
    ck_assert(hp.sliding[0] && !hp.sliding[1] && hp.sliding[22] && !hp.sliding[23]);
    ck_assert(!hp.rope.truncate && fabs(hp.rope.attention_factor - 1.3465735902799727) < 1e-12);
    free(list);
    json_decref(config);
}
END_TEST

/* ---- HF's layout --------------------------------------------------------------------------------
 */

static char dir[64];
static struct checkpoint *c;
static struct err err;

static void setup(void)
{
    ck_assert_ptr_nonnull(make_folder(dir));
    c = NULL;
}

static void teardown(void)
{
    checkpoint_close(c);
    remove_folder(dir);
}

static void put(struct strbuf *b, const char *config)
{
    write_file(dir, "model.safetensors", b->data, b->len);
    write_text(dir, "config.json", config);
    strbuf_free(b);
    checkpoint_close(c);
    c = NULL;
}

static void put_all(bool packed)
{
    struct strbuf b = {0};
    oss_all(&b, packed);
    put(&b, packed ? OSS_CONFIG OSS_QUANT "}" : OSS_CONFIG "}");
    ck_assert_msg(checkpoint_open(&c, dir, &err) == ERR_OK, "%s", err.text);
    ck_assert_msg(c->hp_ok, "%s", c->hp_err.text);
    ck_assert_uint_eq(c->n_weights, OSS_WEIGHTS + 1);
}

static const struct tensor *stored(const char *name)
{
    const struct tensor *t = container_find(c->files[0], name);
    ck_assert_msg(t != NULL, "%s", name);
    return t;
}

static void decode(const char *name, float *out)
{
    const struct ckpt_weight *w = checkpoint_find(c, name);
    ck_assert_msg(w != NULL, "%s", name);
    ck_assert_int_eq(ckpt_weight_decode(w, 0, ckpt_weight_rows(w), out, &err), ERR_OK);
}

static float bf16_at(const struct tensor *t, int64_t i)
{
    return bf16_to_f32(load_u16(t->data + 2 * i));
}

/* half 0 is gate, 1 up, 2 down. */
static const char *const halves[] = {"gate_proj", "up_proj", "down_proj"};

START_TEST(alternating_rows_are_gate_and_up)
{
    float got[OSS_EXPERTS * OSS_FF * OSS_D];
    put_all(true);
    for (int half = 0; half < 3; half++) {
        char name[128];
        bool down = half == 2;
        const int64_t rows = down ? OSS_D : OSS_FF, k = down ? OSS_FF : OSS_D;
        const struct tensor *blocks =
            stored(down ? OSS_MLP "down_proj_blocks" : OSS_MLP "gate_up_proj_blocks");
        const struct tensor *scales =
            stored(down ? OSS_MLP "down_proj_scales" : OSS_MLP "gate_up_proj_scales");
        snprintf(name, sizeof name, OSS_MLP "%s.weight", halves[half]);
        const struct ckpt_weight *w = checkpoint_find(c, name);
        ck_assert(w && w->enc == CKPT_MX && w->role == ROLE_EXPERT && w->layer == 0);
        ck_assert(qformat_same(w->q, QFORMAT_MXFP4));
        ck_assert_uint_eq(w->bytes, (size_t)(OSS_EXPERTS * rows * (k / 2 + k / 32)));
        decode(name, got);
        for (int64_t i = 0; i < OSS_EXPERTS * rows * k; i++) {
            int64_t row = down ? i / k : 2 * (i / k) + half, at = row * k + i % k;
            uint8_t byte = blocks->data[at / 2];
            float want = e2m1_to_f32(at % 2 ? byte >> 4 : byte & 15) *
                         ldexpf(1, scales->data[at / 32] - 127);
            ck_assert(got[i] == want);
        }
    }
}
END_TEST

START_TEST(floats_are_input_by_output)
{
    float got[OSS_EXPERTS * OSS_FF * OSS_D];
    put_all(false);
    for (int half = 0; half < 3; half++) {
        char name[128];
        bool down = half == 2;
        const int64_t rows = down ? OSS_D : OSS_FF, k = down ? OSS_FF : OSS_D;
        const int64_t columns = down ? rows : 2 * rows;
        const struct tensor *t = stored(down ? OSS_MLP "down_proj" : OSS_MLP "gate_up_proj");
        const struct tensor *bias =
            stored(down ? OSS_MLP "down_proj_bias" : OSS_MLP "gate_up_proj_bias");
        snprintf(name, sizeof name, OSS_MLP "%s.weight", halves[half]);
        decode(name, got);
        for (int64_t i = 0; i < OSS_EXPERTS * rows * k; i++) {
            int64_t expert = i / (rows * k), row = i / k % rows, in = i % k;
            int64_t column = down ? row : 2 * row + half;
            ck_assert(got[i] == bf16_at(t, (expert * k + in) * columns + column));
        }
        snprintf(name, sizeof name, OSS_MLP "%s.bias", halves[half]);
        decode(name, got);
        for (int64_t i = 0; i < OSS_EXPERTS * rows; i++)
            ck_assert(got[i] == bf16_at(bias, down ? i : 2 * i + half));
    }
}
END_TEST

/* _i: what is wrong. */
START_TEST(what_is_wrong_is_said)
{
    static const int64_t rows[4] = {3, 64, 2, 16}, odd[4] = {3, 63, 2, 16},
                         flat[4] = {3, 64, 32, 1}, few[4] = {3, 64, 1, 16};
    static const struct {
        const char *name, *dtype;
        int n_dim;
        const int64_t *dim;
        const char *scales_dtype;
        const int64_t *scales; /* NULL: none */
        const char *words;
    } faults[] = {
        {"gate_up_proj", "U8", 4, rows, "U8", NULL, "its scales are missing"},
        {"gate_up_proj", "U8", 4, odd, "U8", odd, "expected U8 [experts, rows, blocks, 16]"},
        {"gate_up_proj", "U8", 4, flat, "U8", flat, "expected U8 [experts, rows, blocks, 16]"},
        {"gate_up_proj", "I8", 4, rows, "U8", rows, "I8 of 4 dimensions, expected U8"},
        {"gate_up_proj", "U8", 3, rows, "U8", rows, "of 3 dimensions"},
        {"gate_up_proj", "U8", 4, rows, "U8", few, "as its blocks have"},
        {"gate_up_proj", "U8", 4, rows, "I8", rows, "I8 of 3 dimensions, expected U8"},
        {"down_proj", "U8", 4, rows, "U8", NULL, "its scales are missing"},
    };
    struct strbuf b = {0};
    struct st_maker m = {.rng = {6, 0}};
    char name[128];
    oss_dense(&m);
    snprintf(name, sizeof name, OSS_MLP "%s_blocks", faults[_i].name);
    st_shaped(&m, name, faults[_i].dtype, 1, faults[_i].n_dim, faults[_i].dim);
    snprintf(name, sizeof name, OSS_MLP "%s_scales", faults[_i].name);
    if (faults[_i].scales)
        st_shaped(&m, name, faults[_i].scales_dtype, 1, 3, faults[_i].scales);
    st_finish(&m, &b);
    put(&b, OSS_CONFIG OSS_QUANT "}");
    ck_assert_int_eq(checkpoint_open(&c, dir, &err), ERR_INPUT);
    ck_assert_msg(strstr(err.text, faults[_i].words) && strstr(err.text, dir), "%s", err.text);
}
END_TEST
#define N_FAULTS 8

START_TEST(what_is_missing_keeps_it_from_running)
{
    struct strbuf b = {0};
    struct st_maker m = {.rng = {7, 0}};
    oss_dense(&m);
    oss_packed(&m, "gate_up_proj", 2 * OSS_FF, OSS_D);
    st_finish(&m, &b);
    put(&b, OSS_CONFIG OSS_QUANT "}");
    ck_assert_int_eq(checkpoint_open(&c, dir, &err), ERR_OK);
    ck_assert(!c->hp_ok);
    ck_assert_msg(strstr(c->hp_err.text, "experts.down_proj.bias' is missing") != NULL, "%s",
                  c->hp_err.text);
    oss_all(&b, true);
    put(&b, OSS_CONFIG OSS_QUANT ",\"num_experts_per_tok\":2,\"num_local_experts\":2}");
    ck_assert_int_eq(checkpoint_open(&c, dir, &err), ERR_INPUT); /* a key twice */
    oss_all(&b, false);
    put(&b, OSS_CONFIG ",\"swiglu_limit\":-1}");
    ck_assert_int_eq(checkpoint_open(&c, dir, &err), ERR_OK);
    ck_assert(!c->hp_ok && strstr(c->hp_err.text, "swiglu_limit"));
}
END_TEST

/* ---- block floats of MLX ------------------------------------------------------------------------
 */

START_TEST(block_floats_of_mlx_must_fit)
{
    static const struct {
        const char *mode, *scales;
        int biases, globals; /* how many */
        float global;
        const char *words; /* NULL: good */
    } cases[] = {
        {"mxfp4", "U8", 0, 0, 0, NULL},
        {"nvfp4", "U8", 0, 0, 0, NULL},
        {"nvfp4", "U8", 0, 2, 3.0f, NULL},
        {"mxfp4", "BF16", 0, 0, 0, "scales are BF16, expected U8 by mode mxfp4"},
        {"mxfp4", "U8", 1, 0, 0, "biases are there, but mode mxfp4 has none"},
        {"mxfp4", "U8", 0, 2, 1, "a global scale is there, but mode mxfp4 has none"},
        {"nvfp4", "U8", 0, 3, 1, "global scales are 3 of F32, expected 2 of F32"},
        {"nvfp4", "U8", 0, 2, NAN, "global scale 0 is nan, expected a number from"},
        {"nvfp4", "U8", 0, 2, 1e38f, "global scale 0 is 1e+38, expected a number from"},
        {"nvfp4", "U8", 0, 2, -1, "global scale 0 is -1, expected a number from"},
    };
    char config[512];
    struct strbuf b = {0};
    struct st_maker m = {.rng = {8, 0}};
    bool nv = cases[_i].mode[0] == 'n';
    const int64_t dim[3] = {2, 3, 8}, scales[3] = {2, 3, nv ? 4 : 2}, n[1] = {cases[_i].globals};
    st_shaped(&m, "m.weight", "U32", 4, 3, dim);
    st_shaped(&m, "m.scales", cases[_i].scales, cases[_i].scales[0] == 'U' ? 1 : 2, 3, scales);
    if (cases[_i].biases)
        st_shaped(&m, "m.biases", "U8", 1, 3, scales);
    if (cases[_i].globals) {
        st_shaped(&m, "m.global_scale", "F32", 4, 1, n);
        for (int i = 0; i < cases[_i].globals; i++) {
            float v = cases[_i].global * (float)(i + 1);
            memcpy(m.data.data + m.data.len - 4 * (size_t)(cases[_i].globals - i), &v, 4);
        }
    }
    st_finish(&m, &b);
    snprintf(config, sizeof config,
             OSS_CONFIG ",\"quantization\":{\"group_size\":null,\"bits\":4,\"mode\":\"%s\"}}",
             cases[_i].mode);
    put(&b, config);
    enum err_code rc = checkpoint_open(&c, dir, &err);
    if (cases[_i].words) {
        ck_assert_int_eq(rc, ERR_INPUT);
        ck_assert_msg(strstr(err.text, cases[_i].words) != NULL, "%s", err.text);
        return;
    }
    ck_assert_msg(rc == ERR_OK, "%s", err.text);
    const struct ckpt_weight *w = checkpoint_find(c, "m.weight");
    ck_assert(w && w->enc == CKPT_MX && strcmp(qformat_mode(w->q), cases[_i].mode) == 0);
    ck_assert_int_eq(w->dim[2], 64);
    ck_assert_int_eq(ckpt_weight_n_globals(w), cases[_i].globals);
    if (cases[_i].globals)
        ck_assert(ckpt_weight_global(w, 2) == 3.0f / 2688 &&
                  ckpt_weight_global(w, 3) == 6.0f / 2688);
}
END_TEST
#define N_MLX 10

/* ---- invariances --------------------------------------------------------------------------------
 */

/* A sanitized build is some hundred times slower: it looks for faults of memory alone. */
enum { N = TEST_SANITIZED ? 36 : 300, IDS = 300, ARITHS = 2 };

static void open_shape(struct rig *r, struct checkpoint *shape, int arith, int threads)
{
    struct rig_options o = {.arith = arith ? KERN_MMA90 : KERN_F32, .threads = threads};
    o.batch_tokens = o.out_rows = 320;
    o.ctx = 512;
    o.kv_tokens = 2048;
    engine_free(r->en);
    *r = (struct rig){.c = shape};
    rig_reopen(r, &o);
}

/* A prompt: `first` tokens at once, then pieces of `width`, beside another sequence or not. */
static void feed(struct rig *r, struct rig_seq *s, const int32_t *ids, int first, int width,
                 bool crowded)
{
    struct rig_seq other, *order[2] = {&other, s};
    rig_clear(r);
    rig_seq_start(r, s, ids, N);
    rig_seq_start(r, &other, ids + 7, 40);
    while (s->done < s->n) {
        int n[2] = {3, MIN2(s->done ? width : first, s->n - s->done)};
        bool both = crowded && other.done + 3 <= other.n;
        rig_step(r, both ? order : order + 1, both ? n : n + 1, both ? 2 : 1);
    }
    rig_seq_end(&other);
}

/* Repeats, neighbours, chunks about windows, pages and splits, verify widths, threads. */
START_TEST(rows_depend_on_themselves_alone)
{
    static const struct {
        int first, width, threads;
        bool crowded;
    } ways[] = {{255, 100, 2, true}, {N, N, 2, false},  {1, 1, 2, false},    {255, 16, 2, true},
                {64, 100, 2, true},  {257, 5, 1, true}, {99, 101, 1, false}, {256, 3, 3, true}};
    struct checkpoint *shape = NULL;
    struct err e = {.text = ""};
    struct rig r = {0};
    struct rig_seq want, got;
    ck_assert_msg(shapes_checkpoint(&shape, "tiny-gpt-oss", &e) == ERR_OK, "%s", e.text);
    int32_t *ids = rig_ids(12, IDS, 512);
    open_shape(&r, shape, _i, 2);
    feed(&r, &want, ids, N, N, false);
    const size_t n_ways = TEST_SANITIZED ? 1 : ARRAY_LEN(ways);
    for (size_t i = 0; i < n_ways; i++) {
        open_shape(&r, shape, _i, ways[i].threads);
        feed(&r, &got, ids, ways[i].first, ways[i].width, ways[i].crowded);
        ck_assert_msg(rig_same_rows(&want, &got), "way %zu", i);
        rig_seq_end(&got);
    }
    static const enum kern_fault faults[] = {KERN_FAULT_CHUNK_ORDER, KERN_FAULT_THREAD_ORDER,
                                             KERN_FAULT_SPLIT_EDGE};
    open_shape(&r, shape, _i, 2);
    for (size_t i = 0; !TEST_SANITIZED && i < ARRAY_LEN(faults); i++) {
        kern_plant(faults[i]);
        feed(&r, &got, ids, N, N, false);
        kern_plant(KERN_FAULT_NONE);
        ck_assert_msg(!rig_same_rows(&want, &got), "planted fault %zu is not seen", i);
        rig_seq_end(&got);
    }
    rig_seq_end(&want);
    engine_free(r.en);
    shapes_free(shape);
    free(ids);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gpt_oss");
    TCase *t = tcase_create("shape"), *l = tcase_create("layout"), *i = tcase_create("invariances");
    tcase_add_test(t, the_20b_shape_has_the_published_parameters);
    suite_add_tcase(s, t);
    tcase_add_checked_fixture(l, setup, teardown);
    tcase_add_test(l, alternating_rows_are_gate_and_up);
    tcase_add_test(l, floats_are_input_by_output);
    tcase_add_loop_test(l, what_is_wrong_is_said, 0, N_FAULTS);
    tcase_add_test(l, what_is_missing_keeps_it_from_running);
    tcase_add_loop_test(l, block_floats_of_mlx_must_fit, 0, N_MLX);
    suite_add_tcase(s, l);
    tcase_set_timeout(i, 300);
    tcase_add_loop_test(i, rows_depend_on_themselves_alone, 0, ARITHS);
    suite_add_tcase(s, i);
    return s;
}
