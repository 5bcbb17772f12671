/* test_cuda_graph.c: recorded steps against the CPU oracle: replays read this step's inputs, shapes
 * do not mix, a step that fails leaves nothing, and old shapes make room; and what is said after a
 * device has failed.
 */
#include "tests/cuda_rig.h"

enum { D = 256, ROWS = 384, MOST = 9 };

static struct rng rng = {.seed = 77};

/* A norm and a product on both sides, as a step of n rows. */
struct step_rig {
    struct rig r;
    struct kern_weight *w[2];
    float *h[2], *add[2], *weight[2], *out[2];
    void *x[2];
};

static struct step_rig open_step(void)
{
    struct step_rig s = {.r = rig_open()};
    uint16_t *values = rig_inputs(&rng, ROWS * D, 0);
    float *weight = fix_floats(&rng, D, -1, 1);
    struct ckpt_weight source = {.name = "w", .stored = "w", .enc = CKPT_DENSE, .dtype = DT_BF16};
    const struct ckpt_weight *part = &source;
    source.n_dim = 2;
    source.dim[0] = ROWS;
    source.dim[1] = D;
    source.layer = -1;
    source.data = (const uint8_t *)values;
    for (int i = 0; i < 2; i++) {
        struct kern *k = s.r.side[i];
        struct err e = {.text = ""};
        fix_ok(kern_weight_load(k, &part, 1, &s.w[i], &e), &e);
        s.h[i] = rig_put(k, NULL, MOST * D * sizeof(float));
        s.add[i] = rig_put(k, NULL, MOST * D * sizeof(float));
        s.weight[i] = rig_put(k, weight, D * sizeof(float));
        s.x[i] = rig_put(k, NULL, MOST * D * 2);
        s.out[i] = rig_put(k, NULL, MOST * ROWS * sizeof(float));
    }
    free(values);
    free(weight);
    return s;
}

static void close_step(struct step_rig *s)
{
    for (int i = 0; i < 2; i++) {
        struct kern *k = s->r.side[i];
        void *const blocks[] = {s->h[i], s->add[i], s->weight[i], s->x[i], s->out[i]};
        for (size_t b = 0; b < ARRAY_LEN(blocks); b++)
            kern_free(k, blocks[b]);
        kern_weight_free(k, s->w[i]);
    }
    rig_close(&s->r);
}

static enum err_code run_ops(struct step_rig *s, int i, int n, bool broken, struct err *e)
{
    struct rms_norm_args norm = {.n_rows = n, .inner = 1, .stride = D, .out_stride = D, .d = D};
    norm.h = s->h[i];
    norm.add = s->add[i];
    norm.w = s->weight[i];
    norm.eps = 1e-5f;
    norm.out = s->x[i];
    struct linear_args a = {.n_tok = n, .x = s->x[i], .x_stride = D, .n_parts = broken ? 0 : 1};
    a.part[0] = (struct linear_part){s->w[i], NULL, s->out[i], ROWS};
    enum err_code rc = kern_rms_norm(s->r.side[i], &norm, e);
    return rc == ERR_OK ? kern_linear(s->r.side[i], &a, e) : rc;
}

/* One step on the device, whose shape differs by `keys` alone. */
static enum err_code device_step(struct step_rig *s, int n, int64_t keys, bool broken,
                                 bool *replayed, struct err *e)
{
    struct kern *k = s->r.side[1];
    struct kern_step shape = {n, n, n, keys};
    fix_ok(kern_step_begin(k, &shape, replayed, e), e);
    if (*replayed)
        return ERR_OK;
    enum err_code rc = run_ops(s, 1, n, broken, e);
    enum err_code ended = kern_step_end(k, rc != ERR_OK, rc == ERR_OK ? e : NULL);
    return rc != ERR_OK ? rc : ended;
}

static void fill_inputs(struct step_rig *s, int n)
{
    float *h = fix_floats(&rng, (size_t)n * D, -2, 2),
          *add = fix_floats(&rng, (size_t)n * D, -2, 2);
    for (int i = 0; i < 2; i++) {
        struct err e = {.text = ""};
        fix_ok(kern_upload(s->r.side[i], s->h[i], h, (size_t)n * D * sizeof *h, &e), &e);
        fix_ok(kern_upload(s->r.side[i], s->add[i], add, (size_t)n * D * sizeof *h, &e), &e);
    }
    free(h);
    free(add);
}

