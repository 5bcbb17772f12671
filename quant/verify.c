/* verify.c: the second derivation. Works on runs of rows like the first, but reads its results
 * through ckpt and compares. */
#include "quant/verify.h"

#include <stdlib.h>

#include "common/hash.h"
#include "common/io.h"
#include "common/par.h"
#include "quant/manifest.h"
#include "quant/pack_run.h"

struct verifying {
    const struct plan_item *it;
    const struct ckpt_weight *got;
    enum affine_isa isa;
    int64_t run_rows;
    struct errstat *stats; /* one a run, as are the next two */
    struct err *errs;
    enum err_code *rcs;
};

static enum err_code differs(const char *what, int64_t row, struct err *e)
{
    return err_set(e, ERR_NEGATIVE, "%s from row %lld on differ from those derived again", what,
                   (long long)row);
}

/* Derives rows [row0, row0 + n) again and compares the bytes. */
static enum err_code compare_bytes(const struct verifying *v, int64_t row0, int64_t n,
                                   struct pack_scratch *s, struct err *e)
{
    const struct plan_item *it = v->it;
    size_t code_row = (size_t)(it->code_bytes / (uint64_t)it->rows);
    size_t scale_row = (size_t)(it->scale_bytes / (uint64_t)it->rows);
    size_t codes = (size_t)n * code_row, scales = (size_t)n * scale_row;
    bool biased = it->bias_bytes > 0;
    uint8_t *mem = malloc(codes + 2 * scales + 1);
    if (!mem)
        return err_set(e, ERR_NOMEM, "out of memory: %lld rows", (long long)n);
    struct pack_dest to = {mem, mem + codes, mem + codes + scales, row0};
    struct errstat ignored = {{0}, {0}, {0}, {0}};
    enum err_code rc = pack_run(it, v->isa, row0, n, &to, s, &ignored, e);
    size_t at = (size_t)row0;
    if (rc == ERR_OK && memcmp(to.codes, v->got->data + at * code_row, codes) != 0)
        rc = differs("values", row0, e);
    if (rc == ERR_OK && scales && memcmp(to.scales, v->got->scales + at * scale_row, scales) != 0)
        rc = differs("scales", row0, e);
    if (rc == ERR_OK && biased && memcmp(to.biases, v->got->biases + at * scale_row, scales) != 0)
        rc = differs("biases", row0, e);
    free(mem);
    return rc;
}

/* Errors from both sides' decoded rows; the encoder's sums are not used. */
static enum err_code measure(const struct verifying *v, int64_t row0, int64_t n, struct errstat *st,
                             struct err *e)
{
    int64_t elems = n * v->it->k;
    float *w = malloc((size_t)elems * sizeof *w), *d = malloc((size_t)elems * sizeof *d);
    enum err_code rc = ERR_OK;
    if (!w || !d)
        rc = err_set(e, ERR_NOMEM, "out of memory: %lld values", (long long)elems);
    if (rc == ERR_OK)
        rc = ckpt_weight_decode(v->it->w, row0, n, w, e);
    if (rc == ERR_OK)
        rc = ckpt_weight_decode(v->got, row0, n, d, e);
    if (rc == ERR_OK)
        errstat_add(st, w, d, elems, v->it->packed ? v->it->q.group : 64);
    free(w);
    free(d);
    return rc;
}

static void verify_run(void *ctx, int64_t i, int thread)
{
    struct verifying *v = ctx;
    struct pack_scratch s = {0};
    int64_t row0 = i * v->run_rows, n = MIN2(v->run_rows, v->it->rows - row0);
    (void)thread;
    v->rcs[i] = compare_bytes(v, row0, n, &s, &v->errs[i]);
    if (v->rcs[i] == ERR_OK)
        v->rcs[i] = measure(v, row0, n, &v->stats[i], &v->errs[i]);
    pack_scratch_free(&s);
}

