/* qformat.c: the value of a packed weight in bf16, rounded once, and the names of the modes.
 *
 * A block float's product has at most 4 + 4 + 24 significant bits: exact in a double.
 *
 * The product of a code and a bf16 scale has at most 16 significant bits, so it is exact in a
 * double, overflow of f32 included. The sum is not always: its rounding error is recovered exactly
 * (two-sum), and a sum that was cut is made odd in its last bit, which then tells the one rounding
 * to bf16 on which side of a tie it lies.
 */
#include "ckpt/qformat.h"

#define BF16_NAN 0x7fffu /* what the hardware's fma gives */

/* One rounding to nearest, ties to even, subnormals kept. */
static uint16_t round_double_bf16(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    uint16_t sign = (uint16_t)(u >> 48 & 0x8000u);
    int exp = (int)(u >> 52 & 0x7ff);
    if (exp == 0)
        return sign; /* no sum of bf16 multiples is a subnormal double */
    if (exp == 0x7ff)
        return (u & 0xfffffffffffffull) ? BF16_NAN : (uint16_t)(sign | 0x7f80u);
    uint64_t man = (u & 0xfffffffffffffull) | 1ull << 52;
    int biased = exp - 1023 + 127;
    int shift = biased >= 1 ? 45 : 46 - biased; /* below 2^-126 the last place stays 2^-133 */
    if (shift > 54)
        return sign;
    uint64_t q = man >> shift, rest = man & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    /* q holds the leading one of a normal number, so a carry moves the exponent by itself. */
    uint64_t bits = biased >= 1 ? ((uint64_t)(biased - 1) << 7) + q : q;
    return (uint16_t)(sign | (bits >= 0x7f80u ? 0x7f80u : bits));
}

uint16_t qformat_bf16_exact(uint32_t q, float s, float b)
{
    double p = (double)q * (double)s, c = (double)b, sum = p + c;
    if (isnan(sum))
        return BF16_NAN;
    if (isinf(sum))
        return round_double_bf16(sum);
    double t = sum - p;
    double cut = (p - (sum - t)) + (c - t);
    if (cut != 0) {
        uint64_t u;
        memcpy(&u, &sum, sizeof u);
        if (!(u & 1)) {
            /* Toward the true value, whose magnitude is larger when the signs agree. */
            u = (cut > 0) == (sum > 0) ? u + 1 : u - 1;
            memcpy(&sum, &u, sizeof sum);
        }
    }
    return round_double_bf16(sum);
}

uint16_t qformat_bf16(uint32_t q, float s, float b, enum dtype scale)
{
    if (scale == DT_BF16)
        return qformat_bf16_exact(q, s, b);
    return bf16_from_f32(fmaf((float)q, s, b));
}

uint16_t qformat_block_bf16(float element, float s, float global)
{
    double p = (double)element * (double)s * (double)global;
    return isnan(p) ? BF16_NAN : round_double_bf16(p);
}

static const struct {
    const char *name;
    struct qformat q;
} blocks[] = {
    {"mxfp4", {4, 32, DT_F8_E8M0}}, {"mxfp8", {8, 32, DT_F8_E8M0}}, {"nvfp4", {4, 16, DT_F8_E4M3}}};

const char *qformat_mode(struct qformat q)
{
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        if (qformat_same(q, blocks[i].q))
            return blocks[i].name;
    }
    return "affine";
}

bool qformat_find_block(const char *mode, struct qformat *q)
{
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        if (strcmp(mode, blocks[i].name) == 0) {
            *q = blocks[i].q;
            return true;
        }
    }
    return false;
}
