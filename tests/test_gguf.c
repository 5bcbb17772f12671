/* test_gguf.c: GGUF headers, keys, tensor records and offsets, good and malformed. */
#include "ckpt/gguf.h"

#include "ckpt/container_open.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

static void judge(const struct strbuf *b, const char *words)
{
    struct err e = {0};
    struct container *c;
    enum err_code rc = container_view(&c, "x.gguf", (uint8_t *)b->data, b->len, &e);
    if (!words) {
        if (rc != ERR_OK)
            ck_abort_msg("%s", e.text);
        container_close(c);
        return;
    }
    ck_assert_int_eq(rc, ERR_INPUT);
    ck_assert(str_starts(e.text, "x.gguf: "));
    if (!strstr(e.text, words))
        ck_abort_msg("'%s' does not say '%s'", e.text, words);
}

/* Two small tensors; the record of the first starts at *record. */
static void small_file(struct strbuf *b, size_t *record)
{
    struct gguf_maker m = {0};
    gguf_u32(&m, "k", 7);
    *record = 24 + m.pairs.len;
    gguf_tensor(&m, "abc", GGML_F32, 2, 3, NULL);
    gguf_tensor(&m, "def", GGML_Q8_0, 2, 32, NULL);
    gguf_finish(&m, b);
}

/* The small file with n bytes at `at` (from its record) replaced. */
static void patched(size_t from_record, const void *with, size_t n, const char *words)
{
    struct strbuf b = {0};
    size_t record;
    small_file(&b, &record);
    memcpy(b.data + record + from_record, with, n);
    judge(&b, words);
    strbuf_free(&b);
}

START_TEST(a_good_file_opens)
{
    struct strbuf b = {0};
    struct container *c;
    size_t record;
    small_file(&b, &record);
    ck_assert_int_eq(container_view(&c, "x.gguf", (uint8_t *)b.data, b.len, NULL), ERR_OK);
    ck_assert_uint_eq(c->n_tensors, 2);
    const struct tensor *t = container_find(c, "abc");
    ck_assert_int_eq(t->dtype, DT_F32);
    ck_assert_int_eq(t->dim[0], 2);
    ck_assert_int_eq(t->dim[1], 3);
    ck_assert_uint_eq(t->bytes, 24);
    t = container_find(c, "def");
    ck_assert_int_eq(t->ggml, GGML_Q8_0);
    ck_assert_uint_eq(t->bytes, 68);
    ck_assert_ptr_eq(t->data, c->tensors[0].data + 32);
    container_close(c);
    b.data[4] = 2; /* version 2 has the same layout */
    judge(&b, NULL);
    strbuf_free(&b);
}
END_TEST

