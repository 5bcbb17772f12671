/* test_batch_journal.c: records there and back, and no altered line among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/batch_table.h"
#include "tests/check_main.h"

#define RUN "00112233aabbccdd"
#define SHA RUN RUN RUN RUN

static const char reply[] =
    "{\"custom_id\":\"a\",\"x\":\"},\\\"reply\\\":{\",\"y\":{\"b\":{}},\"reply\":{\"z\":1}}";

static struct batch_rec parse(const char *line, enum batch_rec_kind kind)
{
    struct batch_rec r;
    struct err e = {.text = ""};
    enum err_code rc = batch_rec_parse(&r, line, strcspn(line, "\n"), &e);
    ck_assert_msg(rc == ERR_OK, "%s: %s", line, e.text);
    ck_assert_int_eq(r.kind, kind);
    ck_assert_str_eq(r.run, RUN);
    return r;
}

START_TEST(every_record_comes_back)
{
    struct strbuf b = {0};
    struct batch_rec_input in = {.requests = 9, .sums = SHA, .sha256 = SHA};
    struct batch_rec_line lines[] = {{10, 0xdeadbeef, 1, BATCH_OK},
                                     {1, 0, 0xffffffff, BATCH_SET_ASIDE}};
    json_t *identity = json_pack("{s:s}", "stop", "\"},\"reply\":{");
    batch_rec_head(&b, RUN, 3, SHA, identity);
    struct batch_rec r = parse(b.data, BATCH_REC_HEAD);
    ck_assert_uint_eq(r.generation, 3);
    ck_assert(json_equal(r.identity, identity));
    batch_rec_free(&r);
    strbuf_clear(&b);
    batch_rec_open(&b, RUN, &in, true, "boot", 7);
    r = parse(b.data, BATCH_REC_OPEN);
    ck_assert(r.input.requests == 9 && strcmp(r.input.sums, SHA) == 0 && r.retry);
    ck_assert(strcmp(r.boot, "boot") == 0 && r.oom_kills == 7);
    batch_rec_free(&r);
    strbuf_clear(&b);
    batch_rec_out(&b, RUN, 5, 1234567890123, lines, 2);
    r = parse(b.data, BATCH_REC_OUT);
    ck_assert(r.n == 5 && r.at == 1234567890123 && r.count == 2);
    ck_assert(memcmp(r.lines, lines, sizeof lines) == 0);
    batch_rec_free(&r);
    strbuf_clear(&b);
    size_t at = batch_rec_done(&b, RUN, 8, 0x01020304, BATCH_FAILED, reply, sizeof reply - 1);
    r = parse(b.data, BATCH_REC_DONE);
    ck_assert(r.n == 8 && r.one.in == 0x01020304 && r.one.status == BATCH_FAILED);
    ck_assert_uint_eq(r.reply_at, at);
    ck_assert_uint_eq(r.one.len, sizeof reply);
    ck_assert_uint_eq(r.one.sum, batch_line_sum(reply, sizeof reply - 1));
    ck_assert(memcmp(b.data + at, reply, sizeof reply - 1) == 0);
    batch_rec_free(&r);
    strbuf_clear(&b);
    batch_rec_start(&b, RUN, 1, 2);
    batch_rec_cut(&b, RUN, 6);
    batch_rec_died(&b, RUN, "SIGSEGV");
    batch_rec_stop(&b, RUN);
    batch_rec_finish(&b, RUN, &in, 77);
    static const enum batch_rec_kind kinds[] = {BATCH_REC_START, BATCH_REC_CUT, BATCH_REC_DIED,
                                                BATCH_REC_STOP, BATCH_REC_END};
    const char *line = b.data;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        r = parse(line, kinds[i]);
        ck_assert(i != 1 || r.n == 6);
        ck_assert(i != 4 || (r.at == 77 && r.input.requests == 9));
        batch_rec_free(&r);
        line = strchr(line, '\n') + 1;
    }
    json_decref(identity);
    strbuf_free(&b);
}
END_TEST

START_TEST(no_altered_line_is_a_record)
{
    struct strbuf b = {0};
    struct batch_rec_line lines[] = {{10, 0xdeadbeef, 1, BATCH_OK}, {99, 0, 2, BATCH_FAILED}};
    uint64_t state = 5;
    for (int round = 0; round < 20000; round++) {
        struct batch_rec r;
        struct err e = {.text = ""};
        char text[1024], was[1024];
        strbuf_clear(&b);
        if (round % 2)
            batch_rec_out(&b, RUN, 5, 100, lines, 2);
        else
            batch_rec_done(&b, RUN, 8, 7, BATCH_OK, reply, sizeof reply - 1);
        size_t len = b.len - 1;
        memcpy(text, b.data, len);
        memcpy(was, b.data, len);
        size_t n = test_mutate(text, len, sizeof text, &state);
        enum err_code rc = batch_rec_parse(&r, text, n, &e);
        if (rc == ERR_OK) {
            ck_assert_uint_eq(n, len);
            ck_assert(memcmp(text, was, n) == 0);
            batch_rec_free(&r);
        } else {
            ck_assert_int_eq(rc, ERR_INPUT);
            ck_assert(e.text[0] != 0);
        }
    }
    strbuf_free(&b);
}
END_TEST

START_TEST(a_table_takes_only_what_fits_its_input)
{
    uint32_t sums[4] = {1, 2, 3, 4};
    struct census c = {.n_requests = 4, .sums = sums};
    struct batch_table t;
    struct batch_rec_line lines[] = {{10, 1, 2, BATCH_OK}, {20, 2, 3, BATCH_FAILED}};
    struct err e = {.text = ""};
    ck_assert_int_eq(batch_table_new(&t, &c, NULL), ERR_OK);
    struct batch_rec r = {.kind = BATCH_REC_OUT, .n = 1, .count = 2, .at = 50, .lines = lines};
    ck_assert_int_eq(batch_table_apply(&t, &r, 0, &e), ERR_OK);
    ck_assert(t.line[1].place == BATCH_IN_OUT && t.line[1].at == 50);
    ck_assert(t.line[2].at == 60 && t.line[2].status == BATCH_FAILED);
    r.n = 3;
    ck_assert_int_eq(batch_table_apply(&t, &r, 0, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "it has 4 requests, and request 5 had begun"));
    r.n = 2;
    ck_assert_int_eq(batch_table_apply(&t, &r, 0, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.text, "request 3 is another than the one that was answered"));
    r = (struct batch_rec){.kind = BATCH_REC_DONE, .n = 3, .reply_at = 7, .one = {5, 6, 4, 0}};
    ck_assert_int_eq(batch_table_apply(&t, &r, 100, &e), ERR_OK);
    ck_assert(t.line[3].place == BATCH_EARLY && t.line[3].at == 107);
    r = (struct batch_rec){.kind = BATCH_REC_CUT, .n = 2};
    ck_assert_int_eq(batch_table_apply(&t, &r, 0, &e), ERR_OK);
    ck_assert(t.line[1].place == BATCH_IN_OUT && t.line[2].place == BATCH_NOWHERE);
    ck_assert(t.line[3].place == BATCH_EARLY); /* it waits in the journal, not in OUT */
    batch_table_free(&t);
}
END_TEST

