/* gguf_tokenizer.c: writes a GGUF vocabulary in the terms of the `tokenizers` library.
 *
 *   model "gpt2"    byte-level BPE; the pre-tokenizer is known by name only, so one that is not in
 *                   the table is refused rather than guessed
 *   model "llama"   SentencePiece BPE: merges are not stored, they follow from scores
 *   model "gemma4"  BPE over text with byte fallback, lines apart from runs of newlines
 *
 * Control and unknown tokens (types 3 and 2) become special added tokens, user-defined ones (4)
 * plain added tokens. No normalizer is invented: GGUF files name none. The SentencePiece merges
 * are in spm_merges.c.
 */
#include "ckpt/gguf_tokenizer.h"

#include <stdlib.h>

#include "ckpt/spm_merges.h"

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */

#define PATTERN_L3                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "                     \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_QW                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                          \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_QW35                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "                  \
    "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define WORDS(end)                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER     \
    "*" end
#define SIGNS          "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_O200K  WORDS(SHORT) "|\\p{N}{1,3}" SIGNS
#define PATTERN_TEKKEN WORDS("") "|\\p{N}" SIGNS

enum split { SPLIT_GPT2, SPLIT_DIGITS_GPT2, SPLIT_PATTERN };

struct pre {
    const char *name;
    enum split split;
    const char *pattern;
    bool ignore_merges, add_bos;
};

static const struct pre pres[] = {
    {"llama-bpe", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"llama3", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"llama-v3", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"falcon3", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"pixtral", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"lfm2", SPLIT_PATTERN, PATTERN_L3, true, true},
    {"qwen2", SPLIT_PATTERN, PATTERN_QW, false, false},
    {"deepseek-r1-qwen", SPLIT_PATTERN, PATTERN_QW, false, false},
    {"qwen35", SPLIT_PATTERN, PATTERN_QW35, false, false},
    {"gpt-2", SPLIT_GPT2, NULL, false, false},
    {"smollm", SPLIT_DIGITS_GPT2, NULL, false, false},
    {"gpt-4o", SPLIT_PATTERN, PATTERN_O200K, false, false},
    {"llama4", SPLIT_PATTERN, PATTERN_O200K, false, false},
    {"tekken", SPLIT_PATTERN, PATTERN_TEKKEN, true, true},
};

enum model { MODEL_GPT2, MODEL_LLAMA, MODEL_GEMMA4 };

struct setup {
    const struct gguf_meta *meta;
    struct spm_vocab vocab;
    enum model model;
    const struct pre *pre;
    const struct gguf_pair *merges;
    int64_t bos, eos, unk, pad; /* -1: none */
    bool add_bos, add_eos, space_prefix;
};

static bool text_is(struct gguf_text t, const char *s)
{
    return t.len == strlen(s) && memcmp(t.text, s, t.len) == 0;
}

/* ---- reading -----------------------------------------------------------------------------------
 */

static enum err_code read_model(struct setup *s, struct err *e)
{
    struct gguf_text model = {NULL, 0}, pre = {NULL, 0};
    enum err_code rc = gguf_get_text(s->meta, "tokenizer.ggml.model", GGUF_REQUIRED, &model, e);
    if (rc != ERR_OK)
        return rc;
    if (text_is(model, "llama")) {
        s->model = MODEL_LLAMA;
        return ERR_OK;
    }
    if (text_is(model, "gemma4")) {
        s->model = MODEL_GEMMA4;
        return ERR_OK;
    }
    if (!text_is(model, "gpt2")) {
        return err_set(e, ERR_INPUT,
                       "key 'tokenizer.ggml.model': '%.*s', expected gpt2, llama or gemma4",
                       (int)MIN2(model.len, (size_t)64), model.text);
    }
    s->model = MODEL_GPT2;
    rc = gguf_get_text(s->meta, "tokenizer.ggml.pre", GGUF_REQUIRED, &pre, e);
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(pres); i++) {
        if (text_is(pre, pres[i].name))
            s->pre = &pres[i];
    }
    if (rc == ERR_OK && !s->pre) {
        rc = err_set(e, ERR_INPUT,
                     "key 'tokenizer.ggml.pre': '%.*s' is not a pre-tokenizer that "
                     "is known",
                     (int)MIN2(pre.len, (size_t)64), pre.text);
    }
    return rc;
}

