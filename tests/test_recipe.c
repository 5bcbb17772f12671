/* test_recipe.c: what recipes mean, and what each fault says. */
#include "quant/recipe.h"

#include "tests/check_main.h"

static struct recipe *good(const char *text)
{
    struct recipe *r = NULL;
    struct err e = {.text = ""};
    ck_assert_msg(recipe_parse(&r, text, strlen(text), "r.yaml", &e) == ERR_OK, "%s", e.text);
    return r;
}

static void refused(const char *text, const char *part)
{
    struct recipe *r = NULL;
    struct err e = {.text = ""};
    ck_assert_int_eq(recipe_parse(&r, text, strlen(text), "r.yaml", &e), ERR_INPUT);
    ck_assert_ptr_null(r);
    ck_assert_msg(strstr(e.text, part) != NULL, "'%s' is not in: %s", part, e.text);
    ck_assert_msg(strncmp(e.text, "r.yaml: ", 8) == 0, "no place: %s", e.text);
}

static int decide(const struct recipe *r, const char *name, enum ckpt_role role, int layer)
{
    struct recipe_subject s = {name, role, layer, 30};
    return recipe_decide(r, &s);
}

START_TEST(a_rule_has_its_line_and_its_defaults)
{
    struct recipe *r = good("why: w\nrules:\n  - bits: 4\n\n  - bits: 8\n    group: 32\n"
                            "    scale: f32\n    role: head\n  - keep: true\n    match: \"a*\"\n");
    ck_assert_int_eq(r->n_rules, 3);
    ck_assert_int_eq(r->rules[0].line, 3);
    ck_assert_int_eq(r->rules[1].line, 5);
    ck_assert_int_eq(r->rules[2].line, 9);
    ck_assert_int_eq(r->rules[0].q.group, 64);
    ck_assert_int_eq(r->rules[0].q.scale, DT_BF16);
    ck_assert_int_eq(r->rules[1].q.scale, DT_F32);
    ck_assert(r->rules[2].keep && !r->rules[2].exact);
    ck_assert_str_eq(r->why, "w");
    ck_assert_uint_eq(strlen(r->sha256), 64);
    recipe_free(r);
}
END_TEST

START_TEST(the_last_rule_that_matches_decides)
{
    struct recipe *r = good("why: w\nrules:\n- bits: 4\n- role: mlp\n  bits: 5\n"
                            "- match: \"*.down_proj.weight\"\n  bits: 6\n- role: head, embedding\n"
                            "  bits: 8\n");
    ck_assert_int_eq(decide(r, "x.q_proj.weight", ROLE_ATTENTION, 3), 0);
    ck_assert_int_eq(decide(r, "x.up_proj.weight", ROLE_MLP, 3), 1);
    ck_assert_int_eq(decide(r, "x.down_proj.weight", ROLE_MLP, 3), 2);
    ck_assert_int_eq(decide(r, "lm_head.weight", ROLE_HEAD, -1), 3);
    ck_assert_int_eq(decide(r, "model.embed_tokens.weight", ROLE_EMBEDDING, -1), 3);
    recipe_free(r);
}
END_TEST

START_TEST(layers_count_from_both_ends)
{
    struct recipe *r = good("why: w\nrules:\n- layers: 0..2, 7, -2..-1\n  bits: 4\n");
    static const int in[] = {0, 1, 2, 7, 28, 29}, out[] = {3, 6, 8, 27, -1};
    for (size_t i = 0; i < ARRAY_LEN(in); i++)
        ck_assert_int_eq(decide(r, "a", ROLE_MLP, in[i]), 0);
    for (size_t i = 0; i < ARRAY_LEN(out); i++)
        ck_assert_int_eq(decide(r, "a", ROLE_MLP, out[i]), -1);
    recipe_free(r);
}
END_TEST

START_TEST(edges_are_mlx_s_own_layers)
{
    /* mlx_lm's mixed recipes on 30 layers: i < 3, i >= 26, (i - 3) % 3 == 2 */
    struct recipe *r = good("why: w\nrules:\n- layers: edges\n  bits: 6\n");
    for (int i = 0; i < 30; i++) {
        bool more = i < 3 || i >= 26 || (i - 3) % 3 == 2;
        ck_assert_int_eq(decide(r, "a", ROLE_MLP, i), more ? 0 : -1);
    }
    recipe_free(r);
}
END_TEST

START_TEST(each_fault_is_named)
{
    refused("why: w\n", "rules");
    refused("rules:\n- bits: 4\n", "why");
    refused("why: w\nrules:\n- bitz: 4\n", "bitz");
    refused("why: w\nrules:\n- bits: 4\n  role: heads\n", "did you mean 'head'?");
    refused("why: w\nrules:\n- bits: 4\n  role: heads\n", "embedding, head, attention, mlp");
    refused("why: w\nrules:\n- bits: 4\n- bits: 7\n", "rule 2 (line 4): bits: found 7");
    refused("why: w\nrules:\n- bits: 4\n  group: 48\n", "group: found 48, expected 32, 64 or 128");
    refused("why: w\nrules:\n- bits: 4\n  scale: f64\n", "scale: found 'f64'");
    refused("why: w\nrules:\n- bits: 4\n  scale: u8\n", "scale: found 'u8'");
    refused("why: w\nrules:\n- match: a\n", "neither bits nor keep");
    refused("why: w\nrules:\n- format: mxfp3\n", "'mxfp3', expected mxfp4, mxfp8 or nvfp4");
    refused("why: w\nrules:\n- format: mxfp4\n  bits: 4\n", "mxfp4 has its own bits");
    refused("why: w\nrules:\n- format: nvfp4\n  keep: true\n", "excludes bits");
    refused("why: w\nrules:\n- keep: true\n  bits: 4\n", "excludes bits");
    refused("why: w\nrules:\n- bits: 4\n  layers: 3-5\n", "layers: found '3-5'");
    refused("why: w\nrules:\n- bits: 4\n  layers: 5..3\n", "layers: found '5..3'");
    refused("why: w\nrules:\n- bits: 4\n  layers: \",\"\n", "no layer");
    refused("why: w\nrules:\n- bits: 4\n  role: \" , \"\n", "no role");
    refused("why: w\nrules: []\n", "line 2");
    refused("why: \"a\\nb\"\nrules:\n- bits: 4\n", "one line");
    refused("- 1\n", "");
    refused("", "");
    refused("why: [\n", "line");
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("recipe");
    TCase *t = tcase_create("recipes");
    tcase_add_test(t, a_rule_has_its_line_and_its_defaults);
    tcase_add_test(t, the_last_rule_that_matches_decides);
    tcase_add_test(t, layers_count_from_both_ends);
    tcase_add_test(t, edges_are_mlx_s_own_layers);
    tcase_add_test(t, each_fault_is_named);
    suite_add_tcase(s, t);
    return s;
}
