/* test_model.c: strict binding says what is missing, extra or misshapen, with both shapes. */
#include <math.h>
#include <stdlib.h>

#include "common/io.h"
#include "infer/model.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"

static char *temp;
static struct checkpoint *opened;

static void open_tiny(const struct tiny_model *m)
{
    struct err e = {.text = ""};
    temp = tiny_temp_dir();
    char *path = io_join(temp, "model");
    ck_assert_msg(tiny_model_write(path, m, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(checkpoint_open(&opened, path, &e) == ERR_OK, "%s", e.text);
    free(path);
}

static void close_tiny(void)
{
    checkpoint_close(opened);
    tiny_remove(temp);
    free(temp);
}

/* Weights as the checkpoint has them, for a test to change. Sorted by name, as found. */
static struct checkpoint copy_of(const struct checkpoint *c)
{
    struct checkpoint copy = *c;
    copy.weights = calloc(c->n_weights + 1, sizeof *copy.weights);
    ck_assert(copy.weights != NULL);
    memcpy(copy.weights, c->weights, c->n_weights * sizeof *copy.weights);
    return copy;
}

static size_t index_of(const struct checkpoint *c, const char *name)
{
    const struct ckpt_weight *w = checkpoint_find(c, name);
    ck_assert_msg(w != NULL, "%s", name);
    return (size_t)(w - c->weights);
}

static void drop_weight(struct checkpoint *c, const char *name)
{
    size_t i = index_of(c, name);
    memmove(&c->weights[i], &c->weights[i + 1], (c->n_weights - i - 1) * sizeof *c->weights);
    c->n_weights--;
}

static void expect_fault(const struct checkpoint *c, const char *const *texts)
{
    struct err e = {.text = ""};
    struct model *m = NULL;
    ck_assert_int_eq(model_bind(&m, c, &e), ERR_INPUT);
    ck_assert(m == NULL);
    for (; *texts; texts++)
        ck_assert_msg(strstr(e.text, *texts), "'%s' lacks '%s'", e.text, *texts);
}

START_TEST(a_whole_model_binds_and_adds_up)
{
    struct tiny_model t = tiny_model_default();
    t.biases = true;
    open_tiny(&t);
    struct err e = {.text = ""};
    struct model *m = NULL;
    struct kern *k = NULL;
    struct kern_options ko = {.device = "cpu", .isa = "auto"};
    ck_assert_msg(model_bind(&m, opened, &e) == ERR_OK, "%s", e.text);
    ck_assert(kern_open(&k, &ko, &e) == ERR_OK);
    uint64_t bytes = model_weight_bytes(m, k), stored = checkpoint_bytes(opened);
    ck_assert(bytes >= stored && bytes < stored + stored / 5);
    ck_assert(model_load(m, k, &e) == ERR_OK);
    model_free(m, k);
    kern_close(k);
    close_tiny();
}
END_TEST

START_TEST(missing_tensors_are_named_with_their_shape)
{
    struct tiny_model t = tiny_model_default();
    open_tiny(&t);
    struct checkpoint c = copy_of(opened);
    drop_weight(&c, "model.layers.1.mlp.down_proj.weight");
    drop_weight(&c, "model.norm.weight");
    expect_fault(&c, (const char *[]){"missing tensor model.layers.1.mlp.down_proj.weight",
                                      "expected [128, 640]", "missing tensor model.norm.weight",
                                      "expected [128]", NULL});
    free(c.weights);
    close_tiny();
}
END_TEST

START_TEST(misshapen_tensors_are_named_with_both_shapes)
{
    struct tiny_model t = tiny_model_default();
    open_tiny(&t);
    struct checkpoint c = copy_of(opened);
    c.weights[index_of(&c, "model.layers.0.self_attn.k_proj.weight")].dim[0] = 32;
    expect_fault(&c, (const char *[]){"model.layers.0.self_attn.k_proj.weight", "found [32, 128]",
                                      "expected [64, 128]", NULL});
    free(c.weights);
    close_tiny();
}
END_TEST

START_TEST(extra_tensors_are_named_and_derived_ones_pass)
{
    struct tiny_model t = tiny_model_default();
    t.biases = true;
    open_tiny(&t);
    struct checkpoint c = copy_of(opened);
    c.hp.attn_bias = c.hp.o_bias = false;
    expect_fault(&c, (const char *[]){"extra tensor model.layers.0.self_attn.k_proj.bias [64]",
                                      "and ", " more", NULL});
    c.hp.attn_bias = c.hp.o_bias = true;
    struct model *m = NULL;
    c.weights[c.n_weights] = c.weights[index_of(&c, "model.norm.weight")];
    c.weights[c.n_weights++].name = "rope_freqs.weight"; /* sorts last here */
    ck_assert_int_eq(model_bind(&m, &c, NULL), ERR_OK);
    model_free(m, NULL);
    free(c.weights);
    close_tiny();
}
END_TEST

START_TEST(a_tied_head_may_be_stored_but_must_be_the_embedding)
{
    struct tiny_model t = tiny_model_default();
    open_tiny(&t);
    struct checkpoint c = copy_of(opened);
    struct model *m = NULL;
    c.hp.tied = true;
    expect_fault(&c, (const char *[]){"lm_head.weight", "tied", NULL});
    struct ckpt_weight *head = &c.weights[index_of(&c, "lm_head.weight")];
    head->data = c.weights[index_of(&c, "model.embed_tokens.weight")].data;
    ck_assert_int_eq(model_bind(&m, &c, NULL), ERR_OK);
    model_free(m, NULL);
    free(c.weights);
    close_tiny();
}
END_TEST

START_TEST(an_unknown_family_is_refused_with_the_known_ones)
{
    struct tiny_model t = tiny_model_default();
    open_tiny(&t);
    struct checkpoint c = *opened;
    strcpy(c.hp.family, "mamba");
    expect_fault(&c, (const char *[]){"'mamba'", "llama", "mistral", NULL});
    close_tiny();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("model");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_whole_model_binds_and_adds_up);
    tcase_add_test(t, missing_tensors_are_named_with_their_shape);
    tcase_add_test(t, misshapen_tensors_are_named_with_both_shapes);
    tcase_add_test(t, extra_tensors_are_named_and_derived_ones_pass);
    tcase_add_test(t, a_tied_head_may_be_stored_but_must_be_the_embedding);
    tcase_add_test(t, an_unknown_family_is_refused_with_the_known_ones);
    suite_add_tcase(s, t);
    return s;
}
