/* test_where.c: faults planted in one tensor of a tiny model are named and undone by a recipe whose
 * model is what was run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "evals/report.h"
#include "evals/where_private.h"
#include "quant/pack_one.h"
#include "quant/quantize.h"
#include "quant/recipe_text.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"
#include "tests/tiny_text.h"

static const char prompts_text[] =
    "{\"custom_id\":\"a\",\"prompt\":\"the cat\",\"max_tokens\":24,\"ignore_eos\":true}\n"
    "{\"custom_id\":\"b\",\"turns\":[\"one\",\"two\"],\"max_tokens\":20,\"ignore_eos\":true}\n";

/* ---- models ------------------------------------------------------------------------------------
 */

static const struct planted {
    const char *tensor; /* 2 bits, where all others have 8 */
    bool tied, experts;
    enum kern_arith arith;
    enum ckpt_role role;
    int layer;
} plants[] = {
    {"model.layers.1.self_attn.o_proj.weight", false, false, KERN_F32, ROLE_ATTENTION, 1},
    {"model.layers.2.mlp.down_proj.weight", false, false, KERN_F32, ROLE_MLP, 2},
    {"model.layers.0.mlp.gate_proj.weight", true, false, KERN_F32, ROLE_MLP, 0},
    {"lm_head.weight", false, false, KERN_F32, ROLE_HEAD, -1},
    {"model.embed_tokens.weight", false, false, KERN_F32, ROLE_EMBEDDING, -1},
    {"model.layers.3.mlp.up_proj.weight", false, false, KERN_MMA90, ROLE_MLP, 3},
    {"model.layers.1.block_sparse_moe.experts.down_proj.weight", false, true, KERN_F32, ROLE_EXPERT,
     1},
};

struct bed {
    char *ref, *var;
    const char *paths[2];
    struct comparison *c;
};

static void must(enum err_code rc, const struct err *e)
{
    ck_assert_msg(rc == ERR_OK, "%s", e->text);
}

static char *write_reference(const struct planted *k)
{
    struct tiny_model m = k->experts ? tiny_model_experts(false) : tiny_model_default();
    struct err e = {.text = ""};
    char *dir = io_join(test_folder(), "ref");
    m.form = TINY_BF16;
    m.n_layer = 4;
    m.ctx = 256;
    m.tied = k->tied;
    m.d_ff = k->experts ? m.d_ff : 128;
    must(tiny_model_write(dir, &m, &e), &e);
    must(tiny_text_write(dir, &e), &e);
    return dir;
}

static char *quantize(const char *source, const char *name, const char *recipe_text)
{
    struct checkpoint *c;
    struct recipe *r;
    struct plan *p;
    struct quantize_summary s;
    struct err e = {.text = ""};
    char *out = io_join(test_folder(), name);
    must(checkpoint_open(&c, source, &e), &e);
    must(recipe_parse(&r, recipe_text, strlen(recipe_text), "planted.yaml", &e), &e);
    must(plan_from_recipe(&p, c, r, &e), &e);
    struct quantize_job j = {.plan = p, .out = out, .command = "quantize", .force = true};
    j.pack.isa = affine_isa_best();
    must(quantize_run(&j, &s, &e), &e);
    plan_free(p);
    recipe_free(r);
    checkpoint_close(c);
    return out;
}

static struct comparison *compare(const char *const *paths, enum kern_arith arith, int64_t where)
{
    char *prompts = io_join(test_folder(), "p.jsonl");
    struct compare_options o = {
        .paths = paths,
        .n_paths = 2,
        .prompts = prompts,
        .engine = {.kern = {.device = "cpu", .arith = arith, .threads = 2, .isa = "auto"},
                   .batch_seqs = 2,
                   .kv_tokens = 1024,
                   .top_k = PROMPT_TOP_MAX},
        .no_judge = true,
        .where = where,
        .trace_dir = test_folder()};
    struct comparison *c = NULL;
    struct err e = {.text = ""};
    prompt_defaults_init(&o.defaults);
    must(io_write_all(prompts, prompts_text, strlen(prompts_text), true, &e), &e);
    must(compare_run(&c, &o, &e), &e);
    free(prompts);
    return c;
}

