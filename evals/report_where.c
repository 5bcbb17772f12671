/* report_where.c: the explanation of flips as sentences, JSON, Markdown and HTML with a heat map of
 * layers and roles. Pure; equal explanations give equal bytes. */
#include <math.h>
#include <stdio.h>

#include "common/html.h"
#include "common/json.h"
#include "common/svg.h"
#include "evals/report.h"
#include "evals/where.h"

#define LEFT         96 /* of the heat map: room for the roles */
#define TOP          4
#define CELL_W       20
#define CELL_H       22
#define LAYERS_SHOWN 200 /* rows of the curves; longer models have their plot alone */

/* ---- words -------------------------------------------------------------------------------------
 */

void where_remedy_name(const struct pair *p, size_t flip, char out[192])
{
    if (flip)
        snprintf(out, 192, "remedy-%.128s-%zu.yaml", p->var->name, flip + 1);
    else
        snprintf(out, 192, "remedy-%.128s.yaml", p->var->name);
}

/* Quoted; of a token that is part of a character, its bytes: <C2>. */
static void put_token(struct strbuf *out, const struct comparison *c, int32_t id)
{
    struct strbuf piece = {0}, text = {0};
    const struct tokenizer *t = compare_tokenizer(c);
    if (!t || tokenizer_piece(t, id, &piece, NULL) != ERR_OK || !piece.len)
        strbuf_printf(&text, "[%d]", id);
    else if (str_utf8_valid(piece.data, piece.len) == piece.len)
        json_put_string(&text, piece.data, piece.len);
    else
        for (size_t i = 0; i < piece.len; i++)
            strbuf_printf(&text, "<%02X>", (unsigned char)piece.data[i]);
    strbuf_append(out, text.data, text.len);
    out->failed |= piece.failed | text.failed;
    strbuf_free(&piece);
    strbuf_free(&text);
}

static void put_unit(struct strbuf *out, const struct where_unit *u)
{
    if (u->kind == WHERE_TENSOR)
        strbuf_puts(out, u->name);
    else if (u->kind == WHERE_LAYER)
        strbuf_printf(out, "layer %d", u->layer);
    else if (u->kind == WHERE_CELL)
        strbuf_printf(out, "%s of layer %d", ckpt_role_name(u->role), u->layer);
    else
        strbuf_puts(out, ckpt_role_name(u->role));
}

static double effect(const struct where_flip *f, const struct where_unit *u)
{
    return u->margin - f->var_margin;
}

static void put_place(struct strbuf *out, const struct comparison *c, const struct pair *p,
                      const struct where_flip *f)
{
    const struct position *q = &p->positions[f->position];
    const struct trace_record *r = &p->ref->trace->records[q->record];
    put_token(out, c, q->var_best);
    strbuf_puts(out, " for ");
    put_token(out, c, q->ref_best);
    strbuf_printf(out, " in %s", r->custom_id);
    if (r->turn)
        strbuf_printf(out, ", turn %d", r->turn);
    strbuf_printf(out, ", token %d (margin ", q->index);
    report_number(out, f->ref_margin, 3);
    strbuf_puts(out, " in the reference, ");
    report_number(out, f->var_margin, 3);
    strbuf_puts(out, " in the variant)");
}

/* The part of a kind with the greatest effect; NULL: there is none. */
static const struct where_unit *greatest_of(const struct where_flip *f, enum where_kind kind)
{
    const struct where_unit *best = NULL;
    for (size_t i = 0; i < f->n_units; i++)
        if (f->units[i].kind == kind && (!best || f->units[i].margin > best->margin))
            best = &f->units[i];
    return best;
}

/* What the reference's weights gain, of all roles, of all layers, and in one place. */
static void put_effects(struct strbuf *out, const struct where_flip *f)
{
    const struct where_unit *best[] = {greatest_of(f, WHERE_ROLE), greatest_of(f, WHERE_LAYER),
                                       &f->units[f->culprit]};
    strbuf_puts(out, "the reference's weights gain most in");
    for (size_t i = 0; i < ARRAY_LEN(best); i++) {
        bool last = i + 1 == ARRAY_LEN(best);
        if (!best[i] || (!last && best[i] == best[2]))
            continue;
        strbuf_puts(out, last ? " in one place " : i ? " " : " role ");
        put_unit(out, best[i]);
        strbuf_printf(out, " (%s", effect(f, best[i]) > 0 ? "+" : "");
        report_number(out, effect(f, best[i]), 3);
        strbuf_puts(out, last ? ")" : "),");
    }
}

