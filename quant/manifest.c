/* manifest.c: the manifest as JSON. */
#include "quant/manifest.h"

#include <math.h>
#include <stdlib.h>

#include "common/io.h"

/* jansson's setters take NULL for "out of memory" and pass it on; the roots are checked. */
static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *manifest_figures(const struct errstat_figures *f)
{
    return json_pack("{s:o,s:o,s:o,s:o}", "relative_rms", number(f->rel_rms), "max", number(f->max),
                     "sqnr_db", number(f->sqnr_db), "cosine", number(f->cosine));
}

static json_t *file_entry(const char *name, uint64_t bytes, const char *sha256)
{
    return json_pack("{s:s,s:I,s:s}", "name", name, "bytes", (json_int_t)bytes, "sha256", sha256);
}

static const char *after_colon(const char *path)
{
    const char *colon = strrchr(path, ':');
    return io_base(colon ? colon + 1 : path);
}

static json_t *sources(const struct manifest_facts *f)
{
    const struct checkpoint *c = f->plan->ckpt;
    json_t *list = json_array();
    for (size_t i = 0; i < c->n_files; i++)
        json_array_append_new(list,
                              file_entry(after_colon(c->files[i]->path), c->files[i]->file_bytes,
                                         f->result->source_sha256[i]));
    return list;
}

static int by_name(const void *a, const void *b)
{
    const struct pack_file *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static json_t *files(const struct manifest_facts *f)
{
    size_t n = f->result->n_files + f->n_others;
    const struct pack_file **all = calloc(MAX2(n, 1), sizeof *all);
    json_t *list = all ? json_array() : NULL;
    for (size_t i = 0; all && i < n; i++)
        all[i] = i < f->n_others ? &f->others[i] : &f->result->files[i - f->n_others];
    if (all)
        qsort(all, n, sizeof *all, by_name);
    for (size_t i = 0; all && i < n; i++)
        json_array_append_new(list, file_entry(all[i]->name, all[i]->bytes, all[i]->sha256));
    free(all);
    return list;
}

static json_t *recipe(const struct recipe *r)
{
    return json_pack("{s:s,s:s,s:s,s:s}", "name", r->name, "sha256", r->sha256, "why", r->why,
                     "text", r->text);
}

/* Where a source that assay made came from: its manifest without the list of tensors. */
static json_t *origin(const json_t *manifest)
{
    static const char *const keys[] = {"assay", "command", "options", "sources", "origin"};
    json_t *o = json_object();
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (json_object_get(manifest, keys[i]))
            json_object_set(o, keys[i], json_object_get(manifest, keys[i]));
    const char *sha =
        json_string_value(json_object_get(json_object_get(manifest, "recipe"), "sha256"));
    if (sha)
        json_object_set_new(o, "recipe_sha256", json_string(sha));
    return o;
}

static json_t *tensor_entry(const struct manifest_facts *f, size_t i, const char *name)
{
    const struct plan_item *it = &f->plan->items[i];
    const struct pack_tensor *t = &f->result->tensors[i];
    char from[64], to[64];
    json_t *shape = json_array();
    for (int d = 0; d < it->w->n_dim; d++)
        json_array_append_new(shape, json_integer(it->w->dim[d]));
    json_t *o = json_pack("{s:s,s:s,s:o,s:s,s:s}", "name", name, "role",
                          ckpt_role_name(it->w->role), "shape", shape, "from",
                          plan_weight_format(it->w, from), "format", plan_item_format(it, to));
    if (it->packed) {
        json_object_set_new(o, "bits", json_integer(it->q.bits));
        json_object_set_new(o, "group", json_integer(it->q.group));
        json_object_set_new(o, "scale", json_string(dtype_name(it->q.scale)));
    }
    if (it->rule >= 0)
        json_object_set_new(o, "rule_line", json_integer(f->plan->recipe->rules[it->rule].line));
    if (it->note[0])
        json_object_set_new(o, "note", json_string(it->note));
    if (it->grid.units)
        json_object_set_new(o, "grid", grid_report_json(&it->grid));
    json_object_set_new(o, "action", json_string(plan_action_name(it->action)));
    json_object_set_new(o, "bytes", json_integer((json_int_t)plan_item_bytes(it)));
    json_object_set_new(o, "sha256", json_string(t->sha256));
    json_object_set_new(o, "exact", json_boolean(t->exact));
    json_object_set_new(o, "error", manifest_figures(&t->figures));
    return o;
}

static enum err_code tensors(const struct manifest_facts *f, json_t **list, struct err *e)
{
    *list = json_array();
    for (size_t i = 0; i < f->plan->n_items; i++) {
        char name[CKPT_NAME_MAX];
        enum err_code rc = pack_name(f->plan, &f->plan->items[i], name, e);
        if (rc != ERR_OK) {
            json_decref(*list);
            return rc;
        }
        json_array_append_new(*list, tensor_entry(f, i, name));
    }
    return ERR_OK;
}

static json_t *totals(const struct plan *p)
{
    struct plan_totals t;
    plan_totals(p, &t);
    return json_pack("{s:I,s:I,s:f,s:I,s:f}", "weights", (json_int_t)t.elems, "bytes",
                     (json_int_t)t.bytes, "bits_per_weight", errstat_round6(t.bits),
                     "packed_weights", (json_int_t)t.packed_elems, "packed_bits_per_weight",
                     errstat_round6(t.packed_bits));
}

enum err_code manifest_make(const struct manifest_facts *f, json_t **out, struct err *e)
{
    json_t *list = NULL;
    *out = NULL;
    enum err_code rc = tensors(f, &list, e);
    if (rc != ERR_OK)
        return rc;
    json_t *m =
        json_pack("{s:s,s:i,s:s}", "assay", ASSAY_VERSION, "manifest", 1, "command", f->command);
    int bad = m ? 0 : 1;
    if (m && f->plan->recipe)
        bad |= json_object_set_new(m, "recipe", recipe(f->plan->recipe));
    if (m && f->options)
        bad |= json_object_set(m, "options", f->options);
    if (m) {
        bad |= json_object_set_new(m, "sources", sources(f));
        if (f->plan->ckpt->manifest)
            bad |= json_object_set_new(m, "origin", origin(f->plan->ckpt->manifest));
        bad |= json_object_set_new(m, "files", files(f));
        bad |= json_object_set_new(m, "totals", totals(f->plan));
        bad |= json_object_set(m, "tensors", list);
    }
    json_decref(list);
    if (bad) {
        json_decref(m);
        return err_set(e, ERR_NOMEM, "out of memory: manifest");
    }
    *out = m;
    return ERR_OK;
}

enum err_code manifest_write(const struct manifest_facts *f, const char *dir, struct err *e)
{
    json_t *m = NULL;
    struct strbuf text = {0};
    char *path = io_join(dir, MANIFEST_NAME);
    enum err_code rc = path ? manifest_make(f, &m, e) : err_set(e, ERR_NOMEM, "out of memory");
    if (rc == ERR_OK) {
        json_put(&text, m, JSON_INDENT(1));
        strbuf_putc(&text, '\n');
        rc = strbuf_ok(&text, e);
    }
    if (rc == ERR_OK)
        rc = io_write_all(path, text.data, text.len, false, e);
    json_decref(m);
    strbuf_free(&text);
    free(path);
    return rc;
}