static void bed_open(struct bed *b, const struct planted *k, int64_t where)
{
    char recipe[400];
    snprintf(
        recipe, sizeof recipe,
        "why: one bad tensor\nrules:\n  - bits: 8\n    group: 32\n  - match: \"%s\"\n    bits: "
        "2\n    group: 32\n",
        k->tensor);
    b->ref = write_reference(k);
    b->var = quantize(b->ref, "var", recipe);
    b->paths[0] = b->ref;
    b->paths[1] = b->var;
    b->c = compare(b->paths, k->arith, where);
}

static void bed_close(struct bed *b)
{
    compare_free(b->c);
    free(b->ref);
    free(b->var);
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

/* Every tensor of both checkpoints has the same bytes. */
static void check_same_weights(const char *a, const char *b)
{
    struct checkpoint *x, *y;
    struct err e = {.text = ""};
    must(checkpoint_open(&x, a, &e), &e);
    must(checkpoint_open(&y, b, &e), &e);
    ck_assert_uint_eq(x->n_weights, y->n_weights);
    for (size_t i = 0; i < x->n_weights; i++)
        ck_assert_msg(pack_one_same(&x->weights[i], &y->weights[i]), "%s", x->weights[i].name);
    checkpoint_close(x);
    checkpoint_close(y);
}

START_TEST(the_planted_tensor_is_named_and_undone)
{
    const struct planted *k = &plants[_i];
    struct bed b;
    bed_open(&b, k, 1);
    const struct pair *p = &b.c->pairs[0];
    ck_assert_int_eq(p->verdict, VERDICT_QUANTIZATION);
    ck_assert_msg(p->where && p->where->n_flips == 1, "%zu flips, %zu decided, of %zu positions",
                  p->where ? p->where->n_all : 0, p->where ? p->where->n_decided : 0,
                  p->n_positions);
    const struct where_flip *f = &p->where->flips[0];
    const struct position *q = &p->positions[f->position];
    const struct where_unit *u = &f->units[f->culprit];
    ck_assert(f->ref_margin > 0 && f->var_margin < 0);
    ck_assert_msg(u->role == k->role && u->layer == k->layer, "%s %d", ckpt_role_name(u->role),
                  u->layer);
    ck_assert(u->kind != WHERE_TENSOR || strcmp(u->name, k->tensor) == 0);

    /* One rule more than the base's two, and it names what was planted, or the tied pair. */
    const struct where_remedy *m = &f->remedy;
    struct recipe *r;
    struct err e = {.text = ""};
    ck_assert_msg(m->found && m->verified, "%s", m->why_not);
    ck_assert_uint_eq(m->n_refit, 0);
    ck_assert(m->lead >= f->safety);
    must(recipe_parse(&r, m->recipe, strlen(m->recipe), "remedy", &e), &e);
    ck_assert_msg(r->n_rules == 3, "%s", m->recipe);
    if (r->rules[2].match)
        ck_assert_msg(strcmp(r->rules[2].match, k->tensor) == 0, "%s", m->recipe);
    else /* all of its role */
        ck_assert(k->layer < 0 && r->rules[2].roles == 1u << k->role && !r->rules[2].n_ranges);
    recipe_free(r);

    /* Quantized by it: the bytes said, and along the same answers the token is not lost. */
    char *fixed = quantize(b.ref, "fixed", m->recipe);
    const char *paths[] = {b.ref, fixed};
    struct comparison *c = compare(paths, k->arith, 0);
    ck_assert_uint_eq(c->variants[1].bytes, b.c->variants[1].bytes + m->bytes);
    const struct position *now = &c->pairs[0].positions[f->position];
    ck_assert_int_eq(now->ref_best, q->ref_best);
    ck_assert_int_eq(now->var_best, q->ref_best);
    /* Its lead, to the bit: what was run is what quantize made. */
    ck_assert_msg((double)now->var_margin == m->lead, "%.9g and %.9g", (double)now->var_margin,
                  m->lead);
    /* A first turn runs free behind the same prompt in both. */
    if (p->ref->trace->records[q->record].turn == 0)
        ck_assert_int_eq(m->free_common, c->pairs[0].partings[q->record].common);
    compare_free(c);
    free(fixed);
    bed_close(&b);
}
END_TEST

/* The engine of mixed weights, started at a layer, against a folder with these weights. */
/* Scales of the head overwritten in the file: no recipe made that, and none needs more bits. */
START_TEST(a_damaged_file_needs_no_more_bits)
{
    struct bed b;
    size_t bytes;
    bed_open(&b, &plants[0], 0);
    compare_free(b.c);
    char *path = io_join(b.var, "model.safetensors"), *file = test_slurp(path, &bytes);
    const char *off = strstr(strstr(file + 8, "lm_head.scales"), "data_offsets\":[");
    uint8_t *data =
        (uint8_t *)file + 8 + load_u64(file) + strtoull(off + strlen("data_offsets\":["), NULL, 10);
    for (int i = 0; i < 64; i++)
        store_u16(data + 2 * i, 0x4200); /* bf16 32 */
    test_spill(path, file, bytes);
    b.c = compare(b.paths, KERN_F32, 1);
    const struct where_flip *f = &b.c->pairs[0].where->flips[0];
    ck_assert(f->units[f->culprit].role == ROLE_HEAD);
    ck_assert_msg(f->remedy.found && f->remedy.verified, "%s", f->remedy.why_not);
    ck_assert_uint_eq(f->remedy.n_moves, 0);
    ck_assert_uint_eq(f->remedy.n_refit, 1);
    ck_assert_uint_eq(f->remedy.bytes, 0);
    free(file);
    free(path);
    bed_close(&b);
}
END_TEST

/* The variant was made of the source, the reference is its 6 bits: quantize would make another
 * variant of that. The recipe is searched for, and holds, from there. */
START_TEST(a_variant_of_another_source_is_made_anew)
{
    struct bed b;
    bed_open(&b, &plants[1], 0);
    static const char six[] = "why: 6\nrules:\n  - bits: 6\n    group: 64\n";
    char *ref = quantize(b.ref, "six", six);
    const char *paths[] = {ref, b.var};
    struct comparison *c = compare(paths, KERN_F32, 1);
    const struct where_flip *f = &c->pairs[0].where->flips[0];
    ck_assert_msg(f->remedy.found && f->remedy.verified, "%s", f->remedy.why_not);
    ck_assert(f->remedy.n_refit > 5);
    char *fixed = quantize(ref, "fixed", f->remedy.recipe);
    const char *after[] = {ref, fixed};
    struct comparison *d = compare(after, KERN_F32, 0);
    const struct position *now = &d->pairs[0].positions[f->position];
    ck_assert(now->var_best == c->pairs[0].positions[f->position].ref_best);
    ck_assert((double)now->var_margin == f->remedy.lead);
    compare_free(c);
    compare_free(d);
    free(ref);
    free(fixed);
    bed_close(&b);
}
END_TEST

START_TEST(a_mixed_engine_is_the_model_of_its_weights)
{
    const struct planted *k = &plants[_i];
    struct bed b;
    struct err e = {.text = ""};
    bed_open(&b, k, 0);
    char recipe[400];
    snprintf(recipe, sizeof recipe,
             "why: it is kept\nrules:\n  - bits: 8\n    group: 32\n  - match: \"%s\"\n    keep: "
             "true\n",
             k->tensor);
    char *kept = quantize(b.ref, "kept", recipe);
    struct engine_options o = {.kern = {.device = "cpu", .arith = k->arith, .isa = "auto"},
                               .batch_seqs = 1,
                               .batch_tokens = 7, /* states go in by chunks */
                               .kv_tokens = 256};
    const int32_t ids[] = {5, 90, 17, 256, 4, 8, 301, 33, 2, 70, 11};
    struct lm *var, *whole;
    struct checkpoint *ref;
    must(lm_open(&var, b.var, &o, NULL, NULL, &e), &e);
    must(lm_open(&whole, kept, &o, NULL, NULL, &e), &e);
    must(checkpoint_open(&ref, b.ref, &e), &e);
    struct where_swap s;
    struct where_result first, mixed, again, direct;
    must(where_swap_open(&s, var, ref, &b.c->pairs[0], &e), &e);
    must(where_swap_start(&s, ids, ARRAY_LEN(ids), 3, 9, NULL, &first, &e), &e);
    for (size_t i = 0; i < s.n; i++)
        if (strcmp(ref->weights[i].name, k->tensor) == 0)
            s.want[i].source = WHERE_OF_REFERENCE;
    must(where_swap_run(&s, NULL, &mixed, &e), &e);
    float logits[320];
    struct where_pass p = {.en = whole->engine, .ids = ids, .n_ids = ARRAY_LEN(ids)};
    int32_t *pages;
    must(where_pages(whole->engine, p.n_ids, &pages, &e), &e);
    p.pages = pages;
    must(where_pass(&p, logits, &e), &e);
    where_measure(logits, 320, 3, 9, &direct);
    ck_assert(mixed.margin == direct.margin && mixed.lead == direct.lead);
    ck_assert_int_eq(mixed.best, direct.best);
    ck_assert(mixed.margin != first.margin);
    /* And back again. A swap that stays is seen by this. */
    where_swap_reset(&s);
    must(where_swap_run(&s, NULL, &again, &e), &e);
    ck_assert(again.margin == first.margin && again.lead == first.lead);
    for (size_t i = 0; i < s.n; i++)
        if (strcmp(ref->weights[i].name, k->tensor) == 0)
            s.want[i].source = WHERE_OF_REFERENCE;
    must(where_swap_run(&s, NULL, &mixed, &e), &e);
    where_plant(WHERE_FAULT_STALE_SWAP);
    must(where_swap_start(&s, ids, ARRAY_LEN(ids), 3, 9, NULL, &again, &e), &e);
    where_plant(WHERE_FAULT_NONE);
    ck_assert(again.margin != first.margin);
    const struct ckpt_weight *norm = checkpoint_find(ref, "model.norm.weight");
    ck_assert_int_eq(engine_put_weight(var->engine, "model.norm.weight", norm, &e), ERR_INPUT);
    ck_assert_int_eq(engine_put_weight(var->engine, k->tensor, norm, &e), ERR_INPUT);
    where_swap_close(&s);
    free(pages);
    checkpoint_close(ref);
    lm_close(var);
    lm_close(whole);
    free(kept);
    bed_close(&b);
}
END_TEST

START_TEST(the_lens_ends_at_the_logits)
{
    struct bed b;
    bed_open(&b, &plants[_i], -1);
    const struct pair *p = &b.c->pairs[0];
    ck_assert(p->where && p->where->n_flips == 1);
    const struct where_flip *f = &p->where->flips[0];
    double near = plants[_i].arith == KERN_F32 ? 1e-5 : 0.05;
    ck_assert_uint_eq(f->n_units, 0); /* the lens alone */
    ck_assert_int_eq(f->n_layer, 4);
    ck_assert_double_eq_tol(f->layers[4].ref_lens, f->ref_margin, near);
    ck_assert_double_eq_tol(f->layers[4].var_lens, f->var_margin, near);
    /* No flip has a greater margin, and the planted layer is where the states part. */
    const struct position *q = &p->positions[f->position];
    for (size_t i = 0; i < p->n_positions; i++)
        ck_assert(p->positions[i].ref_best == p->positions[i].var_best ||
                  p->positions[i].ref_margin <= q->ref_margin);
    int layer = plants[_i].layer;
    if (layer >= 0)
        ck_assert(f->layers[layer + 1].error > 2 * f->layers[layer].error);
    for (int i = MAX2(f->turn, 0) + 1; i <= f->n_layer; i++)
        ck_assert(f->layers[i].var_lens < 0);
    ck_assert(f->turn < 0 || f->layers[f->turn].var_lens >= 0);
    bed_close(&b);
}
END_TEST

START_TEST(a_base_without_a_manifest_is_the_same)
{
    struct bed b;
    struct err e = {.text = ""};
    struct checkpoint *ref, *var;
    struct where_recipe with, without;
    bed_open(&b, &plants[_i], 0);
    must(checkpoint_open(&ref, b.ref, &e), &e);
    must(checkpoint_open(&var, b.var, &e), &e);
    bool *changed = calloc(ref->n_weights, sizeof *changed);
    must(where_recipe_open(&with, ref, var, changed, &e), &e);
    json_decref(var->manifest);
    var->manifest = NULL;
    must(where_recipe_open(&without, ref, var, changed, &e), &e);
    ck_assert_str_ne(with.from, without.from);
    for (size_t i = 0; i < ref->n_weights; i++) {
        const struct plan_item *x = &with.plan->items[i], *y = &without.plan->items[i];
        ck_assert_msg(x->packed == y->packed && (!x->packed || qformat_same(x->q, y->q)), "%s",
                      x->w->name);
    }
    where_recipe_close(&with);
    where_recipe_close(&without);
    free(changed);
    checkpoint_close(ref);
    checkpoint_close(var);
    bed_close(&b);
}
END_TEST

START_TEST(reports_show_it_and_repeat)
{
    struct strbuf json[2] = {{0}}, html[2] = {{0}}, md = {0};
    struct err e = {.text = ""};
    for (int i = 0; i < 2; i++) {
        struct bed b;
        bed_open(&b, &plants[1], 1);
        report_json(b.c, &json[i]);
        must(report_html(b.c, &html[i], &e), &e);
        report_markdown(b.c, &md);
        bed_close(&b);
    }
    json_t *r = NULL;
    must(json_parse(json[0].data, json[0].len, &r, &e), &e);
    json_t *where = json_object_get(json_array_get(json_object_get(r, "pairs"), 0), "where");
    json_t *flip = json_array_get(json_object_get(where, "explained"), 0);
    ck_assert(json_is_true(json_object_get(json_object_get(flip, "remedy"), "verified")));
    ck_assert_uint_eq(json_array_size(json_object_get(flip, "layers")), 5);
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(flip, "culprit"), "role")),
                     "mlp");
    ck_assert_ptr_nonnull(strstr(html[0].data, "Effect on the margin, layers by roles"));
    ck_assert_ptr_nonnull(strstr(html[0].data, "mlp of layer 2: +"));
    ck_assert_ptr_nonnull(strstr(md.data, "```yaml\nwhy: "));
    ck_assert_str_eq(json[0].data, json[1].data);
    ck_assert_str_eq(html[0].data, html[1].data);
    json_decref(r);
    for (int i = 0; i < 2; i++) {
        strbuf_free(&json[i]);
        strbuf_free(&html[i]);
    }
    strbuf_free(&md);
}
END_TEST

