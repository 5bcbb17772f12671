/* fuzz_chat.c: hostile chat templates, rendered with a fixed conversation. */
#include <stdlib.h>

#include "infer/chat.h"
#include "tests/fuzz/fuzz.h"

static const char vars[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
    "\" h\\u00e9llo <b> "
    "\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}],"
    "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,null]}}"
    "}]}"
    "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"b\":1,"
    "\"a\":2"
    "}}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"__now\":\"2024-07-26\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const trusted[] = {"bos_token"};
    struct chat_template *t = NULL;
    struct chat_spans s = {0};
    struct err e = {0};
    json_t *json = NULL;
    size_t total = 0;
    if (chat_compile(&t, (const char *)data, bytes, &e) != ERR_OK) {
        if (!e.text[0])
            abort();
        return 0;
    }
    if (json_parse(vars, sizeof vars - 1, &json, &e) != ERR_OK)
        abort();
    if (chat_render(t, json, trusted, ARRAY_LEN(trusted), &s, &e) != ERR_OK) {
        if (!e.text[0])
            abort();
    }
    for (size_t i = 0; i < s.n; i++)
        total += s.spans[i].len;
    if (total != s.text.len)
        abort();
    chat_spans_free(&s);
    json_decref(json);
    chat_free(t);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const texts[] = {
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m.content|trim }}"
        "{% if not loop.last %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|a|>{% "
        "endif %}",
        "{%- macro p(x, n=0) -%}{%- if x is mapping -%}{% for k, v in x|dictsort %}{{ k }}:{{ p(v, "
        "n + 1)"
        " }},{% endfor %}{%- elif x is string -%}{{ x|upper }}{%- else -%}{{ x|tojson(indent=2) "
        "}}{%- "
        "endif -%}{%- endmacro -%}{{ p(tools[0]) }}",
        "{% set ns = namespace(i=0, s='') %}{% for m in messages[::-1] if m.role != 'system' %}{% "
        "set "
        "ns.i = ns.i + 1 %}{% set ns.s = ns.s ~ m.content[1:-1] %}{% else %}none{% endfor %}{{ "
        "ns.s }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}"
        "{{ strftime_now('%d %b %Y') }}{{ 'a,b'.split(',')[-1].replace('b', '{}').format(3) }}",
        "{% set x %}{% filter indent(2) %}a\nb{% endfilter %}{% endset %}{{ x|safe + '<' }}{# c #}"
        "{% raw %}{{ x }}{% endraw %}{{ ('%s-%05d' % ('a', 3))|title }}",
        "{% for k, v in messages[2].items() %}{{ k }}={{ v }}{{ loop.index }}{{ loop.nextitem }}{% "
        "if "
        "loop.index > 1 %}{% break %}{% endif %}{% endfor %}{{ range(3)|list|sort(reverse=true) }}",
        "{% macro w() %}<{{ caller(1) }}>{% endmacro %}{% call(x) w() %}{{ x ** 2 // 3 % 2 }}{% "
        "endcall "
        "%}{% generation %}{{ [1, 'a', {'b': none}] }}{% endgeneration %}{% with a = 1 %}{{ a }}{% "
        "endwith %}",
    };
    size_t n = MIN2(max, ARRAY_LEN(texts));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], texts[i]);
    return n;
}
