/* self_log.c: what a run said, and where two runs part. */
#include <stdlib.h>

#include "evals/self_private.h"

enum err_code self_log_init(struct self_log *l, size_t n, struct err *e)
{
    *l = (struct self_log){.n = n, .record = calloc(n + 1, sizeof *l->record)};
    return l->record ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for %zu answers", n);
}

void self_log_free(struct self_log *l)
{
    for (size_t i = 0; l->record && i < l->n; i++) {
        free(l->record[i].row);
        free(l->record[i].op);
    }
    free(l->record);
    *l = (struct self_log){.n = 0};
}

void self_log_row(struct self_log *l, size_t record, int32_t id, uint64_t hash)
{
    struct self_record *r = &l->record[record];
    if (r->n_rows == r->cap_rows) {
        size_t cap = r->cap_rows ? r->cap_rows * 2 : 64;
        struct self_row *more = realloc(r->row, cap * sizeof *more);
        l->failed |= !more;
        if (!more)
            return;
        r->row = more;
        r->cap_rows = cap;
    }
    r->row[r->n_rows++] = (struct self_row){id, hash};
}

void self_log_op(struct self_log *l, size_t record, int64_t pos, int layer, const char *name,
                 uint64_t hash)
{
    struct self_record *r = &l->record[record];
    if (l->n_ops == SELF_OPS_MAX)
        return;
    l->n_ops++;
    if (r->n_ops == r->cap_ops) {
        size_t cap = r->cap_ops ? r->cap_ops * 2 : 1024;
        struct self_op *more = realloc(r->op, cap * sizeof *more);
        l->failed |= !more;
        if (!more)
            return;
        r->op = more;
        r->cap_ops = cap;
    }
    r->op[r->n_ops++] = (struct self_op){(int32_t)pos, layer, name, hash};
}

bool self_log_differ(const struct self_log *base, const struct self_log *other, size_t *record,
                     size_t *row)
{
    for (size_t i = 0; i < base->n; i++) {
        const struct self_record *a = &base->record[i], *b = &other->record[i];
        size_t n = MIN2(a->n_rows, b->n_rows);
        for (size_t j = 0; j <= n; j++) {
            if (j < n && a->row[j].id == b->row[j].id && a->row[j].hash == b->row[j].hash)
                continue;
            if (j == n && a->n_rows == b->n_rows)
                break;
            *record = i;
            *row = j;
            return true;
        }
    }
    return false;
}

/* ---- narrowing --------------------------------------------------------------------------------
 */

/* By position, stable: operations of one position keep their order. */
static bool sort_ops(struct self_record *r)
{
    struct self_op *sorted = malloc((r->n_ops + 1) * sizeof *sorted);
    int32_t n_pos = 0;
    for (size_t i = 0; i < r->n_ops; i++)
        n_pos = MAX2(n_pos, r->op[i].pos + 1);
    size_t *at = calloc((size_t)n_pos + 1, sizeof *at);
    if (sorted && at) {
        for (size_t i = 0; i < r->n_ops; i++)
            at[r->op[i].pos + 1]++;
        for (int32_t p = 0; p < n_pos; p++)
            at[p + 1] += at[p];
        for (size_t i = 0; i < r->n_ops; i++)
            sorted[at[r->op[i].pos]++] = r->op[i];
        memcpy(r->op, sorted, r->n_ops * sizeof *sorted);
    }
    bool ok = sorted && at;
    free(sorted);
    free(at);
    return ok;
}

static bool same_op(const struct self_op *a, const struct self_op *b)
{
    return a->pos == b->pos && a->layer == b->layer && strcmp(a->name, b->name) == 0;
}

bool self_log_narrow(struct self_record *base, struct self_record *other, const struct self_op **at)
{
    if (base->n_ops == 0 || other->n_ops == 0 || !sort_ops(base) || !sort_ops(other))
        return false;
    size_t i = 0, j = 0;
    while (i < base->n_ops && j < other->n_ops) {
        const struct self_op *a = &base->op[i], *b = &other->op[j];
        if (same_op(a, b)) {
            if (a->hash != b->hash) {
                *at = a;
                return true;
            }
            i++;
            j++;
        } else if (a->pos < b->pos) { /* shared pages: the other did not compute it */
            i++;
        } else if (b->pos < a->pos) {
            j++;
        } else { /* one has an output row here that the other has not */
            bool ahead = false;
            for (size_t k = i; !ahead && k < base->n_ops && base->op[k].pos == b->pos; k++)
                ahead = same_op(&base->op[k], b);
            if (ahead)
                i++;
            else
                j++;
        }
    }
    return false;
}
