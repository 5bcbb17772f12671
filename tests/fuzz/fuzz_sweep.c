/* fuzz_sweep.c: hostile sweep files; what parses is also expanded. */
#include <stdlib.h>

#include "jobs/grid.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sweep_file *f = NULL;
    struct grid g = {.n = 0};
    struct err e = {.text = ""};
    if (sweep_file_parse(&f, (const char *)data, bytes, "fuzz.yaml", &e) != ERR_OK) {
        if (!e.text[0] || f)
            abort();
        return 0;
    }
    if (grid_expand(&g, f, &e) == ERR_OK) {
        if (g.n != (size_t)f->n_models * f->n_recipes * f->n_prompts * f->n_settings)
            abort();
        grid_free(&g);
    }
    sweep_file_free(f);
    return 0;
}

size_t fuzz_seeds(struct strbuf *seeds, size_t max)
{
    static const char *const texts[] = {
        "why: a\nfirst_run: record\nout: o\nmodels:\n- {name: m, path: m, hint: make it}\n"
        "recipes:\n- name: asis\n- {name: q4, path: q.yaml}\nprompts: [{name: p, path: p}]\n"
        "settings: [{name: s, arith: f32, device: cpu, threads: 2, max_batch: 8, batch_tokens: 64,"
        " max_tokens: 5, max_ctx: 100, chat: true}]\nvariants: [x, y]\n"
        "limits: {seconds: 5, total_seconds: 50, memory_mb: 100, retries: 0, pause: 0.5}\n"
        "gates:\n  repeat: {runs: 2}\n  invariance: {max_batch: [1, 8], chunk: [7]}\n"
        "  tokens: {demand: bits}\n  quality: {kl: 0.1, agreement: 0.9, perplexity: 1.1, rise: 0}\n"
        "  speed: {rounds: 7}\n",
        "why: a\nmodels: [{name: m, path: m}]\nrecipes: [{name: r}]\n"
        "prompts: [{name: p, path: p}]\nsettings: [{name: s}]\ngates: {}\n",
    };
    size_t n = MIN2(max, ARRAY_LEN(texts));
    for (size_t i = 0; i < n; i++)
        strbuf_puts(&seeds[i], texts[i]);
    return n;
}
