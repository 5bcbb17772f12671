/* tool_logits.c: tool_logits MODEL TOKENS OUT [f32|mma90 [DEVICE [PIECE]]]: logits of every
 * position.
 *
 * TOKENS has one prompt a line, ids with spaces between. OUT gets, prompt after prompt, n_tok rows
 * of n_vocab f32. Prompts are run one by one, in pieces of up to PIECE (64) tokens. For comparisons
 * with other programs (tests/reference) and devices (tests/gpu).
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/err.h"
#include "infer/engine.h"
#include "infer/kv.h"

#define TOKENS_MAX 4096
#define PIECE      64

static int piece = PIECE;

static int parse_line(char *line, int32_t *ids)
{
    int n = 0;
    char *end, *at = line;
    for (; n < TOKENS_MAX; n++) {
        long v = strtol(at, &end, 10);
        if (end == at)
            break;
        ids[n] = (int32_t)v;
        at = end;
    }
    return n;
}

static enum err_code run_prompt(struct engine *en, const int32_t *ids, int n, FILE *out,
                                struct err *e)
{
    int32_t pages[TOKENS_MAX / KERN_PAGE];
    int n_pages = (int)kv_pages_for(n);
    const size_t n_vocab = (size_t)engine_hparams(en)->n_vocab;
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && i < n_pages; i++) {
        pages[i] = i;
        rc = engine_zero_page(en, i, e);
    }
    for (int at = 0; rc == ERR_OK && at < n; at += piece) {
        struct step_piece p = {.ids = ids + at, .n = MIN2(piece, n - at), .pos = at};
        p.pages = pages;
        p.n_pages = n_pages;
        struct step s = {.pieces = &p, .n_pieces = 1, .want_logits = true};
        rc = engine_step(en, &s, e);
        for (int i = 0; rc == ERR_OK && i < s.n_rows; i++) {
            if (fwrite(s.rows[i].logits, sizeof(float), n_vocab, out) != n_vocab)
                rc = err_errno(e, "write");
        }
    }
    return rc;
}

int main(int argc, char **argv)
{
    static char line[TOKENS_MAX * 12];
    static int32_t ids[TOKENS_MAX];
    struct err e = {.text = ""};
    struct checkpoint *c = NULL;
    struct engine *en = NULL;
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto"}, .out_rows = PIECE};
    if (argc < 4) {
        fprintf(stderr, "usage: tool_logits MODEL TOKENS OUT [f32|mma90 [DEVICE [PIECE]]]\n");
        return 2;
    }
    o.batch_tokens = PIECE;
    o.batch_seqs = 1;
    if (argc > 4 && !kern_arith_find(argv[4], &o.kern.arith))
        return 2;
    if (argc > 5)
        o.kern.device = argv[5];
    if (argc > 6)
        piece = MIN2(MAX2(atoi(argv[6]), 1), PIECE);
    FILE *in = fopen(argv[2], "r"), *out = fopen(argv[3], "wb");
    enum err_code rc = in && out ? checkpoint_open(&c, argv[1], &e) : err_errno(&e, "open");
    if (rc == ERR_OK) {
        o.ctx = MIN2(c->hp.ctx_max, TOKENS_MAX);
        rc = engine_new(&en, c, &o, &e);
    }
    while (rc == ERR_OK && fgets(line, sizeof line, in)) {
        int n = parse_line(line, ids);
        if (n > 0)
            rc = run_prompt(en, ids, n, out, &e);
    }
    if (out && fclose(out) != 0 && rc == ERR_OK)
        rc = err_errno(&e, "%s", argv[3]);
    if (in)
        fclose(in);
    engine_free(en);
    checkpoint_close(c);
    if (rc != ERR_OK)
        fprintf(stderr, "tool_logits: %s\n", e.text);
    return err_exit_code(rc);
}