static enum err_code read_id(const struct setup *s, const char *key, int64_t *id, struct err *e)
{
    enum err_code rc = gguf_get_int(s->meta, key, GGUF_OPTIONAL, 0, UINT32_MAX, id, e);
    if (rc == ERR_OK && *id == UINT32_MAX)
        *id = -1; /* how some writers say "none" */
    if (rc == ERR_OK && *id >= (int64_t)s->vocab.n) {
        return err_set(e, ERR_INPUT, "key '%s': %lld of a vocabulary of %zu", key, (long long)*id,
                       s->vocab.n);
    }
    return rc;
}

static enum err_code read_settings(struct setup *s, struct err *e)
{
    bool spm = s->model == MODEL_LLAMA;
    int64_t last = (int64_t)s->vocab.n - 1;
    s->bos = MIN2(spm ? 1 : s->model == MODEL_GPT2 ? 11 : -1, last);
    s->eos = MIN2(spm ? 2 : s->model == MODEL_GPT2 ? 11 : -1, last);
    s->unk = spm ? 0 : -1;
    s->pad = -1;
    s->add_bos = spm || (s->pre && s->pre->add_bos);
    s->space_prefix = spm;
    enum err_code rc = read_id(s, "tokenizer.ggml.bos_token_id", &s->bos, e);
    if (rc == ERR_OK)
        rc = read_id(s, "tokenizer.ggml.eos_token_id", &s->eos, e);
    if (rc == ERR_OK)
        rc = read_id(s, "tokenizer.ggml.unknown_token_id", &s->unk, e);
    if (rc == ERR_OK)
        rc = read_id(s, "tokenizer.ggml.padding_token_id", &s->pad, e);
    if (rc == ERR_OK)
        rc = gguf_get_bool(s->meta, "tokenizer.ggml.add_bos_token", GGUF_OPTIONAL, &s->add_bos, e);
    if (rc == ERR_OK)
        rc = gguf_get_bool(s->meta, "tokenizer.ggml.add_eos_token", GGUF_OPTIONAL, &s->add_eos, e);
    if (rc == ERR_OK && spm)
        rc = gguf_get_bool(s->meta, "tokenizer.ggml.add_space_prefix", GGUF_OPTIONAL,
                           &s->space_prefix, e);
    s->add_bos &= s->bos >= 0;
    s->add_eos &= s->eos >= 0;
    if (rc == ERR_OK && !spm)
        rc = gguf_get_array(s->meta, "tokenizer.ggml.merges", GGUF_STRING, GGUF_REQUIRED,
                            &s->merges, e);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------
 */

static void put_token(struct strbuf *b, const struct setup *s, int64_t id)
{
    json_put_string(b, s->vocab.token[id].text, s->vocab.token[id].len);
}

static void put_added_tokens(struct strbuf *b, const struct setup *s)
{
    bool first = true;
    strbuf_puts(b, "\"added_tokens\":[");
    for (size_t i = 0; i < s->vocab.n; i++) {
        int type = s->vocab.type[i];
        if (type != SPM_UNKNOWN && type != SPM_CONTROL && type != SPM_USER)
            continue;
        strbuf_printf(b, "%s{\"id\":%zu,\"content\":", first ? "" : ",", i);
        put_token(b, s, (int64_t)i);
        strbuf_printf(b,
                      ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":%s}",
                      type == SPM_USER ? "false" : "true");
        first = false;
    }
    strbuf_puts(b, "],");
}

static void put_split(struct strbuf *b, const char *pattern)
{
    strbuf_puts(b, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_put_string(b, pattern, strlen(pattern));
    strbuf_puts(b, "},\"behavior\":\"Isolated\",\"invert\":false}");
}

static void put_byte_level(struct strbuf *b, bool use_regex)
{
    strbuf_printf(b,
                  "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                  "\"use_regex\":%s}",
                  use_regex ? "true" : "false");
}

static void put_stages(struct strbuf *b, const struct setup *s)
{
    static const char *const replace =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE_MARK "\"}";
    if (s->model == MODEL_GPT2) {
        strbuf_puts(b, "\"normalizer\":null,\"pre_tokenizer\":");
        if (s->pre->split == SPLIT_GPT2) {
            put_byte_level(b, true);
        } else {
            strbuf_puts(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
            if (s->pre->split == SPLIT_PATTERN)
                put_split(b, s->pre->pattern);
            else
                strbuf_puts(b, "{\"type\":\"Digits\",\"individual_digits\":true}");
            strbuf_putc(b, ',');
            put_byte_level(b, s->pre->split != SPLIT_PATTERN);
            strbuf_puts(b, "]}");
        }
    } else if (s->model == MODEL_GEMMA4) {
        strbuf_printf(b, "\"normalizer\":%s,\"pre_tokenizer\":", replace);
        put_split(b, "[^\\n]+|[\\n]+");
    } else if (s->space_prefix) {
        strbuf_printf(b,
                      "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                      "{\"type\":\"Prepend\",\"prepend\":\"" SPACE_MARK "\"},%s]},"
                      "\"pre_tokenizer\":null",
                      replace);
    } else {
        strbuf_printf(b, "\"normalizer\":%s,\"pre_tokenizer\":null", replace);
    }
    strbuf_putc(b, ',');
}

static void put_special(struct strbuf *b, const struct setup *s, int64_t id)
{
    strbuf_puts(b, "{\"SpecialToken\":{\"id\":");
    put_token(b, s, id);
    strbuf_puts(b, ",\"type_id\":0}}");
}

static void put_template(struct strbuf *b, const struct setup *s, const char *const *parts,
                         size_t n_parts)
{
    bool first = true;
    for (size_t i = 0; i < n_parts; i++) {
        if (s->add_bos) {
            strbuf_puts(b, first ? "" : ",");
            put_special(b, s, s->bos);
            first = false;
        }
        strbuf_printf(b, "%s{\"Sequence\":{\"id\":\"%s\",\"type_id\":0}}", first ? "" : ",",
                      parts[i]);
        first = false;
        if (s->add_eos) {
            strbuf_putc(b, ',');
            put_special(b, s, s->eos);
        }
    }
}

static void put_special_ids(struct strbuf *b, const struct setup *s, int64_t id)
{
    put_token(b, s, id);
    strbuf_puts(b, ":{\"id\":");
    put_token(b, s, id);
    strbuf_printf(b, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
    put_token(b, s, id);
    strbuf_puts(b, "]}");
}

static void put_post_processor(struct strbuf *b, const struct setup *s)
{
    static const char *const parts[] = {"A", "B"};
    strbuf_puts(b, "\"post_processor\":");
    if (!s->add_bos && !s->add_eos) {
        strbuf_puts(b, "null,");
        return;
    }
    strbuf_puts(b, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_template(b, s, parts, 1);
    strbuf_puts(b, "],\"pair\":[");
    put_template(b, s, parts, 2);
    strbuf_puts(b, "],\"special_tokens\":{");
    if (s->add_bos)
        put_special_ids(b, s, s->bos);
    if (s->add_eos && !(s->add_bos && s->bos == s->eos)) {
        strbuf_puts(b, s->add_bos ? "," : "");
        put_special_ids(b, s, s->eos);
    }
    strbuf_puts(b, "}},");
}

static void put_decoder(struct strbuf *b, const struct setup *s)
{
    strbuf_puts(b, "\"decoder\":");
    if (s->model == MODEL_GPT2) {
        put_byte_level(b, true);
    } else {
        strbuf_puts(b, "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                       "{\"String\":\"" SPACE_MARK "\"},\"content\":\" \"},"
                       "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
        if (s->space_prefix)
            strbuf_puts(b, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
        strbuf_puts(b, "]}");
    }
    strbuf_putc(b, ',');
}

/* First id of a tail of tokens that are all added ones. They stay out of the model, as in HF's own
 * files, so that no piece of plain text can be looked up as one. */
static size_t vocab_end(const struct setup *s)
{
    size_t end = s->vocab.n;
    while (end > 0 && (s->vocab.type[end - 1] == SPM_CONTROL || s->vocab.type[end - 1] == SPM_USER))
        end--;
    return s->model == MODEL_GPT2 ? end : s->vocab.n;
}

/* Where the two halves of a merge part: Gemma's tokens may begin with a space. */
static size_t merge_cut(const struct setup *s, struct gguf_text m)
{
    for (size_t i = s->model == MODEL_GEMMA4 ? 1 : 0; i < m.len; i++) {
        if (m.text[i] == ' ')
            return i;
    }
    return m.len;
}

static enum err_code put_merges(struct strbuf *b, const struct setup *s, struct err *e)
{
    const uint8_t *at = NULL;
    strbuf_puts(b, "\"merges\":[");
    for (uint64_t i = 0; i < s->merges->n; i++) {
        struct gguf_text m = gguf_next_text(s->merges, &at);
        size_t cut = merge_cut(s, m);
        if (cut + 1 >= m.len || cut == 0 || str_utf8_valid(m.text, m.len) != m.len) {
            return err_set(e, ERR_INPUT, "key 'tokenizer.ggml.merges': entry %llu is no pair",
                           (unsigned long long)i);
        }
        strbuf_puts(b, i ? "," : "");
        if (s->model == MODEL_GPT2) {
            json_put_string(b, m.text, m.len);
            continue;
        }
        strbuf_putc(b, '[');
        json_put_string(b, m.text, cut);
        strbuf_putc(b, ',');
        json_put_string(b, m.text + cut + 1, m.len - cut - 1);
        strbuf_putc(b, ']');
    }
    strbuf_puts(b, "]");
    return ERR_OK;
}

static enum err_code put_model(struct strbuf *b, const struct setup *s, struct err *e)
{
    bool bytes = s->model != MODEL_GPT2;
    size_t end = vocab_end(s);
    strbuf_puts(b, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (bytes && s->unk >= 0)
        put_token(b, s, s->unk);
    else
        strbuf_puts(b, "null");
    strbuf_printf(b,
                  ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                  "\"fuse_unk\":%s,\"byte_fallback\":%s,\"ignore_merges\":%s,\"vocab\":{",
                  bytes ? "true" : "false", bytes ? "true" : "false",
                  s->pre && s->pre->ignore_merges ? "true" : "false");
    for (size_t i = 0; i < end; i++) {
        strbuf_puts(b, i ? "," : "");
        put_token(b, s, (int64_t)i);
        strbuf_printf(b, ":%zu", i);
    }
    strbuf_puts(b, "},");
    enum err_code rc =
        s->model == MODEL_LLAMA ? spm_merges_put(&s->vocab, b, e) : put_merges(b, s, e);
    strbuf_puts(b, "}");
    return rc;
}

/* ---- tokenizer_config -------------------------------------------------------------------------
 */

static bool set_token(json_t *o, const char *key, const struct setup *s, int64_t id)
{
    if (id < 0)
        return true;
    struct gguf_text t = s->vocab.token[id];
    return json_object_set_new(o, key, json_stringn(t.text, t.len)) == 0;
}

static enum err_code make_config(const struct setup *s, json_t **out, struct err *e)
{
    struct gguf_text chat = {NULL, 0};
    enum err_code rc = gguf_get_text(s->meta, "tokenizer.chat_template", GGUF_OPTIONAL, &chat, e);
    if (rc != ERR_OK)
        return rc;
    json_t *o = json_object();
    bool ok =
        o && set_token(o, "bos_token", s, s->bos) && set_token(o, "eos_token", s, s->eos) &&
        set_token(o, "unk_token", s, s->unk) && set_token(o, "pad_token", s, s->pad) &&
        json_object_set_new(o, "add_bos_token", json_boolean(s->add_bos)) == 0 &&
        json_object_set_new(o, "add_eos_token", json_boolean(s->add_eos)) == 0 &&
        json_object_set_new(o, "clean_up_tokenization_spaces", json_false()) == 0 &&
        json_object_set_new(o, "tokenizer_class", json_string("PreTrainedTokenizerFast")) == 0;
    if (ok && chat.text)
        ok = json_object_set_new(o, "chat_template", json_stringn(chat.text, chat.len)) == 0;
    if (!ok) {
        json_decref(o);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    *out = o;
    return ERR_OK;
}

enum err_code gguf_tokenizer_make(const struct gguf_meta *m, struct strbuf *out, json_t **config,
                                  struct err *e)
{
    struct setup s = {.meta = m};
    *config = NULL;
    if (!gguf_find(m, "tokenizer.ggml.tokens"))
        return ERR_OK;
    enum err_code rc = read_model(&s, e);
    if (rc == ERR_OK)
        rc = spm_vocab_open(&s.vocab, m, e);
    if (rc == ERR_OK)
        rc = read_settings(&s, e);
    if (rc == ERR_OK) {
        strbuf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,");
        put_added_tokens(out, &s);
        put_stages(out, &s);
        put_post_processor(out, &s);
        put_decoder(out, &s);
        rc = put_model(out, &s, e);
        strbuf_puts(out, "}");
    }
    if (rc == ERR_OK)
        rc = strbuf_ok(out, e);
    if (rc == ERR_OK)
        rc = make_config(&s, config, e);
    spm_vocab_close(&s.vocab);
    return rc;
}
