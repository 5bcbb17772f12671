/* tok_fixture.h: tokenizers of a few tokens, for the tests of the tokenizer.
 *
 * JSON is written here with ' for ". What the expected ids are is what the Python library gives;
 * tests/reference/tokenizers_diff.py compares whole vocabularies with it.
 */
#ifndef ASSAY_TESTS_TOK_FIXTURE_H
#define ASSAY_TESTS_TOK_FIXTURE_H

#include <stdlib.h>

#include "infer/tokenizer.h"
#include "tests/check_main.h"

/* a 0, b 1, c 2, ab 3, bc 4, <unk> 5, space 6, aa 7, abc 8 */
#define VOCAB                 "'vocab':{'a':0,'b':1,'c':2,'ab':3,'bc':4,'<unk>':5,' ':6,'aa':7,'abc':8}"
#define BPE(rest)             "'model':{'type':'BPE'," VOCAB "," rest "}"
#define ADDED(id, text, rest) "{'id':" #id ",'content':'" text "'," rest "}"
#define FLAGS(word, l, r, norm, special)                                                           \
    "'single_word':" #word ",'lstrip':" #l ",'rstrip':" #r ",'normalized':" #norm                  \
    ",'special':" #special
#define SPECIAL FLAGS(false, false, false, false, true)
#define PLAIN   FLAGS(false, false, false, false, false)
#define MERGES  "'merges':['a b','b c','a a','ab c']"

static struct err err;

static inline char *unquote(const char *json)
{
    char *s = strdup(json);
    ck_assert_ptr_nonnull(s);
    for (char *p = s; *p; p++) {
        if (*p == '\'')
            *p = '"';
    }
    return s;
}

static inline enum err_code try_open(struct tokenizer **t, const char *body)
{
    struct strbuf b = {0};
    strbuf_printf(&b, "{%s}", body);
    char *s = unquote(b.data);
    enum err_code rc = tokenizer_new(t, s, strlen(s), NULL, &err);
    free(s);
    strbuf_free(&b);
    return rc;
}

static inline struct tokenizer *open_json(const char *body)
{
    struct tokenizer *t = NULL;
    ck_assert_msg(try_open(&t, body) == ERR_OK, "%s", err.text);
    return t;
}

/* Ids as "1 2 3". */
static inline void expect_ids(const struct token_list *l, const char *want)
{
    struct strbuf b = {0};
    strbuf_puts(&b, "");
    for (size_t i = 0; i < l->n; i++)
        strbuf_printf(&b, "%s%d", i ? " " : "", l->ids[i]);
    ck_assert_str_eq(b.data, want);
    strbuf_free(&b);
}

static inline void expect(const struct tokenizer *t, const char *text, int flags, const char *want)
{
    struct token_list l = {0};
    ck_assert_msg(tokenizer_encode(t, text, strlen(text), flags, &l, &err) == ERR_OK, "%s",
                  err.text);
    expect_ids(&l, want);
    token_list_free(&l);
}

static inline void expect_text(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip,
                               const char *want)
{
    struct strbuf b = {0};
    strbuf_puts(&b, "");
    ck_assert(tokenizer_decode(t, ids, n, skip, &b, &err) == ERR_OK);
    ck_assert_str_eq(b.data, want);
    strbuf_free(&b);
}

#define SPM                                                                                        \
    "'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'_'},"             \
    "{'type':'Replace','pattern':{'String':' '},'content':'_'}]},"                                 \
    "'model':{'vocab':{'_':0,'a':1,'_a':2,'<0xC3>':3,'<0xA9>':4,'<s>':5,'b':6,'<0xE2>':7},"        \
    "'byte_fallback':true,'merges':['_ a']},"                                                      \
    "'added_tokens':[" ADDED(                                                                      \
        5, "<s>",                                                                                  \
        SPECIAL) "],"                                                                              \
                 "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'" \
                 "<s>'}},"                                                                         \
                 "{'Sequence':{'id':'A'}}],'special_tokens':{'<s>':{'ids':[5]}}},"                 \
                 "'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':" \
                 "'_'},"                                                                           \
                 "'content':' "                                                                    \
                 "'},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ',"       \
                 "'start':1,'stop':0}]}"

#endif
