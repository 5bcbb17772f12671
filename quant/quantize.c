/* quantize.c: the making of one folder. */
#include "quant/quantize.h"

#include "common/io.h"
#include "quant/folder.h"
#include "quant/manifest.h"
#include "quant/verify.h"

static void summarize(const struct plan *p, const struct pack_result *r, struct quantize_summary *s)
{
    memset(s, 0, sizeof *s);
    s->n_tensors = p->n_items;
    for (size_t i = 0; i < r->n_files; i++)
        s->bytes += r->files[i].bytes;
    for (size_t i = 0; i < p->n_items; i++) {
        s->n_exact += r->tensors[i].exact;
        if (r->tensors[i].figures.rel_rms > s->worst_rel_rms) {
            s->worst_rel_rms = r->tensors[i].figures.rel_rms;
            s->worst = i;
        }
    }
}

/* The output may be neither the source's folder nor a folder that holds one of its files. */
static enum err_code check_output(const struct quantize_job *j, struct err *e)
{
    const struct checkpoint *c = j->plan->ckpt;
    if (io_same(c->path, j->out))
        return err_set(e, ERR_USAGE, "%s: output and input are the same", j->out);
    for (size_t i = 0; i < c->n_files; i++) {
        char dir[4096];
        const char *path = c->files[i]->path, *base = io_base(path);
        size_t n = (size_t)(base - path);
        if (n == 0 || n >= sizeof dir)
            continue;
        memcpy(dir, path, n);
        dir[n] = 0;
        if (io_same(dir, j->out))
            return err_set(e, ERR_USAGE, "%s: output holds the input %s", j->out, base);
    }
    return ERR_OK;
}

enum err_code quantize_run(const struct quantize_job *j, struct quantize_summary *s, struct err *e)
{
    struct io_dir_out *out = NULL;
    struct pack_result r = {0};
    struct folder_files others = {.n = 0};
    enum err_code rc = check_output(j, e);
    if (rc == ERR_OK)
        rc = io_dir_out_open(&out, j->out, j->force, MANIFEST_NAME, e);
    if (rc != ERR_OK)
        return rc;
    const char *dir = io_dir_out_path(out);
    rc = pack_write(j->plan, dir, &j->pack, &r, e);
    if (rc == ERR_OK)
        rc = folder_write(j->plan, j->torch_dtype, dir, &others, e);
    struct manifest_facts facts = {.command = j->command,
                                   .plan = j->plan,
                                   .result = &r,
                                   .others = others.file,
                                   .n_others = others.n,
                                   .options = j->options};
    if (rc == ERR_OK)
        rc = manifest_write(&facts, dir, e);
    if (rc == ERR_OK && j->verify)
        rc = verify_folder(j->plan, dir, &j->pack, e);
    if (rc == ERR_OK && j->pack.interrupted && *j->pack.interrupted)
        rc = err_set(e, ERR_INTERRUPTED, "interrupted; nothing was kept");
    if (rc == ERR_OK) {
        summarize(j->plan, &r, s);
        rc = io_dir_out_commit(out, e);
    } else {
        io_dir_out_abort(out);
    }
    pack_result_free(&r);
    return rc;
}
