/* test_quantize.c: folders made whole or not at all, the same bytes from any number of threads, in
 * bounded memory. */
#include "quant/quantize.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/quant_make.h"

#define RULES                                                                                      \
    "- bits: 4\n- role: head\n  bits: 8\n- match: \"*.v_proj.weight\"\n  bits: 5\n  group: 32\n"   \
    "- match: \"*.up_proj.weight\"\n  format: nvfp4\n"

static bool left_over(const struct quant_bed *b)
{
    char **names;
    size_t n, out = 0;
    ck_assert_int_eq(io_list(b->dir, &names, &n, NULL), ERR_OK);
    for (size_t i = 0; i < n; i++)
        out += strcmp(names[i], "out") == 0 || strstr(names[i], "assay-tmp") != NULL;
    io_names_free(names, n);
    return out > 0;
}

START_TEST(any_number_of_threads_gives_the_same_bytes)
{
    struct quant_bed b;
    char dirs[3][700];
    struct err e = {.text = ""};
    bed_model(&b);
    b.model.d_model = 256;
    b.model.d_ff = 1024; /* more than one run in a tensor */
    b.model.n_vocab = 3000;
    bed_open(&b);
    bed_plan(&b, RULES);
    for (int i = 0; i < 3; i++) {
        snprintf(dirs[i], sizeof dirs[i], "%s/out%d", b.dir, i);
        ck_assert_msg(bed_run(&b, dirs[i], 1 << i, &e) == ERR_OK, "%s", e.text);
    }
    for (int i = 1; i < 3; i++) {
        bed_same_file(dirs[0], dirs[i], "model.safetensors");
        bed_same_file(dirs[0], dirs[i], "assay.json");
        bed_same_file(dirs[0], dirs[i], "config.json");
    }
    bed_close(&b);
}
END_TEST

START_TEST(any_failing_write_leaves_no_half_folder)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    int failures = 0, late = 0;
    char whole[700];
    snprintf(whole, sizeof whole, "%s/whole", b.dir);
    ck_assert_int_eq(bed_run(&b, whole, 2, NULL), ERR_OK);
    for (int64_t nth = 1; nth < 400; nth++) {
        struct err e = {.text = ""};
        io_fault_set(IO_FAULT_WRITE, nth);
        enum err_code rc = bed_run(&b, b.out, 2, &e);
        io_fault_set(IO_FAULT_WRITE, 0);
        if (rc == ERR_OK)
            break;
        failures++;
        ck_assert_msg(rc == ERR_IO, "write %lld: %d %s", (long long)nth, rc, e.text);
        ck_assert(e.text[0]);
        if (!io_exists(b.out))
            continue;
        /* Only the sync that follows the rename may fail with a folder, and that one is whole. */
        bed_same_file(whole, b.out, "model.safetensors");
        bed_same_file(whole, b.out, "assay.json");
        late++;
        tiny_remove(b.out);
    }
    ck_assert_int_gt(failures, 8);
    ck_assert_int_le(late, 1);
    ck_assert(io_exists(b.out)); /* the first run without a fault */
    bed_close(&b);
}
END_TEST

START_TEST(any_failing_allocation_is_an_error)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    for (int64_t nth = 1; nth < 60; nth++) {
        struct err e = {.text = ""};
        io_fault_set(IO_FAULT_ALLOC, nth);
        enum err_code rc = bed_run(&b, b.out, 1, &e);
        io_fault_set(IO_FAULT_ALLOC, 0);
        if (rc == ERR_OK)
            break;
        ck_assert_msg(rc == ERR_NOMEM, "allocation %lld: %d %s", (long long)nth, rc, e.text);
        ck_assert(!io_exists(b.out));
    }
    bed_close(&b);
}
END_TEST