static void put_layers_words(struct strbuf *out, const struct where_flip *f)
{
    if (f->turn < 0)
        strbuf_puts(out, "the variant prefers its token from the embedding on");
    else
        strbuf_printf(out, "the preference turns in layer %d", f->turn);
    strbuf_printf(out, " and falls behind most in layer %d", f->enter);
}

static void put_cost(struct strbuf *out, const struct pair *p, uint64_t bytes)
{
    char text[24];
    strbuf_printf(out, "%s (", str_bytes(text, bytes));
    report_number(out, 100 * (double)bytes / (double)p->var->bytes, 3);
    strbuf_puts(out, " % of the variant)");
}

static void put_remedy_words(struct strbuf *out, const struct pair *p, size_t flip)
{
    const struct where_flip *f = &p->where->flips[flip];
    const struct where_remedy *m = &f->remedy;
    char name[192];
    if (!m->found) {
        strbuf_printf(out, "no recipe: %s", m->why_not);
        return;
    }
    where_remedy_name(p, flip, name);
    strbuf_printf(out, m->n_moves ? "%s gives more bits to " : "%s is the base recipe alone", name);
    for (size_t i = 0; i < m->n_moves && i < 4; i++) {
        strbuf_puts(out, i ? ", " : "");
        put_unit(out, &f->units[m->move[i].unit]);
        if (m->move[i].level == WHERE_KEEP)
            strbuf_puts(out, " (kept)");
        else
            strbuf_printf(out, " (%d)", m->move[i].level);
    }
    if (m->n_moves > 4)
        strbuf_printf(out, " and %zu more", m->n_moves - 4);
    strbuf_puts(out, ", ");
    put_cost(out, p, m->bytes);
    if (m->n_refit)
        strbuf_printf(out,
                      "; %zu tensors are not what quantize makes of the reference, and were "
                      "made anew",
                      m->n_refit);
    strbuf_printf(out, "; run: the token %s, by ", m->verified ? "is back" : "is NOT back");
    report_number(out, m->lead, 3);
    strbuf_puts(out, " (asked for ");
    report_number(out, f->safety, 3);
    strbuf_putc(out, ')');
}

static void put_unchecked(struct strbuf *out, const struct pair *p, const struct where_flip *f)
{
    const struct trace_record *r = &p->ref->trace->records[p->positions[f->position].record];
    strbuf_printf(out,
                  "Free-running, behind the reference's own prompt, %lld of the answer's %zu "
                  "tokens are the reference's. ",
                  (long long)f->remedy.free_common, r->n);
    strbuf_printf(out,
                  "Not checked: the other %zu flips (%zu decided), other prompts, other "
                  "arithmetics and devices, sets of parts that were not run.",
                  p->where->n_all - 1, p->where->n_decided - 1);
}

