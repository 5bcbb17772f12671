/* tok_classes.c: see tok_classes.h.
 *
 * The differences were found by asking the tokenizers library about every code point: its
 * Oniguruma has the tables of Unicode 16, its Rust classes those of Unicode 16 and 17 (digits) and
 * of an older list (punctuation); PCRE2 10.42 has Unicode 14. With a newer PCRE2 the additions
 * change nothing, since a class only ever gains members by them.
 */
#include "infer/tok_classes.h"

#include <stdio.h>
#include <stdlib.h>

/* Name, what PCRE2 knows, classes whose additions count too, additions in hex. \p{sc:X} is the
 * script alone: PCRE2's \p{X} would be the script extensions, Oniguruma's is not. Mn and Mc are
 * not here: a code point moved from one to the other, which a class body cannot say. */
/* clang-format off */
#define CLASSES(X) \
    X("L", "\\p{L}", "Lu Ll Lm Lo", "") \
    X("Lu", "\\p{Lu}", "", "1C89 A7CB-A7CC A7DA A7DC 10D50-10D65") \
    X("Ll", "\\p{Ll}", "", "1C8A A7CD A7DB 10D70-10D85 1DF25-1DF2A") \
    X("Lt", "\\p{Lt}", "", "") \
    X("Lm", "\\p{Lm}", "", \
      "10D4E 10D6F 16D40-16D42 16D6B-16D6C 1E030-1E06D 1E4EB") \
    X("Lo", "\\p{Lo}", "", \
      "105C0-105F3 10D4A-10D4D 10D4F 10EC2-10EC4 1123F-11240 11380-11389 1138B 1138E " \
      "11390-113B5 113B7 113D1 113D3 11BC0-11BE0 11F02 11F04-11F10 11F12-11F33 1342F " \
      "13441-13446 13460-143FA 16100-1611D 16D43-16D6A 18CFF 1B132 1B155 1E4D0-1E4EA " \
      "1E5D0-1E5ED 1E5F0 2B739 2EBF0-2EE5D 31350-323AF") \
    X("M", "\\p{M}", "", \
      "897 CF3 ECE 10D69-10D6D 10EFC-10EFF 11241 113B8-113C0 113C2 113C5 113C7-113CA " \
      "113CC-113D0 113D2 113E1-113E2 11F00-11F01 11F03 11F34-11F3A 11F3E-11F42 11F5A " \
      "13440 13447-13455 1611E-1612F 1E08F 1E4EC-1E4EF 1E5EE-1E5EF") \
    X("Me", "\\p{Me}", "", "") \
    X("N", "\\p{N}", "Nd No", "") \
    X("Nd", "\\p{Nd}", "", \
      "10D40-10D49 116D0-116E3 11BF0-11BF9 11F50-11F59 16130-16139 16D70-16D79 " \
      "1CCF0-1CCF9 1E4F0-1E4F9 1E5F1-1E5FA") \
    X("Nl", "\\p{Nl}", "", "") \
    X("No", "\\p{No}", "", "1D2C0-1D2D3") \
    X("P", "\\p{P}", "Pd Po", "") \
    X("Pc", "\\p{Pc}", "", "") \
    X("Pd", "\\p{Pd}", "", "10D6E") \
    X("Ps", "\\p{Ps}", "", "") \
    X("Pe", "\\p{Pe}", "", "") \
    X("Pi", "\\p{Pi}", "", "") \
    X("Pf", "\\p{Pf}", "", "") \
    X("Po", "\\p{Po}", "", \
      "1B4E-1B4F 1B7F 113D4-113D5 113D7-113D8 11B00-11B09 11BE1 11F43-11F4F " \
      "16D6D-16D6F 1E5FF") \
    X("S", "\\p{S}", "Sm So", "") \
    X("Sm", "\\p{Sm}", "", "10D8E-10D8F") \
    X("Sc", "\\p{Sc}", "", "") \
    X("Sk", "\\p{Sk}", "", "") \
    X("So", "\\p{So}", "", \
      "2427-2429 2FFC-2FFF 31E4-31E5 31EF 1CC00-1CCEF 1CD00-1CEB3 1F6DC 1F774-1F776 " \
      "1F77B-1F77F 1F7D9 1F8B2-1F8BB 1F8C0-1F8C1 1FA75-1FA77 1FA87-1FA89 1FA8F " \
      "1FAAD-1FAAF 1FABB-1FABF 1FAC6 1FACE-1FACF 1FADA-1FADC 1FADF 1FAE8-1FAE9 " \
      "1FAF7-1FAF8 1FBCB-1FBEF") \
    X("Z", "\\p{Z}", "", "") \
    X("Zs", "\\p{Zs}", "", "") \
    X("Zl", "\\p{Zl}", "", "") \
    X("Zp", "\\p{Zp}", "", "") \
    X("Han", "\\p{sc:Han}", "", "2B739 2EBF0-2EE5D 31350-323AF") \
    X("Hiragana", "\\p{sc:Hiragana}", "", "1B132") \
    X("Katakana", "\\p{sc:Katakana}", "", "1B155") \
    X("Hangul", "\\p{sc:Hangul}", "", "") \
    X("Latin", "\\p{sc:Latin}", "", "A7CB-A7CD A7DA-A7DC 1DF25-1DF2A") \
    X("Cyrillic", "\\p{sc:Cyrillic}", "", "1C89-1C8A 1E030-1E06D 1E08F") \
    X("Greek", "\\p{sc:Greek}", "", "") \
    X("Arabic", "\\p{sc:Arabic}", "", "897 10EC2-10EC4 10EFC-10EFF") \
    X("Thai", "\\p{sc:Thai}", "", "")
