/* cuda_rig.h: the CPU oracle and a CUDA device side by side, for the tests of the CUDA backend.
 *
 * Both are kerns of the mma90 arithmetic; whatever one is given, the other is given too, and what
 * they answer must be the same bytes (any NaN equals any NaN). A test program gives its tests to
 * rig_suite, which skips them loudly where no CUDA device can be opened. The suites do not fork
 * before a device is opened in the parent, so each test opens its own.
 *
 * With ASSAY_TEST_CAPABILITY=80 (86, 89, 90, 100, 120) in the environment the device is opened as
 * if it had no more than such a card has (cuda_paths.h): every operation then takes the kernels of
 * that card, and the bytes must be the same.
 */
#ifndef ASSAY_TESTS_CUDA_RIG_H
#define ASSAY_TESTS_CUDA_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cuda_private.h"
#include "tests/kernels_fixture.h"

struct rig {
    struct kern *side[2]; /* oracle, device */
};

/* Rows of a step on both sides of every boundary between kernels. */
#define RIG_COUNTS     30
#define RIG_COUNT_MOST 512
static const int rig_counts[RIG_COUNTS]
    __attribute__((unused)) = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,  13,  14,  15,
                               16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512};

FIX_FN struct rig rig_open(void)
{
    static const char *const devices[] = {"cpu", "cuda:0"};
    struct rig r;
    for (int i = 0; i < 2; i++) {
        struct kern_options o = {.device = devices[i], .arith = KERN_MMA90};
        struct err e = {.text = ""};
        ck_assert_msg(kern_open(&r.side[i], &o, &e) == ERR_OK, "%s", e.text);
    }
    return r;
}

FIX_FN void rig_close(struct rig *r)
{
    kern_close(r->side[0]);
    kern_close(r->side[1]);
}

/* Device memory that holds `data`, or zeros. */
FIX_FN void *rig_put(struct kern *k, const void *data, size_t bytes)
{
    struct err e = {.text = ""};
    void *p;
    fix_ok(kern_alloc(k, bytes, &p, &e), &e);
    if (data)
        fix_ok(kern_upload(k, p, data, bytes, &e), &e);
    return p;
}

/* A copy in host memory, the caller's. */
FIX_FN void *rig_get(struct kern *k, const void *p, size_t bytes)
{
    struct err e = {.text = ""};
    void *out = malloc(bytes + 1);
    ck_assert_ptr_nonnull(out);
    fix_ok(kern_download(k, out, p, bytes, &e), &e);
    return out;
}

/* The first of n words of 4 or 2 bytes in which two arrays differ, or -1. */
FIX_FN int64_t rig_differ(const void *a, const void *b, size_t n, int word)
{
    for (size_t i = 0; i < n; i++) {
        if (word == 4) {
            if (!fix_same(load_f32((const uint8_t *)a + 4 * i),
                          load_f32((const uint8_t *)b + 4 * i)))
                return (int64_t)i;
        } else if (!fix_same(bf16_to_f32(load_u16((const uint8_t *)a + 2 * i)),
                             bf16_to_f32(load_u16((const uint8_t *)b + 2 * i)))) {
            return (int64_t)i;
        }
    }
    return -1;
}

/* bf16 values: 0 ordinary, 1 exponents over 40 binades, 2 subnormal and tiny, 3 any bits. */
FIX_FN uint16_t *rig_inputs(struct rng *r, size_t n, int kind)
{
    uint16_t *x = malloc(n * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) {
        uint16_t sign = (uint16_t)(rng_below(r, 2) << 15), man = (uint16_t)rng_below(r, 128);
        if (kind == 0)
            x[i] = bf16_from_f32(fix_uniform(r, -1, 1));
        else if (kind == 1)
            x[i] = (uint16_t)(sign | (107 + rng_below(r, 40)) << 7 | man);
        else if (kind == 2)
            x[i] = (uint16_t)(sign | rng_below(r, 4) << 7 | man);
        else
            x[i] = (uint16_t)rng_below(r, 65536);
    }
    return x;
}

FIX_FN bool rig_has_device(char why[ERR_TEXT_MAX])
{
    int pipes[2], status = 1;
    why[0] = 0;
    if (pipe(pipes) != 0)
        return false;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct kern_options o = {.device = "cuda:0", .arith = KERN_MMA90};
        struct err e = {.text = ""};
        struct kern *k;
        bool ok = kern_open(&k, &o, &e) == ERR_OK;
        ssize_t n = write(pipes[1], e.text, strlen(e.text));
        _exit(ok && n >= 0 ? 0 : 1);
    }
    close(pipes[1]);
    ssize_t n = read(pipes[0], why, ERR_TEXT_MAX - 1);
    close(pipes[0]);
    why[n > 0 ? n : 0] = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* The card that the device is taken for, and a word about it. */
FIX_FN void rig_plant(void)
{
    const char *as = getenv("ASSAY_TEST_CAPABILITY");
    int capability = as ? atoi(as) : 0;
    if (!as)
        return;
    if (!cuda_chip_find(capability / 10, capability % 10)) {
        fprintf(stderr, "ASSAY_TEST_CAPABILITY=%s: no such card\n", as);
        exit(2); /* no test runs yet that could fail */
    }
    cuda_plant_capability(capability);
    printf("as if of compute capability %d.%d\n", capability / 10, capability % 10);
}

/* How many of some runs differed, where nothing waited for what came before it in the stream: some
 * must, unless the card starts nothing early. With another card's kernels, some of which start
 * early, nobody knows. */
FIX_FN void rig_saw_no_wait(int differ, const char *what)
{
    int planted = cuda_planted_capability();
    const struct cuda_chip *chip = cuda_chip_find(planted / 10, planted % 10);
    if (!chip)
        ck_assert_msg(differ > 0, "%s", what);
    else if (!(chip->hardware & CUDA_EARLY))
        ck_assert_msg(differ == 0, "%s", what);
}

/* A suite whose tests `add` gives, when there is a device; those of small[i] stand in a case of
 * their own, "small", "small2", "small3", ...: for compute-sanitizer, which runs the cases side by
 * side. */
#define RIG_SMALLS 8

FIX_FN Suite *rig_suite_of(const char *name, void (*add)(TCase *),
                           void (*const small[RIG_SMALLS])(TCase *))
{
    static const char *const names[RIG_SMALLS] = {"small",  "small2", "small3", "small4",
                                                  "small5", "small6", "small7", "small8"};
    static char why[ERR_TEXT_MAX];
    rig_plant();
    Suite *s = suite_create(name);
    bool here = rig_has_device(why);
    if (!here)
        test_skip(why);
    for (int i = -1; i < RIG_SMALLS && (i < 0 || small[i]); i++) {
        TCase *c = tcase_create(i < 0 ? name : names[i]);
        tcase_set_timeout(c, i < 0 ? 300 : 600);
        if (here)
            (i < 0 ? add : small[i])(c);
        suite_add_tcase(s, c);
    }
    return s;
}

FIX_FN Suite *rig_suite(const char *name, void (*add)(TCase *), void (*add_small)(TCase *))
{
    void (*const small[RIG_SMALLS])(TCase *) = {add_small};
    return rig_suite_of(name, add, small);
}

#endif