START_TEST(malformed_headers_are_refused)
{
    static const struct {
        size_t at;
        uint64_t v;
        size_t n;
        const char *words;
    } cases[] = {
        {0, 'X', 1, "magic 58 47 55 46, expected 'GGUF'"},
        {4, 1, 4, "GGUF version 1, expected 2 or 3"},
        {4, 4, 4, "GGUF version 4"},
        {4, 0x3000000, 4, "big-endian"},
        {8, UINT64_MAX, 8, "18446744073709551615 tensors in a file of"},
        {16, UINT64_MAX, 8, "18446744073709551615 pairs"},
        {8, 3, 8, "tensor record 3 of 3"},
        {16, 2, 8, "tensor record 1 of 2"},
        {16, 3, 8, "pair 3 of 3"},
        {24, UINT64_MAX, 8, "key at byte 24: length 18446744073709551615"},
        {24, 0, 8, "empty key"},
        {33, 13, 4, "key 'k': value type 13, expected 0 to 12"},
        {33, 8, 4, "key 'k': string at byte"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = {0};
        size_t record;
        small_file(&b, &record);
        memcpy(b.data + cases[i].at, &cases[i].v, cases[i].n);
        judge(&b, cases[i].words);
        strbuf_free(&b);
    }
}
END_TEST

START_TEST(malformed_records_are_refused)
{
    /* Record: u64 3, "abc", u32 2, u64 3, u64 2, u32 type, u64 offset. */
    patched(0, &(uint64_t){64}, 8, "name of 64 bytes, expected fewer than 64");
    patched(8, "a\0c", 3, "a NUL in its name");
    patched(8, "def", 3, "tensor 'def' occurs twice");
    patched(11, &(uint32_t){5}, 4, "tensor 'abc': 5 dimensions, expected at most 4");
    patched(15, &(uint64_t){UINT64_MAX}, 8, "dimension 0 is negative");
    patched(15, &(uint64_t){INT64_MAX}, 8, "overflows");
    patched(15, &(uint64_t){(uint64_t)1 << 61}, 8, "overflows");
    patched(15, &(uint64_t){1000000}, 8, "ends at 8000000 of a data section");
    patched(31, &(uint32_t){4}, 4, "tensor type 4 is not known");
    patched(31, &(uint32_t){77}, 4, "tensor type 77 is not known");
    patched(31, &(uint32_t){GGML_Q4_0}, 4, "row length 3, expected a multiple of 32 for Q4_0");
    patched(35, &(uint64_t){32}, 8, "tensor 'abc': data offset 32, expected 0");
    /* A smaller tensor still ends in the same padded 32 bytes, a larger one moves the next. */
    patched(15, &(uint64_t){4}, 8, NULL);
    patched(15, &(uint64_t){5}, 8, "tensor 'def': data offset 32, expected 64");
}
END_TEST

START_TEST(cut_anywhere_it_is_refused)
{
    struct strbuf b = {0};
    size_t record;
    small_file(&b, &record);
    size_t data_end = b.len - (96 - 68); /* the final padding may be missing */
    for (size_t n = 0; n < b.len; n++) {
        struct strbuf cut = {0};
        strbuf_append(&cut, b.data, n);
        if (!cut.data)
            strbuf_puts(&cut, "");
        judge(&cut, n < data_end ? "x.gguf: " : NULL);
        strbuf_free(&cut);
    }
    strbuf_puts(&b, "more"); /* bytes after the last tensor are legal */
    judge(&b, NULL);
    strbuf_free(&b);
}
END_TEST

START_TEST(alignment_is_a_u32_power_of_two)
{
    static const uint32_t good[] = {1, 8, 64, 4096};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct strbuf b = {0};
        struct gguf_maker m = {.align = good[i]};
        gguf_u32(&m, "general.alignment", good[i]);
        gguf_tensor(&m, "a", GGML_F32, 1, 3, NULL);
        gguf_tensor(&m, "b", GGML_F32, 1, 3, NULL);
        gguf_finish(&m, &b);
        judge(&b, NULL);
        strbuf_free(&b);
    }
    for (uint32_t bad = 0; bad <= 48; bad += 48) {
        struct strbuf b = {0};
        struct gguf_maker m = {0};
        gguf_u32(&m, "general.alignment", bad);
        gguf_finish(&m, &b);
        judge(&b, "expected a power of two");
        strbuf_free(&b);
    }
    struct strbuf b = {0};
    struct gguf_maker m = {0};
    gguf_string(&m, "general.alignment", "32");
    gguf_finish(&m, &b);
    judge(&b, "found string, expected u32");
    strbuf_free(&b);
}
END_TEST

START_TEST(keys_are_unique)
{
    struct strbuf b = {0};
    struct gguf_maker m = {0};
    gguf_u32(&m, "a", 1);
    gguf_u32(&m, "b", 1);
    gguf_u32(&m, "a", 2);
    gguf_finish(&m, &b);
    judge(&b, "key 'a' occurs twice");
    strbuf_free(&b);
}
END_TEST

