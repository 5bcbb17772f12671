/* test_tokenizer.c: encoding and trust on vocabularies of a few tokens. */
#include "tests/tok_fixture.h"

/* spans: '+text' trusted, '-text' not. */
static void expect_spans(const struct tokenizer *t, const char *const *spans, size_t n,
                         const char *want)
{
    struct tok_span s[8];
    struct token_list l = {0};
    for (size_t i = 0; i < n; i++)
        s[i] = (struct tok_span){spans[i] + 1, strlen(spans[i] + 1), spans[i][0] == '+'};
    ck_assert(tokenizer_encode_spans(t, s, n, 0, &l, &err) == ERR_OK);
    expect_ids(&l, want);
    token_list_free(&l);
}

#define EXPECT_SPANS(t, want, ...)                                                                 \
    do {                                                                                           \
        const char *const spans_[] = {__VA_ARGS__};                                                \
        expect_spans(t, spans_, ARRAY_LEN(spans_), want);                                          \
    } while (0)

/* ---- merging ------------------------------------------------------------------------------ */

START_TEST(pairs_join_by_rank_then_from_the_left)
{
    struct tokenizer *t = open_json(BPE("'merges':['b c','a b','a a']"));
    expect(t, "abc", 0, "0 4");
    expect(t, "aaa", 0, "7 0");
    expect(t, "aab", 0, "0 3");
    tokenizer_free(t);
    t = open_json(BPE(MERGES));
    expect(t, "abc", 0, "8");
    tokenizer_free(t);
    t = open_json(BPE("'merges':[['a','b'],['b','c']]"));
    expect(t, "abc", 0, "3 2");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_pair_listed_twice_has_its_last_rank)
{
    struct tokenizer *t = open_json(BPE("'merges':['a b','b c','a b']"));
    expect(t, "abc", 0, "0 4");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_version_line_among_the_merges_has_no_rank)
{
    struct tokenizer *t = open_json(BPE("'merges':['#version: 0.2','b c','a b']"));
    expect(t, "abc", 0, "0 4");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_whole_piece_is_looked_up_only_when_merges_may_be_ignored)
{
    struct tokenizer *t = open_json(BPE("'merges':[]"));
    expect(t, "abc", 0, "0 1 2");
    tokenizer_free(t);
    t = open_json(BPE("'ignore_merges':true,'merges':[]"));
    expect(t, "abc", 0, "8");
    expect(t, "abcc", 0, "0 1 2 2");
    tokenizer_free(t);
}
END_TEST

START_TEST(an_unknown_character_is_dropped_or_unknown_or_bytes)
{
    struct tokenizer *t = open_json(BPE("'merges':['a b']"));
    expect(t, "azzb", 0, "3");
    tokenizer_free(t);
    t = open_json(BPE("'unk_token':'<unk>','merges':['a b']"));
    expect(t, "azzb", 0, "0 5 5 1");
    tokenizer_free(t);
    t = open_json(BPE("'unk_token':'<unk>','fuse_unk':true,'merges':['a b']"));
    expect(t, "azzbz", 0, "0 5 1 5");
    tokenizer_free(t);
    t = open_json("'model':{'vocab':{'a':0,'<0xC3>':1,'<0xA9>':2,'<unk>':3,'<0x7A>':4},"
                  "'byte_fallback':true,'unk_token':'<unk>','fuse_unk':true,'merges':[]}");
    expect(t, "a\xc3\xa9z", 0, "0 1 2 4");
    expect(t,
           "y\xc3\xa9"
           "a",
           0, "1 2 3 0"); /* byte tokens overtake a pending unknown */
    tokenizer_free(t);
}
END_TEST

START_TEST(a_million_characters_without_a_space_take_no_time)
{
    struct tokenizer *t = open_json(BPE("'merges':['a a','b c','a b']"));
    size_t n = 1000000;
    char *text = malloc(n);
    struct token_list l = {0};
    ck_assert_ptr_nonnull(text);
    memset(text, 'a', n);
    ck_assert(tokenizer_encode(t, text, n, 0, &l, &err) == ERR_OK);
    ck_assert_uint_eq(l.n, n / 2);
    token_list_free(&l);
    free(text);
    tokenizer_free(t);
}
END_TEST

