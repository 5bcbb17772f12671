/* tokenizer.c: the tokenizer as a whole: opening, encoding, decoding and questions.
 *
 * Encoding, in the library's order: added tokens are found in the raw text; what lies between is
 * normalized; added tokens that are marked as normalized are found there; what lies between is cut
 * by the pre-tokenizer and each piece is merged on its own. The parts live in tok_*.c.
 */
#include "infer/tokenizer.h"

#include <stdlib.h>

#include "infer/tok_added.h"
#include "infer/tok_bpe.h"
#include "infer/tok_decode.h"
#include "infer/tok_norm.h"
#include "infer/tok_post.h"
#include "infer/tok_pretok.h"

struct tokenizer {
    struct tok_bpe bpe; /* with the vocabulary, which names added tokens too */
    struct tok_norm norm;
    struct tok_pretok pretok;
    struct tok_added added;
    struct tok_post post;
    struct tok_decoder decoder;
    int32_t bos;
};

bool token_list_push(struct token_list *l, int32_t id)
{
    if (!tok_util_grow(&l->ids, &l->cap, l->n + 1, sizeof *l->ids))
        return false;
    l->ids[l->n++] = id;
    return true;
}

void token_list_free(struct token_list *l)
{
    free(l->ids);
    memset(l, 0, sizeof *l);
}

/* ---- opening ------------------------------------------------------------------------------ */

static enum err_code read_model(struct tokenizer *t, const json_t *root, struct err *e)
{
    json_t *model = NULL;
    const char *type = "BPE";
    enum err_code rc = json_get_object(root, "model", JSON_REQUIRED, &model, e);
    if (rc == ERR_OK)
        rc = json_get_string(model, "type", JSON_OPTIONAL, &type, e);
    if (rc != ERR_OK)
        return rc;
    if (strcmp(type, "BPE") != 0)
        return err_set(e, ERR_INPUT, "model.type: found '%.80s', expected BPE", type);
    return err_wrap(e, tok_bpe_init(&t->bpe, model, e), "model");
}

/* bos_token of the configuration, a string or an added token; without it what the post-processor
 * puts first. */
static void find_bos(struct tokenizer *t, const json_t *config)
{
    const json_t *bos = json_object_get(config, "bos_token");
    if (json_is_object(bos))
        bos = json_object_get(bos, "content");
    if (json_is_string(bos))
        t->bos = tokenizer_id(t, json_string_value(bos));
    if (t->bos < 0 && t->post.before.n > 0)
        t->bos = t->post.before.ids[0];
}

static enum err_code ban_control(struct tokenizer *t, struct err *e)
{
    bool *banned = calloc((size_t)t->bpe.vocab.n_ids, sizeof *banned);
    if (!banned)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int32_t id = 0; id < t->bpe.vocab.n_ids; id++)
        banned[id] = tok_added_is_control(&t->added, id);
    enum err_code rc = tok_bpe_ban(&t->bpe, banned, e);
    free(banned);
    return rc;
}

enum err_code tokenizer_new(struct tokenizer **out, const char *json, size_t len,
                            const json_t *config, struct err *e)
{
    json_t *root = NULL;
    struct tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return err_set(e, ERR_NOMEM, "out of memory");
    t->bos = -1;
    enum err_code rc = json_parse(json, len, &root, e);
    if (rc == ERR_OK && !json_is_object(root))
        rc = err_set(e, ERR_INPUT, "found no object at the top");
    if (rc == ERR_OK)
        rc = read_model(t, root, e);
    if (rc == ERR_OK)
        rc = tok_norm_init(&t->norm, json_object_get(root, "normalizer"), e);
    if (rc == ERR_OK)
        rc = tok_added_init(&t->added, json_object_get(root, "added_tokens"), &t->bpe.vocab,
                            &t->norm, e);
    if (rc == ERR_OK)
        rc = ban_control(t, e);
    if (rc == ERR_OK)
        rc = tok_pretok_init(&t->pretok, json_object_get(root, "pre_tokenizer"), e);
    if (rc == ERR_OK)
        rc = tok_post_init(&t->post, json_object_get(root, "post_processor"), &t->bpe.vocab, e);
    if (rc == ERR_OK)
        rc = tok_decoder_init(&t->decoder, json_object_get(root, "decoder"), e);
    if (rc == ERR_OK)
        find_bos(t, config);
    json_decref(root);
    if (rc != ERR_OK) {
        tokenizer_free(t);
        return err_wrap(e, rc, "tokenizer.json");
    }
    *out = t;
    return ERR_OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    tok_bpe_free(&t->bpe);
    tok_norm_free(&t->norm);
    tok_pretok_free(&t->pretok);
    tok_added_free(&t->added);
    tok_post_free(&t->post);
    tok_decoder_free(&t->decoder);
    free(t);
}