/* ---- rules as text -----------------------------------------------------------------------------
 */

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

START_TEST(rules_come_back_from_their_text)
{
    static const char text[] =
        "why: all \"keys\"\nrules:\n  - bits: 4\n    group: 32\n    scale: f16\n    why: 'a: b # "
        "c'\n"
        "  - match: \"model.layers.*.{q,k}_proj.weight\"\n    layers: edges, 3, 5..7, -2..-1\n"
        "    bits: 6\n  - role: embedding, head\n    keep: true\n  - role: expert\n"
        "    format: mxfp4\n  - layers: 0\n    bits: 5\n    group: 128\n    scale: f32\n";
    struct recipe *a, *b;
    struct strbuf out = {0};
    struct err e = {.text = ""};
    must(recipe_parse(&a, text, strlen(text), "a", &e), &e);
    recipe_text_head(&out, a->why);
    for (int i = 0; i < a->n_rules; i++)
        recipe_text_rule(&out, &a->rules[i]);
    must(recipe_parse(&b, out.data, out.len, "b", &e), &e);
    ck_assert_str_eq(a->why, b->why);
    ck_assert_int_eq(a->n_rules, b->n_rules);
    for (int i = 0; i < a->n_rules; i++) {
        const struct recipe_rule *x = &a->rules[i], *y = &b->rules[i];
        ck_assert(same_text(x->match, y->match) && same_text(x->why, y->why));
        ck_assert(x->roles == y->roles && x->keep == y->keep && x->edges == y->edges);
        ck_assert(x->keep || qformat_same(x->q, y->q));
        ck_assert_int_eq(x->n_ranges, y->n_ranges);
        for (int k = 0; k < x->n_ranges; k++)
            ck_assert(x->range[k].from == y->range[k].from && x->range[k].to == y->range[k].to);
    }
    strbuf_free(&out);
    recipe_free(a);
    recipe_free(b);
}
END_TEST

