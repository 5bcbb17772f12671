/* test_tok_decode.c: decoding, streams, and files and texts that are refused. */
#include "tests/tok_fixture.h"

/* ---- decoding ----------------------------------------------------------------------------- */

START_TEST(ids_without_a_token_decode_to_nothing)
{
    struct tokenizer *t = open_json(SPM);
    const int32_t ids[] = {2, 99, -1, 2, 5};
    expect_text(t, ids, 5, false, "a a<s>");
    expect_text(t, ids, 5, true, "a a");
    expect_text(t, ids, 0, true, "");
    tokenizer_free(t);
}
END_TEST

START_TEST(a_run_of_byte_tokens_is_text_or_one_replacement_a_byte)
{
    struct tokenizer *t = open_json(SPM);
    const int32_t good[] = {1, 3, 4, 1}, bad[] = {1, 3, 4, 7, 1};
    expect_text(t, good, 4, false,
                "a\xc3\xa9"
                "a");
    expect_text(t, bad, 5, false,
                "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                "a");
    tokenizer_free(t);
}
END_TEST

#define BYTES                                                                                      \
    "'model':{'vocab':{'a':0,'\xc3\xa2':1,'\xc4\xb5':2,'\xc2\xac':3,'\xc4\xa0':4,'\xe2\x82\xac':"  \
    "5,'\xc3\xb0':6},"                                                                             \
    "'merges':[]},'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false,'use_regex':true}," \
    "'decoder':{'type':'ByteLevel'}"

START_TEST(byte_level_text_has_one_replacement_for_each_broken_part)
{
    /* 1, 2 and 3 are the bytes E2, 93 and AC; 6 is F0; 5 is outside the alphabet. */
    struct tokenizer *t = open_json(BYTES);
    const int32_t whole[] = {1, 2, 3}, cut[] = {1, 2, 0}, lone[] = {2, 3}, raw[] = {5, 4, 0};
    const int32_t twice[] = {1, 1, 2, 6};
    expect(t, "\xe2\x93\xac", 0, "1 2 3");
    expect_text(t, whole, 3, false, "\xe2\x93\xac");
    expect_text(t, cut, 3, false,
                "\xef\xbf\xbd"
                "a");
    expect_text(t, lone, 2, false, "\xef\xbf\xbd\xef\xbf\xbd");
    expect_text(t, raw, 3, false, "\xe2\x82\xac a");
    expect_text(t, twice, 4, false, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    tokenizer_free(t);
}
END_TEST

START_TEST(without_a_decoder_tokens_are_joined_by_spaces)
{
    struct tokenizer *t = open_json(BPE(MERGES));
    const int32_t ids[] = {0, 8, 1};
    expect_text(t, ids, 3, false, "a abc b");
    tokenizer_free(t);
}
END_TEST

START_TEST(metaspace_drops_marks_in_the_first_token_only)
{
    struct tokenizer *t = open_json("'decoder':{'type':'Metaspace','replacement':'b',"
                                    "'prepend_scheme':'first'}," BPE(MERGES));
    const int32_t ids[] = {8, 8};
    expect_text(t, ids, 2, false, "aca c");
    tokenizer_free(t);
}
END_TEST

static void push_one(const struct tokenizer *t, struct tok_stream *s, int32_t id, const char *want)
{
    struct strbuf b = {0};
    strbuf_puts(&b, "");
    ck_assert(tok_stream_push(t, s, id, &b, &err) == ERR_OK);
    ck_assert_str_eq(b.data, want);
    strbuf_free(&b);
}

START_TEST(a_stream_gives_only_what_no_later_token_changes)
{
    struct tokenizer *t = open_json(BYTES);
    struct tok_stream s = {0};
    struct strbuf b = {0};
    push_one(t, &s, 1, "");
    push_one(t, &s, 2, "");
    push_one(t, &s, 3, "\xe2\x93\xac");
    push_one(t, &s, 1, "");
    push_one(t, &s, 0,
             "\xef\xbf\xbd"
             "a");
    push_one(t, &s, 6, "");
    ck_assert(tok_stream_end(t, &s, &b, &err) == ERR_OK);
    ck_assert_str_eq(b.data, "\xef\xbf\xbd");
    strbuf_free(&b);
    tokenizer_free(t);
    t = open_json(SPM);
    push_one(t, &s, 2, "a"); /* only the first space of the text goes */
    push_one(t, &s, 2, " a");
    push_one(t, &s, 3, "");
    push_one(t, &s, 4, ""); /* a third byte could still break the run */
    push_one(t, &s, 1,
             "\xc3\xa9"
             "a");
    tok_stream_free(&s);
    tokenizer_free(t);
}
END_TEST

START_TEST(a_stream_may_strip_the_end_as_well)
{
    struct tokenizer *t = open_json(
        "'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Strip','content':'a',"
        "'start':1,'stop':2}]}," BPE(MERGES));
    struct tok_stream s = {0};
    const int32_t ids[] = {7, 1, 0, 7};
    push_one(t, &s, 7, ""); /* "aa": one cut at the start, one that may be cut at the end */
    push_one(t, &s, 1, "ab");
    push_one(t, &s, 0, "");
    push_one(t, &s, 7, "a");
    tok_stream_free(&s);
    expect_text(t, ids, 4, false, "aba");
    tokenizer_free(t);
}
END_TEST

START_TEST(pieces_are_the_bytes_inside_a_text)
{
    struct tokenizer *t = open_json(SPM), *u = open_json(BYTES);
    struct strbuf b = {0};
    ck_assert(tokenizer_piece(t, 2, &b, &err) == ERR_OK);
    ck_assert(tokenizer_piece(t, 3, &b, &err) == ERR_OK);
    ck_assert(tokenizer_piece(u, 1, &b, &err) == ERR_OK);
    ck_assert(tokenizer_piece(u, 4, &b, &err) == ERR_OK);
    ck_assert_str_eq(b.data, " a\xc3\xe2 ");
    ck_assert(tokenizer_piece(t, 99, &b, &err) == ERR_OK);
    strbuf_free(&b);
    tokenizer_free(t);
    tokenizer_free(u);
}
END_TEST

/* ---- bad input ---------------------------------------------------------------------------- */

static const struct {
    const char *body, *text; /* the error has this in it */
} bad[] = {
    {"", "model"},
    {"'model':{'type':'Unigram'}", "model.type: found 'Unigram', expected BPE"},
    {"'model':{'vocab':{},'merges':[]}", "vocab: found no token"},
    {"'model':{'vocab':{'a':0}}", "merges: found nothing"},
    {"'model':{'vocab':{'a':-1},'merges':[]}", "found -1, expected an id from 0 to"},
    {"'model':{'vocab':{'a':99999999},'merges':[]}", "found 99999999, expected an id"},
    {"'model':{'vocab':{'a':0.5},'merges':[]}", "no integer"},
    {"'model':{'vocab':{'a':0,'b':0},'merges':[]}", "id 0 of 'b': found twice, it is also 'a'"},
    {BPE("'merges':['a z']"), "merges[0]: found token 'z', which is not in the vocabulary"},
    {BPE("'merges':['a c']"), "merges[0]: found token 'ac'"},
    {BPE("'merges':['abc']"), "merges[0]: found 'abc', expected two tokens"},
    {BPE("'merges':['a b c']"), "merges[0]: found 'a b c'"},
    {BPE("'merges':['a b',['a','b']]"), "merges[1]: found strings and arrays"},
    {BPE("'merges':[],'unk_token':'z'"), "unk_token: found 'z'"},
    {BPE("'merges':[],'dropout':0.1"), "dropout: found 0.1"},
    {BPE("'merges':[],'end_of_word_suffix':'</w>'"), "end_of_word_suffix: found '</w>'"},
    {BPE(MERGES) ",'normalizer':{'type':'NFKC'}", "normalizer: type: found 'NFKC'"},
    {BPE(MERGES) ",'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'X'}]}",
     "pre_tokenizer: pretokenizers[0]: type: found 'X'"},
    {BPE(MERGES) ",'pre_tokenizer':{'type':'Split','pattern':{'Regex':'(a'},"
                 "'behavior':'Isolated'}",
     "pre_tokenizer: regex"},
    {BPE(MERGES) ",'decoder':{'type':'Sequence','decoders':[{'type':'Fuse'},{'type':'Fuse'}]}",
     "decoder: decoders[1]: type: found 'Fuse' behind"},
    {BPE(MERGES) ",'post_processor':{'type':'TemplateProcessing','single':["
                 "{'SpecialToken':{'id':'z'}}],'special_tokens':{}}",
     "post_processor: single[0]: special_tokens: found no ids for 'z'"},
    {BPE(MERGES) ",'post_processor':{'type':'TemplateProcessing','single':["
                 "{'SpecialToken':{'id':'z'}},{'Sequence':{'id':'A'}}],"
                 "'special_tokens':{'z':{'ids':[77]}}}",
     "ids[0]: found 77"},
    {BPE(MERGES) ",'added_tokens':[" ADDED(12, "x", PLAIN) "]",
     "added_tokens[0]: id of 'x': found 12, expected 9"},
    {BPE(MERGES) ",'added_tokens':[" ADDED(7, "a", PLAIN) "]", "found 7, expected 0, its id in"},
    {BPE(MERGES) ",'added_tokens':[" ADDED(9, "x", PLAIN) "," ADDED(10, "y", PLAIN) "," ADDED(
         9, "z", PLAIN) "]",
     "added_tokens[2]: id of 'z': found 9, expected 11"},
    {BPE(MERGES) ",'added_tokens':[" ADDED(0, "a", PLAIN) "," ADDED(0, "a", PLAIN) "]",
     "[1].id: found 0, which entry 0 has too"},
    {BPE(MERGES) ",'added_tokens':[{'id':9,'content':'x'}]", "single_word"},
    {BPE(MERGES) ",'normalizer':{'type':'Replace','pattern':{'String':'X'},'content':''},"
                 "'added_tokens':[" ADDED(9, "X", FLAGS(false, false, false, true, false)) "]",
     "added_tokens[0]: content: the normalizer leaves nothing of it"},
    {BPE(MERGES) ",'normalizer':{'type':'Replace','pattern':{'String':'X'},'content':'Y'},"
                 "'added_tokens':[" ADDED(
                     9, "X",
                     FLAGS(false, false, false, true,
                           false)) "," ADDED(10, "Y", FLAGS(false, false, false, true, false)) "]",
     "added_tokens: ids 9 and 10 have the same text 'Y'"},
};

START_TEST(what_is_wrong_is_named_with_its_place)
{
    struct tokenizer *t = NULL;
    ck_assert(try_open(&t, bad[_i].body) == ERR_INPUT);
    ck_assert_ptr_null(t);
    ck_assert_msg(str_starts(err.text, "tokenizer.json: "), "%s", err.text);
    ck_assert_msg(strstr(err.text, bad[_i].text) != NULL, "'%s' lacks '%s'", err.text,
                  bad[_i].text);
}
END_TEST

START_TEST(text_that_is_not_utf8_is_refused_with_the_offset)
{
    struct tokenizer *t = open_json(BPE(MERGES));
    struct token_list l = {0};
    ck_assert(token_list_push(&l, 42));
    ck_assert(tokenizer_encode(t, "ab\xff", 3, TOK_ADD_SPECIAL, &l, &err) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "at byte 2 of 3"));
    expect_ids(&l, "42");
    token_list_free(&l);
    tokenizer_free(t);
}
END_TEST

START_TEST(a_pattern_that_backtracks_without_end_is_stopped)
{
    struct tokenizer *t = open_json("'pre_tokenizer':{'type':'Split','pattern':{'Regex':"
                                    "'(?:a|aa|a(?=a))+[bc]'},'behavior':'Isolated'}," BPE(MERGES));
    struct token_list l = {0};
    char text[400];
    memset(text, 'a', sizeof text);
    ck_assert(tokenizer_encode(t, text, sizeof text, 0, &l, &err) == ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "split pattern failed at offset"));
    tokenizer_free(t);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("tok_decode");
    TCase *c = tcase_create("decode");
    tcase_add_test(c, ids_without_a_token_decode_to_nothing);
    tcase_add_test(c, a_run_of_byte_tokens_is_text_or_one_replacement_a_byte);
    tcase_add_test(c, byte_level_text_has_one_replacement_for_each_broken_part);
    tcase_add_test(c, without_a_decoder_tokens_are_joined_by_spaces);
    tcase_add_test(c, metaspace_drops_marks_in_the_first_token_only);
    tcase_add_test(c, a_stream_gives_only_what_no_later_token_changes);
    tcase_add_test(c, a_stream_may_strip_the_end_as_well);
    tcase_add_test(c, pieces_are_the_bytes_inside_a_text);
    suite_add_tcase(s, c);
    c = tcase_create("bad input");
    tcase_set_timeout(c, 20);
    tcase_add_loop_test(c, what_is_wrong_is_named_with_its_place, 0, (int)ARRAY_LEN(bad));
    tcase_add_test(c, text_that_is_not_utf8_is_refused_with_the_offset);
    tcase_add_test(c, a_pattern_that_backtracks_without_end_is_stopped);
    suite_add_tcase(s, c);
    return s;
}