START_TEST(a_folder_that_cannot_be_written_is_an_io_error)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    char out[700];
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    snprintf(out, sizeof out, "%s/none/such", b.dir);
    ck_assert_int_eq(bed_run(&b, out, 1, &e), ERR_IO);
    if (geteuid() != 0) {
        chmod(b.dir, 0500);
        ck_assert_int_eq(bed_run(&b, b.out, 1, &e), ERR_IO);
        chmod(b.dir, 0700);
    } else {
        ck_assert_int_eq(bed_run(&b, "/proc/out", 1, &e), ERR_IO); /* read-only for root too */
    }
    bed_close(&b);
}
END_TEST

/* A file size limit is a full disk that needs no mount: writes fail in the same place. */
START_TEST(a_full_disk_leaves_no_folder)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 100 * 1000;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum err_code rc = bed_run(&b, b.out, 2, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_eq(rc, ERR_IO);
    ck_assert(!io_exists(b.out));
    char disk[700], out[800];
    snprintf(disk, sizeof disk, "%s/disk", b.dir);
    snprintf(out, sizeof out, "%s/out", disk);
    if (mkdir(disk, 0700) == 0 && mount("none", disk, "tmpfs", 0, "size=128k") == 0) {
        rc = bed_run(&b, out, 2, &e);
        bool there = io_exists(out);
        umount(disk);
        ck_assert_int_eq(rc, ERR_IO);
        ck_assert_ptr_nonnull(strstr(e.text, "No space left"));
        ck_assert(!there);
    }
    bed_close(&b);
}
END_TEST

START_TEST(an_interrupt_leaves_nothing)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    volatile int interrupted = SIGINT;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    struct quantize_summary s;
    struct quantize_job j = {.plan = b.p, .out = b.out, .command = "quantize"};
    j.pack.interrupted = &interrupted;
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_INTERRUPTED);
    ck_assert(!left_over(&b));
    bed_close(&b);
}
END_TEST

START_TEST(an_output_is_not_overwritten_unless_it_is_ours)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, RULES);
    struct quantize_summary s;
    struct quantize_job j = {.plan = b.p, .out = b.out, .command = "quantize"};
    ck_assert_int_eq(mkdir(b.out, 0700), 0);
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_USAGE);
    j.force = true;
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_USAGE); /* no manifest in it */
    ck_assert_int_eq(rmdir(b.out), 0);
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_OK);
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_OK);
    j.force = false;
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_USAGE);
    j.out = b.source;
    j.force = true;
    ck_assert_int_eq(quantize_run(&j, &s, &e), ERR_USAGE); /* output equal to input */
    bed_close(&b);
}
END_TEST

