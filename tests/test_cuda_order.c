/* test_cuda_order.c: the device order of weights is a permutation: what the checkpoint holds can be
 * read back from it, and nothing else is in it. Runs without a device.
 */
#include "kernels/cuda/cuda_gather.h"
#include "tests/kernels_fixture.h"

static struct rng rng = {.seed = 31};

static const int all_bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};

struct order_case {
    struct cuda_order o;
    struct fix_weight f;
    uint8_t *tile;
};

static enum cuda_scale scale_of(enum dtype t)
{
    return t == DT_F32 ? CUDA_SCALE_F32 : t == DT_F16 ? CUDA_SCALE_F16 : CUDA_SCALE_BF16;
}

static struct order_case make(struct qformat q, enum cuda_scale scale, int64_t k)
{
    struct order_case c = {.o = cuda_order_packed(q, scale, k),
                           .f = fix_affine(&rng, CUDA_TILE_ROWS, k, q, 0.02f)};
    int64_t n = k / q.group;
    size_t row = qformat_row_bytes(q, k), size = q.scale == DT_F32 ? 4 : 2;
    c.tile = calloc((size_t)c.o.n_pieces, (size_t)c.o.piece_bytes);
    ck_assert_ptr_nonnull(c.tile);
    for (int r = 0; r < CUDA_TILE_ROWS; r++) {
        struct cuda_order_row from = {c.f.data + (size_t)r * row,
                                      c.f.scales + (size_t)(r * n) * size,
                                      c.f.biases + (size_t)(r * n) * size, q.scale, 1};
        cuda_order_put(&c.o, c.tile, r, &from);
    }
    return c;
}

static void drop(struct order_case *c)
{
    free(c->tile);
    fix_weight_free(&c->f);
}

static void check_case(const struct order_case *c, struct qformat q)
{
    size_t row_bytes = qformat_row_bytes(q, c->o.k);
    for (int r = 0; r < CUDA_TILE_ROWS; r++)
        for (int64_t k = 0; k < c->o.k; k++) {
            const uint8_t *piece = c->tile + k / CUDA_PIECE_K * c->o.piece_bytes;
            int in = (int)(k % CUDA_PIECE_K);
            int64_t at = r * (c->o.k / q.group) + k / q.group;
            ck_assert_uint_eq(cuda_order_code(piece, q.bits, c->o.plane_bytes[0], r, in),
                              qformat_code(c->f.data + (size_t)r * row_bytes, q.bits, k));
            for (int which = 0; which < 4; which += 2) {
                float got = cuda_order_scale(piece + c->o.scales_at, c->o.scale, q.bits,
                                             in / q.group, r, which);
                float want = qformat_scale(which ? c->f.biases : c->f.scales, q.scale, at);
                ck_assert_uint_eq(f32_bits(got), f32_bits(want));
            }
        }
}

START_TEST(codes_and_scales_come_back)
{
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    for (size_t b = 0; b < ARRAY_LEN(all_bits); b++)
        for (size_t g = 0; g < ARRAY_LEN(groups); g++)
            for (size_t s = 0; s < ARRAY_LEN(scales); s++) {
                struct qformat q = {all_bits[b], groups[g], scales[s]};
                for (int fast = 0; fast <= (scales[s] == DT_BF16); fast++) {
                    struct order_case c =
                        make(q, fast ? CUDA_SCALE_FAST : scale_of(scales[s]), 3 * groups[g]);
                    check_case(&c, q);
                    drop(&c);
                }
            }
}
END_TEST

/* The bits of a tile that `tile` sets and `seen` had not, added to seen; -1 when one was there. */
static int add_bits(const uint8_t *tile, uint8_t *seen, size_t bytes)
{
    int ones = 0;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t new_bits = load_u64(tile + i), old = load_u64(seen + i);
        if (new_bits & old)
            return -1;
        ones += __builtin_popcountll(new_bits);
        store_u64(seen + i, new_bits | old);
    }
    return ones;
}

/* With all codes and scales zero but one bit, exactly one bit of the tile is set, and each of the
 * row's bits another one: the order is a permutation of bits. */
START_TEST(every_code_bit_has_its_own_place)
{
    struct qformat q = {all_bits[_i], 64, DT_BF16};
    struct cuda_order o = cuda_order_packed(q, CUDA_SCALE_BF16, CUDA_PIECE_K);
    size_t row_bytes = qformat_row_bytes(q, o.k), bytes = (size_t)o.piece_bytes;
    uint8_t *codes = calloc(1, row_bytes), *seen = calloc(1, bytes), *tile = malloc(bytes);
    uint8_t scales[8] = {0};
    for (int r = 0; r < CUDA_TILE_ROWS; r++)
        for (size_t bit = 0; bit < 8 * row_bytes; bit++) {
            memset(tile, 0, bytes);
            codes[bit / 8] = (uint8_t)(1 << bit % 8);
            struct cuda_order_row from = {codes, scales, scales, q.scale, 1};
            cuda_order_put(&o, tile, r, &from);
            codes[bit / 8] = 0;
            ck_assert_int_eq(add_bits(tile, seen, bytes), 1);
        }
    for (int i = 0; i < o.scales_at; i++)
        ck_assert_uint_eq(seen[i], 0xff);
    free(codes);
    free(seen);
    free(tile);
}
END_TEST

