/* test_engine_buffers.c: the lifetimes that `infer --plan` prints: places within the plan, a
 * writer and a reader for each, and a layout that puts two living values on each other is found. */
#include "infer/engine_buffers.h"

#include <stdlib.h>

#include "common/io.h"
#include "infer/shapes.h"
#include "tests/check_main.h"
#include "tests/tiny_model.h"

static enum err_code find(struct engine_buffers *b, struct engine_plan *p, int arith, struct err *e)
{
    struct tiny_model m = tiny_model_default();
    struct checkpoint *c;
    char *dir = io_join(test_folder(), "m");
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto"}, .ctx = 512};
    o.kern.arith = arith ? KERN_MMA90 : KERN_F32;
    m.form = TINY_PACKED;
    if (!io_exists(dir))
        ck_assert_int_eq(tiny_model_write(dir, &m, e), ERR_OK);
    ck_assert_int_eq(checkpoint_open(&c, dir, e), ERR_OK);
    ck_assert_int_eq(engine_plan(c, &o, p, e), ERR_OK);
    enum err_code rc = engine_buffers_find(b, c, &o, e);
    checkpoint_close(c);
    free(dir);
    return rc;
}

static const struct engine_value *written_by(const struct engine_buffers *b, const char *op)
{
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->values[i].write, op) == 0)
            return &b->values[i];
    return NULL;
}

/* _i: Mixtral, Qwen3-MoE. */
START_TEST(models_with_experts_have_lifetimes_too)
{
    struct tiny_model m = tiny_model_experts(_i);
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto"}, .ctx = 512};
    struct err e = {.text = ""};
    struct engine_buffers b;
    struct checkpoint *c;
    char *dir = io_join(test_folder(), "experts");
    ck_assert_int_eq(tiny_model_write(dir, &m, &e), ERR_OK);
    ck_assert_int_eq(checkpoint_open(&c, dir, &e), ERR_OK);
    enum err_code rc = engine_buffers_find(&b, c, &o, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.text);
    ck_assert_ptr_nonnull(written_by(&b, "down"));
    engine_buffers_free(&b);
    checkpoint_close(c);
    free(dir);
}
END_TEST

/* Gemma 4 with experts beside the MLP; with inputs of each layer and layers that share. */
START_TEST(parts_of_gemma_4_have_lifetimes_too)
{
    static const struct {
        const char *shape, *write, *read;
        int times;
    } want[] = {{"tiny-gemma4-a4b", "experts", "branches", 2},
                {"tiny-gemma4-a4b", "expert_norm", "expert_gated", 2},
                {"tiny-gemma4-e", "input_act", "linear", 5}};
    struct engine_options o = {.kern = {.device = "cpu", .isa = "auto"}, .ctx = 512};
    o.kern.arith = _i ? KERN_MMA90 : KERN_F32;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        struct err e = {.text = ""};
        struct engine_buffers b;
        struct checkpoint *c;
        ck_assert_int_eq(shapes_checkpoint(&c, want[i].shape, &e), ERR_OK);
        enum err_code rc = engine_buffers_find(&b, c, &o, &e);
        ck_assert_msg(rc == ERR_OK, "%s: %s", want[i].shape, e.text);
        const struct engine_value *v = written_by(&b, want[i].write);
        ck_assert_msg(v != NULL, "%s", want[i].write);
        ck_assert_str_eq(v->last_read, want[i].read);
        ck_assert_int_eq(v->times, want[i].times);
        engine_buffers_free(&b);
        shapes_free(c);
    }
}
END_TEST

START_TEST(every_value_has_a_place_a_writer_and_a_reader)
{
    struct err e = {.text = ""};
    struct engine_buffers b;
    struct engine_plan p;
    enum err_code rc = find(&b, &p, _i, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.text);
    for (size_t i = 0; i < b.n; i++) {
        ck_assert(b.values[i].write[0] && b.values[i].last_read[0] && b.values[i].times > 0);
        ck_assert_uint_le(b.values[i].offset + b.values[i].bytes, p.scratch);
    }
    static const struct {
        const char *write, *read;
        int times;
    } want[] = {{"embed", "gather", 1},    {"attn_norm", "qkv", 2}, {"qkv", "rope", 2},
                {"rope", "attention", 2},  {"gate_up", "act", 2},   {"act", "down", 2},
                {"final_norm", "head", 1}, {"head", "logits", 1}};
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct engine_value *v = written_by(&b, want[i].write);
        ck_assert_msg(v != NULL, "%s", want[i].write);
        ck_assert_str_eq(v->last_read, want[i].read);
        ck_assert_int_eq(v->times, want[i].times);
    }
    /* Attention and the feed-forward part share room; the residual is alone. */
    ck_assert_uint_eq(written_by(&b, "qkv")->offset, written_by(&b, "gate_up")->offset);
    ck_assert_uint_eq(written_by(&b, "qkv")->bytes, 512u * (4 + 2 * 2) * 32 * 4);
    engine_buffers_free(&b);
}
END_TEST

START_TEST(values_on_each_other_are_found)
{
    struct err e = {.text = ""};
    struct engine_buffers b;
    struct engine_plan p;
    engine_buffers_plant(512 * 128 * 4 * 2);
    ck_assert_int_eq(find(&b, &p, _i, &e), ERR_INTERNAL);
    engine_buffers_plant(0);
    ck_assert_ptr_nonnull(strstr(e.text, "holds no value"));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("engine_buffers");
    TCase *t = tcase_create("engine_buffers");
    tcase_add_loop_test(t, every_value_has_a_place_a_writer_and_a_reader, 0, 2);
    tcase_add_loop_test(t, values_on_each_other_are_found, 0, 2);
    tcase_add_loop_test(t, models_with_experts_have_lifetimes_too, 0, 2);
    tcase_add_loop_test(t, parts_of_gemma_4_have_lifetimes_too, 0, 2);
    suite_add_tcase(s, t);
    return s;
}