static enum err_code verify_runs(struct verifying *v, int threads, struct errstat *sum,
                                 struct err *e)
{
    enum err_code rc = ERR_OK;
    v->run_rows = errstat_run_rows(v->it->rows, v->it->k);
    int64_t n = (v->it->rows + v->run_rows - 1) / v->run_rows;
    v->stats = calloc((size_t)MAX2(n, 1), sizeof *v->stats);
    v->errs = calloc((size_t)MAX2(n, 1), sizeof *v->errs);
    v->rcs = calloc((size_t)MAX2(n, 1), sizeof *v->rcs);
    if (!v->stats || !v->errs || !v->rcs) {
        rc = err_set(e, ERR_NOMEM, "out of memory: %lld runs", (long long)n);
        goto out;
    }
    par_for(threads, n, verify_run, v);
    for (int64_t i = 0; i < n && rc == ERR_OK; i++) {
        errstat_merge(sum, &v->stats[i]);
        rc = v->rcs[i];
        if (rc != ERR_OK && e)
            *e = v->errs[i];
    }
out:
    free(v->stats);
    free(v->errs);
    free(v->rcs);
    return rc;
}

static bool same_format(const struct plan_item *it, const struct ckpt_weight *got)
{
    if (got->blocks || got->n_dim != it->w->n_dim ||
        memcmp(got->dim, it->w->dim, sizeof got->dim) != 0)
        return false;
    if (!it->packed)
        return got->enc == CKPT_DENSE && got->dtype == it->dtype;
    return ckpt_weight_packed(got) && qformat_same(got->q, it->q) &&
           (ckpt_weight_n_globals(got) > 0) == (it->global_bytes > 0);
}

static enum err_code verify_plain_copy(const struct verifying *v, struct err *e)
{
    const struct ckpt_weight *w = v->it->w, *got = v->got;
    size_t codes = (size_t)v->it->code_bytes, scales = (size_t)v->it->scale_bytes;
    if (memcmp(w->data, got->data, codes) != 0)
        return differs("values", 0, e);
    size_t biases = (size_t)v->it->bias_bytes, globals = (size_t)v->it->global_bytes;
    if ((scales && memcmp(w->scales, got->scales, scales) != 0) ||
        (biases && memcmp(w->biases, got->biases, biases) != 0) ||
        (globals && memcmp(w->globals, got->globals, globals) != 0))
        return differs("scales or biases", 0, e);
    return ERR_OK;
}

/* The entry of the manifest against what was found: hash and figures. */
static enum err_code verify_entry(const struct verifying *v, const struct errstat *sum,
                                  const json_t *entry, struct err *e)
{
    struct sha256 *sha = sha256_new();
    struct errstat_figures f;
    uint8_t digest[32];
    char hex[SHA256_HEX];
    if (!sha)
        return err_set(e, ERR_NOMEM, "out of memory");
    if (v->it->packed) {
        if (v->it->bias_bytes)
            sha256_update(sha, v->got->biases, (size_t)v->it->bias_bytes);
        if (v->it->global_bytes)
            sha256_update(sha, v->got->globals, (size_t)v->it->global_bytes);
        sha256_update(sha, v->got->scales, (size_t)v->it->scale_bytes);
    }
    sha256_update(sha, v->got->data, (size_t)v->it->code_bytes);
    sha256_final(sha, digest);
    sha256_hex(digest, hex);
    const char *said = json_string_value(json_object_get(entry, "sha256"));
    if (!said || strcmp(said, hex) != 0)
        return err_set(e, ERR_NEGATIVE, "SHA-256 is %s, the manifest says %s", hex,
                       said ? said : "nothing");
    errstat_figures(sum, &f);
    json_t *figures = manifest_figures(&f);
    bool equal = figures && json_equal(figures, json_object_get(entry, "error"));
    json_decref(figures);
    return equal ? ERR_OK
                 : err_set(e, ERR_NEGATIVE,
                           "relative RMS error is %g, maximum %g; the manifest says otherwise",
                           f.rel_rms, f.max);
}

