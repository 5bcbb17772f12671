/* report_answers.c: the page's answers of a pair: the table, worst first, and the token view of the
 * worst: both continuations about the parting, the best tokens of each there, their margins. Every
 * token shown says its margin and its best tokens when it is pointed at.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/html.h"
#include "evals/report_page.h"

#define WORST_SHOWN   5    /* answers in the token view of a pair */
#define AROUND        48   /* tokens shown before and after a parting */
#define ROWS_SHOWN    1000 /* of the table; answers.csv has all */
#define PROMPT_TOKENS 200  /* of a prompt that are shown, its last */
#define TOP_SHOWN     5

/* ---- the table ---------------------------------------------------------------------------------
 */

/* Mean KL of each record; NaN where nothing was forced. NULL: out of memory. */
static double *record_kl(const struct pair *p)
{
    double *sum = calloc(p->n_records + 1, sizeof *sum);
    double *n = calloc(p->n_records + 1, sizeof *n);
    for (size_t i = 0; sum && n && i < p->n_positions; i++) {
        sum[p->positions[i].record] += p->positions[i].kl;
        n[p->positions[i].record] += p->positions[i].finite;
    }
    for (size_t i = 0; sum && n && i < p->n_records; i++)
        sum[i] /= n[i];
    if (!n) {
        free(sum);
        sum = NULL;
    }
    free(n);
    return sum;
}

static void put_name(struct strbuf *b, const struct trace_record *r)
{
    char name[160];
    snprintf(name, sizeof name, r->turn ? "%.128s, turn %d" : "%.128s", r->custom_id, r->turn);
    html_cell(b, name);
}

static void put_coherent(struct strbuf *b, const struct script_census_answer *a, size_t n)
{
    char words[48];
    if (a->fault[0])
        snprintf(words, sizeof words, "%lld: %s", (long long)a->coherent, a->fault);
    else
        snprintf(words, sizeof words, "%zu", n);
    html_cell_raw_begin(b, a->fault[0] ? "bad" : "number");
    html_text(b, words);
    html_cell_raw_end(b);
}