static const struct {
    struct qformat q;
    enum cuda_scale scale;
} block_cases[] = {{{4, 32, DT_F8_E8M0}, CUDA_SCALE_E8M0_FAST},
                   {{8, 32, DT_F8_E8M0}, CUDA_SCALE_E8M0},
                   {{4, 16, DT_F8_E4M3}, CUDA_SCALE_E4M3},
                   {{4, 16, DT_F8_E4M3}, CUDA_SCALE_GLOBAL}};

/* Codes, scales and global scales of block floats come back, beyond K there are zeros, and a piece
 * holds nothing else. */
START_TEST(block_floats_come_back)
{
    struct qformat q = block_cases[_i].q;
    const int64_t k = CUDA_PIECE_K + 96, n = k / q.group;
    struct cuda_order o = cuda_order_packed(q, block_cases[_i].scale, k);
    struct fix_weight f = fix_mx(&rng, CUDA_TILE_ROWS, k, q, FIX_BLOCK_HOSTILE);
    uint8_t *tile = calloc((size_t)o.n_pieces, (size_t)o.piece_bytes);
    size_t row_bytes = qformat_row_bytes(q, k);
    ck_assert_int_eq(o.piece_bytes % 16, 0); /* whole asynchronous copies */
    ck_assert_int_eq(o.piece_bytes,
                     256 * q.bits + 128 / q.group * 16 + (o.scale == CUDA_SCALE_GLOBAL ? 64 : 0));
    for (int r = 0; r < CUDA_TILE_ROWS; r++) {
        struct cuda_order_row from = {f.data + (size_t)r * row_bytes, f.scales + r * n, NULL,
                                      q.scale, 0.5f + (float)r};
        cuda_order_put(&o, tile, r, &from);
    }
    for (int r = 0; r < CUDA_TILE_ROWS; r++)
        for (int64_t i = 0; i < o.n_pieces * (int64_t)CUDA_PIECE_K; i++) {
            const uint8_t *piece = tile + i / CUDA_PIECE_K * o.piece_bytes;
            int in = (int)(i % CUDA_PIECE_K), group = in / q.group;
            uint32_t code = cuda_order_code(piece, q.bits, o.plane_bytes[0], r, in);
            uint8_t scale[4] = {piece[o.scales_at + cuda_order_block_at(group, r)]};
            ck_assert_uint_eq(code,
                              i < k ? qformat_code(f.data + (size_t)r * row_bytes, q.bits, i) : 0);
            ck_assert_uint_eq(scale[0], i < k ? f.scales[r * n + i / q.group] : 0);
            float global = o.scale == CUDA_SCALE_GLOBAL ? 0.5f + (float)r : 1;
            ck_assert(fix_same(cuda_order_global(&o, piece, r), global));
            float s = cuda_order_block_scale(piece + o.scales_at, o.scale, group, r);
            ck_assert(fix_same(s, qformat_scale(scale, q.scale, 0)));
        }
    free(tile);
    fix_weight_free(&f);
}
END_TEST

/* Up to the limit of FAST no scale becomes an infinity that makes up for the elements' exponent. */
START_TEST(e8m0_has_a_bound)
{
    ck_assert(isfinite(e8m0_to_f32((uint32_t)cuda_order_e8m0_fast(4)) * 0x1p126f));
    ck_assert(isinf(e8m0_to_f32((uint32_t)cuda_order_e8m0_fast(4) + 1) * 0x1p126f));
    ck_assert(isfinite(e8m0_to_f32((uint32_t)cuda_order_e8m0_fast(8)) * 0x1p120f));
    ck_assert(isinf(e8m0_to_f32((uint32_t)cuda_order_e8m0_fast(8) + 1) * 0x1p120f));
}
END_TEST

