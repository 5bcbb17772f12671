/* quant_make.h: tiny checkpoints, plans and output folders for the tests of quant and convert. */
#ifndef ASSAY_TESTS_QUANT_MAKE_H
#define ASSAY_TESTS_QUANT_MAKE_H

#include <stdio.h>
#include <stdlib.h>

#include "common/io.h"
#include "quant/quantize.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"

#define QUANT_FN __attribute__((unused)) static

struct quant_bed {
    char *dir; /* all of the test's files */
    char source[600], out[600];
    struct tiny_model model;
    struct checkpoint *c;
    struct recipe *r;
    struct plan *p;
};

/* A tiny model on disk, opened. Change b->model first with bed_model. */
QUANT_FN void bed_model(struct quant_bed *b)
{
    memset(b, 0, sizeof *b);
    b->model = tiny_model_default();
    b->model.form = TINY_BF16;
    b->dir = tiny_temp_dir();
    ck_assert_ptr_nonnull(b->dir);
    snprintf(b->source, sizeof b->source, "%s/source", b->dir);
    snprintf(b->out, sizeof b->out, "%s/out", b->dir);
}

QUANT_FN void bed_open(struct quant_bed *b)
{
    struct err e = {.text = ""};
    ck_assert_msg(tiny_model_write(b->source, &b->model, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(checkpoint_open(&b->c, b->source, &e) == ERR_OK, "%s", e.text);
}

QUANT_FN enum err_code bed_try_plan(struct quant_bed *b, const char *rules, struct err *e)
{
    char text[2000];
    snprintf(text, sizeof text, "why: test\nrules:\n%s", rules);
    plan_free(b->p);
    recipe_free(b->r);
    b->p = NULL;
    b->r = NULL;
    enum err_code rc = recipe_parse(&b->r, text, strlen(text), "test.yaml", e);
    return rc != ERR_OK ? rc : plan_from_recipe(&b->p, b->c, b->r, e);
}

QUANT_FN void bed_plan(struct quant_bed *b, const char *rules)
{
    struct err e = {.text = ""};
    ck_assert_msg(bed_try_plan(b, rules, &e) == ERR_OK, "%s", e.text);
}

QUANT_FN enum err_code bed_run(struct quant_bed *b, const char *out, int threads, struct err *e)
{
    struct quantize_summary s;
    struct quantize_job j = {.plan = b->p, .out = out, .command = "quantize"};
    j.pack.threads = threads;
    j.pack.isa = affine_isa_best();
    return quantize_run(&j, &s, e);
}

QUANT_FN void bed_close(struct quant_bed *b)
{
    plan_free(b->p);
    recipe_free(b->r);
    checkpoint_close(b->c);
    tiny_remove(b->dir);
    free(b->dir);
}

QUANT_FN const struct plan_item *bed_item(const struct quant_bed *b, const char *name)
{
    for (size_t i = 0; i < b->p->n_items; i++)
        if (strcmp(b->p->items[i].w->name, name) == 0)
            return &b->p->items[i];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

/* The bytes of dir/name. */
QUANT_FN struct strbuf bed_file(const char *dir, const char *name)
{
    struct strbuf text = {0};
    struct err e = {.text = ""};
    char *path = io_join(dir, name);
    ck_assert_msg(io_read_all(path, (size_t)1 << 30, &text, &e) == ERR_OK, "%s", e.text);
    free(path);
    return text;
}

QUANT_FN void bed_same_file(const char *a, const char *b, const char *name)
{
    struct strbuf x = bed_file(a, name), y = bed_file(b, name);
    ck_assert_msg(x.len == y.len && memcmp(x.data, y.data, x.len) == 0, "%s differs", name);
    strbuf_free(&x);
    strbuf_free(&y);
}

#endif
