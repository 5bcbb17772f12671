/* check_main.h: what a test program gives and gets. */
#ifndef ASSAY_TESTS_CHECK_MAIN_H
#define ASSAY_TESTS_CHECK_MAIN_H

#include <check.h>

Suite *test_suite(void);

/* Called by test_suite when data that the tests need is not here: printed and counted. */
void test_skip(const char *why);

#endif
