/* test_archive.c: members of tar and zip, in place or expanded, whole or damaged. */
#include "ckpt/archive.h"

#include "ckpt/container.h"
#include "tests/archive_make.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

#define BIG_BYTES ((size_t)300000)

static char dir[64], path[128];
static uint8_t big[BIG_BYTES];
static struct err err;

static void setup(void)
{
    struct rng r = {1, 0};
    ck_assert_ptr_nonnull(make_folder(dir));
    snprintf(path, sizeof path, "%s/a.bin", dir);
    for (size_t i = 0; i < BIG_BYTES; i++)
        big[i] = (uint8_t)(rng_next(&r) & 0x3f); /* compressible, but not trivially */
}

static void teardown(void)
{
    remove_folder(dir);
}

static const struct archive_part parts[] = {
    {"m/big.gguf", big, BIG_BYTES}, {"m/config.json", "{}", 2}, {"m/empty.json", "", 0}};

static void make(struct strbuf *b, enum archive_kind kind)
{
    ck_assert(make_archive(b, kind, parts, ARRAY_LEN(parts)));
}

static size_t find(const struct archive_map *a, const char *name)
{
    for (size_t i = 0; i < archive_map_count(a); i++) {
        if (strcmp(archive_map_name(a, i), name) == 0)
            return i;
    }
    ck_abort_msg("no member %s", name);
    return 0;
}

/* Opens the bytes and reads every member; the first error is kept. */
static enum err_code read_all(const void *data, size_t n)
{
    struct archive_map *a;
    write_file(dir, "a.bin", data, n);
    enum err_code rc = archive_map_open(&a, path, NULL, NULL, &err);
    if (rc != ERR_OK)
        return rc;
    for (size_t i = 0; rc == ERR_OK && i < archive_map_count(a); i++) {
        const uint8_t *p;
        size_t bytes;
        rc = archive_map_data(a, i, &p, &bytes, &err);
    }
    archive_map_close(a);
    return rc;
}

START_TEST(every_kind_gives_the_members)
{
    enum archive_kind kind = (enum archive_kind)_i;
    struct strbuf b = {0};
    struct archive_map *a;
    const uint8_t *data;
    size_t bytes;
    make(&b, kind);
    ck_assert(archive_map_is("a.bin", (uint8_t *)b.data, b.len));
    write_file(dir, "a.bin", b.data, b.len);
    ck_assert_int_eq(archive_map_open(&a, path, NULL, NULL, &err), ERR_OK);
    ck_assert_uint_eq(archive_map_count(a), 3);
    size_t i = find(a, "m/big.gguf");
    for (int turn = 0; turn < 2; turn++) { /* the second time nothing is read again */
        ck_assert_int_eq(archive_map_data(a, i, &data, &bytes, &err), ERR_OK);
        ck_assert_uint_eq(bytes, BIG_BYTES);
        ck_assert_int_eq(memcmp(data, big, BIG_BYTES), 0);
    }
    ck_assert_int_eq(archive_map_in_place(a, i), kind == MAKE_TAR || kind == MAKE_ZIP_STORED);
    ck_assert_int_eq(archive_map_data(a, find(a, "m/empty.json"), &data, &bytes, &err), ERR_OK);
    ck_assert_uint_eq(bytes, 0);
    archive_map_close(a);
    strbuf_free(&b);
}
END_TEST

START_TEST(truncated_archives_are_refused)
{
    struct strbuf b = {0};
    make(&b, (enum archive_kind)_i);
    /* A plain tar may lose the zeros after its last member. */
    size_t whole = _i == MAKE_TAR ? BIG_BYTES : b.len - 1;
    for (size_t cut = 1; cut < 40; cut++) {
        enum err_code rc = read_all(b.data, whole * cut / 40);
        ck_assert_int_eq(rc, ERR_INPUT);
        ck_assert(str_starts(err.text, path));
    }
    strbuf_free(&b);
}
END_TEST

START_TEST(damaged_data_is_noticed_where_a_checksum_exists)
{
    /* gzip, xz and both kinds of zip carry one; plain tar has none over data. */
    static const enum archive_kind kinds[] = {MAKE_TAR_GZ, MAKE_TAR_XZ, MAKE_ZIP, MAKE_ZIP_STORED};
    struct strbuf b = {0};
    make(&b, kinds[_i]);
    for (int turn = 0; turn < 8; turn++) {
        size_t at = b.len / 4 + (size_t)turn * (b.len / 20);
        b.data[at] = (char)(b.data[at] ^ 0x10);
        ck_assert_int_eq(read_all(b.data, b.len), ERR_INPUT);
        b.data[at] = (char)(b.data[at] ^ 0x10);
    }
    ck_assert_int_eq(read_all(b.data, b.len), ERR_OK);
    strbuf_free(&b);
}
END_TEST