/* One weight in memory is what the folder has. */
START_TEST(one_weight_in_memory_is_that_of_the_folder)
{
    static const char text[] =
        "why: all actions\nrules:\n  - bits: 3\n    group: 64\n  - role: head\n    keep: true\n"
        "  - role: embedding\n    format: mxfp4\n  - match: \"*.o_proj.weight\"\n    bits: 5\n"
        "    group: 32\n    scale: f16\n";
    char *ref = write_reference(&plants[0]), *out = quantize(ref, "folder", text);
    char *fixed = quantize(ref, "folder2", text);
    struct checkpoint *c, *made;
    struct recipe *r;
    struct plan *p;
    struct err e = {.text = ""};
    check_same_weights(out, fixed);
    must(checkpoint_open(&c, ref, &e), &e);
    must(checkpoint_open(&made, out, &e), &e);
    must(recipe_parse(&r, text, strlen(text), "all", &e), &e);
    must(plan_from_recipe(&p, c, r, &e), &e);
    for (size_t i = 0; i < p->n_items; i++) {
        struct pack_one one;
        const struct ckpt_weight *w = checkpoint_find(made, p->items[i].w->name);
        must(pack_one(&one, &p->items[i], _i, &e), &e);
        ck_assert_msg(w && pack_one_same(&one.w, w), "%s", p->items[i].w->name);
        pack_one_free(&one);
    }
    plan_free(p);
    recipe_free(r);
    checkpoint_close(c);
    checkpoint_close(made);
    free(ref);
    free(out);
    free(fixed);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("where");
    TCase *t = tcase_create("where");
    const int n = (int)ARRAY_LEN(plants);
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, the_planted_tensor_is_named_and_undone, 0, n);
    tcase_add_test(t, a_variant_of_another_source_is_made_anew);
    tcase_add_test(t, a_damaged_file_needs_no_more_bits);
    tcase_add_loop_test(t, a_mixed_engine_is_the_model_of_its_weights, 0, n);
    tcase_add_loop_test(t, the_lens_ends_at_the_logits, 0, n);
    tcase_add_loop_test(t, a_base_without_a_manifest_is_the_same, 0, n);
    tcase_add_test(t, reports_show_it_and_repeat);
    tcase_add_test(t, rules_come_back_from_their_text);
    tcase_add_loop_test(t, one_weight_in_memory_is_that_of_the_folder, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
