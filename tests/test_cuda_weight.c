/* test_cuda_weight.c: the load of weights: what the device puts in order is what the host puts in
 * order, byte by byte, for every format; a load that fails leaves nothing behind.
 */
#include "kernels/cuda/cuda_weight.h"
#include "tests/cuda_rig.h"

static struct rng rng = {.seed = 61};

static struct kern *open_device(void)
{
    struct kern_options o = {.device = "cuda:0", .arith = KERN_MMA90};
    struct err e = {.text = ""};
    struct kern *k;
    ck_assert_msg(kern_open(&k, &o, &e) == ERR_OK, "%s", e.text);
    return k;
}

/* ---- both orders -------------------------------------------------------------------------------
 */

/* The bytes on the device of a matrix loaded so. */
static uint8_t *loaded(struct kern *k, const struct ckpt_weight *const *parts, int n, bool host,
                       size_t *bytes, enum cuda_scale *scale)
{
    struct err e = {.text = ""};
    struct kern_weight *w;
    cuda_of(k)->host_order = host;
    fix_ok(kern_weight_load(k, parts, n, &w, &e), &e);
    *bytes = w->bytes;
    *scale = cuda_weight_of(w)->order.scale;
    uint8_t *out = rig_get(k, cuda_weight_of(w)->data, w->bytes);
    kern_weight_free(k, w);
    return out;
}

/* The first byte in which the two orders differ, or -1. */
static int64_t orders_differ(struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    size_t bytes[2], at = 0;
    enum cuda_scale scale[2];
    uint8_t *host = loaded(k, parts, n, true, &bytes[0], &scale[0]);
    uint8_t *device = loaded(k, parts, n, false, &bytes[1], &scale[1]);
    ck_assert_uint_eq(bytes[0], bytes[1]);
    ck_assert_int_eq(scale[0], scale[1]);
    while (at < bytes[0] && host[at] == device[at])
        at++;
    free(host);
    free(device);
    return at == bytes[0] ? -1 : (int64_t)at;
}

/* The same; and with the fault planted the device's order is another one. */
static void check_parts(struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    ck_assert_int_eq(orders_differ(k, parts, n), -1);
    kern_plant(KERN_FAULT_ORDER);
    int64_t planted = orders_differ(k, parts, n);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_int_ne(planted, -1);
}

static void check_weight(struct kern *k, struct fix_weight *f)
{
    const struct ckpt_weight *part = &f->c;
    check_parts(k, &part, 1);
    fix_weight_free(f);
}

static const int all_bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};

/* Scales small enough for each encoding of bf16 ones, and too large for both. */
START_TEST(affine)
{
    static const float sizes[] = {0.01f, 0.06f, 40.0f};
    struct kern *k = open_device();
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (size_t t = 0; t < ARRAY_LEN(types); t++)
            for (size_t s = 0; s < (t ? 1 : ARRAY_LEN(sizes)); s++) {
                struct qformat q = {all_bits[_i], groups[g], types[t]};
                struct fix_weight f = fix_affine(&rng, 37, 5 * groups[g], q, sizes[s]);
                check_weight(k, &f);
            }
    kern_close(k);
}
END_TEST

START_TEST(block_floats)
{
    struct kern *k = open_device();
    for (int kind = 0; kind < FIX_BLOCK_KINDS; kind++) {
        struct qformat q = fix_blocks[_i];
        if (kind == FIX_BLOCK_GLOBAL && q.scale != DT_F8_E4M3)
            continue;
        struct fix_weight f = fix_mx(&rng, 37, 160, q, (enum fix_block)kind);
        check_weight(k, &f);
    }
    kern_close(k);
}
END_TEST

START_TEST(dense)
{
    struct kern *k = open_device();
    for (int64_t n = 300; n <= 384; n += 84) {
        struct fix_weight f = fix_dense(&rng, 37, n, types[_i]);
        check_weight(k, &f);
    }
    kern_close(k);
}
END_TEST

/* Several slots; the last holds part of a tile. Every number of rows at the edges of a tile. */
START_TEST(slots_and_tiles)
{
    struct kern *k = open_device();
    struct qformat q = {4, 64, DT_BF16};
    struct fix_weight f = fix_affine(&rng, 9003, 2048, q, 0.01f);
    check_weight(k, &f);
    for (int64_t rows = 2; rows <= 33; rows += rows == 2 || rows == 17 ? 13 : 1) {
        f = fix_affine(&rng, rows, 256, q, 0.01f);
        check_weight(k, &f);
    }
    f = fix_dense(&rng, 17, 70000, DT_F32); /* sixteen rows are longer than a slot */
    const struct ckpt_weight *part = &f.c;
    ck_assert_int_eq(orders_differ(k, &part, 1), -1);
    fix_weight_free(&f);
    kern_close(k);
}
END_TEST