enum err_code tokenizer_guard(struct tokenizer *t, const char *chat_template, size_t len,
                              struct err *e)
{
    tok_added_guard(&t->added, &t->bpe.vocab, (struct tok_text){chat_template, len});
    return ban_control(t, e);
}

/* ---- encoding ----------------------------------------------------------------------------- */

struct encoding {
    const struct tokenizer *t;
    struct token_list *out;
    struct tok_norm_scratch norm;
    struct tok_pretok_scratch pretok;
    struct tok_bpe_scratch bpe;
    struct tok_search search;
    struct err *e;
};

static void encoding_free(struct encoding *c)
{
    tok_norm_scratch_free(&c->norm);
    tok_pretok_scratch_free(&c->pretok);
    tok_bpe_scratch_free(&c->bpe);
    tok_regex_search_free(&c->search);
}

static struct tok_text cut_text(struct tok_text t, size_t from, size_t to)
{
    return (struct tok_text){t.s + from, to - from};
}

/* Normalized text without added tokens in it. */
static enum err_code encode_plain(struct encoding *c, struct tok_text text, bool first)
{
    const struct tok_pieces *p = NULL;
    if (text.len == 0)
        return ERR_OK;
    enum err_code rc = tok_pretok_run(&c->t->pretok, &c->pretok, text, first, &p, c->e);
    for (size_t i = 0; rc == ERR_OK && i < p->n; i++)
        rc = tok_bpe_encode(&c->t->bpe, p->text.data + p->v[i].off, p->v[i].len, &c->bpe, c->out,
                            c->e);
    return rc;
}

/* Runs through the matches of one set; what lies between goes to `rest`. */
static enum err_code
encode_between(struct encoding *c, const struct tok_added_set *set, struct tok_added_walk w,
               bool first, enum err_code (*rest)(struct encoding *, struct tok_added_walk, bool))
{
    struct tok_added_match m;
    bool found = true;
    enum err_code rc = ERR_OK;
    while (rc == ERR_OK && found) {
        rc = tok_added_next(&c->t->added, set, &w, &c->search, &m, &found, c->e);
        if (rc != ERR_OK)
            return rc;
        size_t stop = found ? m.start : w.text.len;
        if (stop > w.done) {
            struct tok_added_walk part = {cut_text(w.text, w.done, stop), w.trust, 0, 0};
            if (w.trust.map)
                part.trust.map += w.done;
            rc = rest(c, part, first && w.done == 0);
        }
        if (rc == ERR_OK && found && !token_list_push(c->out, m.id))
            rc = err_set(c->e, ERR_NOMEM, "out of memory");
        w.done = found ? m.end : w.text.len;
    }
    return rc;
}

static enum err_code encode_rest(struct encoding *c, struct tok_added_walk w, bool first)
{
    return encode_plain(c, w.text, first);
}

static enum err_code encode_normalized(struct encoding *c, struct tok_added_walk w, bool first)
{
    struct tok_text text = {"", 0};
    struct tok_trust trust = {NULL, false};
    enum err_code rc = tok_norm_run(&c->t->norm, &c->norm, w.text, w.trust, &text, &trust, c->e);
    if (rc != ERR_OK)
        return rc;
    return encode_between(c, &c->t->added.normalized, (struct tok_added_walk){text, trust, 0, 0},
                          first, encode_rest);
}

static enum err_code encode_raw(struct encoding *c, struct tok_added_walk w, bool first)
{
    return encode_between(c, &c->t->added.raw, w, first, encode_normalized);
}

