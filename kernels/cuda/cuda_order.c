/* cuda_order.c: puts rows of a checkpoint into the device order of cuda_order.h. Host code, and
 * built without CUDA too: the order is tested where there is no device. */
#include "kernels/cuda/cuda_order.h"

static int pieces_of(int64_t k)
{
    return (int)((k + CUDA_PIECE_K - 1) / CUDA_PIECE_K);
}

struct cuda_order cuda_order_dense(int64_t k)
{
    struct cuda_order o = {.bits = CUDA_DENSE, .k = k, .n_pieces = pieces_of(k)};
    o.piece_bytes = CUDA_TILE_ROWS * CUDA_PIECE_K * 2;
    return o;
}

struct cuda_order cuda_order_packed(struct qformat q, enum cuda_scale scale, int64_t k)
{
    struct cuda_order o = {
        .bits = q.bits, .group = q.group, .scale = scale, .k = k, .n_pieces = pieces_of(k)};
    int groups = CUDA_PIECE_K / q.group, size = scale == CUDA_SCALE_F32 ? 4 : 2;
    for (int i = 0; i < 2; i++)
        o.plane_bytes[i] = CUDA_TILE_ROWS * CUDA_PIECE_K / 8 * cuda_order_plane(q.bits, i);
    o.scales_at = o.plane_bytes[0] + o.plane_bytes[1];
    o.globals_at = o.scales_at + groups * CUDA_TILE_ROWS;
    o.piece_bytes = o.scales_at + groups * CUDA_TILE_ROWS * 2 * size;
    if (cuda_order_is_block(scale))
        o.piece_bytes = o.globals_at + (scale == CUDA_SCALE_GLOBAL ? CUDA_TILE_ROWS * 4 : 0);
    return o;
}

enum cuda_scale cuda_order_choose(const uint8_t *scales, int64_t n, int bits)
{
    float limit = 8.0f / (float)(1u << bits), low = bits == 4 ? 0x1p-5f : 0.0f;
    bool fast = true;
    for (int64_t i = 0; i < n && fast; i++) {
        float s = fabsf(qformat_scale(scales, DT_BF16, i));
        fast = s < limit; /* false for a NaN */
        low = s < low ? low : 0.0f;
    }
    return !fast ? CUDA_SCALE_BF16 : low > 0.0f ? CUDA_SCALE_LOW : CUDA_SCALE_FAST;
}

static void put_scale(const struct cuda_order *o, uint8_t *scales, int at, const uint8_t *from,
                      int64_t i, enum dtype type, int power)
{
    float v = qformat_scale(from, type, i);
    if (o->scale == CUDA_SCALE_F32)
        memcpy(scales + 4 * at, &v, sizeof v);
    else if (power)
        store_u16(scales + 2 * at, bf16_from_f32(cuda_order_encode(v, power)));
    else
        memcpy(scales + 2 * at, from + 2 * i, 2);
}

/* Eight codes at a time: `bits` bytes of the row, held in 64 bits. */
static void put_codes(const struct cuda_order *o, uint8_t *piece, int row, const uint8_t *codes,
                      int n)
{
    int low = cuda_order_plane(o->bits, 0), high = o->bits - low;
    uint32_t mask = (1u << o->bits) - 1, low_mask = (1u << low) - 1;
    for (int k = 0; k < n; k += 8) {
        uint64_t v = 0;
        memcpy(&v, codes + (size_t)(k / 8) * (size_t)o->bits, (size_t)o->bits);
        for (int i = 0; i < 8; i++, v >>= o->bits) {
            uint32_t q = (uint32_t)v & mask;
            struct cuda_order_place at = cuda_order_find(low, row, k + i);
            *(uint32_t *)(void *)(piece + at.word) |= (q & low_mask) << at.bit;
            if (high) {
                at = cuda_order_find(high, row, k + i);
                *(uint32_t *)(void *)(piece + o->plane_bytes[0] + at.word) |= q >> low << at.bit;
            }
        }
    }
}

/* Scales of the piece's groups, of which `n` k are in the row; i0: the first in the row. */
static void put_scales(const struct cuda_order *o, uint8_t *piece, int row, int64_t i0, int n,
                       const struct cuda_order_row *from)
{
    uint8_t *scales = piece + o->scales_at;
    int groups = CUDA_PIECE_K / o->group, power = cuda_order_power(o->scale, o->bits, row);
    for (int g = 0; g < groups && g * o->group < n; g++) {
        if (cuda_order_is_block(o->scale)) {
            scales[cuda_order_block_at(g, row)] = from->scales[i0 + g];
            continue;
        }
        int at = cuda_order_scale_at(g, row);
        put_scale(o, scales, at, from->scales, i0 + g, from->type, power);
        put_scale(o, scales, at + 2, from->biases, i0 + g, from->type, 0);
    }
    if (o->scale == CUDA_SCALE_GLOBAL)
        store_u32(piece + o->globals_at + 4 * cuda_order_block_at(0, row), f32_bits(from->global));
}

void cuda_order_put(const struct cuda_order *o, uint8_t *tile, int row,
                    const struct cuda_order_row *from)
{
    for (int p = 0; p < o->n_pieces; p++) {
        uint8_t *piece = tile + (size_t)p * (size_t)o->piece_bytes;
        int64_t k0 = (int64_t)p * CUDA_PIECE_K;
        int n = (int)MIN2((int64_t)CUDA_PIECE_K, o->k - k0);
        put_codes(o, piece, row, from->codes + (size_t)(k0 / 8) * (size_t)o->bits, n);
        put_scales(o, piece, row, k0 / o->group, n, from);
    }
}

void cuda_order_put_values(const struct cuda_order *o, uint8_t *tile, int row,
                           const uint16_t *values)
{
    for (int64_t k = 0; k < o->k; k++) {
        uint8_t *piece = tile + (size_t)(k / CUDA_PIECE_K) * (size_t)o->piece_bytes;
        store_u16(piece + cuda_order_value(row, (int)(k % CUDA_PIECE_K)), values[k]);
    }
}
