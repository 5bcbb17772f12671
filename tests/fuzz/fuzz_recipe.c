/* fuzz_recipe.c: hostile recipes; what parses is also matched. */
#include <stdlib.h>

#include "quant/recipe.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct recipe *r = NULL;
    struct err e = {.text = ""};
    if (recipe_parse(&r, (const char *)data, bytes, "fuzz.yaml", &e) != ERR_OK) {
        if (!e.text[0] || r)
            abort();
        return 0;
    }
    for (int layer = -1; layer < 4; layer++) {
        struct recipe_subject s = {"model.layers.1.mlp.up_proj.weight", ROLE_MLP, layer, 4};
        if (recipe_decide(r, &s) >= r->n_rules)
            abort();
    }
    recipe_free(r);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const texts[] = {
        "why: a\nrules:\n- bits: 4\n  group: 64\n- role: head, embedding\n  bits: 8\n  scale: "
        "f32\n",
        "why: a\nrules:\n- match: \"*.{v,down}_proj.weight\"\n  layers: 0..3, -2..-1, edges\n"
        "  bits: 6\n  why: because\n",
        "why: a\nrules: [{keep: true, role: router}, {bits: 2, group: 128}]\n",
        "why: a\nrules:\n- format: nvfp4\n- role: expert\n  format: mxfp4\n",
    };
    size_t n = MIN2(max, ARRAY_LEN(texts));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], texts[i]);
    return n;
}