START_TEST(dense_values_come_back)
{
    int64_t k = 3 * CUDA_PIECE_K - 11;
    struct cuda_order o = cuda_order_dense(k);
    uint16_t *values = malloc((size_t)(CUDA_TILE_ROWS * k) * 2);
    uint8_t *tile = calloc((size_t)o.n_pieces, (size_t)o.piece_bytes);
    for (int64_t i = 0; i < CUDA_TILE_ROWS * k; i++)
        values[i] = (uint16_t)(1 + i % 65535);
    for (int r = 0; r < CUDA_TILE_ROWS; r++)
        cuda_order_put_values(&o, tile, r, values + r * k);
    for (int r = 0; r < CUDA_TILE_ROWS; r++)
        for (int64_t i = 0; i < o.n_pieces * (int64_t)CUDA_PIECE_K; i++) {
            const uint8_t *piece = tile + i / CUDA_PIECE_K * o.piece_bytes;
            uint16_t got = load_u16(piece + cuda_order_value(r, (int)(i % CUDA_PIECE_K)));
            ck_assert_uint_eq(got, i < k ? values[r * k + i] : 0);
        }
    free(values);
    free(tile);
}
END_TEST

/* Every bf16 scale that an encoding takes comes back from it, and none that it takes becomes an
 * infinity. */
START_TEST(the_encodings_have_bounds)
{
    for (size_t b = 0; b < ARRAY_LEN(all_bits); b++) {
        int bits = all_bits[b];
        for (uint32_t h = 0; h < 65536; h++) {
            uint16_t stored = (uint16_t)h;
            float s = bf16_to_f32(stored);
            enum cuda_scale t = cuda_order_choose((const uint8_t *)&stored, 1, bits);
            ck_assert((t != CUDA_SCALE_BF16) == (fabsf(s) < 8.0f / (float)(1 << bits)));
            ck_assert((t == CUDA_SCALE_LOW) == (bits == 4 && fabsf(s) < 0x1p-5f));
            for (int row = 0; row < 16 && t != CUDA_SCALE_BF16; row += 8) {
                int power = cuda_order_power(t, bits, row);
                float coded = cuda_order_encode(s, power);
                ck_assert(isfinite(coded));
                ck_assert_uint_eq(f32_bits(coded) & 0xffff, 0);
                ck_assert_uint_eq(f32_bits(cuda_order_decode(coded, power)), f32_bits(s));
            }
        }
    }
}
END_TEST

/* One scale decides for the whole matrix. */
START_TEST(the_largest_scale_chooses)
{
    uint16_t s[3] = {bf16_from_f32(0.01f), bf16_from_f32(-0.02f), bf16_from_f32(0.03f)};
    const uint8_t *p = (const uint8_t *)s;
    ck_assert_int_eq(cuda_order_choose(p, 3, 4), CUDA_SCALE_LOW);
    s[0] = bf16_from_f32(-0.03125f);
    ck_assert_int_eq(cuda_order_choose(p, 3, 4), CUDA_SCALE_FAST);
    s[2] = bf16_from_f32(0.5f);
    ck_assert_int_eq(cuda_order_choose(p, 3, 4), CUDA_SCALE_BF16);
}
END_TEST

/* ---- gathered word by word, the order is the same -----------------------------------------------
 */

/* The first byte in which the tiles of rows differ that are gathered, and those put row by row; -1:
 * none. `shift` rows: a planted fault. */
static int64_t gather_differs(const struct cuda_order *o, const struct cuda_staged *s, int shift)
{
    size_t tile_bytes = (size_t)o->n_pieces * (size_t)o->piece_bytes;
    size_t scale_bytes =
        o->group ? (size_t)(o->k / o->group) * (size_t)qformat_scale_size(s->type) : 0;
    struct cuda_staged moved = *s;
    uint8_t *tile = malloc(tile_bytes);
    int64_t bad = -1;
    moved.codes += (size_t)shift * s->row_bytes;
    for (int64_t t = 0; t * CUDA_TILE_ROWS < s->rows && bad < 0; t++) {
        memset(tile, 0, tile_bytes);
        for (int row = 0; row < CUDA_TILE_ROWS && t * CUDA_TILE_ROWS + row < s->rows; row++) {
            size_t r = (size_t)(t * CUDA_TILE_ROWS + row);
            struct cuda_order_row from = {s->codes + r * s->row_bytes, s->scales, s->biases,
                                          s->type, 1};
            if (from.scales)
                from.scales += r * scale_bytes;
            if (from.biases)
                from.biases += r * scale_bytes;
            uint16_t values[1024];
            from.global = s->globals ? load_f32(s->globals + 4 * r) : 1;
            for (int64_t i = 0; o->bits == CUDA_DENSE && i < o->k; i++)
                values[i] = bf16_from_f32(qformat_scale(from.codes, s->type, i));
            if (o->bits == CUDA_DENSE)
                cuda_order_put_values(o, tile, row, values);
            else
                cuda_order_put(o, tile, row, &from);
        }
        for (size_t w = 0; w < tile_bytes / 4 && bad < 0; w++) {
            int per = o->piece_bytes / 4;
            uint32_t got = cuda_gather_word(o, &moved, t, (int)w / per, (int)w % per);
            if (got != load_u32(tile + 4 * w))
                bad = (int64_t)(4 * w) + t * (int64_t)tile_bytes;
        }
    }
    free(tile);
    return bad;
}

