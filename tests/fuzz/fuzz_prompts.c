/* fuzz_prompts.c: hostile lines of a prompt file. */
#include <stdlib.h>

#include "infer/prompts.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct prompt_defaults d;
    struct prompt_request *r = NULL;
    struct err e = {.text = ""};
    prompt_defaults_init(&d);
    d.chat = bytes & 1;
    d.ignore_fields = bytes & 2;
    if (prompts_parse((const char *)data, bytes, 1, false, &d, &r, &e) != ERR_OK)
        return 0;
    if ((r->code != ERR_OK) != (r->error != NULL) || (r->error && !r->error[0]) || !r->custom_id)
        abort(); /* a line that is refused says why */
    prompt_request_free(r);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const lines[] = {
        "{\"custom_id\":\"a\",\"prompt\":\"text\",\"max_tokens\":5,\"temperature\":0.5,\"seed\":7}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],"
        "\"stop\":[\"a\",\"b\"],\"logprobs\":true,\"top_logprobs\":3,\"tools\":[{\"type\":1}]}",
        "{\"turns\":[\"one\",\"two\"],\"system\":\"s\",\"logit_bias\":{\"5\":-1.5}}",
        "{\"prompt_token_ids\":[1,2,3],\"stop_token_ids\":[2],\"top_k\":-1,\"min_p\":0.1}",
        "{\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/chat/"
        "completions\",\"body\":{\"model\":"
        "\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"n\":1,\"chat_template_"
        "kwargs\":"
        "{\"enable_thinking\":false}}}",
        "{\"url\":\"/v1/completions\",\"body\":{\"prompt\":[5,6],\"logprobs\":2,\"echo\":false}}",
    };
    size_t n = MIN2(max, ARRAY_LEN(lines));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], lines[i]);
    return n;
}