START_TEST(a_nan_is_refused_by_tensor_and_index)
{
    struct quant_bed b;
    bed_model(&b);
    b.model.nan_token = 5;
    bed_open(&b);
    bed_plan(&b, RULES);
    for (int threads = 1; threads <= 4; threads++) {
        struct err e = {.text = ""};
        ck_assert_int_eq(bed_run(&b, b.out, threads, &e), ERR_INPUT);
        ck_assert_msg(strstr(e.text, "tensor model.embed_tokens.weight: element 640 (row 5, column "
                                     "0): found NaN") != NULL,
                      "%s", e.text);
        ck_assert(!left_over(&b));
    }
    bed_close(&b);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------
 */

/* A sanitizer's shadow takes more address space than any limit leaves; what is resident counts. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

#define BIG_LAYERS 12
#define BIG_ROWS   4096 /* 4096 x 4096 bf16: 32 MiB a tensor, zeros of a sparse file */

static void put_big_tensor(struct strbuf *h, const char *name, int64_t rows, int64_t k,
                           uint64_t *off)
{
    uint64_t bytes = (uint64_t)(rows ? rows : 1) * (uint64_t)k * 2;
    strbuf_printf(h, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", h->len ? "," : "{", name);
    if (rows)
        strbuf_printf(h, "%lld,", (long long)rows);
    strbuf_printf(h, "%lld],\"data_offsets\":[%llu,%llu]}", (long long)k, (unsigned long long)*off,
                  (unsigned long long)(*off + bytes));
    *off += bytes;
}

static uint64_t write_big(const char *dir)
{
    static const char *const square[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                         "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                         "mlp.down_proj"};
    struct strbuf h = {0};
    uint64_t off = 0, len;
    char name[100], path[700], config[800];
    put_big_tensor(&h, "model.embed_tokens.weight", 64, BIG_ROWS, &off);
    put_big_tensor(&h, "model.norm.weight", 0, BIG_ROWS, &off);
    for (int l = 0; l < BIG_LAYERS; l++) {
        for (size_t i = 0; i < ARRAY_LEN(square); i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, square[i]);
            put_big_tensor(&h, name, BIG_ROWS, BIG_ROWS, &off);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        put_big_tensor(&h, name, 0, BIG_ROWS, &off);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        put_big_tensor(&h, name, 0, BIG_ROWS, &off);
    }
    strbuf_puts(&h, "}");
    ck_assert_int_eq(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    len = h.len;
    ck_assert(write(fd, &len, 8) == 8 && write(fd, h.data, h.len) == (ssize_t)h.len);
    ck_assert_int_eq(ftruncate(fd, (off_t)(8 + h.len + off)), 0);
    close(fd);
    strbuf_free(&h);
    snprintf(config, sizeof config,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":%d,"
             "\"num_hidden_layers\":%d,\"num_attention_heads\":32,\"num_key_value_heads\":32,"
             "\"vocab_size\":64,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
             "\"max_position_embeddings\":128,\"tie_word_embeddings\":true}",
             BIG_ROWS, BIG_ROWS, BIG_LAYERS);
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_assert_int_eq(io_write_all(path, config, strlen(config), false, NULL), ERR_OK);
    return off;
}

/* In a child: the whole of the file may be mapped, but beside it no more than the promise may be
 * asked for, and no more than it may ever be resident. */
static int run_big(struct quant_bed *b, uint64_t file, uint64_t allowed)
{
    struct rlimit limit;
    struct err e = {.text = ""};
    struct rusage use;
    getrlimit(RLIMIT_AS, &limit);
#ifndef SANITIZED
    limit.rlim_cur = file + allowed;
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        return 2;
#endif
    if (checkpoint_open(&b->c, b->source, &e) != ERR_OK ||
        bed_try_plan(b, "- bits: 4\n", &e) != ERR_OK || bed_run(b, b->out, 2, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 3;
    }
    getrusage(RUSAGE_SELF, &use);
    uint64_t peak = (uint64_t)use.ru_maxrss * 1024;
    fprintf(stderr, "%llu bytes of source, %llu at most resident, %llu allowed\n",
            (unsigned long long)file, (unsigned long long)peak, (unsigned long long)allowed);
    return peak <= allowed ? 0 : 4;
}

START_TEST(a_checkpoint_larger_than_the_memory_works)
{
    struct quant_bed b;
    bed_model(&b);
    uint64_t file = write_big(b.source), largest = (uint64_t)BIG_ROWS * BIG_ROWS * 2;
    uint64_t allowed = 2 * largest + ((uint64_t)256 << 20);
    ck_assert_uint_gt(file, 8 * allowed);
    pid_t child = fork();
    if (child == 0)
        _exit(run_big(&b, file, allowed));
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    ck_assert(io_exists(b.out));
    bed_close(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("quantize");
    TCase *t = tcase_create("folders");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, any_number_of_threads_gives_the_same_bytes);
    tcase_add_test(t, any_failing_write_leaves_no_half_folder);
    tcase_add_test(t, any_failing_allocation_is_an_error);
    tcase_add_test(t, a_folder_that_cannot_be_written_is_an_io_error);
    tcase_add_test(t, a_full_disk_leaves_no_folder);
    tcase_add_test(t, an_interrupt_leaves_nothing);
    tcase_add_test(t, an_output_is_not_overwritten_unless_it_is_ours);
    tcase_add_test(t, a_nan_is_refused_by_tensor_and_index);
    tcase_add_test(t, a_checkpoint_larger_than_the_memory_works);
    suite_add_tcase(s, t);
    return s;
}
