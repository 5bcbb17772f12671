/* ckpt_input.h: opens mutated bytes as a checkpoint and touches all that came of it. */
#ifndef ASSAY_TESTS_FUZZ_CKPT_INPUT_H
#define ASSAY_TESTS_FUZZ_CKPT_INPUT_H

#include "ckpt/checkpoint.h"
#include "tests/ckpt_make.h"
#include "tests/fuzz/fuzz.h"

static char input_dir[64];

static void remove_input_dir(void)
{
    remove_folder(input_dir);
}

/* The folder that the inputs of this process are written to; goes away at its end. */
static const char *input_folder(void)
{
    if (!input_dir[0]) {
        if (!make_folder(input_dir))
            abort();
        atexit(remove_input_dir);
    }
    return input_dir;
}

static void open_input(const char *path)
{
    struct checkpoint *c;
    struct err e = {0};
    if (checkpoint_open(&c, path, &e) != ERR_OK) {
        if (!e.text[0])
            abort(); /* an error without a word */
        return;
    }
    if (!c->hp_ok && !c->hp_err.text[0])
        abort();
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        struct qformat q;
        int64_t k = ckpt_weight_k(w);
        if (k < 1 || k > 1 << 20 || ckpt_weight_rows(w) < 1)
            continue;
        float *row = malloc((size_t)k * sizeof *row);
        if (!row ||
            (ckpt_weight_decode(w, ckpt_weight_rows(w) - 1, 1, row, &e) != ERR_OK && !e.text[0]))
            abort();
        free(row);
        if (ckpt_weight_packed_format(w, &q) && w->enc == CKPT_CT) {
            size_t codes = qformat_row_bytes(q, k), scales = 4 * (size_t)(k / q.group);
            uint8_t *mem = malloc(codes + 2 * scales);
            if (!mem)
                abort();
            ckpt_weight_repack(w, q, ckpt_weight_rows(w) - 1, 1, mem, mem + codes,
                               mem + codes + scales);
            free(mem);
        }
    }
    checkpoint_close(c);
}

#endif
