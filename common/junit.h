/* junit.h: results as the XML that build servers read. No times: equal results, equal bytes. */
#ifndef ASSAY_COMMON_JUNIT_H
#define ASSAY_COMMON_JUNIT_H

#include "common/str.h"

enum junit_result { JUNIT_PASSED, JUNIT_FAILED, JUNIT_ERROR, JUNIT_SKIPPED };

struct junit_case {
    const char *group, *name;
    enum junit_result result;
    const char *message; /* of what did not pass, one line; or NULL */
    const char *detail;  /* more lines, or NULL */
};

void junit_write(struct strbuf *b, const char *suite, const struct junit_case *cases, size_t n);

#endif
