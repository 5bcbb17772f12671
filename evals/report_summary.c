/* report_summary.c: the comparison in at most 25 lines for a terminal: the verdict, a table of
 * variants, why each has its verdict, where the rest is.
 */
#include <math.h>
#include <stdio.h>

#include "evals/report.h"
#include "evals/where.h"

#define ROWS_MAX     9 /* variants of the table */
#define EVIDENCE_MAX 9 /* lines that say why, and where */
#define GATES_MAX    2 /* failed gates that are named */
#define NAME_WIDTH   24
#define LINE_WIDTH   110

/* The string, cut to a width of bytes at a character's edge. */
static void put_cut(struct strbuf *out, const char *s, size_t width)
{
    size_t n = strlen(s), cut = n > width ? width - 3 : n;
    while (cut > 0 && ((unsigned char)s[cut] & 0xc0) == 0x80)
        cut--;
    strbuf_append(out, s, cut);
    strbuf_puts(out, cut < n ? "..." : "");
}

static void put_column(struct strbuf *out, int width, double v, double scale, int digits)
{
    struct strbuf b = {0};
    strbuf_put_number(&b, v * scale, digits);
    strbuf_printf(out, " %*s", width, b.data && isfinite(v) ? b.data : "-");
    strbuf_free(&b);
}

static void put_kl(struct strbuf *out, const struct figures *f)
{
    struct strbuf b = {0};
    if (f) {
        strbuf_put_number(&b, f->kl.value, 3);
        if (isfinite(f->kl.lo) && isfinite(f->kl.hi)) {
            strbuf_puts(&b, " (");
            strbuf_put_number(&b, f->kl.lo, 2);
            strbuf_puts(&b, "-");
            strbuf_put_number(&b, f->kl.hi, 2);
            strbuf_putc(&b, ')');
        }
    }
    strbuf_printf(out, " %24s", b.data ? b.data : "-");
    strbuf_free(&b);
}

static void put_row(struct strbuf *out, const struct variant *v, const struct pair *p)
{
    const struct figures *f = p && p->forced ? &p->f : NULL;
    char same[32] = "-", name[sizeof v->name];
    struct strbuf cut = {0};
    put_cut(&cut, v->name, NAME_WIDTH);
    snprintf(name, sizeof name, "%s", cut.data ? cut.data : "");
    strbuf_free(&cut);
    if (p && p->partings)
        snprintf(same, sizeof same, "%zu/%zu", p->n_same, p->n_records);
    strbuf_printf(out, "%-*s", NAME_WIDTH, name);
    put_column(out, 8, v->is_trace ? (double)NAN : (double)v->bytes * 1e-6, 1, 4);
    put_column(out, 6, v->bits_per_weight, 1, 3);
    strbuf_printf(out, " %9s", same);
    put_kl(out, f);
    put_column(out, 7, f ? f->agreement.value : (double)NAN, 100, 4);
    put_column(out, 7, f ? f->var_ppl / f->ref_ppl : (double)NAN, 1, 4);
    strbuf_printf(out, " %s\n", p ? pair_verdict_name(p->verdict) : "(reference)");
}

static void put_head(struct strbuf *out, const struct comparison *c)
{
    strbuf_printf(out, "verdict: %s", compare_verdict_name(c->verdict));
    if (c->has_gates) {
        size_t held = 0, all = 0;
        for (size_t i = 0; i + 1 < c->n_variants; i++) {
            all += (size_t)c->pairs[i].n_gates;
            for (int k = 0; k < c->pairs[i].n_gates; k++)
                held += c->pairs[i].gates[k].passed;
        }
        strbuf_printf(out, ", %zu of %zu gates hold", held, all);
    }
    strbuf_printf(out, "; %zu answers, %s", c->variants[0].trace->n,
                  c->variants[0].trace->head.arith);
    if (c->has_floor) {
        strbuf_puts(out, ", noise floor KL ");
        strbuf_put_number(out, c->floor.kl.value, 3);
    }
    strbuf_puts(out, "\n");
}

static void put_gates(struct strbuf *out, const struct comparison *c)
{
    size_t said = 0, failed = 0;
    for (size_t i = 0; i + 1 < c->n_variants; i++) {
        for (int k = 0; k < c->pairs[i].n_gates; k++) {
            const struct compare_gate_result *r = &c->pairs[i].gates[k];
            char text[320];
            failed += !r->passed;
            if (r->passed || said == GATES_MAX)
                continue;
            said++;
            compare_gates_words(&c->pairs[i], r, text, sizeof text);
            strbuf_puts(out, "gate failed: ");
            put_cut(out, text, LINE_WIDTH);
            strbuf_putc(out, '\n');
        }
    }
    if (failed > said)
        strbuf_printf(out, "and %zu more gates failed\n", failed - said);
}

static void put_why(struct strbuf *out, const struct pair *p)
{
    struct strbuf line = {0};
    strbuf_printf(&line, "%s: %s: %s", p->var->name, pair_verdict_name(p->verdict), p->evidence);
    put_cut(out, line.data ? line.data : "", LINE_WIDTH);
    strbuf_putc(out, '\n');
    out->failed |= line.failed;
    strbuf_free(&line);
}

/* Where flips enter, in the lines that are left. */
static void put_where(struct strbuf *out, const struct comparison *c, size_t room)
{
    struct strbuf all = {0};
    size_t lines = 0, left;
    for (size_t i = 0; i + 1 < c->n_variants; i++)
        where_sentences(c, &c->pairs[i], &all);
    for (size_t i = 0; i < all.len; i++)
        lines += all.data[i] == '\n';
    left = lines > room ? lines - room + 1 : 0;
    const char *at = all.data;
    for (size_t i = 0; i < lines - left && room > 0; i++) {
        size_t n = strcspn(at, "\n") + 1;
        strbuf_append(out, at, n);
        at += n;
    }
    if (left && room > 0)
        strbuf_printf(out, "and %zu more flips\n", left);
    out->failed |= all.failed;
    strbuf_free(&all);
}

/* 1 + 1 + 1 + ROWS_MAX + 1 + 3 + EVIDENCE_MAX + 1 = 25 at most, less one where all fit. */
void report_summary(const struct comparison *c, const char *dir, struct strbuf *out)
{
    size_t n = c->n_variants - 1, rows = MIN2(n, (size_t)ROWS_MAX - 1);
    size_t whys = MIN2(n, (size_t)EVIDENCE_MAX - 1);
    put_head(out, c);
    strbuf_printf(out, "%-*s %8s %6s %9s %24s %7s %7s verdict\n", NAME_WIDTH, "variant", "MB",
                  "bits/w", "same", "KL (95 %)", "agree%", "ppl x");
    put_row(out, &c->variants[0], NULL);
    for (size_t i = 1; i <= rows; i++)
        put_row(out, &c->variants[i], &c->pairs[i - 1]);
    if (rows < n)
        strbuf_printf(out, "and %zu more variants\n", n - rows);
    put_gates(out, c);
    for (size_t i = 0; i < whys; i++)
        put_why(out, &c->pairs[i]);
    if (whys < n)
        strbuf_printf(out, "and %zu more reasons\n", n - whys);
    put_where(out, c, EVIDENCE_MAX - whys - (whys < n));
    strbuf_printf(out, "report: %s/report.html\n", dir);
}
