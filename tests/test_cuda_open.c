/* test_cuda_open.c: devices are opened by name, with and without a driver, a device or the CUDA
 * backend: what cannot be used is refused in words, and "auto" always gives a device.
 */
#include <check.h>

#include "kernels/kernels.h"
#include "tests/check_main.h"

static enum err_code open_and_close(const char *device, enum kern_arith arith, char *found,
                                    struct err *e)
{
    struct kern_options o = {.device = device, .arith = arith};
    struct kern *k;
    e->text[0] = 0;
    enum err_code rc = kern_open(&k, &o, e);
    ck_assert((rc == ERR_OK) == (k != NULL));
    found[0] = 0;
    if (k)
        strncpy(found, kern_device(k), 15);
    kern_close(k);
    return rc;
}

START_TEST(auto_is_never_refused)
{
    struct err e;
    char found[16] = "";
    ck_assert_int_eq(open_and_close("auto", KERN_F32, found, &e), ERR_OK);
    ck_assert_str_eq(found, "cpu");
    ck_assert_int_eq(open_and_close("auto", KERN_MMA90, found, &e), ERR_OK);
    /* The CPU stands in; what succeeds leaves no error behind. */
    ck_assert(strcmp(found, "cuda:0") == 0 || strcmp(found, "cpu") == 0);
    ck_assert_str_eq(e.text, "");
}
END_TEST

START_TEST(a_device_that_is_not_there_is_refused_in_one_line)
{
    struct err e;
    char found[16] = "";
    ck_assert_int_eq(open_and_close("cuda:4000", KERN_MMA90, found, &e), ERR_DEVICE);
    ck_assert(e.text[0] && !strchr(e.text, '\n'));
    enum err_code rc = open_and_close("cuda:0", KERN_MMA90, found, &e);
    ck_assert(rc == ERR_OK || (rc == ERR_DEVICE && e.text[0]));
}
END_TEST

START_TEST(wrong_names_are_usage)
{
    struct err e;
    char found[16] = "";
    ck_assert_int_eq(open_and_close("gpu", KERN_MMA90, found, &e), ERR_USAGE);
    ck_assert_int_eq(open_and_close("cudax", KERN_MMA90, found, &e), ERR_USAGE);
#ifdef ASSAY_HAVE_CUDA
    static const char *const names[] = {"cuda:", "cuda:x", "cuda:-1", "cuda:0x", "cuda:5000"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        ck_assert_int_eq(open_and_close(names[i], KERN_MMA90, found, &e), ERR_USAGE);
    ck_assert_int_eq(open_and_close("cuda:0", KERN_F32, found, &e), ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, "mma90 only"));
#endif
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda open");
    TCase *c = tcase_create("open");
    tcase_add_test(c, auto_is_never_refused);
    tcase_add_test(c, a_device_that_is_not_there_is_refused_in_one_line);
    tcase_add_test(c, wrong_names_are_usage);
    suite_add_tcase(s, c);
    return s;
}