/* clang-format on */

/* Of Rust's char::is_numeric, beyond \p{N}. */
#define DIGITS_MORE "11DE0-11DE9 16FF4-16FF6"

/* Of Rust's regex class \w, beyond Alphabetic, M, Nd, Pc and Join_Control. */
/* clang-format off */
#define WORD_MORE \
      "897 CF3 ECE 1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D40-10D65 10D69-10D6D " \
      "10D6F-10D85 10EC2-10EC4 10EFC-10EFF 1123F-11241 11380-11389 1138B 1138E " \
      "11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D3 113E1-113E2 " \
      "116D0-116E3 11BC0-11BE0 11BF0-11BF9 11F00-11F10 11F12-11F3A 11F3E-11F42 " \
      "11F50-11F5A 1342F 13440-13455 13460-143FA 16100-16139 16D40-16D6C 16D70-16D79 " \
      "18CFF 1B132 1B155 1CCF0-1CCF9 1DF25-1DF2A 1E030-1E06D 1E08F 1E4D0-1E4F9 " \
      "1E5D0-1E5FA 2B739 2EBF0-2EE5D 31350-323AF"

/* Of the punctuation test, beyond \p{P} and ASCII; and what it leaves out of them. */
#define PUNCT_MORE "166D 111C9"
#define PUNCT_LESS \
      "61D 9FD A76 C77 C84 1B7D-1B7E 2E43-2E4F 2E52-2E5D 10EAD 10F55-10F59 " \
      "10F86-10F89 1144B-1144F 1145A-1145B 1145D 11660-1166C 116B9 1183B 11944-11946 " \
      "119E2 11A3F-11A46 11A9A-11A9C 11A9E-11AA2 11C41-11C45 11C70-11C71 11EF7-11EF8 " \
      "11FFF 12FF1-12FF2 16E97-16E9A 16FE2 1E95E-1E95F"
/* clang-format on */

#define SPACES                                                                                     \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-"       \
    "\\x{10ffff}"

struct class
{
    const char *name, *base, *more, *ranges;
};

static const struct class classes[] = {
#define X(name, base, more, ranges) {name, base, more, ranges},
    CLASSES(X)
#undef X
};

/* "A B-C" in hex becomes \x{A}\x{B}-\x{C}. */
static void put_ranges(struct strbuf *out, const char *s)
{
    while (*s) {
        size_t n = strspn(s, "0123456789ABCDEF");
        strbuf_printf(out, "\\x{%.*s}", (int)n, s);
        s += n;
        if (*s == '-')
            strbuf_putc(out, '-');
        if (*s)
            s++;
    }
}

static const struct class *find_class(const char *name, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(classes); i++) {
        if (strlen(classes[i].name) == len && memcmp(classes[i].name, name, len) == 0)
            return &classes[i];
    }
    return NULL;
}

bool tok_classes_put(struct strbuf *out, const char *name, size_t len)
{
    const struct class *c = find_class(name, len);
    if (!c)
        return false;
    strbuf_puts(out, c->base);
    put_ranges(out, c->ranges);
    for (const char *m = c->more; *m;) {
        size_t n = strcspn(m, " ");
        put_ranges(out, find_class(m, n)->ranges);
        m += n + (m[n] == ' ');
    }
    return true;
}

bool tok_classes_same(const char *name, size_t len)
{
    const struct class *c = find_class(name, len);
    return c && !c->more[0] && !c->ranges[0];
}

void tok_classes_put_spaces(struct strbuf *out, bool complement)
{
    strbuf_puts(out, complement ? NOT_SPACES : SPACES);
}

void tok_classes_put_digits(struct strbuf *out)
{
    tok_classes_put(out, "N", 1);
    put_ranges(out, DIGITS_MORE);
}

void tok_classes_put_word(struct strbuf *out)
{
    strbuf_puts(out, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}");
    put_ranges(out, WORD_MORE);
}

void tok_classes_put_punct(struct strbuf *out)
{
    strbuf_puts(out, "(?![");
    put_ranges(out, PUNCT_LESS);
    strbuf_puts(out, "])[\\p{P}!-/:-@\\[-`{-~");
    put_ranges(out, PUNCT_MORE);
    strbuf_putc(out, ']');
}
