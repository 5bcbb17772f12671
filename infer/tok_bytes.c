/* tok_bytes.c: see tok_bytes.h. */
#include "infer/tok_bytes.h"

static bool stands_for_itself(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The 68 others are 00-20, 7F-A0 and AD. */
static uint32_t byte_to_cp(unsigned b)
{
    if (stands_for_itself(b))
        return b;
    if (b <= 0x20)
        return 0x100 + b;
    return b == 0xad ? 0x143 : 0x100 + 0x21 + (b - 0x7f);
}

static int cp_to_byte(uint32_t cp)
{
    if (cp < 0x100)
        return stands_for_itself(cp) ? (int)cp : -1;
    if (cp > 0x143)
        return -1;
    uint32_t i = cp - 0x100;
    if (i <= 0x20)
        return (int)i;
    return i == 0x43 ? 0xad : (int)(0x7f + i - 0x21);
}

void tok_bytes_put(struct strbuf *out, const char *s, size_t len)
{
    if (!strbuf_reserve(out, 2 * len))
        return;
    for (size_t i = 0; i < len; i++) {
        char c[4];
        int n = str_utf8_put(c, byte_to_cp((uint8_t)s[i]));
        strbuf_append(out, c, (size_t)n);
    }
}

void tok_bytes_get(struct strbuf *out, const char *s, size_t len)
{
    size_t before = out->len;
    for (const char *p = s; p < s + len;) {
        int b = cp_to_byte(str_utf8_next(&p));
        if (b < 0) {
            out->len = before;
            strbuf_append(out, s, len);
            return;
        }
        strbuf_putc(out, (char)b);
    }
}
