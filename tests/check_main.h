/* check_main.h: what a test program gives and gets. */
#ifndef ASSAY_TESTS_CHECK_MAIN_H
#define ASSAY_TESTS_CHECK_MAIN_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>

/* Is this program built with the address sanitizer, by either compiler? */
#if defined __SANITIZE_ADDRESS__
#define TEST_SANITIZED 1
#elif defined __has_feature
#define TEST_SANITIZED __has_feature(address_sanitizer)
#else
#define TEST_SANITIZED 0
#endif

Suite *test_suite(void);

/* Called by test_suite when data that the tests need is not here: printed and counted. */
void test_skip(const char *why);

/* A fresh empty folder, removed with all it holds when the test's process ends well. */
const char *test_folder(void);
/* folder/name in static memory that the 64th call after it takes again. */
const char *test_path(const char *folder, const char *name);
/* Whole files without the code under test; a failure fails the test. test_slurp's bytes are
 * terminated and the caller's. */
void test_spill(const char *path, const void *data, size_t bytes);
char *test_slurp(const char *path, size_t *bytes);
/* Changes 1 to 4 places of text (a byte replaced, taken out or put in; often one that formats give
 * a meaning to) and returns the new length, at most cap. *state goes on from call to call. */
size_t test_mutate(char *text, size_t len, size_t cap, uint64_t *state);
/* Names in a folder, sorted and joined by blanks, in static memory. */
const char *test_names(const char *folder);

#endif
