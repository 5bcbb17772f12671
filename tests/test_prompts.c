/* test_prompts.c: lines of a prompt file, and what is wrong with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infer/prompts.h"
#include "tests/check_main.h"

static struct prompt_request *parse(const char *line, bool chat, bool ignore)
{
    struct prompt_defaults d;
    struct prompt_request *r = NULL;
    struct err e = {.text = ""};
    prompt_defaults_init(&d);
    d.chat = chat;
    d.ignore_fields = ignore;
    ck_assert_int_eq(prompts_parse(line, strlen(line), 7, false, &d, &r, &e), ERR_OK);
    return r;
}

static void refused(const char *line, const char *says)
{
    struct prompt_request *r = parse(line, false, false);
    ck_assert_msg(r->code == ERR_INPUT, "accepted: %s", line);
    ck_assert_msg(strstr(r->error, says) != NULL, "%s: '%s' does not say '%s'", line, r->error,
                  says);
    prompt_request_free(r);
}

START_TEST(every_form_is_read)
{
    struct prompt_request *r = parse("{\"prompt\": \"a\\u0000b\"}", false, false);
    ck_assert_int_eq(r->code, ERR_OK);
    ck_assert_int_eq(r->kind, PROMPT_TEXT);
    ck_assert_uint_eq(r->text_len, 3);
    ck_assert_str_eq(r->custom_id, "line-7");
    ck_assert_int_eq(r->set.max_tokens, 256);
    prompt_request_free(r);

    r = parse("{\"prompt\": \"hello\"}", true, false);
    ck_assert_int_eq(r->kind, PROMPT_CHAT);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(r->messages, 0), "content")),
                     "hello");
    prompt_request_free(r);

    r = parse("{\"custom_id\": \"x\", \"prompt_token_ids\": [1, 2, 3], \"seed\": -1}", false,
              false);
    ck_assert_int_eq(r->kind, PROMPT_IDS);
    ck_assert_uint_eq(r->n_ids, 3);
    ck_assert_int_eq(r->ids[2], 3);
    ck_assert_uint_eq(r->set.sampling.seed, UINT64_MAX);
    ck_assert_str_eq(r->custom_id, "x");
    prompt_request_free(r);

    r = parse("{\"turns\": [\"one\", \"two\"], \"system\": \"be brief\"}", false, false);
    ck_assert_int_eq(r->kind, PROMPT_TURNS);
    ck_assert_uint_eq(json_array_size(r->turns), 2);
    ck_assert_ptr_nonnull(r->system);
    prompt_request_free(r);

    r = parse(
        "{\"custom_id\": \"b\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
        "\"body\": {\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}], "
        "\"max_completion_tokens\": 5, \"stop\": [\"a\", \"b\"], \"logprobs\": true, "
        "\"top_logprobs\": 3, \"logit_bias\": {\"12\": -100}, \"n\": 1, \"tools\": [], "
        "\"chat_template_kwargs\": {\"enable_thinking\": false}}}",
        false, false);
    ck_assert_msg(r->code == ERR_OK, "%s", r->error ? r->error : "");
    ck_assert_int_eq(r->kind, PROMPT_CHAT);
    ck_assert_int_eq(r->set.max_tokens, 5);
    ck_assert_int_eq(r->set.n_stop, 2);
    ck_assert_int_eq(r->set.top_logprobs, 3);
    ck_assert_int_eq(r->set.sampling.n_bias, 1);
    ck_assert_int_eq(r->set.sampling.bias[0].id, 12);
    ck_assert_ptr_nonnull(json_object_get(r->template_vars, "enable_thinking"));
    ck_assert_ptr_nonnull(json_object_get(r->template_vars, "tools"));
    prompt_request_free(r);

    r = parse("{\"url\": \"/v1/completions\", \"body\": {\"prompt\": [5, 6], \"logprobs\": 2}}",
              true, false);
    ck_assert_int_eq(r->kind, PROMPT_IDS);
    ck_assert(r->completions);
    ck_assert_int_eq(r->set.top_logprobs, 2);
    prompt_request_free(r);
}
END_TEST

START_TEST(what_is_wrong_is_named)
{
    refused("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
            "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]}",
            "'messages'[0].content[1]: found type 'image_url', expected 'text': models run on text "
            "only");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
            "text only");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":[{\"image\":\"x.png\"}]}]}",
            "'messages'[0].content[0]: found 'image': models run on text only");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\","
            "\"audio_url\":{\"url\":\"x\"}}]}]}",
            "found 'audio_url': models run on text only");
    refused("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":"
            "\"b\",\"images\":[\"x\"]}]}",
            "'messages'[1]: found 'images': models run on text only");
    refused("{\"prompt\": ", "line 1");
    refused("[1]", "expected a JSON object");
    refused("{\"prompt\": \"\xff\"}", "byte 13 is not UTF-8");
    refused("{\"max_tokens\": 5}", "expected one of 'prompt'");
    refused("{\"prompt\": \"a\", \"messages\": []}", "both 'prompt' and 'messages'");
    refused("{\"messages\": []}", "at least one message");
    refused("{\"messages\": [{\"content\": \"a\"}]}", "'messages'[0]");
    refused("{\"prompt\": 5}", "expected a string or a list");
    refused("{\"prompt_token_ids\": [1, -2]}", "'prompt_token_ids'[1]");
    refused("{\"turns\": []}", "at least one user turn");
    refused("{\"prompt\": \"a\", \"tmperature\": 1}", "did you mean 'temperature'");
    refused("{\"prompt\": \"a\", \"n\": 2}", "field 'n' is not honoured");
    refused("{\"prompt\": \"a\", \"stream\": true}", "field 'stream'");
    refused("{\"prompt\": \"a\", \"presence_penalty\": 0.5}", "field 'presence_penalty'");
    refused("{\"prompt\": \"a\", \"response_format\": {\"type\": \"json_object\"}}",
            "response_format");
    refused("{\"prompt\": \"a\", \"temperature\": -1}", "temperature");
    refused("{\"prompt\": \"a\", \"temperature\": \"hot\"}", "temperature");
    refused("{\"prompt\": \"a\", \"max_tokens\": 0}", "max_tokens");
    refused("{\"prompt\": \"a\", \"max_tokens\": 4, \"max_completion_tokens\": 5}",
            "max_tokens is 4 and max_completion_tokens is 5");
    refused("{\"prompt\": \"a\", \"stop\": [\"\"]}", "none of them empty");
    refused("{\"prompt\": \"a\", \"top_logprobs\": 3}", "needs 'logprobs'");
    refused("{\"prompt\": \"a\", \"logit_bias\": {\"x\": 1}}", "'x' is no token id");
    refused("{\"prompt\": \"a\", \"logit_bias\": {\"1\": 101}}", "-100..100");
    refused("{\"prompt\": \"a\", \"chat_template_kwargs\": {\"messages\": []}}", "may not set");
    refused("{\"url\": \"/v1/embeddings\", \"body\": {\"input\": \"a\"}}", "/v1/embeddings");
    refused("{\"url\": \"/v1/chat/completions\", \"body\": {\"prompt\": \"a\"}}", "no 'messages'");
    refused("{\"method\": \"GET\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": \"a\"}}",
            "GET");
    refused("{\"url\": \"/v1/completions\", \"boby\": 1, \"body\": {\"prompt\": \"a\"}}", "boby");
    refused("{\"prompt\": \"a\", \"prompt\": \"b\"}", "line 1");
}
END_TEST

START_TEST(ignored_fields_are_ignored_only_on_request)
{
    const char *line = "{\"prompt\": \"a\", \"n\": 2, \"whatever\": 1}";
    struct prompt_request *r = parse(line, false, true);
    ck_assert_int_eq(r->code, ERR_OK);
    prompt_request_free(r);
    refused(line, "not honoured");
}
END_TEST

START_TEST(neutral_values_are_fine)
{
    struct prompt_request *r = parse(
        "{\"prompt\": \"a\", \"n\": 1, \"best_of\": null, \"stream\": false, \"echo\": false, "
        "\"presence_penalty\": 0, \"frequency_penalty\": 0.0, \"user\": \"u\", "
        "\"tool_choice\": \"auto\", \"response_format\": {\"type\": \"text\"}, \"top_k\": -1}",
        false, false);
    ck_assert_msg(r->code == ERR_OK, "%s", r->error ? r->error : "");
    ck_assert_int_eq(r->set.sampling.top_k, 0);
    prompt_request_free(r);
}
END_TEST

START_TEST(an_id_is_found_without_the_rest_of_the_line)
{
    static const char *const cases[][2] = {{"{\"custom_id\":\"x\",\"prompt\":1}", "x"},
                                           {"{\"prompt\":\"a\"}", "line-9"},
                                           {"{\"custom\\u005fid\":\"y\"}", "y"},
                                           {"{\"custom_id\":7}", "line-9"},
                                           {"{\"custom_id\":\"z\"", "line-9"},
                                           {"[\"custom_id\"]", "line-9"},
                                           {"", "line-9"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char *id = prompts_custom_id(cases[i][0], strlen(cases[i][0]), 9);
        ck_assert_str_eq(id, cases[i][1]);
        free(id);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("prompts");
    TCase *t = tcase_create("prompts");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_form_is_read);
    tcase_add_test(t, what_is_wrong_is_named);
    tcase_add_test(t, ignored_fields_are_ignored_only_on_request);
    tcase_add_test(t, neutral_values_are_fine);
    tcase_add_test(t, an_id_is_found_without_the_rest_of_the_line);
    suite_add_tcase(s, t);
    return s;
}
