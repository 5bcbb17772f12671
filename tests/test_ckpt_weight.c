/* test_ckpt_weight.c: pages of mapped files are given back, and what was in them comes back with
 * them; memory that is no file's is never touched.
 */
#include "ckpt/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/kernels_private.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"

static char *dir;

static void make_dir(void)
{
    dir = tiny_temp_dir();
    ck_assert_ptr_nonnull(dir);
}

static void remove_dir(void)
{
    tiny_remove(dir);
    free(dir);
}

static struct checkpoint *open_tiny(const struct tiny_model *m)
{
    struct checkpoint *c;
    struct err e = {.text = ""};
    char path[512];
    snprintf(path, sizeof path, "%s/m", dir);
    ck_assert_msg(tiny_model_write(path, m, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(checkpoint_open(&c, path, &e) == ERR_OK, "%s", e.text);
    return c;
}

/* Pages of [p, p + bytes) that are in this process's page tables, among whole ones. */
static int64_t pages_here(const void *p, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)p + page - 1) / page, to = ((uintptr_t)p + bytes) / page;
    FILE *f = fopen("/proc/self/pagemap", "rb");
    int64_t n = 0;
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, (long)(from * 8), SEEK_SET), 0);
    for (uintptr_t i = from; i < to; i++) {
        uint64_t entry = 0;
        ck_assert_uint_eq(fread(&entry, sizeof entry, 1, f), 1);
        n += (int64_t)(entry >> 63);
    }
    fclose(f);
    return n;
}

static struct tiny_model wide_model(enum tiny_form form)
{
    struct tiny_model m = tiny_model_default();
    m.d_ff = 4096;
    m.form = form;
    m.bits = 4;
    m.group = 64;
    return m;
}

static float *decoded(const struct ckpt_weight *w)
{
    struct err e = {.text = ""};
    int64_t rows = ckpt_weight_rows(w);
    float *out = malloc((size_t)(rows * ckpt_weight_k(w)) * sizeof *out);
    ck_assert_msg(ckpt_weight_decode(w, 0, rows, out, &e) == ERR_OK, "%s", e.text);
    return out;
}

#define UP "model.layers.0.mlp.up_proj.weight"

START_TEST(pages_go_and_come_back)
{
    struct tiny_model m = wide_model(_i ? TINY_PACKED : TINY_F32);
    struct checkpoint *c = open_tiny(&m);
    const struct ckpt_weight *w = checkpoint_find(c, UP);
    const int64_t rows = ckpt_weight_rows(w);
    const size_t bytes = (size_t)rows * ckpt_weight_row_bytes(w);
    ck_assert(w->mapped);
    float *before = decoded(w);
    ck_assert_int_gt(pages_here(w->data, bytes), 0);
    ckpt_weight_drop(w, 0, rows);
    ck_assert_int_eq(pages_here(w->data, bytes), 0);
    float *after = decoded(w);
    ck_assert_mem_eq(before, after, (size_t)(rows * ckpt_weight_k(w)) * sizeof *before);
    free(before);
    free(after);
    checkpoint_close(c);
}
END_TEST

/* A load gives back what it has read, and the matrix is the one that was loaded from memory. */
START_TEST(a_load_gives_back_its_source)
{
    struct tiny_model m = wide_model(_i % 2 ? TINY_PACKED : TINY_F32);
    struct checkpoint *c = open_tiny(&m);
    const struct ckpt_weight *w = checkpoint_find(c, UP);
    const size_t bytes = (size_t)ckpt_weight_rows(w) * ckpt_weight_row_bytes(w);
    struct kern_options o = {.device = "cpu", .arith = _i / 2 ? KERN_MMA90 : KERN_F32};
    struct kern_weight *loaded;
    struct kern *k;
    struct err e = {.text = ""};
    o.threads = 2;
    ck_assert_int_eq(kern_open(&k, &o, &e), ERR_OK);
    ck_assert_msg(kern_weight_load(k, &w, 1, &loaded, &e) == ERR_OK, "%s", e.text);
    ck_assert_int_eq(pages_here(w->data, bytes), 0);
    kern_weight_free(k, loaded);
    kern_close(k);
    checkpoint_close(c);
}
END_TEST

/* Memory of the reader's own would be lost. */
START_TEST(other_memory_stays)
{
    const size_t bytes = 1 << 20;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ckpt_weight w = {.enc = CKPT_DENSE,
                            .dtype = DT_F32,
                            .n_dim = 2,
                            .dim = {256, 1024},
                            .data = p,
                            .bytes = bytes};
    ck_assert_ptr_ne(p, MAP_FAILED);
    memset(p, 7, bytes);
    ckpt_weight_drop(&w, 0, 256);
    ck_assert_uint_eq(p[5000], 7);
    w.mapped = true; /* the fault that the flag keeps out */
    ckpt_weight_drop(&w, 0, 256);
    ck_assert_uint_eq(p[5000], 0);
    munmap(p, bytes);
}
END_TEST

/* A matrix whose bytes are too few is refused before anything is copied. */
START_TEST(too_few_bytes_are_refused)
{
    struct tiny_model m = wide_model(_i ? TINY_PACKED : TINY_F32);
    struct checkpoint *c = open_tiny(&m);
    struct ckpt_weight w = *checkpoint_find(c, UP);
    const struct ckpt_weight *part = &w;
    struct kern_source s;
    struct err e = {.text = ""};
    ck_assert_int_eq(kern_source_init(&s, &part, 1, &e), ERR_OK);
    w.bytes--;
    ck_assert_int_eq(kern_source_init(&s, &part, 1, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, "bytes, expected") != NULL, "%s", e.text);
    checkpoint_close(c);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("weights of checkpoints");
    TCase *c = tcase_create("pages");
    tcase_add_checked_fixture(c, make_dir, remove_dir);
    tcase_add_loop_test(c, pages_go_and_come_back, 0, 2);
    tcase_add_loop_test(c, a_load_gives_back_its_source, 0, 4);
    tcase_add_test(c, other_memory_stays);
    tcase_add_loop_test(c, too_few_bytes_are_refused, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
