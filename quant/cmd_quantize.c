/* cmd_quantize.c: `assay quantize`. */
#include <stdio.h>

#include "common/cmd.h"
#include "common/log.h"
#include "common/opt.h"
#include "quant/plan_text.h"
#include "quant/quantize.h"

struct args {
    const char *out, *recipe, *isa;
    bool dry_run, verify, json, force;
    int64_t threads;
    double shard_gb;
};

static enum err_code parse(int argc, char **argv, struct args *a, struct opt_list *pos, bool *help,
                           struct err *e)
{
    const struct opt opts[] = {
        {OPT_STRING, 'o', "out", &a->out, 0, 0, NULL, "DIR", "Folder to make."},
        {OPT_STRING, 'r', "recipe", &a->recipe, 0, 0, NULL, "FILE",
         "Recipe in YAML; recipes/README.md has the schema."},
        {OPT_FLAG, 0, "dry-run", &a->dry_run, 0, 0, NULL, NULL,
         "Print every tensor's decision and the totals, write nothing."},
        {OPT_FLAG, 0, "verify", &a->verify, 0, 0, NULL, NULL,
         "Reopen the output and derive all of it again before it gets its name."},
        {OPT_FLAG, 0, "force", &a->force, 0, 0, NULL, NULL,
         "Replace an output folder that assay made."},
        {OPT_FLAG, 0, "json", &a->json, 0, 0, NULL, NULL,
         "Print the plan (--dry-run) or the summary as JSON."},
        {OPT_INT, 't', "threads", &a->threads, 1, 256, NULL, "N",
         "Threads; default OMP_NUM_THREADS, else the processors allowed."},
        {OPT_DOUBLE, 0, "shard-gb", &a->shard_gb, 1e-6, 1e6, NULL, "GB",
         "Start a new file of tensors beyond this many GiB; default 5."},
        {OPT_STRING, 0, "isa", &a->isa, 0, 0, NULL, "NAME",
         "c, avx2 or avx512; default the best one here. The bytes are the same."},
        {.type = OPT_END},
    };
    const struct opt_cmd cmd = {
        .name = "quantize",
        .usage = "MODEL -o OUT --recipe FILE",
        .about = "Plans a recipe over a checkpoint, encodes it and writes the packed checkpoint "
                 "with its manifest, assay.json. The same source and recipe give the same bytes on "
                 "every machine and with any number of threads.",
        .examples = "  assay quantize smollm2-bf16 -o q4 --recipe recipes/affine4-g64.yaml\n"
                    "  assay quantize smollm2-bf16 --recipe mine.yaml --dry-run\n",
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

static enum err_code report(const struct args *a, const struct plan *p,
                            const struct quantize_summary *s, struct err *e)
{
    struct plan_totals t;
    char bytes[24];
    plan_totals(p, &t);
    const char *worst = p->items[s->worst].w->name;
    log_info("%s: %s, %.3f bits per weight (packed matrices %.3f); largest relative RMS error %g "
             "in %s%s",
             a->out, str_bytes(bytes, s->bytes), t.bits, t.packed_bits, s->worst_rel_rms, worst,
             a->verify ? "; verified" : "");
    if (!a->json)
        return ERR_OK;
    return cmd_print_json(json_pack("{s:s,s:I,s:f,s:f,s:f,s:s,s:b}", "out", a->out, "bytes",
                                    (json_int_t)s->bytes, "bits_per_weight", errstat_round6(t.bits),
                                    "packed_bits_per_weight", errstat_round6(t.packed_bits),
                                    "worst_relative_rms", s->worst_rel_rms, "worst_tensor", worst,
                                    "verified", a->verify),
                          e);
}

/* What the source's manifest says was recovered from a grid, or came packed by compressed-tensors,
 * and the recipe would fit anew: its values change, and training fitted them to that grid. */
static void warn_of_grids(const struct plan *p)
{
    const json_t *list = json_object_get(p->ckpt->manifest, "tensors");
    const char *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < p->n_items; i++) {
        char module[CKPT_NAME_MAX];
        const struct plan_item *it = &p->items[i];
        bool refit = it->action == PLAN_ENCODE && it->w->enc == CKPT_CT;
        size_t j;
        json_t *t;
        if (it->action != PLAN_ENCODE || pack_name(p, it, module, NULL) != ERR_OK)
            continue;
        json_array_foreach(list, j, t)
        {
            const char *name = json_string_value(json_object_get(t, "name"));
            const char *action = json_string_value(json_object_get(t, "action"));
            const char *from = json_string_value(json_object_get(t, "from"));
            bool kept =
                action && (strcmp(action, "grid") == 0 ||
                           (strcmp(action, "repack") == 0 && from && str_starts(from, "ct ")));
            refit |= kept && name && strcmp(name, module) == 0;
        }
        n += refit;
        first = refit && !first ? it->w->name : first;
    }
    if (n)
        log_warn(
            "%zu matrices lie on the grid that they were trained on (first: %s), and the recipe "
            "fits them to another one: their values change; 'keep: true' keeps them",
            n, first);
}

static enum err_code make(const struct args *a, const struct plan *p, const struct cmd_env *env,
                          struct err *e)
{
    struct progress bar;
    struct quantize_summary s;
    struct quantize_job j = {
        .plan = p, .out = a->out, .command = "quantize", .force = a->force, .verify = a->verify};
    j.pack.threads = (int)a->threads;
    j.pack.isa = affine_isa_best();
    j.pack.interrupted = env->interrupted;
    j.pack.progress = show_progress;
    j.pack.progress_ctx = &bar;
    j.pack.shard_bytes = (uint64_t)(a->shard_gb * 1073741824.0);
    if (a->isa && !affine_isa_find(a->isa, &j.pack.isa))
        return err_set(e, ERR_USAGE, "--isa: found '%s', expected c, avx2 or avx512", a->isa);
    if (!affine_isa_here(j.pack.isa))
        return err_set(e, ERR_USAGE, "--isa: this processor has no %s", a->isa);
    const struct checkpoint *c = p->ckpt;
    if (!c->tokenizer_json)
        log_warn("%s: no tokenizer.json%s%s", c->path, c->tokenizer_err.text[0] ? ": " : "",
                 c->tokenizer_err.text);
    uint64_t total = 0;
    for (size_t i = 0; i < p->n_items; i++)
        total += p->items[i].w->bytes;
    progress_start(&bar, "quantize", "B", total);
    enum err_code rc = quantize_run(&j, &s, e);
    progress_end(&bar);
    return rc == ERR_OK ? report(a, p, &s, e) : rc;
}

enum err_code cmd_quantize(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct args a = {.shard_gb = 5.0};
    struct opt_list pos = {0};
    struct recipe *r = NULL;
    struct checkpoint *c = NULL;
    struct plan *p = NULL;
    bool help = false;
    enum err_code rc = parse(argc, argv, &a, &pos, &help, e);
    if (rc != ERR_OK || help)
        goto out;
    if (!a.recipe)
        rc = err_set(e, ERR_USAGE, "--recipe FILE is missing");
    else if (!a.out && !a.dry_run)
        rc = err_set(e, ERR_USAGE, "-o OUT is missing (or --dry-run)");
    if (rc == ERR_OK)
        rc = recipe_read(&r, a.recipe, e);
    if (rc == ERR_OK)
        rc = checkpoint_open(&c, pos.items[0], e);
    if (rc == ERR_OK)
        rc = plan_from_recipe(&p, c, r, e);
    if (rc == ERR_OK)
        warn_of_grids(p);
    if (rc == ERR_OK)
        rc = a.dry_run ? print_plan(p, a.json, e) : make(&a, p, env, e);
out:
    plan_free(p);
    checkpoint_close(c);
    recipe_free(r);
    opt_list_free(&pos);
    return rc;
}
