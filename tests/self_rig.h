/* self_rig.h: self-comparison of a tiny model with a planted fault: the fault's place, the prompts
 * and the run, for the tests on the CPU and on a device.
 */
#ifndef ASSAY_TESTS_SELF_RIG_H
#define ASSAY_TESTS_SELF_RIG_H

#include <string.h>

#include "common/io.h"
#include "evals/self_private.h"
#include "infer/runner_private.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"
#include "tests/check_main.h"

#define ANY_LAYER (-2) /* where a fault shows is a matter of timing */

struct plant {
    enum kern_fault fault;
    const char *cell; /* planted before this cell only; NULL: from the start */
    bool prefix;
    int batch; /* requests of a step; 0: all */
};

static void before_way(void *ctx, const char *cell)
{
    const struct plant *p = ctx;
    kern_plant(!p->cell || strcmp(cell, p->cell) == 0 ? p->fault : KERN_FAULT_NONE);
}

static void on_runner(void *ctx, struct runner *r)
{
    const struct plant *p = ctx;
    if (p->prefix)
        kv_plant(runner_kv(r), KV_FAULT_PARENT);
}

/* The folder `name` in the test's own, written if it is not there. */
static char *make_folder(const char *name, const struct tiny_model *m)
{
    struct err e = {.text = ""};
    char *dir = io_join(test_folder(), name);
    if (!io_exists(dir)) {
        ck_assert_msg(tiny_model_write(dir, m, &e) == ERR_OK, "%s", e.text);
        ck_assert_msg(tiny_text_write(dir, &e) == ERR_OK, "%s", e.text);
    }
    return dir;
}

/* Long prompts for splits; two that share their second page but not their first; a conversation. */
static char *make_prompts(void)
{
    char *path = io_join(test_folder(), "p.jsonl");
    struct strbuf b = {0};
    for (int i = 0; i < 2; i++) {
        strbuf_printf(&b, "{\"custom_id\":\"long%d\",\"max_tokens\":4,\"prompt\":\"", i);
        for (int j = 0; j < 270; j++)
            strbuf_putc(&b, (char)('a' + (j * (j < 64 ? 3 + i : 5) + j / 7) % 26));
        strbuf_puts(&b, "\"}\n");
    }
    strbuf_puts(&b, "{\"custom_id\":\"draw\",\"prompt\":\"the cat\",\"max_tokens\":3,"
                    "\"temperature\":1,\"seed\":3}\n"
                    "{\"custom_id\":\"talk\",\"turns\":[\"one\",\"two\"],\"max_tokens\":3}\n");
    ck_assert_int_eq(io_write_all(path, b.data, b.len, true, NULL), ERR_OK);
    strbuf_free(&b);
    return path;
}

/* model, prompts: paths, which are freed. plant: NULL for none. */
static void compare_self(struct self_report *r, char *model, char *prompts,
                         const struct kern_options *kern, const char *cells, struct plant *plant)
{
    struct err e = {.text = ""};
    struct plant none = {.fault = KERN_FAULT_NONE};
    struct self_options o = {.path = model,
                             .prompts = prompts,
                             .engine = {.kern = *kern, .kv_tokens = 4096},
                             .repeats = 1,
                             .cells = cells,
                             .ctx = plant ? plant : &none,
                             .before_way = before_way,
                             .on_runner = on_runner};
    o.engine.batch_seqs = plant ? plant->batch : 0;
    prompt_defaults_init(&o.defaults);
    enum err_code rc = self_run(r, &o, &e);
    kern_plant(KERN_FAULT_NONE);
    ck_assert_msg(rc == ERR_OK, "%s", e.text);
    free(model);
    free(prompts);
}

/* The one cell of r saw its fault, narrowed to that operation. */
static void expect_found(const struct self_report *r, int layer, const char *op)
{
    const struct self_cell *c = &r->cell[0];
    ck_assert_int_eq(r->n_cells, 1);
    ck_assert_msg(c->state == SELF_DIFFERS, "%s does not see its fault", c->name);
    ck_assert_msg(c->at.narrowed, "%s: not narrowed", c->name);
    ck_assert_msg(strcmp(c->at.op, op) == 0, "%s: narrowed to layer %d %s, not %s", c->name,
                  c->at.layer, c->at.op, op);
    ck_assert_msg(layer == ANY_LAYER || c->at.layer == layer, "%s: narrowed to layer %d, not %d",
                  c->name, c->at.layer, layer);
    ck_assert(c->way[0] && c->at.custom_id[0]);
}

#endif