static enum err_code verify_tensor(const struct plan *p, const struct checkpoint *c, size_t i,
                                   const json_t *entry, const struct pack_options *o, struct err *e)
{
    struct verifying v = {.it = &p->items[i], .isa = o->isa};
    struct errstat sum = {{0}, {0}, {0}, {0}};
    enum err_code rc = ERR_OK;
    v.got = checkpoint_find(c, v.it->w->name);
    if (!v.got)
        return err_set(e, ERR_NEGATIVE, "is not in the output");
    if (!same_format(v.it, v.got)) {
        char has[64], want[64];
        return err_set(e, ERR_NEGATIVE, "is %s in the output, the plan says %s",
                       plan_weight_format(v.got, has), plan_item_format(v.it, want));
    }
    if (pack_run_is_plain_copy(v.it))
        rc = verify_plain_copy(&v, e);
    else
        rc = verify_runs(&v, o->threads > 0 ? o->threads : par_default_threads(), &sum, e);
    if (rc == ERR_OK && v.it->action == PLAN_COPY) /* equal bytes have no error to sum */
        memset(&sum, 0, sizeof sum);
    return rc == ERR_OK ? verify_entry(&v, &sum, entry, e) : rc;
}

static enum err_code verify_files(const json_t *manifest, const char *dir, struct err *e)
{
    json_t *list = json_object_get(manifest, "files"), *f;
    size_t i;
    enum err_code rc = ERR_OK;
    json_array_foreach(list, i, f)
    {
        const char *name = json_string_value(json_object_get(f, "name"));
        const char *said = json_string_value(json_object_get(f, "sha256"));
        char hex[SHA256_HEX] = "";
        char *path = name ? io_join(dir, name) : NULL;
        if (!path || !said)
            rc = err_set(e, ERR_NEGATIVE, "%s: file %zu has no name or SHA-256", MANIFEST_NAME, i);
        else
            rc = sha256_file(path, hex, e);
        if (rc == ERR_OK && strcmp(hex, said) != 0)
            rc = err_set(e, ERR_NEGATIVE, "%s: SHA-256 is %s, the manifest says %s", name, hex,
                         said);
        free(path);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

static enum err_code verify_sources(const struct plan *p, const json_t *manifest, struct err *e)
{
    const json_t *list = json_object_get(manifest, "sources");
    if (json_array_size(list) != p->ckpt->n_files)
        return err_set(e, ERR_NEGATIVE, "%s: %zu sources, expected %zu", MANIFEST_NAME,
                       json_array_size(list), p->ckpt->n_files);
    for (size_t i = 0; i < p->ckpt->n_files; i++) {
        char hex[SHA256_HEX];
        enum err_code rc = checkpoint_file_sha256(p->ckpt, i, hex, e);
        const char *said = json_string_value(json_object_get(json_array_get(list, i), "sha256"));
        if (rc == ERR_OK && (!said || strcmp(said, hex) != 0))
            rc = err_set(e, ERR_NEGATIVE, "source %s: SHA-256 is %s, the manifest says %s",
                         p->ckpt->files[i]->path, hex, said ? said : "nothing");
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

enum err_code verify_folder(const struct plan *p, const char *dir, const struct pack_options *o,
                            struct err *e)
{
    struct checkpoint *c = NULL;
    enum err_code rc = checkpoint_open(&c, dir, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "verify");
    const json_t *tensors = json_object_get(c->manifest, "tensors");
    if (json_array_size(tensors) != p->n_items || c->n_weights != p->n_items)
        rc = err_set(e, ERR_NEGATIVE, "%zu tensors, %zu in the manifest, expected %zu",
                     c->n_weights, json_array_size(tensors), p->n_items);
    if (rc == ERR_OK)
        rc = verify_files(c->manifest, dir, e);
    if (rc == ERR_OK)
        rc = verify_sources(p, c->manifest, e);
    for (size_t i = 0; i < p->n_items && rc == ERR_OK; i++) {
        if (o->interrupted && *o->interrupted)
            rc = err_set(e, ERR_INTERRUPTED, "interrupted");
        else
            rc = verify_tensor(p, c, i, json_array_get(tensors, i), o, e);
        rc = err_wrap(e, rc, "tensor %s", p->items[i].w->name);
    }
    checkpoint_close(c);
    return err_wrap(e, rc, "verify");
}
