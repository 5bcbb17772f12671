/* str_glob.c: globs, matched by following all states at once.
 *
 * A state is a place in the glob. Braces are jumps between places, so nothing backtracks: the time
 * is |glob| * |s| whatever the pattern. A brace or bracket that is never closed stands for itself,
 * and so do a comma and a closing brace outside of braces.
 */
#include "common/str.h"

enum kind { PLAIN, ANY, STAR, SET, OPEN, COMMA, CLOSE };

struct glob {
    const char *text;
    size_t n;
    uint8_t kind[STR_GLOB_MAX];
    uint16_t next[STR_GLOB_MAX]; /* SET: its bracket; OPEN, COMMA: the next comma or the close */
    uint16_t end[STR_GLOB_MAX];  /* COMMA: the close */
};

struct states {
    uint16_t list[STR_GLOB_MAX + 1];
    size_t n;
    uint8_t has[STR_GLOB_MAX + 1];
};

/* The index of the bracket that closes the set opened at i, or 0. */
static size_t find_set_end(const char *text, size_t i)
{
    size_t j = i + 1;
    j += text[j] == '!';
    j += text[j] == ']'; /* a bracket in first place is a member */
    while (text[j] && text[j] != ']')
        j++;
    return text[j] ? j : 0;
}

/* Comma and brace marks are chained backwards in `back` while a brace is open. Closing turns the
 * chain round; what is still open at the end becomes plain. */
static void close_brace(struct glob *g, const uint16_t *back, size_t tail, size_t close)
{
    size_t next = close;
    while (g->kind[tail] == COMMA) {
        g->next[tail] = (uint16_t)next;
        g->end[tail] = (uint16_t)close;
        next = tail;
        tail = back[tail];
    }
    g->next[tail] = (uint16_t)next;
    g->kind[close] = CLOSE;
}

static void compile(struct glob *g)
{
    uint16_t back[STR_GLOB_MAX], tails[STR_GLOB_MAX];
    size_t depth = 0, close;
    for (size_t i = 0; i < g->n; i++) {
        g->kind[i] = PLAIN;
        switch (g->text[i]) {
        case '*':
            g->kind[i] = STAR;
            break;
        case '?':
            g->kind[i] = ANY;
            break;
        case '[':
            close = find_set_end(g->text, i);
            if (close) {
                g->kind[i] = SET;
                g->next[i] = (uint16_t)close;
                i = close;
            }
            break;
        case '{':
            g->kind[i] = OPEN;
            tails[depth++] = (uint16_t)i;
            break;
        case ',':
            if (depth) {
                g->kind[i] = COMMA;
                back[i] = tails[depth - 1];
                tails[depth - 1] = (uint16_t)i;
            }
            break;
        case '}':
            if (depth)
                close_brace(g, back, tails[--depth], i);
            break;
        default:
            break;
        }
    }
    while (depth) {
        size_t tail = tails[--depth];
        while (g->kind[tail] == COMMA) {
            g->kind[tail] = PLAIN;
            tail = back[tail];
        }
        g->kind[tail] = PLAIN;
    }
}

/* Adds a place and all places that are reached from it without a byte. The list is its own work
 * queue: places added on the way are looked at later in the same loop. */
static void add_place(const struct glob *g, struct states *s, size_t place)
{
    size_t from = s->n;
    if (!s->has[place]) {
        s->has[place] = 1;
        s->list[s->n++] = (uint16_t)place;
    }
    for (size_t k = from; k < s->n; k++) {
        size_t i = s->list[k], to[2], n = 0;
        if (i < g->n && g->kind[i] == STAR) {
            to[n++] = i + 1;
        } else if (i < g->n && g->kind[i] == OPEN) {
            /* Every alternative starts after a mark of the chain. */
            for (size_t mark = i; g->kind[mark] != CLOSE; mark = g->next[mark]) {
                if (!s->has[mark + 1]) {
                    s->has[mark + 1] = 1;
                    s->list[s->n++] = (uint16_t)(mark + 1);
                }
            }
        } else if (i < g->n && g->kind[i] == COMMA) {
            to[n++] = g->end[i] + 1u;
        } else if (i < g->n && g->kind[i] == CLOSE) {
            to[n++] = i + 1;
        }
        for (size_t t = 0; t < n; t++) {
            if (!s->has[to[t]]) {
                s->has[to[t]] = 1;
                s->list[s->n++] = (uint16_t)to[t];
            }
        }
    }
}

static bool in_set(const struct glob *g, size_t open, uint8_t c)
{
    size_t i = open + 1, end = g->next[open];
    bool negated = g->text[i] == '!', found = false;
    i += negated;
    while (i < end) {
        uint8_t lo = (uint8_t)g->text[i], hi = lo;
        if (i + 2 < end && g->text[i + 1] == '-') {
            hi = (uint8_t)g->text[i + 2];
            i += 2;
        }
        found |= c >= lo && c <= hi;
        i++;
    }
    return found != negated;
}

static void step(const struct glob *g, const struct states *s, struct states *to, char c)
{
    to->n = 0;
    memset(to->has, 0, g->n + 1);
    for (size_t k = 0; k < s->n; k++) {
        size_t i = s->list[k];
        if (i == g->n)
            continue;
        switch ((enum kind)g->kind[i]) {
        case PLAIN:
            if (g->text[i] == c)
                add_place(g, to, i + 1);
            break;
        case ANY:
            add_place(g, to, i + 1);
            break;
        case STAR:
            add_place(g, to, i);
            break;
        case SET:
            if (in_set(g, i, (uint8_t)c))
                add_place(g, to, (size_t)g->next[i] + 1);
            break;
        case OPEN:
        case COMMA:
        case CLOSE:
            break;
        }
    }
}

bool str_glob(const char *glob, const char *s)
{
    struct glob g; /* filled by compile; clearing 10 kB for every name would be most of the work */
    g.text = glob;
    g.n = strlen(glob);
    if (g.n >= STR_GLOB_MAX)
        return false;
    struct states a, b, *now = &a, *to = &b;
    compile(&g);
    now->n = 0;
    memset(now->has, 0, g.n + 1);
    add_place(&g, now, 0);
    for (; *s && now->n; s++) {
        step(&g, now, to, *s);
        struct states *swap = now;
        now = to;
        to = swap;
    }
    return *s == 0 && now->has[g.n];
}
