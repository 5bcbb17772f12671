/* test_plan.c: a recipe's decisions over a checkpoint. */
#include "quant/plan.h"

#include "tests/quant_make.h"

static void refused(struct quant_bed *b, const char *rules, const char *part)
{
    struct err e = {.text = ""};
    ck_assert_int_eq(bed_try_plan(b, rules, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.text, part) != NULL, "'%s' is not in: %s", part, e.text);
}

START_TEST(norms_and_what_no_rule_names_are_kept)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n");
    ck_assert_int_eq(bed_item(&b, "model.norm.weight")->action, PLAN_COPY);
    ck_assert(!bed_item(&b, "model.layers.0.input_layernorm.weight")->packed);
    ck_assert_int_eq(bed_item(&b, "model.layers.0.mlp.up_proj.weight")->action, PLAN_ENCODE);
    ck_assert_int_eq(bed_item(&b, "lm_head.weight")->q.bits, 4);
    bed_plan(&b, "- role: mlp\n  bits: 4\n");
    ck_assert_int_eq(bed_item(&b, "lm_head.weight")->action, PLAN_COPY);
    ck_assert_int_eq(bed_item(&b, "lm_head.weight")->rule, -1);
    bed_close(&b);
}
END_TEST

START_TEST(bytes_and_bits_are_those_of_the_format)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 3\n  group: 32\n  scale: f32\n");
    const struct plan_item *it = bed_item(&b, "model.layers.1.mlp.down_proj.weight");
    ck_assert_uint_eq(plan_item_bytes(it), (uint64_t)(it->rows * it->k) * 3 / 8 +
                                               2 * 4 * (uint64_t)(it->rows * it->k / 32));
    struct plan_totals t;
    plan_totals(b.p, &t);
    ck_assert_double_eq_tol(t.packed_bits, 3.0 + 64.0 / 32.0, 1e-9);
    bed_close(&b);
}
END_TEST

START_TEST(a_tied_matrix_takes_the_higher_bits_and_says_so)
{
    struct quant_bed b;
    bed_model(&b);
    b.model.tied = true;
    bed_open(&b);
    const char *name = "model.embed_tokens.weight";
    bed_plan(&b, "- bits: 4\n- role: head\n  bits: 8\n");
    ck_assert_int_eq(bed_item(&b, name)->q.bits, 8);
    ck_assert_ptr_nonnull(strstr(bed_item(&b, name)->note, "the head has more bits"));
    bed_plan(&b, "- bits: 4\n- role: embedding\n  bits: 6\n");
    ck_assert_int_eq(bed_item(&b, name)->q.bits, 6);
    ck_assert_ptr_nonnull(strstr(bed_item(&b, name)->note, "the embedding has more bits"));
    bed_plan(&b, "- bits: 4\n- match: lm_head.weight\n  bits: 5\n");
    ck_assert_int_eq(bed_item(&b, name)->q.bits, 5);
    bed_plan(&b, "- bits: 4\n- role: head\n  keep: true\n");
    ck_assert_int_eq(bed_item(&b, name)->action, PLAN_COPY);
    bed_plan(&b, "- role: head\n  bits: 3\n");
    ck_assert_int_eq(bed_item(&b, name)->q.bits, 3);
    refused(&b, "- bits: 4\n- role: head\n  bits: 8\n  group: 32\n", "tied");
    refused(&b, "- bits: 4\n- role: head\n  bits: 8\n  scale: f32\n", "tied");
    bed_close(&b);
}
END_TEST

