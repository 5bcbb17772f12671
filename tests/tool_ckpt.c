/* tool_ckpt.c: shows what ckpt reads, for the reference tests.
 *
 *   tool_ckpt blocks TYPE        blocks on standard input -> f32 on standard output
 *   tool_ckpt tensors FILE       one line per tensor of a container: name, type, dims, bytes
 *   tool_ckpt list MODEL         one line per weight of a checkpoint, and whether it can be run
 *   tool_ckpt decode MODEL NAME  f32 values of a weight on standard output
 *   tool_ckpt tokenizer MODEL    the text of its tokenizer.json
 *   tool_ckpt config MODEL       its config.json
 *   tool_ckpt bf16               pairs of (u32 q, f32 s, f32 b) on standard input -> u16
 */
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/checkpoint.h"

static int fail(const struct err *e)
{
    fprintf(stderr, "%s\n", e->text);
    return 3;
}

static int blocks(int type)
{
    int elems, bytes;
    uint8_t block[512];
    float out[256];
    if (!ggml_type_block(type, &elems, &bytes))
        return 2;
    while (fread(block, (size_t)bytes, 1, stdin) == 1) {
        if (!ggml_type_decode(type, block, elems, out))
            return 2;
        fwrite(out, sizeof *out, (size_t)elems, stdout);
    }
    return 0;
}

static int tensors(const char *path)
{
    struct err e;
    struct container *c;
    if (container_open(&c, path, &e) != ERR_OK)
        return fail(&e);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        const char *type = t->ggml == GGML_NONE ? dtype_name(t->dtype) : ggml_type_name(t->ggml);
        printf("%s %s%s", t->name, type, t->n_dim ? "" : " ");
        for (int d = 0; d < t->n_dim; d++)
            printf("%c%lld", d ? ',' : ' ', (long long)t->dim[d]);
        printf(" %zu\n", t->bytes);
    }
    container_close(c);
    return 0;
}

static int list(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->n_weights; i++) {
        const struct ckpt_weight *w = &c->weights[i];
        printf("%s %s layer %d ", w->name, ckpt_role_name(w->role), w->layer);
        if (w->enc == CKPT_AFFINE)
            printf("affine %d/%d %s", w->q.bits, w->q.group, dtype_name(w->q.scale));
        else
            printf("%s", w->enc == CKPT_GGML ? ggml_type_name(w->ggml) : dtype_name(w->dtype));
        for (int d = 0; d < w->n_dim; d++)
            printf("%c%lld", d ? ',' : ' ', (long long)w->dim[d]);
        printf(" %zu\n", w->bytes);
    }
    if (c->hp_ok)
        printf("family %s, %d layers, vocabulary %lld, %llu bytes\n", c->hp.family, c->hp.n_layer,
               (long long)c->hp.n_vocab, (unsigned long long)checkpoint_bytes(c));
    else
        printf("not to be run: %s\n", c->hp_err.text);
    printf("tokenizer: %s\n", c->tokenizer_json ? "yes" : c->tokenizer_err.text);
    return 0;
}

static int decode(const struct checkpoint *c, const char *name)
{
    struct err e;
    const struct ckpt_weight *w = checkpoint_find(c, name);
    if (!w)
        return 2;
    int64_t k = ckpt_weight_k(w), rows = ckpt_weight_rows(w);
    float *row = malloc((size_t)k * sizeof *row);
    if (!row)
        return 5;
    for (int64_t r = 0; r < rows; r++) {
        if (ckpt_weight_decode(w, r, 1, row, &e) != ERR_OK) {
            free(row);
            return fail(&e);
        }
        fwrite(row, sizeof *row, (size_t)k, stdout);
    }
    free(row);
    return 0;
}

static int bf16(void)
{
    uint32_t in[3];
    while (fread(in, sizeof in, 1, stdin) == 1) {
        uint16_t v = qformat_bf16_exact(in[0], f32_from_bits(in[1]), f32_from_bits(in[2]));
        fwrite(&v, sizeof v, 1, stdout);
    }
    return 0;
}

static int show(const struct checkpoint *c, int argc, char **argv)
{
    struct strbuf b = {0};
    if (strcmp(argv[1], "list") == 0)
        return list(c);
    if (strcmp(argv[1], "decode") == 0 && argc == 4)
        return decode(c, argv[3]);
    if (strcmp(argv[1], "tokenizer") == 0) {
        if (!c->tokenizer_json)
            return fail(&c->tokenizer_err);
        fwrite(c->tokenizer_json, 1, c->tokenizer_len, stdout);
        return 0;
    }
    if (strcmp(argv[1], "config") != 0)
        return 2;
    json_put(&b, c->config, 0);
    puts(b.data ? b.data : "null");
    strbuf_free(&b);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e;
    struct checkpoint *c;
    if (argc >= 2 && strcmp(argv[1], "bf16") == 0)
        return bf16();
    if (argc == 3 && strcmp(argv[1], "blocks") == 0)
        return blocks(atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "tensors") == 0)
        return tensors(argv[2]);
    if (argc < 3)
        return 2;
    if (checkpoint_open(&c, argv[2], &e) != ERR_OK)
        return fail(&e);
    int rc = show(c, argc, argv);
    checkpoint_close(c);
    return rc;
}