/* ---- normalizing -------------------------------------------------------------------------- */

#define NFC_VOCAB                                                                                  \
    "'normalizer':{'type':'NFC'},'model':{'vocab':{'\xc3\xa9':0,'e':1,'\xcc\x81':2,'\xcc\xa7':3,"  \
    "'\xe0\xa3\x8a':4,'\xc8\xa9':5},'merges':[]}"

START_TEST(nfc_composes_except_around_marks_newer_than_the_librarys_table)
{
    struct tokenizer *t = open_json(NFC_VOCAB);
    expect(t, "e\xcc\x81", 0, "0");
    expect(t, "e\xcc\x81\xcc\xa7", 0, "5 2");
    expect(t, "e\xe0\xa3\x8a\xcc\x81", 0, "1 4 2"); /* U+08CA lets nothing pass */
    tokenizer_free(t);
}
END_TEST

START_TEST(nfc_of_a_long_run_of_marks_takes_no_time)
{
    struct tokenizer *t = open_json(NFC_VOCAB);
    struct strbuf b = {0};
    struct token_list l = {0};
    for (int i = 0; i < 200000; i++)
        strbuf_puts(&b, i & 1 ? "\xcc\xa7" : "\xcc\x81");
    ck_assert(tokenizer_encode(t, b.data, b.len, 0, &l, &err) == ERR_OK);
    ck_assert_uint_eq(l.n, 200000);
    ck_assert_int_eq(l.ids[0], 3); /* the class 202 marks come before those of class 230 */
    ck_assert_int_eq(l.ids[l.n - 1], 2);
    token_list_free(&l);
    strbuf_free(&b);
    tokenizer_free(t);
}
END_TEST

START_TEST(each_piece_between_added_tokens_is_normalized_on_its_own)
{
    struct tokenizer *t = open_json(SPM);
    expect(t, "a a", TOK_ADD_SPECIAL, "5 2 2");
    expect(t, "a<s>a", TOK_PARSE_SPECIAL, "2 5 2");
    expect(t, "<s>", TOK_PARSE_SPECIAL, "5");
    expect(t, "", TOK_ADD_SPECIAL, "5");
    ck_assert_int_eq(tokenizer_bos(t), 5);
    tokenizer_free(t);
}
END_TEST

/* ---- added tokens ------------------------------------------------------------------------- */

START_TEST(added_tokens_match_leftmost_then_longest)
{
    struct tokenizer *t = open_json("'added_tokens':[" ADDED(9, "xy", PLAIN) ","             //
                                    ADDED(10, "xyz", PLAIN) "," ADDED(11, "yzb", PLAIN) "]," //
                                    BPE(MERGES));
    expect(t, "axyb", 0, "0 9 1");
    expect(t, "axyzb", 0, "0 10 1");
    expect(t, "yzbxy", 0, "11 9");
    ck_assert_int_eq(tokenizer_n_vocab(t), 12);
    ck_assert_int_eq(tokenizer_id(t, "xyz"), 10);
    ck_assert_int_eq(tokenizer_id(t, "abc"), 8);
    ck_assert_int_eq(tokenizer_id(t, "zzz"), -1);
    ck_assert_str_eq(tokenizer_token(t, 11), "yzb");
    ck_assert_ptr_null(tokenizer_token(t, 12));
    tokenizer_free(t);
}
END_TEST

START_TEST(stripping_tokens_swallow_white_space_up_to_the_last_match)
{
    struct tokenizer *t = open_json(
        "'added_tokens':[" ADDED(9, "<l>", FLAGS(false, true, false, false, false)) "," ADDED(
            10, "<r>", FLAGS(false, false, true, false, false)) "]," BPE(MERGES));
    expect(t, "a \t<l> b", 0, "0 9 6 1");
    expect(t, "a <r> \n\xe2\x80\xa8 b", 0, "0 6 10 1");
    expect(t, "<r>  <l>", 0, "10 9");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_token_begun_in_swallowed_space_counts_unless_it_strips)
{
    struct tokenizer *t =
        open_json("'added_tokens':[" ADDED(
            9, "<r>", FLAGS(false, false, true, false, false)) "," ADDED(10, "  ", PLAIN) "," //
                  ADDED(11, "\\t\\t", FLAGS(false, true, false, false, false)) "]," BPE(MERGES));
    expect(t, "<r>  a", 0, "9 10 0");
    expect(t, "<r>\t\ta", 0, "9 0");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_single_word_token_does_not_touch_a_word)
{
    struct tokenizer *t = open_json("'added_tokens':[" ADDED(
        9, "xy", FLAGS(true, false, false, false, false)) "]," BPE(MERGES));
    expect(t, "a xy b", 0, "0 6 9 6 1");
    expect(t, "axy", 0, "0");
    expect(t, "xyb", 0, "1");
    expect(t, "xy", 0, "9");
    expect(t, "xy\xc3\xa9", 0, "");
    tokenizer_free(t);
}
END_TEST