START_TEST(deaths_are_counted_for_what_ran)
{
    uint32_t sums[6] = {0};
    struct census c = {.n_requests = 6, .sums = sums};
    struct batch_table t;
    struct batch_rec_input in = {.requests = 6};
    static const struct {
        enum batch_rec_kind kind;
        uint64_t n, count;
    } steps[] = {{BATCH_REC_OPEN, 0, 0}, {BATCH_REC_START, 0, 3}, {BATCH_REC_DONE, 1, 0},
                 {BATCH_REC_DIED, 0, 0}, {BATCH_REC_OPEN, 0, 0},  {BATCH_REC_START, 2, 1},
                 {BATCH_REC_DIED, 0, 0}, {BATCH_REC_OPEN, 0, 0},  {BATCH_REC_START, 4, 2},
                 {BATCH_REC_STOP, 0, 0}, {BATCH_REC_DIED, 0, 0},  {BATCH_REC_START, 5, 1},
                 {BATCH_REC_OPEN, 0, 0}, {BATCH_REC_DIED, 0, 0}};
    static const unsigned deaths[] = {1, 0, 2, 0, 0, 0};
    ck_assert_int_eq(batch_table_new(&t, &c, NULL), ERR_OK);
    census_prefix(&c, 6, in.sums);
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct batch_rec r = {.kind = steps[i].kind, .n = steps[i].n, .count = steps[i].count};
        r.input = in;
        r.one.len = 2;
        ck_assert_int_eq(batch_table_apply(&t, &r, 0, NULL), ERR_OK);
    }
    for (size_t n = 0; n < 6; n++)
        ck_assert_uint_eq(t.line[n].deaths, deaths[n]);
    batch_table_free(&t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("batch_journal");
    TCase *t = tcase_create("batch_journal");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_record_comes_back);
    tcase_add_test(t, no_altered_line_is_a_record);
    tcase_add_test(t, a_table_takes_only_what_fits_its_input);
    tcase_add_test(t, deaths_are_counted_for_what_ran);
    suite_add_tcase(s, t);
    return s;
}