void where_sentences(const struct comparison *c, const struct pair *p, struct strbuf *out)
{
    const struct where *w = p->where;
    if (w && !w->n_flips && w->n_all)
        strbuf_printf(out, "%s: %zu flips, none of them decided\n", p->var->name, w->n_all);
    for (size_t i = 0; w && i < w->n_flips; i++) {
        const struct where_flip *f = &w->flips[i];
        strbuf_printf(out, "%s: ", p->var->name);
        put_place(out, c, p, f);
        strbuf_puts(out, ": ");
        put_layers_words(out, f);
        if (f->n_units) {
            strbuf_puts(out, "; ");
            put_effects(out, f);
            strbuf_puts(out, "; ");
            put_remedy_words(out, p, i);
        }
        strbuf_putc(out, '\n');
    }
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

static void put_json_layers(struct strbuf *out, const struct where_flip *f)
{
    strbuf_puts(out, ",\"layers\":[");
    for (int i = 0; i <= f->n_layer; i++) {
        strbuf_printf(out, "%s{\"before\":%d", i ? "," : "", i);
        report_json_figure(out, "error", f->layers[i].error);
        report_json_figure(out, "ref_lens", f->layers[i].ref_lens);
        report_json_figure(out, "var_lens", f->layers[i].var_lens);
        strbuf_putc(out, '}');
    }
    strbuf_puts(out, "]");
}

static void put_json_unit(struct strbuf *out, const struct where_flip *f,
                          const struct where_unit *u)
{
    static const char *const kinds[] = {"role", "layer", "cell", "tensor"};
    strbuf_printf(out, "{\"kind\":\"%s\"", kinds[u->kind]);
    if (u->role < ROLE_COUNT)
        strbuf_printf(out, ",\"role\":\"%s\"", ckpt_role_name(u->role));
    if (u->layer >= 0)
        strbuf_printf(out, ",\"layer\":%d", u->layer);
    if (u->name) {
        strbuf_puts(out, ",\"tensor\":");
        json_put_string(out, u->name, strlen(u->name));
    }
    report_json_figure(out, "effect", effect(f, u));
    report_json_figure(out, "lead", u->lead);
    if (u->bytes != UINT64_MAX)
        strbuf_printf(out, ",\"bytes_8_bits\":%llu", (unsigned long long)u->bytes);
    strbuf_putc(out, '}');
}

static void put_json_remedy(struct strbuf *out, const struct pair *p, size_t flip)
{
    const struct where_flip *f = &p->where->flips[flip];
    const struct where_remedy *m = &f->remedy;
    char name[192];
    strbuf_printf(out, ",\"remedy\":{\"found\":%s", m->found ? "true" : "false");
    if (!m->found) {
        strbuf_puts(out, ",\"why_not\":");
        json_put_string(out, m->why_not, strlen(m->why_not));
        strbuf_printf(out, ",\"runs\":%zu}", m->n_runs);
        return;
    }
    where_remedy_name(p, flip, name);
    strbuf_puts(out, ",\"file\":");
    json_put_string(out, name, strlen(name));
    strbuf_puts(out, ",\"base\":");
    json_put_string(out, m->base, strlen(m->base));
    strbuf_printf(out, ",\"bytes\":%llu,\"verified\":%s,\"refit\":%zu,\"free_common\":%lld",
                  (unsigned long long)m->bytes, m->verified ? "true" : "false", m->n_refit,
                  (long long)m->free_common);
    report_json_figure(out, "lead", m->lead);
    strbuf_printf(out, ",\"runs\":%zu,\"moves\":[", m->n_runs);
    for (size_t i = 0; i < m->n_moves; i++) {
        strbuf_printf(out, "%s{\"part\":\"", i ? "," : "");
        put_unit(out, &f->units[m->move[i].unit]); /* names of tensors need no escapes */
        strbuf_printf(out, "\",\"bits\":");
        if (m->move[i].level == WHERE_KEEP)
            strbuf_puts(out, "null}");
        else
            strbuf_printf(out, "%d}", m->move[i].level);
    }
    strbuf_puts(out, "]}");
}

static void put_json_flip(struct strbuf *out, const struct comparison *c, const struct pair *p,
                          size_t flip)
{
    const struct where_flip *f = &p->where->flips[flip];
    const struct position *q = &p->positions[f->position];
    const struct trace_record *r = &p->ref->trace->records[q->record];
    struct strbuf text = {0};
    strbuf_puts(out, "{\"custom_id\":");
    json_put_string(out, r->custom_id, strlen(r->custom_id));
    strbuf_printf(out, ",\"turn\":%d,\"token\":%d,\"before\":%lld", r->turn, q->index,
                  (long long)f->n_prefix);
    strbuf_printf(out, ",\"ref_token\":%d,\"var_token\":%d", q->ref_best, q->var_best);
    put_place(&text, c, p, f);
    strbuf_puts(out, ",\"words\":");
    json_put_string(out, text.data ? text.data : "", text.len);
    report_json_figure(out, "ref_margin", f->ref_margin);
    report_json_figure(out, "var_margin", f->var_margin);
    report_json_figure(out, "kl", q->kl);
    report_json_figure(out, "safety", f->safety);
    strbuf_printf(out, ",\"turns_in\":%d,\"enters_in\":%d", f->turn, f->enter);
    put_json_layers(out, f);
    if (f->n_units) {
        strbuf_puts(out, ",\"culprit\":");
        put_json_unit(out, f, &f->units[f->culprit]);
        strbuf_puts(out, ",\"parts\":[");
        for (size_t i = 0; i < f->n_units; i++) {
            strbuf_puts(out, i ? "," : "");
            put_json_unit(out, f, &f->units[i]);
        }
        strbuf_putc(out, ']');
        put_json_remedy(out, p, flip);
    }
    strbuf_putc(out, '}');
    out->failed |= text.failed;
    strbuf_free(&text);
}

void where_json(const struct comparison *c, const struct pair *p, struct strbuf *out)
{
    const struct where *w = p->where;
    strbuf_printf(out, "{\"flips\":%zu,\"decided\":%zu,\"explained\":[", w->n_all, w->n_decided);
    for (size_t i = 0; i < w->n_flips; i++) {
        strbuf_puts(out, i ? "," : "");
        put_json_flip(out, c, p, i);
    }
    strbuf_puts(out, "]}");
}

/* ---- Markdown ----------------------------------------------------------------------------------
 */

void where_markdown(const struct comparison *c, const struct pair *p, struct strbuf *out)
{
    if (!p->where || !p->where->n_all)
        return;
    struct strbuf lines = {0};
    strbuf_printf(out, "\n## %s: where it enters\n\n", p->var->name);
    where_sentences(c, p, &lines);
    for (size_t i = 0; i < lines.len; i++) {
        if (i == 0 || lines.data[i - 1] == '\n')
            strbuf_puts(out, "- ");
        strbuf_putc(out, lines.data[i]);
    }
    for (size_t i = 0; i < p->where->n_flips; i++) {
        const struct where_remedy *m = &p->where->flips[i].remedy;
        if (!m->found)
            continue;
        strbuf_printf(out, "\n```yaml\n%s```\n", m->recipe);
        put_unchecked(out, p, &p->where->flips[i]);
        strbuf_putc(out, '\n');
    }
    out->failed |= lines.failed;
    strbuf_free(&lines);
}

/* ---- HTML --------------------------------------------------------------------------------------
 */

static const struct where_unit *cell_at(const struct where_flip *f, enum ckpt_role role, int layer)
{
    for (size_t i = 0; i < f->n_units; i++) {
        const struct where_unit *u = &f->units[i];
        if (u->role == role && u->layer == layer &&
            u->kind == (layer < 0 ? WHERE_ROLE : WHERE_CELL))
            return u;
    }
    return NULL;
}

static void put_cell(struct strbuf *b, const struct where_flip *f, const struct where_unit *u,
                     int x, int y, double most)
{
    double e = effect(f, u);
    int percent = most > 0 ? (int)lround(100 * fmin(fabs(e) / most, 1)) : 0;
    strbuf_printf(b,
                  "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"var(--%s)\" "
                  "fill-opacity=\"%d.%02d\" stroke=\"var(--line)\"><title>",
                  x, y, CELL_W, CELL_H, e > 0 ? "bad" : "s0", percent / 100, percent % 100);
    struct strbuf words = {0};
    put_unit(&words, u);
    strbuf_printf(&words, ": %s", e > 0 ? "+" : "");
    report_number(&words, e, 3);
    html_text(b, words.data ? words.data : "");
    strbuf_puts(b, "</title></rect>\n");
    b->failed |= words.failed;
    strbuf_free(&words);
}

static double greatest(const struct where_flip *f)
{
    double most = 0;
    for (size_t i = 0; i < f->n_units; i++)
        if (f->units[i].kind == WHERE_CELL || f->units[i].kind == WHERE_ROLE)
            most = fmax(most, f->units[i].kind == WHERE_CELL ? fabs(effect(f, &f->units[i])) : 0);
    return most;
}

/* Roles down, layers across; a role's own column stands first, on the same scale. */
static void put_heat_map(struct strbuf *b, const struct where_flip *f)
{
    const double most = greatest(f);
    struct strbuf words = {0};
    int rows = 0, width = LEFT + (f->n_layer + 2) * CELL_W + 16;
    for (int r = 0; r < ROLE_COUNT; r++)
        rows += cell_at(f, (enum ckpt_role)r, -1) != NULL;
    /* Words of the page, not of the picture: that is narrow where layers are few. */
    strbuf_puts(&words, "Logits gained with the reference's weights; full colour: ");
    report_number(&words, most, 3);
    html_paragraph(b, words.data ? words.data : "");
    strbuf_free(&words);
    strbuf_printf(
        b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" font-size=\"11\" fill=\"currentColor\">\n<title>Effect on the "
        "margin, layers by roles</title>\n<desc>Logits that the reference's token "
        "gains when a part has the reference's weights.</desc>\n",
        width, TOP + rows * CELL_H + 28, width, TOP + rows * CELL_H + 28);
    for (int r = 0, row = 0; r < ROLE_COUNT; r++) {
        const struct where_unit *whole = cell_at(f, (enum ckpt_role)r, -1);
        int y = TOP + row * CELL_H;
        if (!whole)
            continue;
        strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 6,
                      y + 15, ckpt_role_name((enum ckpt_role)r));
        put_cell(b, f, whole, LEFT, y, most);
        for (int l = 0; l < f->n_layer; l++) {
            const struct where_unit *u = cell_at(f, (enum ckpt_role)r, l);
            if (u)
                put_cell(b, f, u, LEFT + (l + 1) * CELL_W + 6, y, most);
        }
        row++;
    }
    strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">all</text>\n",
                  LEFT + CELL_W / 2, TOP + rows * CELL_H + 16);
    for (int l = 0; l<f->n_layer; l += f->n_layer> 12 ? 5 : 1)
        strbuf_printf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                      LEFT + (l + 1) * CELL_W + 6 + CELL_W / 2, TOP + rows * CELL_H + 16, l);
    strbuf_puts(b, "</svg>\n");
}

