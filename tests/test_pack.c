/* test_pack.c: shards, config.json and quantizing again. */
#include "quant/pack.h"

#include "common/hash.h"
#include "tests/quant_make.h"

START_TEST(shards_hold_the_bytes_of_the_single_file)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    char sharded[700];
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n");
    ck_assert_int_eq(bed_run(&b, b.out, 2, NULL), ERR_OK);
    snprintf(sharded, sizeof sharded, "%s/sharded", b.dir);
    struct quantize_summary s;
    struct quantize_job j = {.plan = b.p, .out = sharded, .command = "quantize", .verify = true};
    j.pack.shard_bytes = 60000;
    j.pack.isa = affine_isa_best();
    ck_assert_msg(quantize_run(&j, &s, &e) == ERR_OK, "%s", e.text);
    struct checkpoint *one = NULL, *many = NULL;
    ck_assert_msg(checkpoint_open(&one, b.out, &e) == ERR_OK, "%s", e.text);
    ck_assert_msg(checkpoint_open(&many, sharded, &e) == ERR_OK, "%s", e.text);
    ck_assert_uint_gt(many->n_files, 3);
    ck_assert_uint_eq(one->n_weights, many->n_weights);
    for (size_t i = 0; i < one->n_weights; i++) {
        const struct ckpt_weight *x = &one->weights[i], *y = &many->weights[i];
        ck_assert_str_eq(x->name, y->name);
        ck_assert_uint_eq(x->bytes, y->bytes);
        size_t scales = x->scales ? (size_t)(ckpt_weight_rows(x) * ckpt_weight_k(x) / 64 * 2) : 0;
        ck_assert(memcmp(x->data, y->data, x->bytes - 2 * scales) == 0);
        ck_assert(!scales || memcmp(x->scales, y->scales, scales) == 0);
        ck_assert(!scales || memcmp(x->biases, y->biases, scales) == 0);
    }
    checkpoint_close(one);
    checkpoint_close(many);
    bed_close(&b);
}
END_TEST

START_TEST(config_names_every_packed_module)
{
    struct quant_bed b;
    bed_model(&b);
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n- role: head\n  bits: 8\n  group: 32\n");
    ck_assert_int_eq(bed_run(&b, b.out, 2, NULL), ERR_OK);
    struct strbuf text = bed_file(b.out, "config.json");
    json_t *config = NULL;
    ck_assert_int_eq(json_parse(text.data, text.len, &config, NULL), ERR_OK);
    const json_t *q = json_object_get(config, "quantization");
    ck_assert(json_equal(q, json_object_get(config, "quantization_config")));
    size_t packed = 0;
    for (size_t i = 0; i < b.p->n_items; i++)
        packed += b.p->items[i].packed;
    ck_assert_uint_eq(json_object_size(q), 3 + packed);
    const json_t *head = json_object_get(q, "lm_head");
    ck_assert_int_eq(json_integer_value(json_object_get(head, "bits")), 8);
    ck_assert_int_eq(json_integer_value(json_object_get(head, "group_size")), 32);
    ck_assert_int_eq(json_integer_value(json_object_get(q, "bits")), 4);
    json_decref(config);
    strbuf_free(&text);
    bed_close(&b);
}
END_TEST

START_TEST(a_packed_checkpoint_is_quantized_again_from_its_values)
{
    static const char *const rules[] = {"- bits: 4\n", "- format: mxfp4\n", "- format: mxfp8\n",
                                        "- format: nvfp4\n"};
    struct quant_bed b;
    struct err e = {.text = ""};
    char from_packed[700], from_dense[700];
    bed_model(&b);
    b.model.form = TINY_PACKED;
    b.model.bits = 8;
    b.model.group = 32;
    bed_open(&b);
    bed_plan(&b, rules[_i]);
    snprintf(from_packed, sizeof from_packed, "%s/a", b.dir);
    snprintf(from_dense, sizeof from_dense, "%s/b", b.dir);
    ck_assert_msg(bed_run(&b, from_packed, 2, &e) == ERR_OK, "%s", e.text);
    checkpoint_close(b.c);
    b.model.form = TINY_EXPANDED_F32;
    snprintf(b.source, sizeof b.source, "%s/dense", b.dir);
    bed_open(&b);
    bed_plan(&b, rules[_i]);
    ck_assert_msg(bed_run(&b, from_dense, 2, &e) == ERR_OK, "%s", e.text);
    struct checkpoint *x = NULL, *y = NULL;
    ck_assert_int_eq(checkpoint_open(&x, from_packed, &e), ERR_OK);
    ck_assert_int_eq(checkpoint_open(&y, from_dense, &e), ERR_OK);
    for (size_t i = 0; i < x->n_weights; i++) {
        const struct ckpt_weight *v = &x->weights[i], *w = &y->weights[i];
        if (!ckpt_weight_packed(v))
            continue;
        size_t codes = (size_t)ckpt_weight_rows(v) * qformat_row_bytes(v->q, ckpt_weight_k(v));
        ck_assert_str_eq(v->name, w->name);
        ck_assert(memcmp(v->data, w->data, codes) == 0);
        ck_assert(_i == 0 || v->enc == CKPT_MX || v->role == ROLE_ROUTER);
    }
    checkpoint_close(x);
    checkpoint_close(y);
    bed_close(&b);
}
END_TEST

/* A source of 20 MB is hashed in pieces, alone and beside tensors and the output: its digest, and
 * theirs, are those of the files, with one thread and with more than there are tasks at times. */
START_TEST(digests_are_those_of_the_files)
{
    struct quant_bed b;
    struct err e = {.text = ""};
    char hex[SHA256_HEX], path[700];
    bed_model(&b);
    b.model.n_vocab = 40000;
    bed_open(&b);
    bed_plan(&b, "- bits: 4\n");
    struct quantize_summary s;
    struct quantize_job j = {.plan = b.p, .out = b.out, .command = "quantize", .verify = true};
    j.pack.threads = (int[]){1, 2, 7}[_i];
    j.pack.isa = affine_isa_best();
    ck_assert_msg(quantize_run(&j, &s, &e) == ERR_OK, "%s", e.text);
    struct checkpoint *c = NULL;
    ck_assert_int_eq(checkpoint_open(&c, b.out, &e), ERR_OK);
    const json_t *source = json_array_get(json_object_get(c->manifest, "sources"), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", b.source);
    ck_assert_int_eq(sha256_file(path, hex, &e), ERR_OK);
    ck_assert_str_eq(json_string_value(json_object_get(source, "sha256")), hex);
    checkpoint_close(c);
    bed_close(&b);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("pack");
    TCase *t = tcase_create("folders");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, shards_hold_the_bytes_of_the_single_file);
    tcase_add_test(t, config_names_every_packed_module);
    tcase_add_loop_test(t, a_packed_checkpoint_is_quantized_again_from_its_values, 0, 4);
    tcase_add_loop_test(t, digests_are_those_of_the_files, 0, 3);
    suite_add_tcase(s, t);
    return s;
}
