/* chat_case.c: upper, lower, title and the classes of characters, as Python's str has them.
 *
 * Single mappings come from utf8proc; the table holds the characters whose upper or title form is
 * more than one character (Unicode's SpecialCasing). Lower case has two rules of its own: capital
 * I with dot, and sigma at the end of a word. Marks follow the character.
 */
#include "infer/chat_private.h"

#include <utf8proc.h>

static const struct {
    uint16_t cp, upper[3], title[3];
} specials[] = {
    {0x00DF, {0x0053, 0x0053}, {0x0053, 0x0073}},
    {0x0149, {0x02BC, 0x004E}, {0x02BC, 0x004E}},
    {0x01F0, {0x004A, 0x030C}, {0x004A, 0x030C}},
    {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x03B0, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}},
    {0x1E96, {0x0048, 0x0331}, {0x0048, 0x0331}},
    {0x1E97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}, {0x0057, 0x030A}},
    {0x1E99, {0x0059, 0x030A}, {0x0059, 0x030A}},
    {0x1E9A, {0x0041, 0x02BE}, {0x0041, 0x02BE}},
    {0x1F50, {0x03A5, 0x0313}, {0x03A5, 0x0313}},
    {0x1F52, {0x03A5, 0x0313, 0x0300}, {0x03A5, 0x0313, 0x0300}},
    {0x1F54, {0x03A5, 0x0313, 0x0301}, {0x03A5, 0x0313, 0x0301}},
    {0x1F56, {0x03A5, 0x0313, 0x0342}, {0x03A5, 0x0313, 0x0342}},
    {0x1F80, {0x1F08, 0x0399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x0399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x0399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x0399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x0399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x0399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x0399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x0399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x0399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x0399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x0399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x0399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x0399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x0399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x0399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x0399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x0399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x0399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x0399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x0399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x0399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x0399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x0399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x0399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x0399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x0399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x0399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x0399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x0399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x0399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x0399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x0399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x0399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x0399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x0399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x0399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x0399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x0399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x0399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x0399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x0399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x0399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x0399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x0399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x0399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x0399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x0399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x0399}, {0x1FBA, 0x0345}},
    {0x1FB3, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FB4, {0x0386, 0x0399}, {0x0386, 0x0345}},
    {0x1FB6, {0x0391, 0x0342}, {0x0391, 0x0342}},
    {0x1FB7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}},
    {0x1FBC, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x0399}, {0x1FCA, 0x0345}},
    {0x1FC3, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FC4, {0x0389, 0x0399}, {0x0389, 0x0345}},
    {0x1FC6, {0x0397, 0x0342}, {0x0397, 0x0342}},
    {0x1FC7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}},
    {0x1FCC, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FD2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}},
    {0x1FD3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x1FD6, {0x0399, 0x0342}, {0x0399, 0x0342}},
    {0x1FD7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1FE2, {0x03A5, 0x0308, 0x0300}, {0x03A5, 0x0308, 0x0300}},
    {0x1FE3, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x1FE4, {0x03A1, 0x0313}, {0x03A1, 0x0313}},
    {0x1FE6, {0x03A5, 0x0342}, {0x03A5, 0x0342}},
    {0x1FE7, {0x03A5, 0x0308, 0x0342}, {0x03A5, 0x0308, 0x0342}},
    {0x1FF2, {0x1FFA, 0x0399}, {0x1FFA, 0x0345}},
    {0x1FF3, {0x03A9, 0x0399}, {0x1FFC}},
    {0x1FF4, {0x038F, 0x0399}, {0x038F, 0x0345}},
    {0x1FF6, {0x03A9, 0x0342}, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}, {0x03A9, 0x0342, 0x0345}},
    {0x1FFC, {0x03A9, 0x0399}, {0x1FFC}},
    {0xFB00, {0x0046, 0x0046}, {0x0046, 0x0066}},
    {0xFB01, {0x0046, 0x0049}, {0x0046, 0x0069}},
    {0xFB02, {0x0046, 0x004C}, {0x0046, 0x006C}},
    {0xFB03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}},
    {0xFB04, {0x0046, 0x0046, 0x004C}, {0x0046, 0x0066, 0x006C}},
    {0xFB05, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB06, {0x0053, 0x0054}, {0x0053, 0x0074}},
    {0xFB13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xFB14, {0x0544, 0x0535}, {0x0544, 0x0565}},
    {0xFB15, {0x0544, 0x053B}, {0x0544, 0x056B}},
    {0xFB16, {0x054E, 0x0546}, {0x054E, 0x0576}},
    {0xFB17, {0x0544, 0x053D}, {0x0544, 0x056D}},
};

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool chat_is_printable(uint32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static bool is_upper(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216F) ||
           (cp >= 0x24B6 && cp <= 0x24CF) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

static bool is_lower(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA ||
           (cp >= 0x2B0 && cp <= 0x2B8) || (cp >= 0x2C0 && cp <= 0x2C1) ||
           (cp >= 0x2E0 && cp <= 0x2E4) || cp == 0x345 || cp == 0x37A ||
           (cp >= 0x1D2C && cp <= 0x1D6A) || cp == 0x1D78 || (cp >= 0x1D9B && cp <= 0x1DBF) ||
           cp == 0x2071 || cp == 0x207F || (cp >= 0x2090 && cp <= 0x209C) ||
           (cp >= 0x2170 && cp <= 0x217F) || (cp >= 0x24D0 && cp <= 0x24E9);
}

static bool is_cased(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT || is_upper(cp) || is_lower(cp);
}

static bool is_ignorable(uint32_t cp)
{
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x387 || cp == 0x55F ||
               cp == 0x5F4 || cp == 0x2018 || cp == 0x2019 || cp == 0x2024 || cp == 0x2027 ||
               cp == 0xFE13 || cp == 0xFE52 || cp == 0xFE55 || cp == 0xFF07 || cp == 0xFF0E ||
               cp == 0xFF1A;
    }
}