/* Runs a step of n rows on both sides and compares residual and product. */
static bool same_step(struct step_rig *s, int n, int64_t keys, bool *replayed)
{
    struct err e = {.text = ""};
    bool same = true;
    fill_inputs(s, n);
    fix_ok(run_ops(s, 0, n, false, &e), &e);
    fix_ok(device_step(s, n, keys, false, replayed, &e), &e);
    float *h[2], *out[2];
    for (int i = 0; i < 2; i++) {
        h[i] = rig_get(s->r.side[i], s->h[i], (size_t)n * D * sizeof(float));
        out[i] = rig_get(s->r.side[i], s->out[i], (size_t)n * ROWS * sizeof(float));
    }
    same = rig_differ(h[0], h[1], (size_t)n * D, 4) < 0 &&
           rig_differ(out[0], out[1], (size_t)n * ROWS, 4) < 0;
    for (int i = 0; i < 2; i++) {
        free(h[i]);
        free(out[i]);
    }
    return same;
}

START_TEST(replays_take_new_inputs)
{
    struct step_rig s = open_step();
    int n_replayed = 0;
    for (int i = 0; i < 20; i++) {
        bool replayed;
        ck_assert_msg(same_step(&s, 1 + i % 4, 64, &replayed), "step %d", i);
        n_replayed += replayed;
    }
    ck_assert_int_eq(n_replayed, 12); /* of each shape the third step on */
    close_step(&s);
}
END_TEST

START_TEST(shapes_make_room)
{
    struct step_rig s = open_step();
    bool replayed;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < CUDA_GRAPHS + 5; i++) {
            ck_assert_msg(same_step(&s, 1 + i % MOST, 64 + i, &replayed), "step %d", i);
            ck_assert(!replayed); /* dropped before it came again */
        }
    for (int i = 0; i < 3; i++)
        ck_assert(same_step(&s, 3, 64, &replayed));
    ck_assert(replayed);
    close_step(&s);
}
END_TEST

START_TEST(failed_recording_leaves_nothing)
{
    struct step_rig s = open_step();
    struct err e = {.text = ""};
    bool replayed;
    ck_assert(same_step(&s, 2, 64, &replayed));
    ck_assert_int_eq(device_step(&s, 2, 64, true, &replayed, &e), ERR_INTERNAL);
    ck_assert(!replayed);
    for (int i = 0; i < 3; i++)
        ck_assert(same_step(&s, 2, 64, &replayed));
    ck_assert(replayed);
    close_step(&s);
}
END_TEST

/* What a recording that froze its inputs would do is seen. */
START_TEST(stale_replay_is_seen)
{
    struct step_rig s = open_step();
    struct err e = {.text = ""};
    bool replayed;
    for (int i = 0; i < 3; i++)
        ck_assert(same_step(&s, 2, 64, &replayed));
    fill_inputs(&s, 2);
    fix_ok(run_ops(&s, 0, 2, false, &e), &e);
    float *want = rig_get(s.r.side[0], s.out[0], 2 * ROWS * sizeof(float));
    float *stale = rig_get(s.r.side[1], s.out[1], 2 * ROWS * sizeof(float));
    ck_assert(rig_differ(want, stale, 2 * ROWS, 4) >= 0);
    free(want);
    free(stale);
    close_step(&s);
}
END_TEST

/* After a device error each later call gives the first one's words, whatever it would have done. */
START_TEST(a_device_error_is_kept)
{
    struct step_rig s = open_step();
    struct kern *k = s.r.side[1];
    struct kern_step shape = {2, 2, 2, 64};
    struct err first = {.text = ""}, e = {.text = ""};
    float out[ROWS];
    bool replayed;
    void *p;
    ck_assert(same_step(&s, 2, 64, &replayed));
    kern_plant(KERN_FAULT_TRAP);
    enum err_code rc = kern_step_begin(k, &shape, &replayed, &first);
    kern_plant(KERN_FAULT_NONE);
    if (rc == ERR_OK)
        rc = kern_download(k, out, s.out[1], sizeof out, &first);
    ck_assert_int_eq(rc, ERR_DEVICE);
    ck_assert_msg(strstr(first.text, "CUDA: "), "%s", first.text);
    ck_assert_int_eq(kern_alloc(k, 64, &p, &e), ERR_DEVICE);
    ck_assert_str_eq(e.text, first.text);
    ck_assert_int_eq(run_ops(&s, 1, 2, false, &e), ERR_DEVICE);
    ck_assert_str_eq(e.text, first.text);
    ck_assert_int_eq(kern_download(k, out, s.out[1], sizeof out, NULL), ERR_DEVICE);
}
END_TEST

static void add_small(TCase *c)
{
    tcase_add_test(c, replays_take_new_inputs);
}

static void add_tests(TCase *c)
{
    tcase_add_test(c, replays_take_new_inputs);
    tcase_add_test(c, shapes_make_room);
    tcase_add_test(c, failed_recording_leaves_nothing);
    tcase_add_test(c, stale_replay_is_seen);
    tcase_add_test(c, a_device_error_is_kept);
}

Suite *test_suite(void)
{
    return rig_suite("cuda graph", add_tests, add_small);
}
