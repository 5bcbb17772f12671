/* test_self.c: a model held against itself: every cell is green on a tiny model, and each is turned
 * red by a fault planted for it, narrowed to the operation that the fault is in.
 *
 * The feed-forward part of the tiny model sums three chunks, the others one: an order of chunks is
 * seen first in "down". A split of attention is seen in "attention" from key 256 on, so
 * prompts are longer than that.
 */
#include "evals/self.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels_private.h"
#include "tests/self_rig.h"

#define ARITHS 2

static bool with_experts;

static char *make_model(enum tiny_form form)
{
    struct tiny_model m = with_experts ? tiny_model_experts(false) : tiny_model_default();
    m.form = form;
    m.ctx = 512;
    return make_folder(form == TINY_PACKED ? "packed" : "dense", &m);
}

static void compare(struct self_report *r, int arith, enum tiny_form form, const char *cells,
                    struct plant *plant)
{
    struct kern_options kern = {.device = "cpu", .isa = "auto", .threads = 2};
    kern.arith = arith ? KERN_MMA90 : KERN_F32;
    compare_self(r, make_model(form), make_prompts(), &kern, cells, plant);
}

START_TEST(every_cell_is_the_same_bits)
{
    struct self_report r, again;
    struct strbuf text[2] = {{0}};
    static const char *const not_run[] = {"stream", "graph", "blocking", "oracle"};
    compare(&r, _i, TINY_PACKED, NULL, NULL);
    int alone = kern_isa_list()[1] == NULL; /* a machine of one instruction set */
    ck_assert_int_eq(r.n_cells, SELF_CELLS);
    ck_assert_int_eq(r.n_differ, 0);
    ck_assert_int_eq(r.n_not_run, (int)ARRAY_LEN(not_run) + alone);
    ck_assert_int_eq(r.n_same, SELF_CELLS - r.n_not_run);
    ck_assert_uint_eq(r.n_answers, 5);
    for (int i = 0; i < r.n_cells; i++)
        for (size_t j = 0; j < ARRAY_LEN(not_run); j++)
            if (strcmp(r.cell[i].name, not_run[j]) == 0)
                ck_assert(r.cell[i].state == SELF_NOT_RUN && r.cell[i].why[0]);
    compare(&again, _i, TINY_PACKED, "repeat,verify", NULL);
    ck_assert_int_eq(again.n_cells, 2);
    self_json(&r, &text[0]);
    self_json(&r, &text[1]);
    ck_assert_str_eq(text[0].data, text[1].data);
    json_t *v = NULL;
    ck_assert_int_eq(json_parse(text[0].data, text[0].len, &v, NULL), ERR_OK);
    ck_assert_uint_eq(json_array_size(json_object_get(v, "cells")), SELF_CELLS);
    json_decref(v);
    strbuf_free(&text[0]);
    strbuf_free(&text[1]);
}
END_TEST

/* The fault, the cell that must see it, and where. */
static const struct {
    const char *cell;
    struct plant plant;
    int layer;
    const char *op;
} faults[] = {
    {"repeat", {.fault = KERN_FAULT_RACE}, ANY_LAYER, "down"},
    {"load", {.fault = KERN_FAULT_COMPANY}, 0, "down"},
    {"batch", {.fault = KERN_FAULT_CHUNK_ORDER}, 0, "down"},
    {"order", {.fault = KERN_FAULT_SEQ_EDGE}, 0, "attention"},
    /* A neighbour is NaN from its attention on. */
    {"neighbour", {.fault = KERN_FAULT_NEIGHBOUR}, 0, "o"},
    {"chunk", {.fault = KERN_FAULT_SPLIT_EDGE, .batch = 1}, 0, "attention"},
    {"verify", {.fault = KERN_FAULT_CHUNK_ORDER}, 0, "down"},
    /* K and V of the first layer depend on the token alone: a wrong page shows in the second. */
    {"prefix", {.prefix = true}, 1, "attention"},
    {"poison", {.fault = KERN_FAULT_STALE}, 0, "act"},
    {"path", {.fault = KERN_FAULT_PLAIN_C}, 0, "down"},
    {"threads", {.fault = KERN_FAULT_THREAD_ORDER}, 0, "down"},
    {"expand", {.fault = KERN_FAULT_EXPAND}, -1, "embed"},
};

START_TEST(a_planted_fault_turns_its_cell_red)
{
    const size_t at = (size_t)_i / ARITHS;
    struct plant plant = faults[at].plant;
    struct self_report r;
    if (strcmp(faults[at].cell, "path") == 0 && !kern_isa_list()[1]) {
        test_skip("a kernel path forced: this machine has one instruction set");
        return;
    }
    compare(&r, _i % ARITHS, TINY_PACKED, faults[at].cell, &plant);
    expect_found(&r, faults[at].layer, faults[at].op);
    struct strbuf text = {0};
    self_table(&r, &text);
    ck_assert_ptr_nonnull(strstr(text.data, "DIFFERS"));
    ck_assert_ptr_nonnull(strstr(text.data, faults[at].op));
    strbuf_free(&text);
}
END_TEST

START_TEST(stacked_experts_expand_to_the_same_bits)
{
    struct plant p = {.fault = KERN_FAULT_EXPAND, .cell = "expand"};
    struct self_report r;
    with_experts = true;
    compare(&r, _i, TINY_PACKED, "expand,batch", NULL);
    ck_assert_int_eq(r.n_same, 2);
    compare(&r, _i, TINY_PACKED, "expand", &p);
    ck_assert_int_eq(r.n_differ, 1);
    with_experts = false;
}
END_TEST

START_TEST(a_cell_without_its_switch_is_no_pass)
{
    struct self_report r;
    compare(&r, 0, TINY_BF16, "expand,graph,blocking,stream,oracle", NULL);
    ck_assert_int_eq(r.n_not_run, 5);
    ck_assert_int_eq(r.n_same, 0);
}
END_TEST

START_TEST(a_cell_that_is_not_there_is_bad_usage)
{
    struct err e = {.text = ""};
    struct self_report r;
    struct self_options o = {.path = "m", .prompts = "p", .cells = "batch,chunks"};
    ck_assert_int_eq(self_run(&r, &o, &e), ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.text, "'chunks'"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("self");
    TCase *t = tcase_create("self");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, every_cell_is_the_same_bits, 0, ARITHS);
    tcase_add_loop_test(t, a_planted_fault_turns_its_cell_red, 0, (int)ARRAY_LEN(faults) * ARITHS);
    tcase_add_loop_test(t, stacked_experts_expand_to_the_same_bits, 0, ARITHS);
    tcase_add_test(t, a_cell_without_its_switch_is_no_pass);
    tcase_add_test(t, a_cell_that_is_not_there_is_bad_usage);
    suite_add_tcase(s, t);
    return s;
}
