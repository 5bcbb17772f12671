/* test_st_writer.c: files as the header promises them, and read back. */
#include "ckpt/st_writer.h"

#include "ckpt/container.h"
#include "common/hash.h"
#include "common/io.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

static char dir[64], path[128];
static struct err err;

static void setup(void)
{
    ck_assert_ptr_nonnull(make_folder(dir));
    snprintf(path, sizeof path, "%s/t.safetensors", dir);
}

static void teardown(void)
{
    remove_folder(dir);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != ERR_OK)                                                                      \
            ck_abort_msg("%s", err.text);                                                          \
    } while (0)

/* Three tensors declared out of order, data in pieces of `piece` bytes. */
static void write_three(const char *to, size_t piece, char hex[65])
{
    static const int64_t big[] = {3, 5}, none[] = {0, 7}, one[] = {1};
    struct st_writer *w;
    uint8_t data[60];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    OK(st_writer_open(&w, to, &err));
    OK(st_writer_declare(w, "z.odd", DT_U8, 1, one, &err));
    OK(st_writer_declare(w, "b.empty", DT_F32, 2, none, &err));
    OK(st_writer_declare(w, "a \"quoted\"", DT_F32, 2, big, &err));
    OK(st_writer_declare(w, "c.scalar", DT_BF16, 0, NULL, &err));
    OK(st_writer_begin(w, &err));
    ck_assert_str_eq(st_writer_next(w), "a \"quoted\"");
    for (size_t at = 0; at < 60; at += piece)
        OK(st_writer_data(w, "a \"quoted\"", data + at, MIN2(piece, 60 - at), &err));
    ck_assert_str_eq(st_writer_next(w), "c.scalar"); /* the empty one needs no bytes */
    OK(st_writer_data(w, "c.scalar", data, 2, &err));
    OK(st_writer_data(w, "z.odd", data, 1, &err));
    ck_assert_ptr_null(st_writer_next(w));
    OK(st_writer_finish(w, hex, &err));
}

START_TEST(our_reader_reads_it_back)
{
    char hex[65], again[65];
    write_three(path, 60, hex);
    OK(sha256_file(path, again, &err));
    ck_assert_str_eq(hex, again);
    struct container *c;
    OK(container_open(&c, path, &err));
    ck_assert_uint_eq(c->n_tensors, 4);
    const struct tensor *t = container_find(c, "a \"quoted\"");
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(t->dtype, DT_F32);
    ck_assert_int_eq(t->n_dim, 2);
    ck_assert_int_eq(t->dim[1], 5);
    for (size_t i = 0; i < 60; i++)
        ck_assert_uint_eq(t->data[i], (uint8_t)(i * 7));
    ck_assert_str_eq(json_string_value(json_object_get(c->metadata, "format")), "mlx");
    container_close(c);
}
END_TEST

/* Bytes hashed ahead beside another message, all of a tensor and a part of one. */
START_TEST(hashing_ahead_changes_no_digest)
{
    static const int64_t dim[] = {5000};
    uint8_t data[5000], other[3000], digest[32], want[32];
    char hex[65], again[65];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    memcpy(other, data + 100, sizeof other);
    struct sha256_piece piece = {sha256_new(), other, sizeof other};
    struct st_writer *w;
    OK(st_writer_open(&w, path, &err));
    OK(st_writer_declare(w, "a", DT_U8, 1, dim, &err));
    OK(st_writer_declare(w, "b", DT_U8, 1, dim, &err));
    OK(st_writer_begin(w, &err));
    st_writer_hash(w, data, 5000, &piece);
    ck_assert_uint_eq(piece.bytes, 0);
    for (size_t at = 0; at < 5000; at += 1000)
        OK(st_writer_data(w, "a", data + at, 1000, &err));
    piece = (struct sha256_piece){piece.sha, other, 500};
    st_writer_hash(w, data, 333, &piece);
    ck_assert_uint_eq(piece.bytes, 167);
    for (size_t at = 0; at < 5000; at += 500)
        OK(st_writer_data(w, "b", data + at, 500, &err));
    OK(st_writer_finish(w, hex, &err));
    OK(sha256_file(path, again, &err));
    ck_assert_str_eq(hex, again);
    sha256_final(piece.sha, digest);
    struct sha256 *s = sha256_new();
    sha256_update(s, other, sizeof other);
    sha256_update(s, other, 333);
    sha256_final(s, want);
    ck_assert(memcmp(digest, want, sizeof want) == 0);
}
END_TEST

