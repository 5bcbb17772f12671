/* spm_merges.c: SentencePiece joins the adjacent pair whose joint text has the best score; BPE
 * joins the pair of lowest rank. Ranking all cuts of all tokens by score makes the two agree, ties
 * between equal scores aside: there SentencePiece takes the leftmost pair.
 */
#include "ckpt/spm_merges.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKEN_MAX 1024 /* bytes; bounds the cuts of one token */

static uint64_t hash_text(const char *text, size_t len)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ull;
    return h ^ h >> 29;
}

/* The slot of this text, or the empty one where it belongs. */
static size_t find_slot(const struct spm_vocab *v, const char *text, size_t len)
{
    size_t at = (size_t)hash_text(text, len) & (v->n_slots - 1);
    while (v->slot[at]) {
        struct gguf_text t = v->token[v->slot[at] - 1];
        if (t.len == len && memcmp(t.text, text, len) == 0)
            break;
        at = (at + 1) & (v->n_slots - 1);
    }
    return at;
}

bool spm_vocab_find(const struct spm_vocab *v, const char *text, size_t len, uint32_t *id)
{
    size_t at = find_slot(v, text, len);
    if (!v->slot[at])
        return false;
    *id = v->slot[at] - 1;
    return true;
}

static enum err_code read_token(struct spm_vocab *v, size_t i, struct gguf_text t, struct err *e)
{
    if (t.len > TOKEN_MAX || str_utf8_valid(t.text, t.len) != t.len) {
        return err_set(e, ERR_INPUT,
                       "key 'tokenizer.ggml.tokens': entry %zu of %zu bytes, expected UTF-8 of at "
                       "most %d",
                       i, t.len, TOKEN_MAX);
    }
    if (t.len == 0) {
        char name[32];
        int n = snprintf(name, sizeof name, "[EMPTY_%zu]", i);
        t = (struct gguf_text){arena_strndup(v->arena, name, (size_t)n), (size_t)n};
        if (!t.text)
            return arena_error(v->arena, (size_t)n, e);
    }
    v->token[i] = t;
    size_t at = find_slot(v, t.text, t.len);
    if (v->slot[at]) {
        return err_set(e, ERR_INPUT, "key 'tokenizer.ggml.tokens': entries %u and %zu are equal",
                       v->slot[at] - 1, i);
    }
    v->slot[at] = (uint32_t)i + 1;
    return ERR_OK;
}

static enum err_code read_facts(struct spm_vocab *v, const struct gguf_pair *types,
                                const struct gguf_pair *scores, struct err *e)
{
    double d = 0;
    int64_t whole = 0;
    if ((types && types->n != v->n) || (scores && scores->n != v->n))
        return err_set(e, ERR_INPUT, "%zu tokens, but %llu types and %llu scores", v->n,
                       (unsigned long long)(types ? types->n : v->n),
                       (unsigned long long)(scores ? scores->n : v->n));
    for (size_t i = 0; i < v->n; i++) {
        v->type[i] = SPM_NORMAL;
        if (types && gguf_number(types, i, &d, &whole))
            v->type[i] = whole >= SPM_NORMAL && whole <= SPM_BYTE ? (uint8_t)whole : SPM_NORMAL;
        if (scores && gguf_number(scores, i, &d, &whole))
            v->score[i] = (float)d;
        if (isnan(v->score[i]))
            return err_set(e, ERR_INPUT, "key 'tokenizer.ggml.scores': entry %zu is not a number",
                           i);
    }
    return ERR_OK;
}