static enum err_code put_table(struct strbuf *b, const struct pair *p, const size_t *order,
                               struct err *e)
{
    static const struct html_column columns[] = {
        {"answer", NULL, false},
        {"tokens", "of the reference", true},
        {"tokens, variant", NULL, true},
        {"common", "equal tokens at the start", true},
        {"edits", "insertions, deletions, replacements of tokens", true},
        {"margin, reference", "logits, where they part", true},
        {"margin, variant", "logits, where they part", true},
        {"mean KL", "forced along the reference", true},
        {"coherent", "tokens of the variant before its first fault, and which", true},
    };
    double *kl = record_kl(p);
    if (!kl)
        return err_set(e, ERR_NOMEM, "out of memory");
    html_table_begin(b, NULL, columns, ARRAY_LEN(columns) - !p->has_census);
    for (size_t i = 0; i < p->n_records && i < ROWS_SHOWN; i++) {
        size_t at = order[i];
        const struct parting *q = &p->partings[at];
        const struct trace_record *r = &p->ref->trace->records[at];
        const struct pair_answer *a = &p->answers[at];
        html_row_begin(b);
        put_name(b, r);
        html_cell_int(b, (int64_t)r->n);
        html_cell_int(b, (int64_t)p->var->trace->records[at].n);
        html_cell_int(b, q->common);
        if (a->edits < 0)
            html_cell(b, "n/a");
        else
            html_cell_int(b, a->edits);
        html_cell_number(b, (double)q->ref_margin, 4);
        html_cell_number(b, (double)q->var_margin, 4);
        html_cell_number(b, p->forced ? kl[at] : (double)NAN, 4);
        if (p->has_census)
            put_coherent(b, &a->var, p->var->trace->records[at].n);
        html_row_end(b);
    }
    html_table_end(b);
    if (p->n_records > ROWS_SHOWN)
        html_paragraph(b, "The other answers are in answers.csv.");
    free(kl);
    return ERR_OK;
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static void put_piece(struct strbuf *b, const struct tokenizer *t, int32_t id)
{
    struct strbuf piece = {0};
    if (t && tokenizer_piece(t, id, &piece, NULL) == ERR_OK)
        html_escape(b, piece.data ? piece.data : "", piece.len);
    else
        strbuf_printf(b, " [%d]", id);
    b->failed |= piece.failed;
    strbuf_free(&piece);
}

static void put_share(struct strbuf *b, float logprob)
{
    report_number(b, exp((double)logprob) * 100, 3);
    strbuf_puts(b, " %");
}

/* What a token shows when it is pointed at. */
static void put_hint(struct strbuf *b, const struct tokenizer *t, const struct trace_token *k)
{
    strbuf_puts(b, "margin ");
    report_number(b, (double)k->margin, 3);
    for (int i = 0; i < MIN2(k->n_top, TOP_SHOWN); i++) {
        strbuf_puts(b, i ? ", " : ": ");
        put_piece(b, t, k->top_id[i]);
        strbuf_putc(b, ' ');
        put_share(b, k->top_logprob[i]);
    }
}

/* Tokens around the parting, the first other one marked. */
static void put_tokens(struct strbuf *b, const struct tokenizer *t, const char *who,
                       const struct trace_record *r, int64_t common)
{
    int64_t from = MAX2(common - AROUND, 0), to = MIN2(common + AROUND, (int64_t)r->n);
    strbuf_puts(b, "<p><b>");
    html_text(b, who);
    strbuf_puts(b, "</b></p>\n<pre>");
    strbuf_puts(b, from > 0 ? "... " : "");
    for (int64_t i = from; i < to; i++) {
        const char *element = i == common ? "mark" : "span";
        strbuf_printf(b, "<%s title=\"", element);
        put_hint(b, t, &r->tok[i]);
        strbuf_puts(b, "\">");
        put_piece(b, t, r->tok[i].id);
        strbuf_printf(b, "</%s>", element);
    }
    strbuf_puts(b, to < (int64_t)r->n ? " ..." : "");
    if (common >= (int64_t)r->n)
        strbuf_printf(b, "<mark>[end: %s]</mark>", r->finish);
    strbuf_puts(b, "</pre>\n");
}

static void put_prompt(struct strbuf *b, const struct tokenizer *t, const struct trace_record *r)
{
    int64_t from = MAX2(r->n_prompt - PROMPT_TOKENS, 0);
    strbuf_puts(b, "<p><b>prompt</b></p>\n<pre>");
    strbuf_puts(b, from > 0 ? "... " : "");
    for (int64_t i = from; i < r->n_prompt; i++)
        put_piece(b, t, r->prompt_ids[i]);
    strbuf_puts(b, "</pre>\n");
}

/* A cell pair of one side: token and share of its k-th best. */
static void put_top(struct strbuf *b, const struct tokenizer *t, const struct trace_record *r,
                    int64_t at, int k)
{
    bool there = at < (int64_t)r->n && k < r->tok[at].n_top;
    html_cell_raw_begin(b, "");
    if (there) {
        strbuf_puts(b, "<code>");
        put_piece(b, t, r->tok[at].top_id[k]);
        strbuf_puts(b, "</code>");
    }
    html_cell_raw_end(b);
    html_cell_raw_begin(b, "number");
    if (there)
        put_share(b, r->tok[at].top_logprob[k]);
    html_cell_raw_end(b);
}

static void put_tops(struct strbuf *b, const struct comparison *c, const struct pair *p, size_t at)
{
    const struct tokenizer *t = compare_tokenizer(c);
    const struct trace_record *x = &p->ref->trace->records[at], *y = &p->var->trace->records[at];
    const struct parting *q = &p->partings[at];
    const struct html_column columns[] = {{"", NULL, true},
                                          {p->ref->name, NULL, false},
                                          {"share", NULL, true},
                                          {p->var->name, NULL, false},
                                          {"share", NULL, true}};
    struct strbuf caption = {0};
    strbuf_puts(&caption, "Best tokens where they part; margins ");
    report_number(&caption, (double)q->ref_margin, 4);
    strbuf_puts(&caption, " and ");
    report_number(&caption, (double)q->var_margin, 4);
    strbuf_puts(&caption, " logits, decided above ");
    report_number(&caption, (double)c->decided, 3);
    html_table_begin(b, caption.data, columns, ARRAY_LEN(columns));
    for (int k = 0; k < TOP_SHOWN; k++) {
        html_row_begin(b);
        html_cell_int(b, k + 1);
        put_top(b, t, x, q->common, k);
        put_top(b, t, y, q->common, k);
        html_row_end(b);
    }
    html_table_end(b);
    b->failed |= caption.failed;
    strbuf_free(&caption);
}

static void put_view(struct strbuf *b, const struct comparison *c, const struct pair *p, size_t at)
{
    const struct tokenizer *t = compare_tokenizer(c);
    const struct trace_record *x = &p->ref->trace->records[at], *y = &p->var->trace->records[at];
    const struct parting *q = &p->partings[at];
    struct strbuf line = {0};
    strbuf_printf(&line, "%s: %s, parting at token %lld", p->var->name, x->custom_id,
                  (long long)q->common);
    html_fold_begin(b, line.data ? line.data : "");
    put_prompt(b, t, x);
    put_tokens(b, t, p->ref->name, x, q->common);
    put_tokens(b, t, p->var->name, y, q->common);
    put_tops(b, c, p, at);
    html_fold_end(b);
    b->failed |= line.failed;
    strbuf_free(&line);
}

enum err_code report_answers(struct strbuf *b, const struct comparison *c, const struct pair *p,
                             struct err *e)
{
    size_t *order = report_worst(p);
    if (!order)
        return err_set(e, ERR_NOMEM, "out of memory");
    html_heading(b, 3, NULL, "Answers, worst first");
    enum err_code rc = put_table(b, p, order, e);
    for (size_t i = 0; i < p->n_records && i < WORST_SHOWN; i++)
        if (!p->partings[order[i]].same_ids)
            put_view(b, c, p, order[i]);
    free(order);
    return rc;
}
