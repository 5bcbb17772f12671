/* script_census.h: the Unicode scripts of a text, and how long an answer stays coherent.
 *
 * A script is stray in an answer when neither its prompt nor the reference's answer has it. An
 * answer is coherent until its first token of a stray script, its first garbled one (U+FFFD or a
 * control character that is no white space) or the beginning of a loop (measure.h), whichever comes
 * first. Common and inherited characters (digits, punctuation, marks) belong to no script.
 */
#ifndef ASSAY_EVALS_SCRIPT_CENSUS_H
#define ASSAY_EVALS_SCRIPT_CENSUS_H

#include "ckpt/trace.h"
#include "infer/tokenizer.h"

/* Bit i is script i of script_census_name; the last one is every script that has no name here. */
typedef uint32_t script_census_set;
#define SCRIPT_CENSUS_SCRIPTS 31
const char *script_census_name(int i);

struct script_census; /* compiled patterns */
MUST_USE enum err_code script_census_new(struct script_census **c, struct err *e);
void script_census_free(struct script_census *c);

/* Scripts of a text; *garbled is the offset of the first garbled character, len: there is none. */
script_census_set script_census_text(const struct script_census *c, const char *text, size_t len,
                                     size_t *garbled);

struct script_census_answer {
    script_census_set stray;
    int64_t coherent; /* tokens before the first fault; n: there is none */
    int64_t loop;     /* token where a loop begins, -1: none */
    char fault[12];   /* "", "script", "garble", "loop" */
};
/* allowed: the scripts of the prompt and of the reference's answer. */
MUST_USE enum err_code script_census_answer(const struct script_census *c,
                                            const struct tokenizer *t, const struct trace_record *r,
                                            script_census_set allowed,
                                            struct script_census_answer *out, struct err *e);

#endif
