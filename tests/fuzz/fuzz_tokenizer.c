/* fuzz_tokenizer.c: hostile tokenizer.json files, used on texts of their own.
 *
 * The input is a tokenizer.json, a zero byte, and a text. Whatever opens must encode the text or
 * say why not, give ids that exist, and decode them as a whole and as a stream to the same text.
 */
#include <stdlib.h>

#include "infer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static void require(bool good)
{
    if (!good)
        abort();
}

static void decode(const struct tokenizer *t, const struct token_list *l, bool skip)
{
    struct strbuf whole = {0}, parts = {0};
    struct tok_stream s = {.skip_special = skip};
    struct err e = {0};
    enum err_code rc = tokenizer_decode(t, l->ids, l->n, skip, &whole, &e);
    require(rc == ERR_OK || e.text[0]);
    for (size_t i = 0; i < l->n && rc == ERR_OK; i++)
        rc = tok_stream_push(t, &s, l->ids[i], &parts, &e);
    if (rc == ERR_OK)
        rc = tok_stream_end(t, &s, &parts, &e);
    require(rc != ERR_OK || (whole.len == parts.len &&
                             (whole.len == 0 || !memcmp(whole.data, parts.data, whole.len))));
    require(str_utf8_valid(whole.data, whole.len) == whole.len);
    tok_stream_free(&s);
    strbuf_free(&whole);
    strbuf_free(&parts);
}

static void use(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_list l = {0};
    struct err e = {0};
    size_t half = len / 2;
    const struct tok_span spans[] = {{text, half, true}, {text + half, len - half, false}};
    for (int flags = 0; flags < 4; flags++) {
        enum err_code rc = tokenizer_encode(t, text, len, flags, &l, &e);
        require(rc == ERR_OK || e.text[0]);
    }
    enum err_code rc = tokenizer_encode_spans(t, spans, 2, 0, &l, &e);
    require(rc == ERR_OK || e.text[0]);
    for (size_t i = 0; i < l.n; i++)
        require(tokenizer_token(t, l.ids[i]) != NULL);
    for (int32_t id = -1; id <= MIN2(tokenizer_n_vocab(t), 300); id++) {
        struct strbuf piece = {0};
        rc = tokenizer_piece(t, id, &piece, &e);
        require(rc == ERR_OK || e.text[0]);
        strbuf_free(&piece);
        require(token_list_push(&l, id));
    }
    decode(t, &l, false);
    decode(t, &l, true);
    token_list_free(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *json = (const char *)data;
    const char *zero = bytes ? memchr(json, 0, bytes) : NULL;
    size_t len = zero ? (size_t)(zero - json) : bytes;
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_new(&t, json, len, NULL, &e) != ERR_OK) {
        require(!t && e.text[0]);
        return 0;
    }
    use(t, zero ? zero + 1 : "ab <s> 12", zero ? bytes - len - 1 : 9);
    e.text[0] = '\0';
    require(tokenizer_guard(t, "<t>", 3, &e) == ERR_OK);
    use(t, "a<s><t> \xc3\xa9", 10);
    tokenizer_free(t);
    return 0;
}

/* ' stands for ". */
static const char *const seeds_json[] = {
    "{'added_tokens':[{'id':9,'content':'<s>','single_word':false,'lstrip':true,'rstrip':false,"
    "'normalized':false,'special':true},{'id':10,'content':'<t>','single_word':true,'lstrip':false,"
    "'rstrip':true,'normalized':true,'special':false}],'normalizer':{'type':'Sequence',"
    "'normalizers':[{'type':'NFC'},{'type':'Prepend','prepend':'_'},{'type':'Replace','pattern':"
    "{'String':' '},'content':'_'},{'type':'Replace','pattern':{'Regex':'[x-z]+'},'content':'a'}]},"
    "'pre_tokenizer':null,'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':"
    "{'id':'<s>'}},{'Sequence':{'id':'A'}}],'special_tokens':{'<s>':{'ids':[9]}}},'decoder':"
    "{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},'content':' '},"
    "{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip','content':' ','start':1,'stop':1}]},"
    "'model':{'type':'BPE','unk_token':'<unk>','fuse_unk':true,'byte_fallback':true,'vocab':{'a':0,"
    "'b':1,'_':2,'_a':3,'<unk>':4,'<0xC3>':5,'<0xA9>':6,'ab':7,'_ab':8},'merges':['a b','_ ab',"
    "'_ a']}}",
    "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'Regex':"
    "'(?i:a|b)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|\\\\s+(?!\\\\S)|\\\\s+'},"
    "'behavior':'Isolated','invert':false},{'type':'Digits','individual_digits':true},{'type':"
    "'ByteLevel','add_prefix_space':true,'use_regex':true}]},'post_processor':{'type':'Sequence',"
    "'processors':[{'type':'ByteLevel'}]},'decoder':{'type':'ByteLevel'},'model':{'ignore_merges':"
    "true,'vocab':{'a':0,'b':1,'\xc4\xa0':2,'\xc3\x83':3,'\xc2\xa9':4,'ab':5,'1':6,'2':7},"
    "'merges':[['a','b']]}}",
    "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'Metaspace','replacement':'_',"
    "'prepend_scheme':'first','split':true},{'type':'Punctuation','behavior':'MergedWithNext'},"
    "{'type':'Whitespace'},{'type':'Split','pattern':{'String':'b'},'behavior':"
    "'MergedWithPrevious','invert':true}]},'decoder':{'type':'Metaspace','replacement':'_',"
    "'prepend_scheme':'always'},'model':{'vocab':{'a':0,'b':1,'_':2,'aa':3},'merges':['a a']}}",
};

static const char *const seeds_text[] = {
    "a b <s>ab<t> x\xc3\xa9y aaaa",
    "AB ab 1234  \n\n\xc3\xa9 \xe2\x80\xa8 b",
    " aab__b!a, aaaaaaa\xcc\x81",
};

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    size_t n = 0;
    for (; n < MIN2(max, ARRAY_LEN(seeds_json)); n++) {
        for (const char *p = seeds_json[n]; *p; p++)
            strbuf_putc(&seeds[n], *p == '\'' ? '"' : *p);
        strbuf_putc(&seeds[n], '\0');
        strbuf_puts(&seeds[n], seeds_text[n]);
    }
    return n;
}