static void put_curves(struct strbuf *b, const struct where_flip *f)
{
    double x[LAYERS_SHOWN], ref[LAYERS_SHOWN], var[LAYERS_SHOWN], error[LAYERS_SHOWN];
    const size_t n = MIN2((size_t)f->n_layer + 1, (size_t)LAYERS_SHOWN);
    for (size_t i = 0; i < n; i++) {
        x[i] = (double)i;
        ref[i] = f->layers[i].ref_lens;
        var[i] = f->layers[i].var_lens;
        error[i] = f->layers[i].error;
    }
    const struct svg_plot lens = {.title = "Reference's token minus the variant's, by a lens",
                                  .x_label = "layers behind the state",
                                  .y_label = "logits"};
    const struct svg_series two[] = {{"reference", x, ref, n, NULL}, {"variant", x, var, n, NULL}};
    svg_lines(b, &lens, two, 2);
    const struct svg_plot far = {.title = "Error of the state at the flip",
                                 .x_label = "layers behind the state",
                                 .y_label = "relative RMS"};
    const struct svg_series one = {NULL, x, error, n, NULL};
    svg_lines(b, &far, &one, 1);
}

static void put_flip(struct strbuf *b, const struct comparison *c, const struct pair *p, size_t i)
{
    const struct where_flip *f = &p->where->flips[i];
    struct strbuf line = {0};
    put_place(&line, c, p, f);
    html_heading(b, 3, NULL, line.data ? line.data : "");
    strbuf_clear(&line);
    put_layers_words(&line, f);
    strbuf_putc(&line, '.');
    html_paragraph(b, line.data ? line.data : "");
    put_curves(b, f);
    if (f->n_units) {
        put_heat_map(b, f);
        strbuf_clear(&line);
        strbuf_puts(&line, "In logits, ");
        put_effects(&line, f);
        strbuf_puts(&line, "; ");
        put_remedy_words(&line, p, i);
        strbuf_putc(&line, '.');
        html_paragraph(b, line.data ? line.data : "");
    }
    if (f->remedy.found) {
        strbuf_puts(b, "<pre>");
        html_text(b, f->remedy.recipe);
        strbuf_puts(b, "</pre>\n");
        strbuf_clear(&line);
        put_unchecked(&line, p, f);
        html_paragraph(b, line.data ? line.data : "");
    }
    b->failed |= line.failed;
    strbuf_free(&line);
}

void where_html(const struct comparison *c, const struct pair *p, struct strbuf *out)
{
    if (!p->where || !p->where->n_all)
        return;
    html_heading(out, 3, NULL, "Where it enters");
    if (!p->where->n_flips)
        html_paragraph(out, "No flip stands above the noise floor.");
    for (size_t i = 0; i < p->where->n_flips; i++)
        put_flip(out, c, p, i);
}