START_TEST(names_are_sorted_without_holes_from_a_multiple_of_64)
{
    char hex[65];
    struct strbuf b = {0};
    write_three(path, 60, hex);
    OK(io_read_all(path, 1 << 20, &b, &err));
    uint64_t n = load_u64(b.data);
    ck_assert_uint_eq((8 + n) % 64, 0);
    ck_assert_uint_eq(b.len, 8 + n + 60 + 2 + 1);
    const char *at = b.data + 8;
    static const char *const order[] = {"{\"__metadata__\":{\"format\":\"mlx\"},",
                                        "a \\\"quoted",
                                        "[0,60]",
                                        "b.empty",
                                        "[60,60]",
                                        "c.scalar",
                                        "[60,62]",
                                        "z.odd",
                                        "[62,63]"};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        const char *found = memmem(at, (size_t)(b.data + 8 + n - at), order[i], strlen(order[i]));
        ck_assert_ptr_nonnull(found);
        at = found + strlen(order[i]);
    }
    strbuf_free(&b);
}
END_TEST

START_TEST(bytes_do_not_depend_on_the_pieces)
{
    char first[65], hex[65], other[160];
    write_three(path, 60, first);
    for (size_t piece = 1; piece < 60; piece += 6) {
        snprintf(other, sizeof other, "%s/p%zu.safetensors", dir, piece);
        write_three(other, piece, hex);
        ck_assert_str_eq(hex, first);
    }
}
END_TEST

START_TEST(missing_or_misplaced_bytes_are_refused)
{
    static const int64_t dim[] = {4};
    struct st_writer *w;
    char hex[65];
    OK(st_writer_open(&w, path, &err));
    OK(st_writer_declare(w, "a", DT_U8, 1, dim, &err));
    OK(st_writer_declare(w, "b", DT_U8, 1, dim, &err));
    ck_assert_int_eq(st_writer_declare(w, "__metadata__", DT_U8, 1, dim, &err), ERR_INTERNAL);
    OK(st_writer_begin(w, &err));
    ck_assert_int_eq(st_writer_data(w, "b", "1234", 4, &err), ERR_INTERNAL);
    ck_assert_int_eq(st_writer_data(w, "a", "12345", 5, &err), ERR_INTERNAL);
    OK(st_writer_data(w, "a", "1234", 4, &err));
    OK(st_writer_data(w, "b", "123", 3, &err));
    ck_assert_int_eq(st_writer_finish(w, hex, &err), ERR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.text, "1 bytes of 'b'"));
    ck_assert(!io_exists(path)); /* nothing that looks finished is left */
    OK(st_writer_open(&w, path, &err));
    OK(st_writer_declare(w, "a", DT_U8, 1, dim, &err));
    OK(st_writer_declare(w, "a", DT_U8, 1, dim, &err));
    ck_assert_int_eq(st_writer_begin(w, &err), ERR_INTERNAL);
    st_writer_abort(w);
}
END_TEST

START_TEST(existing_file_is_not_overwritten)
{
    struct st_writer *w;
    write_text(dir, "t.safetensors", "mine");
    ck_assert_int_eq(st_writer_open(&w, path, &err), ERR_USAGE);
    ck_assert_ptr_null(w);
}
END_TEST

START_TEST(failing_writes_leave_no_file)
{
    for (int nth = 1; nth < 12; nth++) {
        static const int64_t dim[] = {300000};
        static uint8_t data[300000];
        struct st_writer *w = NULL;
        char hex[65];
        io_fault_set(IO_FAULT_WRITE, nth);
        enum err_code rc = st_writer_open(&w, path, &err);
        if (rc == ERR_OK)
            rc = st_writer_declare(w, "a", DT_U8, 1, dim, &err);
        if (rc == ERR_OK)
            rc = st_writer_begin(w, &err);
        if (rc == ERR_OK)
            rc = st_writer_data(w, "a", data, sizeof data, &err);
        if (rc == ERR_OK)
            rc = st_writer_finish(w, hex, &err);
        else
            st_writer_abort(w);
        io_fault_set(IO_FAULT_WRITE, 0);
        if (rc == ERR_OK) {
            ck_assert_int_gt(nth, 2); /* the fault must have hit at least create and write */
            break;
        }
        ck_assert_int_eq(rc, ERR_IO);
        ck_assert_str_ne(err.text, "");
        unlink(path); /* there when only the folder's sync failed */
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("st_writer");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, our_reader_reads_it_back);
    tcase_add_test(t, hashing_ahead_changes_no_digest);
    tcase_add_test(t, names_are_sorted_without_holes_from_a_multiple_of_64);
    tcase_add_test(t, bytes_do_not_depend_on_the_pieces);
    tcase_add_test(t, missing_or_misplaced_bytes_are_refused);
    tcase_add_test(t, existing_file_is_not_overwritten);
    tcase_add_test(t, failing_writes_leave_no_file);
    suite_add_tcase(s, t);
    return s;
}