static enum err_code push_all(struct token_list *to, const struct token_list *from, struct err *e)
{
    for (size_t i = 0; i < from->n; i++) {
        if (!token_list_push(to, from->ids[i]))
            return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_OK;
}

static enum err_code encode_text(const struct tokenizer *t, struct tok_text text,
                                 struct tok_trust trust, int flags, struct token_list *out,
                                 struct err *e)
{
    struct encoding c = {.t = t, .out = out, .e = e};
    size_t bad = str_utf8_valid(text.s, text.len);
    if (bad != text.len)
        return err_set(e, ERR_INPUT, "text is not well-formed UTF-8 at byte %zu of %zu", bad,
                       text.len);
    size_t before = out->n;
    enum err_code rc = ERR_OK;
    if (flags & TOK_ADD_SPECIAL)
        rc = push_all(out, &t->post.before, e);
    if (rc == ERR_OK)
        rc = encode_raw(&c, (struct tok_added_walk){text, trust, 0, 0}, true);
    if (rc == ERR_OK && (flags & TOK_ADD_SPECIAL))
        rc = push_all(out, &t->post.after, e);
    if (rc != ERR_OK)
        out->n = before;
    encoding_free(&c);
    return rc;
}

enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, int flags,
                               struct token_list *out, struct err *e)
{
    struct tok_trust trust = {NULL, (flags & TOK_PARSE_SPECIAL) != 0};
    return encode_text(t, (struct tok_text){len ? text : "", len}, trust, flags, out, e);
}

enum err_code tokenizer_encode_spans(const struct tokenizer *t, const struct tok_span *spans,
                                     size_t n, int flags, struct token_list *out, struct err *e)
{
    struct strbuf text = {0}, map = {0};
    struct tok_trust trust = {NULL, n > 0 && spans[0].trusted};
    bool mixed = false;
    for (size_t i = 0; i < n; i++) {
        mixed = mixed || spans[i].trusted != trust.all;
        strbuf_append(&text, spans[i].text, spans[i].len);
        if (strbuf_reserve(&map, spans[i].len) && spans[i].len > 0) {
            memset(map.data + map.len, spans[i].trusted, spans[i].len);
            map.len += spans[i].len;
            map.data[map.len] = '\0';
        }
    }
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = strbuf_ok(&map, e);
    if (mixed && text.len > 0)
        trust.map = map.data;
    if (rc == ERR_OK)
        rc = encode_text(t, (struct tok_text){text.len ? text.data : "", text.len}, trust, flags,
                         out, e);
    strbuf_free(&text);
    strbuf_free(&map);
    return rc;
}

/* ---- decoding ----------------------------------------------------------------------------- */

enum err_code tok_stream_push(const struct tokenizer *t, struct tok_stream *s, int32_t id,
                              struct strbuf *out, struct err *e)
{
    struct tok_text token = tok_added_text(&t->added, &t->bpe.vocab, id);
    if (!s->state)
        s->state = tok_decode_new(&t->decoder);
    if (!s->state)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (!token.s || (s->skip_special && tok_added_is_special(&t->added, id)))
        return ERR_OK;
    return tok_decode_push(&t->decoder, s->state, token, out, e);
}

enum err_code tok_stream_end(const struct tokenizer *t, struct tok_stream *s, struct strbuf *out,
                             struct err *e)
{
    enum err_code rc = s->state ? tok_decode_end(&t->decoder, s->state, out, e) : ERR_OK;
    tok_stream_free(s);
    return rc;
}

void tok_stream_free(struct tok_stream *s)
{
    tok_decode_free(s->state);
    s->state = NULL;
}

enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                               bool skip_special, struct strbuf *out, struct err *e)
{
    struct tok_stream s = {.skip_special = skip_special};
    enum err_code rc = ERR_OK;
    for (size_t i = 0; i < n && rc == ERR_OK; i++)
        rc = tok_stream_push(t, &s, ids[i], out, e);
    if (rc == ERR_OK)
        rc = tok_stream_end(t, &s, out, e);
    tok_stream_free(&s);
    return rc;
}

enum err_code tokenizer_piece(const struct tokenizer *t, int32_t id, struct strbuf *out,
                              struct err *e)
{
    struct tok_text token = tok_added_text(&t->added, &t->bpe.vocab, id);
    if (!token.s)
        return ERR_OK; /* models pad their vocabulary: such an id stands for no text */
    return tok_decode_piece(&t->decoder, token, out, e);
}

/* ---- questions ---------------------------------------------------------------------------- */

int32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->bpe.vocab.n_ids;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token)
{
    int32_t id = tok_vocab_find(&t->bpe.vocab, token, strlen(token));
    return id >= 0 ? id : tok_added_find(&t->added, &t->bpe.vocab, token, strlen(token));
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id)
{
    return tok_vocab_text(&t->bpe.vocab, id).s;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return tok_added_is_special(&t->added, id);
}
