/* check_main.c: the runner that every test program is linked with.
 *
 * The program gives `Suite *test_suite(void)`. Suites run in forked children (a crash is one failed
 * test); a run in which nothing was tested fails. Skips are counted by test_skip and printed.
 */
#include "tests/check_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skipped;

void test_skip(const char *why)
{
    skipped = why;
}

int main(void)
{
    Suite *suite = test_suite();
    SRunner *runner = srunner_create(suite);
    if (skipped)
        printf("SKIP: %s\n", skipped);
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (run == 0 && skipped)
        return 77;
    if (run == 0)
        fprintf(stderr, "no test ran\n");
    return run == 0 || failed ? 1 : 0;
}