START_TEST(normalized_tokens_match_in_normalized_text)
{
    struct tokenizer *t =
        open_json("'normalizer':{'type':'Replace','pattern':{'String':'X'},'content':'c'},"
                  "'added_tokens':[" ADDED(
                      9, "aXa", FLAGS(false, false, false, true, false)) "]," BPE(MERGES));
    expect(t, "baca", 0, "1 9");
    expect(t, "baXa", 0, "1 9");
    tokenizer_free(t);
}
END_TEST

START_TEST(rules_that_feed_each_other_do_not_eat_the_memory)
{
    struct strbuf b = {0};
    struct token_list l = {0};
    strbuf_puts(&b, "'normalizer':{'type':'Sequence','normalizers':[");
    for (int i = 0; i < 60; i++)
        strbuf_printf(&b, "%s{'type':'Replace','pattern':{'String':'a'},'content':'aa'}",
                      i ? "," : "");
    strbuf_puts(&b, "]}," BPE(MERGES));
    struct tokenizer *t = open_json(b.data);
    ck_assert(tokenizer_encode(t, "a", 1, 0, &l, &err) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "make more than 1048640 bytes out of a text of 1"));
    tokenizer_free(t);
    strbuf_free(&b);
}
END_TEST

/* ---- trust -------------------------------------------------------------------------------- */

#define CONTROL                                                                                    \
    "'added_tokens':[" ADDED(9, "<a>", SPECIAL) "," ADDED(10, "c<a>", SPECIAL) "," ADDED(          \
        11, "<t>", PLAIN) "]," BPE(MERGES)

START_TEST(control_tokens_in_plain_text_are_text)
{
    struct tokenizer *t = open_json(CONTROL);
    expect(t, "<a>b", TOK_PARSE_SPECIAL, "9 1");
    expect(t, "<a>b", 0, "3");
    expect(t, "<t>b", 0, "11 1");
    ck_assert(tokenizer_is_special(t, 9));
    ck_assert(!tokenizer_is_special(t, 11));
    tokenizer_free(t);
}
END_TEST

START_TEST(control_tokens_lie_wholly_in_trusted_spans)
{
    struct tokenizer *t = open_json(CONTROL);
    EXPECT_SPANS(t, "9 0 9", "+<a>", "-<a>", "+<a>");
    EXPECT_SPANS(t, "0", "+<", "-a>");
    EXPECT_SPANS(t, "0", "-<a", "+>");
    EXPECT_SPANS(t, "9", "+<", "+a>");
    EXPECT_SPANS(t, "11 9", "-<t>", "+<a>");
    tokenizer_free(t);
}
END_TEST

START_TEST(plain_text_does_not_hide_a_control_token_behind_it)
{
    struct tokenizer *t = open_json(CONTROL);
    EXPECT_SPANS(t, "10", "+c<a>");
    EXPECT_SPANS(t, "2 9", "-c", "+<a>");
    EXPECT_SPANS(t, "9 2", "+<a>", "-c<", "+<");
    tokenizer_free(t);
}
END_TEST

START_TEST(spans_are_one_text)
{
    struct tokenizer *t = open_json(CONTROL);
    EXPECT_SPANS(t, "8", "-a", "+b", "-c");
    EXPECT_SPANS(t, "", "+", "-");
    struct token_list l = {0};
    ck_assert(tokenizer_encode_spans(t, NULL, 0, 0, &l, &err) == ERR_OK);
    ck_assert_uint_eq(l.n, 0);
    tokenizer_free(t);
    t = open_json(NFC_VOCAB);
    EXPECT_SPANS(t, "0", "-e\xcc", "+\x81");
    tokenizer_free(t);
}
END_TEST

