/* script_census.c: scripts by PCRE2's Unicode properties, and the first fault of an answer. */
#include "evals/script_census.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>

#include "evals/measure.h"

static const char *const scripts[SCRIPT_CENSUS_SCRIPTS] = {
    "Latin",    "Cyrillic",  "Greek",    "Han",      "Hiragana", "Katakana",   "Hangul",
    "Arabic",   "Hebrew",    "Thai",     "Bengali",  "Tamil",    "Devanagari", "Telugu",
    "Kannada",  "Malayalam", "Gujarati", "Gurmukhi", "Sinhala",  "Georgian",   "Armenian",
    "Ethiopic", "Khmer",     "Lao",      "Myanmar",  "Tibetan",  "Mongolian",  "Cherokee",
    "Bopomofo", "Syriac",    "Other"};

struct script_census {
    pcre2_code *code; /* one group a script; the groups after them: a garbled character */
    pcre2_match_data *match;
};

const char *script_census_name(int i)
{
    return scripts[i];
}

enum err_code script_census_new(struct script_census **out, struct err *e)
{
    struct strbuf b = {0};
    struct script_census *c = calloc(1, sizeof *c);
    int number;
    size_t at;
    *out = NULL;
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < SCRIPT_CENSUS_SCRIPTS - 1; i++)
        strbuf_printf(&b, "(\\p{%s}+)|", scripts[i]);
    /* Then any other script; then U+FFFD and control characters that are no white space. */
    strbuf_puts(&b, "([^\\p{Common}\\p{Inherited}\\p{Cn}])|(\\x{FFFD}|(?!\\s)\\p{Cc})");
    enum err_code rc = strbuf_ok(&b, e);
    if (rc == ERR_OK) {
        c->code =
            pcre2_compile((PCRE2_SPTR)b.data, b.len, PCRE2_UTF | PCRE2_UCP, &number, &at, NULL);
        c->match = c->code ? pcre2_match_data_create_from_pattern(c->code, NULL) : NULL;
        if (!c->match)
            rc = err_set(e, ERR_INTERNAL, "the pattern of scripts: PCRE2 error %d at %zu", number,
                         at);
    }
    strbuf_free(&b);
    if (rc == ERR_OK)
        *out = c;
    else
        script_census_free(c);
    return rc;
}

void script_census_free(struct script_census *c)
{
    if (!c)
        return;
    pcre2_match_data_free(c->match);
    pcre2_code_free(c->code);
    free(c);
}

script_census_set script_census_text(const struct script_census *c, const char *text, size_t len,
                                     size_t *garbled)
{
    script_census_set found = 0;
    size_t valid = str_utf8_valid(text, len), at = 0;
    *garbled = valid;
    while (at < valid) {
        int n =
            pcre2_match(c->code, (PCRE2_SPTR)text, valid, at, PCRE2_NO_UTF_CHECK, c->match, NULL);
        if (n <= 1)
            break;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(c->match);
        int group = n - 1; /* alternatives: the last group that is set is the one that matched */
        if (group == SCRIPT_CENSUS_SCRIPTS + 1)
            *garbled = MIN2(*garbled, (size_t)span[0]);
        else
            found |= (script_census_set)1 << (group - 1);
        at = span[1];
    }
    return found;
}

static void set_fault(struct script_census_answer *out, int64_t at, const char *what)
{
    if (at >= out->coherent)
        return;
    out->coherent = at;
    snprintf(out->fault, sizeof out->fault, "%s", what);
}

/* Decodes token by token: a character belongs to the token that completes it. */
enum err_code script_census_answer(const struct script_census *c, const struct tokenizer *t,
                                   const struct trace_record *r, script_census_set allowed,
                                   struct script_census_answer *out, struct err *e)
{
    struct tok_stream s = {.skip_special = true};
    struct strbuf b = {0};
    enum err_code rc = ERR_OK;
    size_t loop = measure_loop(r);
    *out = (struct script_census_answer){.coherent = (int64_t)r->n, .loop = -1};
    for (size_t i = 0; i <= r->n && rc == ERR_OK; i++) {
        size_t garbled;
        strbuf_clear(&b);
        rc = i < r->n ? tok_stream_push(t, &s, r->tok[i].id, &b, e) : tok_stream_end(t, &s, &b, e);
        if (rc == ERR_OK)
            rc = strbuf_ok(&b, e);
        if (rc != ERR_OK || !b.len)
            continue;
        int64_t at = (int64_t)MIN2(i, r->n ? r->n - 1 : 0);
        script_census_set stray = script_census_text(c, b.data, b.len, &garbled) & ~allowed;
        out->stray |= stray;
        if (stray)
            set_fault(out, at, "script");
        if (garbled < b.len)
            set_fault(out, at, "garble");
    }
    if (loop < r->n) {
        out->loop = (int64_t)loop;
        set_fault(out, (int64_t)loop, "loop");
    }
    strbuf_free(&b);
    tok_stream_free(&s);
    return rc;
}
