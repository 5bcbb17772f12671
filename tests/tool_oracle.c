/* tool_oracle.c: tool_oracle DEVICE MODEL...: the device's logits of every position against the
 * CPU's mma90, byte by byte.
 *
 * MODEL/tokens has the prompt, ids with spaces between. The device takes it in pieces of 64 tokens
 * and of one, and once more with K and V rounded to 8 bits, which must be seen. Says PASS or FAIL
 * of each, a line each. One process holds many models, since a device takes longer to open than
 * they take to run; tests/gpu/run starts several side by side.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/io.h"
#include "infer/engine.h"
#include "infer/kv.h"
#include "kernels/kernels_private.h"

#define TOKENS_MAX 4096
#define PIECE      64

struct prompt {
    int32_t ids[TOKENS_MAX];
    int n;
};

static enum err_code read_prompt(const char *model, struct prompt *p, struct err *e)
{
    char *path = io_join(model, "tokens");
    FILE *f = path ? fopen(path, "r") : NULL;
    int id = 0;
    enum err_code rc = f ? ERR_OK : err_errno(e, "%s/tokens", model);
    p->n = 0;
    while (f && p->n < TOKENS_MAX && fscanf(f, "%d", &id) == 1)
        p->ids[p->n++] = id;
    if (rc == ERR_OK && p->n == 0)
        rc = err_set(e, ERR_INPUT, "%s/tokens: no ids", model);
    if (f)
        fclose(f);
    free(path);
    return rc;
}

/* out: [n, n_vocab] */
static enum err_code feed(struct engine *en, const struct prompt *p, int piece, float *out,
                          struct err *e)
{
    int32_t pages[TOKENS_MAX / KERN_PAGE];
    const int n_pages = (int)kv_pages_for(p->n);
    const size_t n_vocab = (size_t)engine_hparams(en)->n_vocab;
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < n_pages; i++) {
        pages[i] = i;
        rc = engine_zero_page(en, i, e);
    }
    for (int at = 0; rc == ERR_OK && at < p->n; at += piece) {
        struct step_piece s = {.ids = p->ids + at, .n = MIN2(piece, p->n - at), .pos = at};
        s.pages = pages;
        s.n_pages = n_pages;
        struct step step = {.pieces = &s, .n_pieces = 1, .want_logits = true};
        rc = engine_step(en, &step, e);
        for (int i = 0; rc == ERR_OK && i < step.n_rows; i++)
            memcpy(out + ((size_t)at + (size_t)i) * n_vocab, step.rows[i].logits,
                   n_vocab * sizeof *out);
    }
    return rc;
}

static enum err_code open_engine(struct engine **en, const struct checkpoint *c, const char *device,
                                 struct err *e)
{
    struct engine_options o = {.kern = {.device = device, .isa = "auto", .arith = KERN_MMA90}};
    o.out_rows = o.batch_tokens = PIECE;
    o.batch_seqs = 1;
    o.ctx = MIN2(c->hp.ctx_max, TOKENS_MAX);
    return engine_new(en, c, &o, e);
}

/* The device's logits in pieces of so many tokens, under a fault, held against the oracle's. */
static enum err_code hold(struct engine *en, const struct prompt *p, const char *model, int piece,
                          enum kern_fault fault, const float *oracle, float *ours, struct err *e)
{
    const size_t n = (size_t)p->n * (size_t)engine_hparams(en)->n_vocab;
    size_t differ = 0;
    kern_plant(fault);
    memset(ours, 0xff, n * sizeof *ours);
    enum err_code rc = feed(en, p, piece, ours, e);
    kern_plant(KERN_FAULT_NONE);
    if (rc != ERR_OK)
        return rc;
    for (size_t i = 0; i < n; i++)
        differ += f32_bits(oracle[i]) != f32_bits(ours[i]);
    const bool good = fault == KERN_FAULT_NONE ? differ == 0 : differ != 0;
    printf("%s %s: pieces of %d%s: %zu of %zu logits differ\n", good ? "PASS" : "FAIL", model,
           piece, fault == KERN_FAULT_NONE ? "" : ", K and V in 8 bits", differ, n);
    return ERR_OK;
}

static enum err_code run_model(const char *device, const char *model, struct err *e)
{
    static struct prompt p;
    struct checkpoint *c = NULL;
    struct engine *cpu = NULL, *en = NULL;
    float *oracle = NULL, *ours = NULL;
    enum err_code rc = read_prompt(model, &p, e);
    if (rc == ERR_OK)
        rc = checkpoint_open(&c, model, e);
    if (rc == ERR_OK)
        rc = open_engine(&cpu, c, "cpu", e);
    if (rc == ERR_OK)
        rc = open_engine(&en, c, device, e);
    if (rc != ERR_OK)
        goto out;
    const size_t n = (size_t)p.n * (size_t)engine_hparams(cpu)->n_vocab;
    oracle = calloc(n, sizeof *oracle);
    ours = calloc(n, sizeof *ours);
    rc = oracle && ours ? feed(cpu, &p, PIECE, oracle, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK)
        rc = hold(en, &p, model, PIECE, KERN_FAULT_NONE, oracle, ours, e);
    if (rc == ERR_OK)
        rc = hold(en, &p, model, 1, KERN_FAULT_NONE, oracle, ours, e);
    if (rc == ERR_OK)
        rc = hold(en, &p, model, PIECE, KERN_FAULT_KV8, oracle, ours, e);
out:
    engine_free(en);
    engine_free(cpu);
    checkpoint_close(c);
    free(oracle);
    free(ours);
    return rc;
}

int main(int argc, char **argv)
{
    int failed = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: tool_oracle DEVICE MODEL...\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        struct err e = {.text = ""};
        if (run_model(argv[1], argv[i], &e) != ERR_OK) {
            printf("FAIL %s: %s\n", argv[i], e.text);
            failed++;
        }
        fflush(stdout);
    }
    return failed ? 1 : 0;
}