START_TEST(arrays_are_bounded_by_the_file)
{
    static const struct {
        uint32_t elem;
        uint64_t n;
        const char *words;
    } cases[] = {{GGUF_U8, (uint64_t)1 << 30, "needs 1073741824 bytes"},
                 {GGUF_U64, (uint64_t)1 << 62, "at most 1073741824 are allowed"},
                 {GGUF_STRING, 1 << 20, "1048576 strings in the"},
                 {GGUF_ARRAY, 1, "array element type 9 is not allowed"},
                 {99, 1, "array element type 99"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = {0};
        struct gguf_maker m = {0};
        gguf_key(&m, "list", GGUF_ARRAY);
        make_u32(&m.pairs, cases[i].elem);
        make_u64(&m.pairs, cases[i].n);
        make_u64(&m.pairs, 0);
        gguf_finish(&m, &b);
        judge(&b, cases[i].words);
        strbuf_free(&b);
    }
}
END_TEST

START_TEST(getters_check_types_and_ranges)
{
    static const char *const words[] = {"one", "", "three"};
    static const int32_t numbers[] = {-5, 6};
    struct strbuf b = {0};
    struct gguf_maker m = {0};
    struct container *c;
    struct err e;
    gguf_u32(&m, "n", 7);
    gguf_f32(&m, "f", 1.5f);
    gguf_bool(&m, "b", true);
    gguf_string(&m, "s", "text");
    gguf_strings(&m, "ss", words, 3);
    gguf_words(&m, "is", GGUF_I32, numbers, 2);
    gguf_finish(&m, &b);
    ck_assert_int_eq(container_view(&c, "x.gguf", (uint8_t *)b.data, b.len, NULL), ERR_OK);
    int64_t n = 0;
    double d = 0;
    bool flag = false;
    struct gguf_text t = {NULL, 0};
    const struct gguf_pair *p;
    ck_assert_int_eq(gguf_get_int(c->gguf, "n", GGUF_REQUIRED, 0, 9, &n, &e), ERR_OK);
    ck_assert_int_eq(n, 7);
    ck_assert_int_eq(gguf_get_int(c->gguf, "n", GGUF_REQUIRED, 0, 6, &n, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'n': found 7, expected 0 to 6");
    ck_assert_int_eq(gguf_get_int(c->gguf, "f", GGUF_REQUIRED, 0, 9, &n, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'f': found f32, expected an integer");
    ck_assert_int_eq(gguf_get_int(c->gguf, "none", GGUF_OPTIONAL, 0, 9, &n, &e), ERR_OK);
    ck_assert_int_eq(n, 7);
    ck_assert_int_eq(gguf_get_int(c->gguf, "none", GGUF_REQUIRED, 0, 9, &n, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'none' is missing");
    ck_assert_int_eq(gguf_get_double(c->gguf, "f", GGUF_REQUIRED, &d, &e), ERR_OK);
    ck_assert(d == 1.5);
    ck_assert_int_eq(gguf_get_bool(c->gguf, "b", GGUF_REQUIRED, &flag, &e), ERR_OK);
    ck_assert(flag);
    ck_assert_int_eq(gguf_get_bool(c->gguf, "n", GGUF_REQUIRED, &flag, &e), ERR_INPUT);
    ck_assert_int_eq(gguf_get_text(c->gguf, "s", GGUF_REQUIRED, &t, &e), ERR_OK);
    ck_assert(t.len == 4 && memcmp(t.text, "text", 4) == 0);
    ck_assert_int_eq(gguf_get_text(c->gguf, "ss", GGUF_REQUIRED, &t, &e), ERR_INPUT);
    ck_assert_str_eq(e.text, "key 'ss': found array of string, expected string");
    ck_assert_int_eq(gguf_get_array(c->gguf, "ss", GGUF_STRING, GGUF_REQUIRED, &p, &e), ERR_OK);
    const uint8_t *at = NULL;
    for (size_t i = 0; i < 3; i++) {
        t = gguf_next_text(p, &at);
        ck_assert_uint_eq(t.len, strlen(words[i]));
        ck_assert_int_eq(memcmp(t.text, words[i], t.len), 0);
    }
    ck_assert_int_eq(gguf_get_array(c->gguf, "is", GGUF_F32, GGUF_REQUIRED, &p, &e), ERR_INPUT);
    ck_assert_int_eq(gguf_get_array(c->gguf, "is", GGUF_I32, GGUF_REQUIRED, &p, &e), ERR_OK);
    ck_assert(gguf_number(p, 0, &d, &n) && n == -5);
    ck_assert(!gguf_number(p, 2, &d, &n));
    container_close(c);
    strbuf_free(&b);
}
END_TEST

START_TEST(a_hostile_count_costs_no_memory)
{
    /* A file of 1 MiB that claims as many records as its size could hold at best. */
    struct strbuf b = {0};
    strbuf_puts(&b, "GGUF");
    make_u32(&b, 3);
    make_u64(&b, (1 << 20) / 24);
    make_u64(&b, 0);
    while (b.len < 1 << 20)
        strbuf_putc(&b, '\xff');
    judge(&b, "tensor record 1 of 43690");
    strbuf_free(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("all");
    tcase_add_test(t, a_good_file_opens);
    tcase_add_test(t, malformed_headers_are_refused);
    tcase_add_test(t, malformed_records_are_refused);
    tcase_add_test(t, cut_anywhere_it_is_refused);
    tcase_add_test(t, alignment_is_a_u32_power_of_two);
    tcase_add_test(t, keys_are_unique);
    tcase_add_test(t, arrays_are_bounded_by_the_file);
    tcase_add_test(t, getters_check_types_and_ranges);
    tcase_add_test(t, a_hostile_count_costs_no_memory);
    suite_add_tcase(s, t);
    return s;
}