START_TEST(trust_survives_normalizing)
{
    struct tokenizer *t =
        open_json("'normalizer':{'type':'Sequence','normalizers':[{'type':'NFC'},"
                  "{'type':'Replace','pattern':{'String':'X'},'content':'bb'}]},"
                  "'added_tokens':[" ADDED(
                      9, "aXa", FLAGS(false, false, false, true, true)) "]," BPE("'merges':[]"));
    EXPECT_SPANS(t, "9", "+aXa");
    EXPECT_SPANS(t, "9 0 1 1 0 9", "+aXa", "-aXa", "+abba");
    EXPECT_SPANS(t, "0 1 1 0", "+a", "-X", "+a");
    EXPECT_SPANS(t, "0 1 1 0 9", "-aX", "+aaXa");
    tokenizer_free(t);
}
END_TEST

START_TEST(guarded_tokens_are_control_tokens)
{
    struct tokenizer *t = open_json(CONTROL);
    const char *template = "{{ x }}<t>{{ y }}";
    EXPECT_SPANS(t, "11", "-<t>");
    ck_assert(tokenizer_guard(t, template, strlen(template), &err) == ERR_OK);
    EXPECT_SPANS(t, "11", "+<t>", "-<t>");
    expect(t, "<t>", 0, "");
    ck_assert(!tokenizer_is_special(t, 11));
    tokenizer_free(t);
}
END_TEST

START_TEST(text_is_never_merged_into_a_control_token)
{
    struct tokenizer *t = open_json("'added_tokens':[" ADDED(8, "abc", SPECIAL) "]," BPE(MERGES));
    expect(t, "abc", TOK_PARSE_SPECIAL, "8");
    expect(t, "abc", 0, "3 2");
    tokenizer_free(t);
    t = open_json("'added_tokens':[" ADDED(8, "abc", SPECIAL) "]," //
                  BPE("'ignore_merges':true," MERGES));
    expect(t, "abc", 0, "3 2");
    tokenizer_free(t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("encode");
    tcase_set_timeout(c, 10);
    tcase_add_test(c, pairs_join_by_rank_then_from_the_left);
    tcase_add_test(c, a_pair_listed_twice_has_its_last_rank);
    tcase_add_test(c, a_version_line_among_the_merges_has_no_rank);
    tcase_add_test(c, a_whole_piece_is_looked_up_only_when_merges_may_be_ignored);
    tcase_add_test(c, an_unknown_character_is_dropped_or_unknown_or_bytes);
    tcase_add_test(c, a_million_characters_without_a_space_take_no_time);
    tcase_add_test(c, nfc_composes_except_around_marks_newer_than_the_librarys_table);
    tcase_add_test(c, nfc_of_a_long_run_of_marks_takes_no_time);
    tcase_add_test(c, each_piece_between_added_tokens_is_normalized_on_its_own);
    tcase_add_test(c, added_tokens_match_leftmost_then_longest);
    tcase_add_test(c, stripping_tokens_swallow_white_space_up_to_the_last_match);
    tcase_add_test(c, a_token_begun_in_swallowed_space_counts_unless_it_strips);
    tcase_add_test(c, a_single_word_token_does_not_touch_a_word);
    tcase_add_test(c, normalized_tokens_match_in_normalized_text);
    tcase_add_test(c, rules_that_feed_each_other_do_not_eat_the_memory);
    suite_add_tcase(s, c);
    c = tcase_create("trust");
    tcase_add_test(c, control_tokens_in_plain_text_are_text);
    tcase_add_test(c, control_tokens_lie_wholly_in_trusted_spans);
    tcase_add_test(c, plain_text_does_not_hide_a_control_token_behind_it);
    tcase_add_test(c, spans_are_one_text);
    tcase_add_test(c, trust_survives_normalizing);
    tcase_add_test(c, guarded_tokens_are_control_tokens);
    tcase_add_test(c, text_is_never_merged_into_a_control_token);
    suite_add_tcase(s, c);
    return s;
}
