/* test_cuda_open.c: devices are opened by name, with and without a driver, a device or the CUDA
 * backend: what cannot be used is refused in words, and "auto" always gives a device.
 */
#include <check.h>
#include <stdio.h>

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
    ck_assert_ptr_nonnull(strstr(e.text, "not f32"));
#endif
}
END_TEST

/* No model of another family's step is here: the CPU says so, by name. */
START_TEST(the_oracle_refuses_what_was_not_measured)
{
    struct err e;
    char found[16] = "", words[64];
    enum kern_arith a = (enum kern_arith)_i;
    snprintf(words, sizeof words, "mma90 only; %s was not measured", kern_arith_name(a));
    ck_assert_int_eq(open_and_close("cpu", a, found, &e), ERR_USAGE);
    ck_assert_msg(strstr(e.text, words) != NULL, "%s", e.text);
}
END_TEST

/* A card is asked for its own arithmetic alone: each other one is refused, by name where there is a
 * card. */
START_TEST(a_card_computes_its_own)
{
    struct err e = {.text = ""};
    char found[16] = "";
    enum kern_arith own, cpu, a;
    ck_assert_int_eq(kern_device_arith("cpu", &cpu, &e), ERR_OK);
    ck_assert_int_eq(cpu, KERN_MMA90);
    bool card = kern_device_arith("cuda:0", &own, &e) == ERR_OK;
    ck_assert(card || e.text[0]);
    for (a = KERN_MMA90; a < KERN_ARITHS; a++) {
        enum err_code rc = open_and_close("cuda:0", a, found, &e);
        ck_assert_int_eq(rc, !card ? ERR_DEVICE : a == own ? ERR_OK : ERR_USAGE);
        if (card && a != own)
            ck_assert_ptr_nonnull(strstr(e.text, kern_arith_name(a)));
    }
}
END_TEST

START_TEST(names_are_found_again)
{
    enum kern_arith a = KERN_F32;
    ck_assert(kern_arith_find(kern_arith_name((enum kern_arith)_i), &a));
    ck_assert_int_eq((int)a, _i);
    ck_assert(!kern_arith_find("mma", &a));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("cuda open");
    TCase *c = tcase_create("open");
    tcase_add_test(c, auto_is_never_refused);
    tcase_add_test(c, a_device_that_is_not_there_is_refused_in_one_line);
    tcase_add_test(c, wrong_names_are_usage);
    tcase_add_loop_test(c, the_oracle_refuses_what_was_not_measured, KERN_MMA80, KERN_ARITHS);
    tcase_add_test(c, a_card_computes_its_own);
    tcase_add_loop_test(c, names_are_found_again, 0, KERN_ARITHS);
    suite_add_tcase(s, c);
    return s;
}