/* A stack of experts that lie apart, parts with scales of two types, and rows in another order. */
START_TEST(parts_and_experts)
{
    struct kern *k = open_device();
    struct qformat q = {4, 32, DT_F16}, wide = {4, 32, DT_F32};
    struct fix_weight a = fix_affine(&rng, 48, 128, q, 0.02f);
    struct fix_weight b = fix_affine(&rng, 25, 128, wide, 0.02f);
    const struct ckpt_weight *both[2] = {&a.c, &b.c}, *one = &a.c;
    check_parts(k, both, 2);
    struct ckpt_block blocks[3];
    struct ckpt_weight flat = a.c;
    for (int i = 0; i < 3; i++) { /* the last expert first */
        size_t row = (size_t)(2 - i) * 16;
        blocks[i] = (struct ckpt_block){a.data + row * qformat_row_bytes(q, 128),
                                        a.scales + row * 8, a.biases + row * 8, NULL};
    }
    a.c.blocks = blocks;
    a.c.n_dim = 3;
    a.c.dim[0] = 3;
    a.c.dim[1] = 16;
    a.c.dim[2] = 128;
    a.c.data = a.c.scales = a.c.biases = NULL;
    check_parts(k, &one, 1);
    flat.rope_heads = 4;
    one = &flat;
    check_parts(k, &one, 1);
    fix_weight_free(&a);
    fix_weight_free(&b);
    kern_close(k);
}
END_TEST

/* ---- loads that fail ---------------------------------------------------------------------------
 */
static int n_blocks, n_sent;
static const struct kern_table *real;

static enum err_code count_alloc(struct kern *k, size_t bytes, void **p, struct err *e)
{
    enum err_code rc = real->alloc(k, bytes, p, e);
    n_blocks += rc == ERR_OK;
    return rc;
}

static void count_free(struct kern *k, void *p)
{
    n_blocks -= p != NULL;
    real->free(k, p);
}

static enum err_code count_upload(struct kern *k, void *dst, const void *src, size_t bytes,
                                  struct err *e)
{
    n_sent++;
    return real->upload(k, dst, src, bytes, e);
}

/* A load that must fail: what it says, and that no block is left. */
static void check_refused(struct kern *k, const struct ckpt_weight *w, const char *words)
{
    struct kern_table counted = *k->table;
    struct kern_weight *out;
    struct err e = {.text = ""};
    real = k->table;
    counted.alloc = count_alloc;
    counted.free = count_free;
    counted.upload = count_upload;
    k->table = &counted;
    n_blocks = n_sent = 0;
    enum err_code rc = kern_weight_load(k, &w, 1, &out, &e);
    k->table = real;
    ck_assert_int_eq(rc, ERR_INPUT);
    ck_assert_msg(strstr(e.text, words) != NULL, "%s", e.text);
    ck_assert_ptr_null(out);
    ck_assert_int_eq(n_blocks, 0);
    ck_assert_int_eq(n_sent, 0);
}

START_TEST(failed_loads_leave_nothing)
{
    struct kern *k = open_device();
    struct fix_weight f = fix_mx(&rng, 40, 256, fix_blocks[0], FIX_BLOCK_PLAIN);
    uint8_t kept = f.scales[39 * 8 + 3];
    f.scales[39 * 8 + 3] = 255;
    check_refused(k, &f.c, "row 39: scale 3 is a NaN");
    f.scales[39 * 8 + 3] = kept;
    check_weight(k, &f); /* and the kern is as good as before */
    f = fix_affine(&rng, 40, 256, (struct qformat){4, 64, DT_BF16}, 0.02f);
    f.c.bytes = 40 * (128 + 2 * 8) - 1;
    check_refused(k, &f.c, "5759 bytes, expected 5760");
    f.c.bytes++;
    check_weight(k, &f);
    f = fix_dense(&rng, 40, 256, DT_F16);
    f.c.bytes = 40 * 512 - 2;
    check_refused(k, &f.c, "20478 bytes, expected 20480");
    fix_weight_free(&f);
    kern_close(k);
}
END_TEST

/* ---- */
static void add(TCase *c)
{
    tcase_add_loop_test(c, affine, 0, ARRAY_LEN(all_bits));
    tcase_add_test(c, slots_and_tiles);
}

static void add_small(TCase *c)
{
    tcase_add_loop_test(c, block_floats, 0, FIX_BLOCKS);
    tcase_add_loop_test(c, dense, 0, 3);
    tcase_add_test(c, parts_and_experts);
    tcase_add_test(c, failed_loads_leave_nothing);
}

Suite *test_suite(void)
{
    return rig_suite("cuda weight", add, add_small);
}