/* A sigma ends its word when a cased character comes before it and none after, marks and the like
 * not counted. */
static bool sigma_is_final(const struct chat_str *s, size_t start, size_t at)
{
    const char *text = chat_text(s);
    size_t w, i = at;
    bool before = false;
    while (i > start) {
        i -= chat_cp_back(text, text + i);
        uint32_t cp = chat_cp_at(text + i, s->len - i, &w);
        if (!is_ignorable(cp)) {
            before = is_cased(cp);
            break;
        }
    }
    if (!before)
        return false;
    for (i = at + 2; i < s->len; i += w) {
        uint32_t cp = chat_cp_at(text + i, s->len - i, &w);
        if (!is_ignorable(cp))
            return !is_cased(cp);
    }
    return true;
}

struct caser {
    struct chat_run *r;
    struct chat_buf *out;
    const struct chat_str *s;
    size_t start; /* where the text begins that decides about a sigma */
};

static enum err_code put_lower(struct caser *c, uint32_t cp, size_t at, uint8_t mark)
{
    if (cp == 0x130) {
        CHAT_TRY(chat_put_cp(c->r, &c->out, 'i', mark));
        return chat_put_cp(c->r, &c->out, 0x307, mark);
    }
    if (cp == 0x3A3)
        return chat_put_cp(c->r, &c->out, sigma_is_final(c->s, c->start, at) ? 0x3C2 : 0x3C3, mark);
    return chat_put_cp(c->r, &c->out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), mark);
}

static enum err_code put_upper(struct caser *c, uint32_t cp, bool title, uint8_t mark)
{
    for (size_t i = 0; cp >= 0x80 && i < ARRAY_LEN(specials); i++) {
        if (specials[i].cp != cp)
            continue;
        const uint16_t *to = title ? specials[i].title : specials[i].upper;
        for (int k = 0; k < 3 && to[k]; k++)
            CHAT_TRY(chat_put_cp(c->r, &c->out, to[k], mark));
        return ERR_OK;
    }
    utf8proc_int32_t from = (utf8proc_int32_t)cp;
    return chat_put_cp(c->r, &c->out,
                       (uint32_t)(title ? utf8proc_totitle(from) : utf8proc_toupper(from)), mark);
}

/* What the title filter of jinja2 takes as the start of a word. */
static bool starts_word(uint32_t cp)
{
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || chat_is_space(cp);
}

enum err_code chat_case(struct chat_run *r, const struct chat_str *s, enum chat_case how,
                        struct chat_value *out)
{
    struct caser c = {r, NULL, s, 0};
    bool first = true, cased = false;
    size_t w;
    CHAT_TRY(chat_step(r, s->len * 16));
    for (size_t at = 0; at < s->len; at += w) {
        uint32_t cp = chat_cp_at(chat_text(s) + at, s->len - at, &w);
        uint8_t mark = s->buf->marks[s->off + at];
        bool up = how == CASE_UPPER || (how == CASE_TITLE && !cased) ||
                  ((how == CASE_CAPITAL || how == CASE_FILTER_TITLE) && first) ||
                  (how == CASE_SWAP && is_lower(cp));
        if (up)
            CHAT_TRY(put_upper(&c, cp, how == CASE_TITLE || how == CASE_CAPITAL, mark));
        else if (how == CASE_SWAP && !is_upper(cp))
            CHAT_TRY(chat_put_cp(r, &c.out, cp, mark));
        else
            CHAT_TRY(put_lower(&c, cp, at, mark));
        cased = is_cased(cp);
        if (how == CASE_FILTER_TITLE && first && !starts_word(cp))
            c.start = at + w; /* the filter lowers the rest of a word on its own */
        first = how == CASE_FILTER_TITLE && starts_word(cp);
    }
    *out = chat_buf_value(c.out);
    return ERR_OK;
}

static bool in_class(uint32_t cp, enum chat_class c)
{
    utf8proc_category_t k = category(cp);
    bool alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    bool number = k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
    switch (c) {
    case CLASS_ALPHA:
        return alpha;
    case CLASS_DIGIT:
        return k == UTF8PROC_CATEGORY_ND;
    case CLASS_ALNUM:
        return alpha || number;
    default:
        return chat_is_space(cp);
    }
}

/* isalpha() and its kin: every character, and at least one; isupper() and islower(): every cased
 * one. */
bool chat_class(const struct chat_str *s, enum chat_class c)
{
    bool any = false;
    size_t w;
    for (size_t at = 0; at < s->len; at += w) {
        uint32_t cp = chat_cp_at(chat_text(s) + at, s->len - at, &w);
        if (c == CLASS_UPPER || c == CLASS_LOWER) {
            if (is_cased(cp) && (c == CLASS_UPPER ? !is_upper(cp) : !is_lower(cp)))
                return false;
            any = any || is_cased(cp);
        } else {
            if (!in_class(cp, c))
                return false;
            any = true;
        }
    }
    return any;
}
