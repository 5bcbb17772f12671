/* report_figures.c: the page's table of every figure, with the noise floor beside the pairs. */
#include <math.h>
#include <stdio.h>

#include "common/html.h"
#include "evals/report_page.h"

#define COLUMNS_MAX 40 /* variants of one table; more are in report.csv */

/* One figure of forced positions: where it stands in struct figures. */
struct forced_row {
    const char *name, *help;
    size_t offset;
    double scale;
};

#define AT(MEMBER) offsetof(struct figures, MEMBER)

static const struct forced_row forced_rows[] = {
    {"KL", "of the reference against the variant, nats a position", AT(kl), 1},
    {"KL reverse", "of the variant against the reference", AT(kl_rev), 1},
    {"Jensen-Shannon", "nats, at most ln 2", AT(js), 1},
    {"KL median", NULL, AT(kl_quantile[0]), 1},
    {"KL 90 %", NULL, AT(kl_quantile[1]), 1},
    {"KL 99 %", NULL, AT(kl_quantile[2]), 1},
    {"KL 99.9 %", NULL, AT(kl_quantile[3]), 1},
    {"agreement %", "same best token", AT(agreement), 100},
    {"agreement where decided %", "the reference's margin is above its noise floor",
     AT(agreement_decided), 100},
    {"top-5 agreement %", "of the reference's five best tokens", AT(top_shared), 100},
    {"rank", "of the reference's best token in the variant, from 0", AT(rank), 1},
    {"ln of the perplexity ratio", "variant over reference, on the reference's answers",
     AT(ppl_log_ratio), 1},
    {"KL, tokens 0 to 7", NULL, AT(kl_bin[0]), 1},
    {"KL, tokens 8 to 31", NULL, AT(kl_bin[1]), 1},
    {"KL, tokens 32 to 127", NULL, AT(kl_bin[2]), 1},
    {"KL, tokens 128 to 511", NULL, AT(kl_bin[3]), 1},
    {"KL, tokens from 512 on", NULL, AT(kl_bin[4]), 1},
};

static void put_name(struct strbuf *b, const char *name, const char *help)
{
    html_row_begin(b);
    html_cell_raw_begin(b, "");
    if (help) {
        strbuf_puts(b, "<span title=\"");
        html_text(b, help);
        strbuf_puts(b, "\">");
    }
    html_text(b, name);
    strbuf_puts(b, help ? "</span>" : "");
    html_cell_raw_end(b);
}

static struct stats_interval interval_at(const struct figures *f, size_t offset)
{
    struct stats_interval v;
    memcpy(&v, (const char *)f + offset, sizeof v);
    return v;
}

static bool has_row(const struct comparison *c, const struct forced_row *r)
{
    for (size_t i = 0; i + 1 < c->n_variants; i++)
        if (c->pairs[i].forced && isfinite(interval_at(&c->pairs[i].f, r->offset).value))
            return true;
    return false;
}

static size_t shown(const struct comparison *c)
{
    return MIN2(c->n_variants - 1, (size_t)COLUMNS_MAX);
}

static void put_forced(struct strbuf *b, const struct comparison *c, const struct forced_row *r)
{
    if (!has_row(c, r))
        return;
    put_name(b, r->name, r->help);
    for (size_t i = 0; i < shown(c); i++) {
        if (c->pairs[i].forced)
            report_page_interval(b, interval_at(&c->pairs[i].f, r->offset), r->scale, 4);
        else
            html_cell(b, "");
    }
    if (c->has_floor)
        report_page_interval(b, interval_at(&c->floor, r->offset), r->scale, 4);
    html_row_end(b);
}

/* ---- rows that are no interval of forced positions ----------------------------------------------
 */

enum plain_row {
    ROW_EXACT,
    ROW_COMMON,
    ROW_EDITS,
    ROW_LENGTH,
    ROW_COHERENT,
    ROW_FLIPS,
    ROW_USER_KL,
    ROW_USER_AGREEMENT,
    ROW_TEMPLATE_KL,
    ROW_TEMPLATE_AGREEMENT,
    ROWS_PLAIN
};

