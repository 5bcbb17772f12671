/* test_hash.c: SHA-256 against the published vectors, the row hash's properties. */
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/io.h"
#include "tests/check_main.h"

/* FIPS 180-4 examples and the SHA-256 long message. */
static const struct {
    const char *text;
    size_t times;
    const char *hex;
} vectors[] = {
    {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
};

START_TEST(digests_are_the_published_ones_in_pieces_and_whole)
{
    size_t n = strlen(vectors[_i].text), all = n * vectors[_i].times;
    uint8_t *text = malloc(all + 1), digest[32];
    char hex[SHA256_HEX];
    struct sha256 *s = sha256_new();
    for (size_t i = 0; i < vectors[_i].times; i++) {
        sha256_update(s, vectors[_i].text, n);
        memcpy(text + i * n, vectors[_i].text, n);
    }
    sha256_final(s, digest);
    sha256_hex(digest, hex);
    ck_assert_str_eq(hex, vectors[_i].hex);
    sha256_of(text, all, digest);
    sha256_hex(digest, hex);
    ck_assert_str_eq(hex, vectors[_i].hex);
    const char *path = test_path(test_folder(), "file");
    test_spill(path, text, all);
    memset(hex, 0, sizeof hex);
    ck_assert_int_eq(sha256_file(path, hex, NULL), ERR_OK);
    ck_assert_str_eq(hex, vectors[_i].hex);
    free(text);
}
END_TEST

/* Every pair of lengths over three blocks, each message with bytes in libcrypto's buffer or without
 * and at every place in a word; a longer one whose count of bits needs more than 32 of them. */
START_TEST(two_messages_at_once_have_the_digests_of_one_after_the_other)
{
    enum { LONGEST = 200 };
    uint8_t text[2 * LONGEST + 16], got[2][32], want[2][32];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (uint8_t)hash_mix64(i);
    for (size_t n = 0; n <= LONGEST; n++) {
        for (size_t m = 0; m <= LONGEST; m++) {
            const uint8_t *x = text + n % 16, *y = text + LONGEST + m % 16;
            size_t head_n = n * 7 % 70, head_m = m * 5 % 70;
            head_n = MIN2(head_n, n), head_m = MIN2(head_m, m);
            struct sha256 *a = sha256_new(), *b = sha256_new();
            sha256_update(a, x, head_n);
            sha256_update(b, y, head_m);
            sha256_update2(a, x + head_n, n - head_n, b, y + head_m, m - head_m);
            sha256_final(a, got[0]);
            sha256_final(b, got[1]);
            sha256_of(x, n, want[0]);
            sha256_of(y, m, want[1]);
            ck_assert_msg(memcmp(got, want, sizeof got) == 0, "%zu and %zu bytes", n, m);
        }
    }
}
END_TEST

START_TEST(two_long_messages_at_once)
{
    size_t piece = (size_t)1 << 20, bytes = 513 * piece; /* 2^32 bits and more */
    uint8_t *text = malloc(piece + 64), got[2][32], want[2][32];
    struct sha256 *a = sha256_new(), *b = sha256_new(), *c = sha256_new(), *d = sha256_new();
    for (size_t i = 0; i < piece + 64; i++)
        text[i] = (uint8_t)hash_mix64(i);
    sha256_update(b, "x", 1);
    sha256_update(d, "x", 1);
    for (size_t at = 0; at < bytes; at += piece) {
        sha256_update2(a, text, piece, b, text + 3, piece + 61);
        sha256_update(c, text, piece);
        sha256_update(d, text + 3, piece + 61);
    }
    sha256_final(a, got[0]);
    sha256_final(b, got[1]);
    sha256_final(c, want[0]);
    sha256_final(d, want[1]);
    ck_assert(memcmp(got, want, sizeof got) == 0);
    free(text);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_an_error)
{
    struct err e;
    char hex[SHA256_HEX];
    const char *folder = test_folder();
    ck_assert_int_eq(sha256_file(test_path(folder, "none"), hex, &e), ERR_INPUT);
    ck_assert_int_eq(sha256_file(folder, hex, &e), ERR_INPUT);
    test_spill(test_path(folder, "f"), "x", 1);
    io_fault_set(IO_FAULT_READ, 2);
    ck_assert_int_eq(sha256_file(test_path(folder, "f"), hex, &e), ERR_IO);
    io_fault_set(IO_FAULT_READ, 0);
    io_fault_set(IO_FAULT_ALLOC, 1);
    ck_assert_int_eq(sha256_file(test_path(folder, "f"), hex, &e), ERR_NOMEM);
}
END_TEST

START_TEST(row_hash_sees_every_bit_and_every_place)
{
    uint64_t base = hash_row_word(5, 0x3f800000);
    for (int bit = 0; bit < 32; bit++)
        ck_assert_uint_ne(hash_row_word(5, 0x3f800000 ^ 1u << bit), base);
    ck_assert_uint_ne(hash_row_word(0, 1) + hash_row_word(1, 2),
                      hash_row_word(0, 2) + hash_row_word(1, 1));
    ck_assert_uint_ne(hash_row_word(0, 0), 0);
    /* A fixed value: the hash is part of trace files. */
    ck_assert_uint_eq(hash_mix64(1), 0x5692161d100b05e5ull);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("hash");
    TCase *t = tcase_create("hash");
    tcase_add_loop_test(t, digests_are_the_published_ones_in_pieces_and_whole, 0,
                        ARRAY_LEN(vectors));
    tcase_add_test(t, two_messages_at_once_have_the_digests_of_one_after_the_other);
    tcase_add_test(t, two_long_messages_at_once);
    tcase_add_test(t, a_file_that_cannot_be_read_is_an_error);
    tcase_add_test(t, row_hash_sees_every_bit_and_every_place);
    suite_add_tcase(s, t);
    return s;
}