START_TEST(a_rule_that_matches_nothing_lists_what_exists)
{
    struct quant_bed b;
    bed_model(&b);
    b.model.n_layer = 3;
    bed_open(&b);
    refused(&b, "- bits: 4\n- role: router\n  bits: 8\n", "rule 2 (line 4): matches no tensor");
    refused(&b, "- bits: 4\n- role: router\n  bits: 8\n", "attention 12");
    refused(&b, "- bits: 4\n- layers: 3\n  bits: 8\n", "layers 0..2");
    refused(&b, "- match: model.layers.0.mlp.up_prj.weight\n  bits: 4\n",
            "the nearest name is model.layers.0.mlp.up_proj.weight");
    refused(&b, "- role: norm\n  bits: 4\n", "always kept");
    bed_close(&b);
}
END_TEST

START_TEST(a_group_that_does_not_divide_k_lists_the_tensors)
{
    struct quant_bed b;
    bed_model(&b);
    b.model.n_layer = 3;
    b.model.d_ff = 320; /* 2.5 * 128 */
    bed_open(&b);
    refused(&b, "- bits: 4\n  group: 128\n", "group 128 does not divide K of 3 tensors (K = 320");
    refused(&b, "- bits: 4\n  group: 128\n", "group 64 and 32 divide them");
    bed_plan(&b, "- bits: 4\n  group: 128\n- match: \"*.down_proj.weight\"\n  bits: 4\n");
    ck_assert_int_eq(bed_item(&b, "model.layers.0.mlp.down_proj.weight")->q.group, 64);
    bed_close(&b);
}
END_TEST

/* A router among the weights: the tiny model has none, so one is renamed in place. */
START_TEST(routers_stay_at_eight_bits_unless_named)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    struct ckpt_weight *w = NULL;
    for (size_t i = 0; i < b.c->n_weights; i++)
        if (strcmp(b.c->weights[i].name, "model.layers.1.self_attn.o_proj.weight") == 0)
            w = &b.c->weights[i];
    ck_assert_ptr_nonnull(w);
    w->role = ROLE_ROUTER;
    bed_plan(&b, "- bits: 4\n");
    ck_assert_int_eq(bed_item(&b, w->name)->q.bits, 8);
    ck_assert_ptr_nonnull(strstr(bed_item(&b, w->name)->note, "router: 8 bits instead of 4"));
    bed_plan(&b, "- bits: 8\n- match: \"*o_proj*\"\n  bits: 3\n");
    ck_assert_int_eq(bed_item(&b, w->name)->q.bits, 8);
    bed_plan(&b, "- bits: 8\n- role: router\n  bits: 4\n");
    ck_assert_int_eq(bed_item(&b, w->name)->q.bits, 4);
    bed_plan(&b, "- bits: 8\n- match: model.layers.1.self_attn.o_proj.weight\n  bits: 3\n");
    ck_assert_int_eq(bed_item(&b, w->name)->q.bits, 3);
    bed_close(&b);
}
END_TEST

START_TEST(what_has_the_format_already_is_copied)
{
    struct quant_bed b;
    bed_model(&b);
    b.model.form = TINY_PACKED;
    b.model.bits = 4;
    b.model.group = 32;
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n  group: 32\n");
    ck_assert_int_eq(bed_item(&b, "model.layers.0.mlp.up_proj.weight")->action, PLAN_COPY);
    bed_plan(&b, "- bits: 4\n  group: 64\n");
    ck_assert_int_eq(bed_item(&b, "model.layers.0.mlp.up_proj.weight")->action, PLAN_ENCODE);
    bed_close(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("plan");
    TCase *t = tcase_create("decisions");
    tcase_add_test(t, norms_and_what_no_rule_names_are_kept);
    tcase_add_test(t, bytes_and_bits_are_those_of_the_format);
    tcase_add_test(t, a_tied_matrix_takes_the_higher_bits_and_says_so);
    tcase_add_test(t, a_rule_that_matches_nothing_lists_what_exists);
    tcase_add_test(t, a_group_that_does_not_divide_k_lists_the_tensors);
    tcase_add_test(t, routers_stay_at_eight_bits_unless_named);
    tcase_add_test(t, what_has_the_format_already_is_copied);
    suite_add_tcase(s, t);
    return s;
}