static const struct {
    const char *name, *help;
} plain_rows[ROWS_PLAIN] = {
    [ROW_EXACT] = {"same answers %", "free-running, token for token"},
    [ROW_COMMON] = {"common prefix %", "of the reference's tokens"},
    [ROW_EDITS] = {"edits a token", "insertions, deletions, replacements"},
    [ROW_LENGTH] = {"length ratio", "tokens of the variant for each of the reference"},
    [ROW_COHERENT] = {"coherent tokens %",
                      "of the variant, before a stray script, a garbled character or a loop"},
    [ROW_FLIPS] = {"flips lost, gained, moved",
                   "the token that stands there was the reference's best; is the variant's; "
                   "neither"},
    [ROW_USER_KL] = {"KL, user's tokens", NULL},
    [ROW_USER_AGREEMENT] = {"agreement, user's tokens %", NULL},
    [ROW_TEMPLATE_KL] = {"KL, template's tokens", NULL},
    [ROW_TEMPLATE_AGREEMENT] = {"agreement, template's tokens %", NULL},
};

static bool has_plain(const struct pair *p, enum plain_row row)
{
    if (row == ROW_COHERENT)
        return p->partings && p->has_census;
    if (row == ROW_FLIPS)
        return p->forced;
    return row >= ROW_USER_KL ? p->has_roles : p->partings != NULL;
}

static void put_flips(struct strbuf *b, const struct figures *f)
{
    html_cell_raw_begin(b, "number");
    strbuf_printf(b, "%zu, %zu, %zu", f->flips_lost, f->flips_gained, f->flips_moved);
    html_cell_raw_end(b);
}

static void put_plain_cell(struct strbuf *b, const struct pair *p, enum plain_row row)
{
    const struct figures_role *user = &p->by_role[ROLE_OF_USER],
                              *control = &p->by_role[ROLE_OF_TEMPLATE];
    const struct {
        struct stats_interval v;
        double scale;
    } cell[ROWS_PLAIN] = {
        [ROW_EXACT] = {p->exact, 100},
        [ROW_COMMON] = {p->common, 100},
        [ROW_EDITS] = {p->edits, 1},
        [ROW_LENGTH] = {p->length, 1},
        [ROW_COHERENT] = {p->coherent, 100},
        [ROW_USER_KL] = {user->kl, 1},
        [ROW_USER_AGREEMENT] = {user->agreement, 100},
        [ROW_TEMPLATE_KL] = {control->kl, 1},
        [ROW_TEMPLATE_AGREEMENT] = {control->agreement, 100},
    };
    if (!has_plain(p, row))
        html_cell(b, "");
    else if (row == ROW_FLIPS)
        put_flips(b, &p->f);
    else
        report_page_interval(b, cell[row].v, cell[row].scale, 4);
}

static void put_plain(struct strbuf *b, const struct comparison *c, enum plain_row row)
{
    bool any = false;
    for (size_t i = 0; i < shown(c); i++)
        any |= has_plain(&c->pairs[i], row);
    if (!any)
        return;
    put_name(b, plain_rows[row].name, plain_rows[row].help);
    for (size_t i = 0; i < shown(c); i++)
        put_plain_cell(b, &c->pairs[i], row);
    if (c->has_floor && row == ROW_FLIPS)
        put_flips(b, &c->floor);
    else if (c->has_floor)
        html_cell(b, "");
    html_row_end(b);
}

void report_figures_table(struct strbuf *b, const struct comparison *c)
{
    struct html_column columns[COLUMNS_MAX + 2] = {
        {"figure", "hover a name for its meaning", false}};
    char floor_name[48];
    size_t n = 1;
    for (size_t i = 0; i < shown(c); i++)
        columns[n++] = (struct html_column){c->variants[i + 1].name, NULL, true};
    snprintf(floor_name, sizeof floor_name, "noise floor (%s)", c->floor_path);
    if (c->has_floor)
        columns[n++] = (struct html_column){
            floor_name, "the reference against itself in the other arithmetic", true};
    html_heading(b, 2, "figures", "Figures");
    html_table_begin(b, "95 % intervals from resampled prompts", columns, n);
    for (int i = 0; i < ROW_FLIPS; i++)
        put_plain(b, c, (enum plain_row)i);
    for (size_t i = 0; i < ARRAY_LEN(forced_rows); i++)
        put_forced(b, c, &forced_rows[i]);
    for (int i = ROW_FLIPS; i < ROWS_PLAIN; i++)
        put_plain(b, c, (enum plain_row)i);
    html_table_end(b);
    if (shown(c) < c->n_variants - 1)
        html_paragraph(b, "More variants are in report.csv.");
}
