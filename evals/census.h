/* census.h: the Unicode scripts of a text, and how long an answer stays coherent.
 *
 * A script is stray in an answer when neither its prompt nor the reference's answer has it. An
 * answer is coherent until its first token of a stray script, its first garbled one (U+FFFD or a
 * control character that is no white space) or the beginning of a loop (measure.h), whichever comes
 * first. Common and inherited characters (digits, punctuation, marks) belong to no script.
 */
#ifndef ASSAY_EVALS_CENSUS_H
#define ASSAY_EVALS_CENSUS_H

#include "ckpt/trace.h"
#include "infer/tokenizer.h"

/* Bit i is script i of census_script_name; the last one is every script that has no name here. */
typedef uint32_t census_scripts;
#define CENSUS_SCRIPTS 31
const char *census_script_name(int i);

struct census; /* compiled patterns */
MUST_USE enum err_code census_new(struct census **c, struct err *e);
void census_free(struct census *c);

/* Scripts of a text; *garbled is the offset of the first garbled character, len: there is none. */
census_scripts census_text(const struct census *c, const char *text, size_t len, size_t *garbled);

struct census_answer {
    census_scripts stray;
    int64_t coherent; /* tokens before the first fault; n: there is none */
    int64_t loop;     /* token where a loop begins, -1: none */
    char fault[12];   /* "", "script", "garble", "loop" */
};
/* allowed: the scripts of the prompt and of the reference's answer. */
MUST_USE enum err_code census_answer(const struct census *c, const struct tokenizer *t,
                                     const struct trace_record *r, census_scripts allowed,
                                     struct census_answer *out, struct err *e);

#endif