START_TEST(names_that_lead_out_are_refused)
{
    static const char *const names[] = {"/etc/x.gguf", "../x.gguf", "a/../../x.gguf", "a/.."};
    static const char *const fine[] = {"a..b/x.gguf", "./x.gguf", "..x/y.gguf"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (int kind = MAKE_TAR; kind <= MAKE_ZIP_STORED; kind++) {
            struct strbuf b = {0};
            const struct archive_part one = {names[i], "x", 1};
            ck_assert(make_archive(&b, (enum archive_kind)kind, &one, 1));
            ck_assert_int_eq(read_all(b.data, b.len), ERR_INPUT);
            ck_assert_ptr_nonnull(strstr(err.text, "absolute or with '..'"));
            strbuf_free(&b);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        struct strbuf b = {0};
        const struct archive_part one = {fine[i], "x", 1};
        ck_assert(make_archive(&b, MAKE_TAR, &one, 1));
        ck_assert_int_eq(read_all(b.data, b.len), ERR_OK);
        strbuf_free(&b);
    }
}
END_TEST

static bool want_config(const void *ctx, const char *name)
{
    (void)ctx;
    return str_ends(name, "config.json");
}

START_TEST(unwanted_members_of_a_compressed_tar_are_not_kept)
{
    struct strbuf b = {0};
    struct archive_map *a;
    const uint8_t *data;
    size_t bytes;
    make(&b, MAKE_TAR_GZ);
    write_file(dir, "a.bin", b.data, b.len);
    ck_assert_int_eq(archive_map_open(&a, path, want_config, NULL, &err), ERR_OK);
    ck_assert_int_eq(archive_map_data(a, find(a, "m/config.json"), &data, &bytes, &err), ERR_OK);
    ck_assert_uint_eq(bytes, 2);
    ck_assert_int_eq(archive_map_data(a, find(a, "m/big.gguf"), &data, &bytes, &err), ERR_INTERNAL);
    archive_map_close(a);
    strbuf_free(&b);
}
END_TEST

START_TEST(zip_headers_that_disagree_are_refused)
{
    struct strbuf b = {0};
    make(&b, MAKE_ZIP_STORED);
    size_t end = b.len - 22; /* no comment: the end record is last */
    ck_assert_uint_eq(load_u32(b.data + end), 0x06054b50);
    size_t dir_off = load_u32(b.data + end + 16);
    static const struct {
        size_t at;
        uint32_t v;
        size_t n;
        const char *words;
    } cases[] = {{16, 0x7fffffff, 4, "CRC-32"},
                 {24, 0x00ffffff, 4, "its two sizes differ"},
                 {42, 0x00ffffff, 4, "no local header"},
                 {8, 1, 2, "encrypted"},
                 {28, 0xffff, 2, "an entry of"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf c = {0};
        strbuf_append(&c, b.data, b.len);
        memcpy(c.data + dir_off + cases[i].at, &cases[i].v, cases[i].n);
        ck_assert_int_eq(read_all(c.data, c.len), ERR_INPUT);
        if (!strstr(err.text, cases[i].words))
            ck_abort_msg("'%s' does not say '%s'", err.text, cases[i].words);
        strbuf_free(&c);
    }
    /* Both sizes beyond the file. */
    store_u32(b.data + dir_off + 20, 0x00ffffff);
    store_u32(b.data + dir_off + 24, 0x00ffffff);
    ck_assert_int_eq(read_all(b.data, b.len), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "the file ends at"));
    strbuf_free(&b);
}
END_TEST

START_TEST(of_equal_names_in_a_tar_the_last_counts)
{
    struct strbuf b = {0};
    struct archive_map *a;
    const uint8_t *data;
    size_t bytes;
    const struct archive_part twice[] = {{"x.json", "old", 3}, {"x.json", "newer", 5}};
    ck_assert(make_archive(&b, MAKE_TAR_GZ, twice, 2));
    write_file(dir, "a.bin", b.data, b.len);
    ck_assert_int_eq(archive_map_open(&a, path, NULL, NULL, &err), ERR_OK);
    ck_assert_uint_eq(archive_map_count(a), 1);
    ck_assert_int_eq(archive_map_data(a, 0, &data, &bytes, &err), ERR_OK);
    ck_assert_uint_eq(bytes, 5);
    archive_map_close(a);
    strbuf_free(&b);
}
END_TEST

START_TEST(containers_open_inside_archives)
{
    struct strbuf gguf = {0}, b = {0};
    struct container *c;
    char member[192];
    tiny_gguf(&gguf);
    const struct archive_part one[] = {{"d/m.gguf", gguf.data, gguf.len}, {"d/n.txt", "x", 1}};
    ck_assert(make_archive(&b, (enum archive_kind)_i, one, 2));
    write_file(dir, "a.bin", b.data, b.len);
    snprintf(member, sizeof member, "%s:d/m.gguf", path);
    if (container_open(&c, member, &err) != ERR_OK)
        ck_abort_msg("%s", err.text);
    ck_assert_ptr_nonnull(container_find(c, "token_embd.weight"));
    ck_assert_uint_eq(c->file_bytes, gguf.len);
    container_close(c);
    snprintf(member, sizeof member, "%s:d/none.gguf", path);
    ck_assert_int_eq(container_open(&c, member, &err), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "no member 'd/none.gguf'"));
    snprintf(member, sizeof member, "%s/nowhere.zip:x", dir);
    ck_assert_int_eq(container_open(&c, member, &err), ERR_INPUT);
    strbuf_free(&gguf);
    strbuf_free(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("archive");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, every_kind_gives_the_members, MAKE_TAR, MAKE_ZIP_STORED + 1);
    tcase_add_loop_test(t, truncated_archives_are_refused, MAKE_TAR, MAKE_ZIP_STORED + 1);
    tcase_add_loop_test(t, damaged_data_is_noticed_where_a_checksum_exists, 0, 4);
    tcase_add_test(t, names_that_lead_out_are_refused);
    tcase_add_test(t, unwanted_members_of_a_compressed_tar_are_not_kept);
    tcase_add_test(t, zip_headers_that_disagree_are_refused);
    tcase_add_test(t, of_equal_names_in_a_tar_the_last_counts);
    tcase_add_loop_test(t, containers_open_inside_archives, MAKE_TAR, MAKE_ZIP_STORED + 1);
    suite_add_tcase(s, t);
    return s;
}