#define GATHER_ROWS 37

static struct cuda_staged staged_of(const struct fix_weight *f, enum dtype type, size_t row_bytes)
{
    return (struct cuda_staged){.codes = f->data,
                                .scales = f->scales,
                                .biases = f->biases,
                                .type = type,
                                .row_bytes = row_bytes,
                                .rows = GATHER_ROWS};
}

/* Every affine format and encoding of its scales; the last piece is whole or not. */
START_TEST(affine_is_gathered)
{
    static const enum dtype scales[] = {DT_BF16, DT_F16, DT_F32};
    for (size_t g = 0; g < ARRAY_LEN(groups); g++)
        for (size_t s = 0; s < ARRAY_LEN(scales); s++)
            for (int64_t k = 3 * groups[g]; k <= 4 * groups[g]; k += groups[g])
                for (enum cuda_scale e = CUDA_SCALE_LOW; e <= CUDA_SCALE_F32; e++) {
                    struct qformat q = {all_bits[_i], groups[g], scales[s]};
                    bool bf16 = e <= CUDA_SCALE_BF16;
                    if (bf16 ? scales[s] != DT_BF16 : e != scale_of(scales[s]))
                        continue;
                    if (e == CUDA_SCALE_LOW && q.bits != 4)
                        continue;
                    struct cuda_order o = cuda_order_packed(q, e, k);
                    struct fix_weight f = fix_affine(&rng, GATHER_ROWS + 1, k, q, 0.02f);
                    struct cuda_staged at = staged_of(&f, scales[s], qformat_row_bytes(q, k));
                    ck_assert_int_eq(gather_differs(&o, &at, 0), -1);
                    ck_assert_int_ne(gather_differs(&o, &at, 1), -1);
                    fix_weight_free(&f);
                }
}
END_TEST

START_TEST(block_floats_are_gathered)
{
    struct qformat q = block_cases[_i].q;
    for (int64_t k = CUDA_PIECE_K + 32; k <= 2 * CUDA_PIECE_K; k += 96) {
        struct cuda_order o = cuda_order_packed(q, block_cases[_i].scale, k);
        struct fix_weight f = fix_mx(&rng, GATHER_ROWS + 1, k, q, FIX_BLOCK_HOSTILE);
        struct cuda_staged at = staged_of(&f, q.scale, qformat_row_bytes(q, k));
        float globals[GATHER_ROWS];
        for (int i = 0; i < GATHER_ROWS; i++)
            globals[i] = 0.5f + (float)i;
        if (o.scale == CUDA_SCALE_GLOBAL)
            at.globals = (const uint8_t *)globals;
        ck_assert_int_eq(gather_differs(&o, &at, 0), -1);
        ck_assert_int_ne(gather_differs(&o, &at, 1), -1);
        fix_weight_free(&f);
    }
}
END_TEST

START_TEST(dense_is_gathered)
{
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    for (int64_t k = 3 * CUDA_PIECE_K - 11; k <= 3 * CUDA_PIECE_K; k += 11) {
        struct cuda_order o = cuda_order_dense(k);
        struct fix_weight f = fix_dense(&rng, GATHER_ROWS + 1, k, types[_i]);
        size_t row_bytes = (size_t)k * (types[_i] == DT_F32 ? 4 : 2);
        struct cuda_staged at = staged_of(&f, types[_i], row_bytes);
        ck_assert_int_eq(gather_differs(&o, &at, 0), -1);
        ck_assert_int_ne(gather_differs(&o, &at, 1), -1);
        fix_weight_free(&f);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda order");
    TCase *c = tcase_create("order");
    tcase_add_test(c, codes_and_scales_come_back);
    tcase_add_loop_test(c, every_code_bit_has_its_own_place, 0, ARRAY_LEN(all_bits));
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, block_floats_come_back, 0, ARRAY_LEN(block_cases));
    tcase_add_test(c, e8m0_has_a_bound);
    tcase_add_test(c, dense_values_come_back);
    tcase_add_test(c, the_encodings_have_bounds);
    tcase_add_test(c, the_largest_scale_chooses);
    tcase_add_loop_test(c, affine_is_gathered, 0, ARRAY_LEN(all_bits));
    tcase_add_loop_test(c, block_floats_are_gathered, 0, ARRAY_LEN(block_cases));
    tcase_add_loop_test(c, dense_is_gathered, 0, 3);
    suite_add_tcase(s, c);
    return s;
}