enum err_code spm_vocab_open(struct spm_vocab *v, const struct gguf_meta *m, struct err *e)
{
    const struct gguf_pair *tokens, *types, *scores;
    const uint8_t *at = NULL;
    memset(v, 0, sizeof *v);
    enum err_code rc =
        gguf_get_array(m, "tokenizer.ggml.tokens", GGUF_STRING, GGUF_REQUIRED, &tokens, e);
    if (rc == ERR_OK)
        rc = gguf_get_array(m, "tokenizer.ggml.token_type", GGUF_I32, GGUF_OPTIONAL, &types, e);
    if (rc == ERR_OK)
        rc = gguf_get_array(m, "tokenizer.ggml.scores", GGUF_F32, GGUF_OPTIONAL, &scores, e);
    if (rc != ERR_OK)
        return rc;
    if (tokens->n == 0 || tokens->n > INT32_MAX / 4)
        return err_set(e, ERR_INPUT, "key 'tokenizer.ggml.tokens': %llu tokens",
                       (unsigned long long)tokens->n);
    v->n = (size_t)tokens->n;
    for (v->n_slots = 16; v->n_slots < 2 * v->n;)
        v->n_slots *= 2;
    v->arena = arena_new(0);
    if (!v->arena)
        return err_set(e, ERR_NOMEM, "out of memory");
    v->token = arena_array(v->arena, v->n, sizeof *v->token);
    v->type = arena_array(v->arena, v->n, sizeof *v->type);
    v->score = arena_array(v->arena, v->n, sizeof *v->score);
    v->slot = arena_array(v->arena, v->n_slots, sizeof *v->slot);
    if (!v->token || !v->type || !v->score || !v->slot)
        return arena_error(v->arena, v->n, e);
    for (size_t i = 0; rc == ERR_OK && i < v->n; i++)
        rc = read_token(v, i, gguf_next_text(tokens, &at), e);
    return rc != ERR_OK ? rc : read_facts(v, types, scores, e);
}

void spm_vocab_close(struct spm_vocab *v)
{
    arena_free(v->arena);
    memset(v, 0, sizeof *v);
}

struct merge {
    float score;
    uint32_t id, cut, left;
};

struct merge_list {
    struct merge *m;
    size_t n, cap;
};

static bool can_merge(const struct spm_vocab *v, uint32_t id)
{
    int t = v->type[id];
    return t != SPM_UNKNOWN && t != SPM_CONTROL && t != SPM_BYTE;
}

static bool add_cuts(const struct spm_vocab *v, uint32_t id, struct merge_list *l)
{
    struct gguf_text t = v->token[id];
    for (size_t cut = 1; cut < t.len; cut++) {
        uint32_t left, right;
        if ((t.text[cut] & 0xc0) == 0x80 || !spm_vocab_find(v, t.text, cut, &left) ||
            !spm_vocab_find(v, t.text + cut, t.len - cut, &right) || !can_merge(v, left) ||
            !can_merge(v, right))
            continue;
        if (l->n == l->cap) {
            size_t cap = l->cap ? 2 * l->cap : 4096;
            struct merge *m = realloc(l->m, cap * sizeof *m);
            if (!m)
                return false;
            l->m = m;
            l->cap = cap;
        }
        l->m[l->n++] = (struct merge){v->score[id], id, (uint32_t)cut, left};
    }
    return true;
}

static int compare_merges(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->left > y->left) - (x->left < y->left);
}

enum err_code spm_merges_put(const struct spm_vocab *v, struct strbuf *b, struct err *e)
{
    struct merge_list l = {0};
    bool ok = true, pairs = false;
    for (uint32_t id = 0; ok && id < v->n; id++) {
        if (can_merge(v, id))
            ok = add_cuts(v, id, &l);
        pairs |= memchr(v->token[id].text, ' ', v->token[id].len) != NULL;
    }
    if (!ok) {
        free(l.m);
        return err_set(e, ERR_NOMEM, "out of memory for %zu merges", l.n);
    }
    if (l.n)
        qsort(l.m, l.n, sizeof *l.m, compare_merges);
    strbuf_puts(b, "\"merges\":[");
    for (size_t i = 0; i < l.n; i++) {
        struct gguf_text t = v->token[l.m[i].id];
        size_t cut = l.m[i].cut;
        strbuf_puts(b, i ? "," : "");
        if (pairs) {
            strbuf_putc(b, '[');
            json_put_string(b, t.text, cut);
            strbuf_putc(b, ',');
            json_put_string(b, t.text + cut, t.len - cut);
            strbuf_putc(b, ']');
        } else {
            char both[TOKEN_MAX + 1];
            memcpy(both, t.text, cut);
            both[cut] = ' ';
            memcpy(both + cut + 1, t.text + cut, t.len - cut);
            json_put_string(b, both, t.len + 1);
        }
    }
    strbuf_puts(b, "]");
    free(l.m);
    return ERR_OK;
}
