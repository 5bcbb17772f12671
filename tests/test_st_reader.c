/* test_st_reader.c: every malformed safetensors file is refused with the place and the numbers. */
#include "ckpt/container_open.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

#define T(body) "{\"a\":{" body "}}"
#define F32_2   "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

/* A header, the bytes of data behind it, and words of the error; NULL: accepted. */
static const struct {
    const char *header;
    size_t n_data;
    const char *words;
} cases[] = {
    {T(F32_2), 8, NULL},
    {"{}", 0, NULL},
    {" \n\t\r" T(F32_2) " \n\t\r", 8, NULL},
    {"{\"__metadata__\":null}", 0, NULL},
    {T("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, NULL},
    {T("\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]"), 0, NULL},
    {T("\"dtype\":\"ODD\",\"shape\":[3],\"data_offsets\":[0,5]"), 5, NULL},
    {T(F32_2 ",\"more\":{\"x\":[1.5,null]}"), 8, NULL},
    {T(F32_2), 7, "data_offsets [0, 8] in a data section of 7 bytes"},
    {T(F32_2), 9, "end at byte 8 of a data section of 9 bytes"},
    {T("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, "span 8 bytes"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, "data_offsets [8, 0]"},
    {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), 8,
     "starts at 4, expected 0 (a hole)"},
    {"{\"a\":{" F32_2 "},\"b\":{" F32_2 "}}", 8, "overlap"},
    {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[4,12]}}", 12,
     "tensor 'b': data starts at 4, expected 8 (tensors overlap)"},
    {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8,
     "overlap"},
    {T("\"dtype\":\"F32\",\"shape\":[2,9223372036854775807],\"data_offsets\":[0,8]"), 8,
     "overflows"},
    {T("\"dtype\":\"F32\",\"shape\":[2,18446744073709551614],\"data_offsets\":[0,8]"), 8,
     "shape: expected integers"},
    {T("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, "12 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "not negative"},
    {T("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "expected integers"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-0,8]"), 8, "signed zero"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, "array of two"},
    {T("\"dtype\":\"F32\",\"shape\":[2]"), 8, "data_offsets: missing"},
    {T("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "dtype: missing or no string"},
    {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8,
     "9 dimensions"},
    {"{\"a\":[\"F32\",[2],[0,8]]}", 8, "tensor 'a': expected an object"},
    {"{\"a\":{" F32_2 "},\"a\":{" F32_2 "}}", 8, "duplicate"},
    {T(F32_2 ",\"dtype\":\"F32\""), 8, "duplicate"},
    {"[]", 0, "expected an object"},
    {"{\"a\"}", 0, "header: line 1"},
    {"{} x", 0, "header: line 1"},
    {"{\"\xff\":{" F32_2 "}}", 8, "header: line 1"},
    {"\xef\xbb\xbf{}", 0, "header: line 1"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: 'a' is no string"},
    {"{\"__metadata__\":[]}", 0, "__metadata__: expected an object"},
    {"{\"a\\u0000b\":{" F32_2 "}}", 8, "header: line 1"},
};

static void judge(const void *data, size_t n, const char *words)
{
    struct err e = {0};
    struct container *c;
    enum err_code rc = container_view(&c, "x.safetensors", data, n, &e);
    if (!words) {
        if (rc != ERR_OK)
            ck_abort_msg("%s", e.text);
        container_close(c);
        return;
    }
    ck_assert_int_eq(rc, ERR_INPUT);
    ck_assert_ptr_null(c);
    ck_assert(str_starts(e.text, "x.safetensors: "));
    if (!strstr(e.text, words))
        ck_abort_msg("'%s' does not say '%s'", e.text, words);
}

START_TEST(each_header_is_judged)
{
    struct strbuf b = {0};
    make_u64(&b, strlen(cases[_i].header));
    strbuf_puts(&b, cases[_i].header);
    for (size_t i = 0; i < cases[_i].n_data; i++)
        strbuf_putc(&b, (char)i);
    judge(b.data, b.len, cases[_i].words);
    strbuf_free(&b);
}
END_TEST

START_TEST(header_length_is_bounded)
{
    judge("", 0, "0 bytes");
    judge("1234567", 7, "7 bytes");
    judge("\2\0\0\0\0\0\0\0", 8, "header of 2 bytes in a file of 8 bytes");
    judge("\0\0\0\0\0\0\0\0{}", 10, "header length 0");
    judge("\1\0\0\0\0\0\0\0{", 9, "header length 1");
    judge("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "header length 18446744073709551615");
    judge("\1\341\365\5\0\0\0\0{}", 10, "header length 100000001");
    judge("\0\341\365\5\0\0\0\0{}", 10, "header of 100000000 bytes in a file of 10 bytes");
}
END_TEST

START_TEST(depth_is_bounded)
{
    struct strbuf b = {0}, file = {0};
    strbuf_puts(&b, "{\"a\":");
    for (int i = 0; i < 200000; i++)
        strbuf_putc(&b, '[');
    make_u64(&file, b.len);
    strbuf_append(&file, b.data, b.len);
    judge(file.data, file.len, "nested deeper than 128");
    strbuf_free(&b);
    strbuf_free(&file);
}
END_TEST

START_TEST(a_name_has_at_most_511_bytes)
{
    for (size_t n = 511; n <= 512; n++) {
        struct strbuf b = {0}, file = {0};
        strbuf_puts(&b, "{\"");
        for (size_t i = 0; i < n; i++)
            strbuf_putc(&b, 'n');
        strbuf_puts(&b, "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
        make_u64(&file, b.len);
        strbuf_append(&file, b.data, b.len);
        judge(file.data, file.len, n == 511 ? NULL : "name of 512 bytes");
        strbuf_free(&b);
        strbuf_free(&file);
    }
}
END_TEST

START_TEST(cut_anywhere_it_is_refused)
{
    struct strbuf b = {0};
    tiny_st(&b, true);
    judge(b.data, b.len, NULL);
    for (size_t n = 0; n < b.len; n += n < 4096 ? 1 : 997)
        judge(b.data, n, "x.safetensors: ");
    strbuf_free(&b);
}
END_TEST

START_TEST(data_may_start_at_any_byte)
{
    /* The header's length decides it; one space more moves all tensors by one. */
    for (int pad = 0; pad < 8; pad++) {
        struct strbuf b = {0};
        char header[128];
        snprintf(header, sizeof header, "%s%.*s", T(F32_2), pad, "        ");
        make_u64(&b, strlen(header));
        strbuf_puts(&b, header);
        float v[2] = {1.5f, -2};
        strbuf_append(&b, v, sizeof v);
        struct container *c;
        ck_assert_int_eq(container_view(&c, "x.safetensors", (uint8_t *)b.data, b.len, NULL),
                         ERR_OK);
        ck_assert(load_f32(c->tensors[0].data + 4) == -2);
        container_close(c);
        strbuf_free(&b);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("st_reader");
    TCase *t = tcase_create("all");
    tcase_add_loop_test(t, each_header_is_judged, 0, ARRAY_LEN(cases));
    tcase_add_test(t, header_length_is_bounded);
    tcase_add_test(t, depth_is_bounded);
    tcase_add_test(t, a_name_has_at_most_511_bytes);
    tcase_add_test(t, cut_anywhere_it_is_refused);
    tcase_add_test(t, data_may_start_at_any_byte);
    suite_add_tcase(s, t);
    return s;
}
