/* test_judge.c: known faults, told apart: each constructed case must get its verdict. */
#include "tests/check_main.h"
#include "tests/judge_rig.h"

static const struct judge_case cases[] = {
    /* Same: a copy, a repacked copy, expanded copies. */
    {"copy", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"expanded", TINY_PACKED, TINY_EXPANDED_F32, 4, 4, 0, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    {"expanded", TINY_PACKED, TINY_EXPANDED_BF16, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    {"expanded", TINY_EXPANDED_BF16, TINY_PACKED, 8, 8, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    /* Nondeterministic: a race in either side, or in both. */
    {"race", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_RACE, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"race", TINY_F32, TINY_PACKED, 4, 4, 0, KERN_FAULT_RACE, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"race", TINY_PACKED, TINY_PACKED, 4, 3, 1, KERN_FAULT_RACE, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "down"},
    {"race", TINY_BF16, TINY_PACKED, 4, 2, 1, KERN_FAULT_RACE, 1, true, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"race", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_RACE, 1, false, EDIT_ROPE, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    /* Threads that race each other: nothing but their timing decides. */
    {"threads", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_THREADS, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"threads", TINY_PACKED, TINY_PACKED, 4, 3, 0, KERN_FAULT_THREADS, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"threads", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_THREADS, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "down"},
    /* Path: K and V of fewer bits, an order that depends on the batch, a damaged expansion. */
    {"kv8", TINY_F32, TINY_F32, 4, 4, 0, KERN_FAULT_KV8, 1, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"kv8", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_KV8, 1, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"kv8", TINY_PACKED, TINY_EXPANDED_F32, 4, 4, 0, KERN_FAULT_KV8, 1, false, 0, false,
     VERDICT_PATH, "equal values"},
    {"kv8", TINY_PACKED, TINY_PACKED, 4, 4, 0, KERN_FAULT_KV8, 0, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"order", TINY_PACKED, TINY_PACKED, 4, 3, 0, KERN_FAULT_CHUNK_ORDER, 1, false, 0, false,
     VERDICT_PATH, "batch"},
    {"order", TINY_F32, TINY_PACKED, 4, 4, 1, KERN_FAULT_CHUNK_ORDER, 0, false, 0, false,
     VERDICT_PATH, "batch"},
    {"expander", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_EXPAND, 1, false, 0, false,
     VERDICT_PATH, "expand"},
    /* Quantization: fewer bits, a damaged scale, other weights. */
    {"4 bits", TINY_F32, TINY_PACKED, 4, 4, 0, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"3 bits", TINY_PACKED, TINY_PACKED, 8, 3, 0, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"2 bits", TINY_PACKED, TINY_PACKED, 4, 2, 1, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"scales", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, EDIT_SCALES, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"a scale", TINY_PACKED, TINY_PACKED, 4, 4, 0, 0, 2, false, EDIT_SCALE, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"a scale", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, EDIT_SCALE, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"the head", TINY_BF16, TINY_BF16, 4, 4, 0, 0, 2, false, EDIT_HEAD, false, VERDICT_QUANTIZATION,
     "most in lm_head"},
    {"the head", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_HEAD, false, VERDICT_QUANTIZATION,
     "most in lm_head"},
    {"a layer", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_LAYER, false, VERDICT_QUANTIZATION,
     "most in model.layers.1."},
    {"other weights", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, true, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    /* NOT COMPARABLE, the field named; forced, another model. */
    {"rope", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_ROPE, false, VERDICT_NOT_COMPARABLE,
     "rope base differs: 10000 and 20000"},
    {"template", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TEMPLATE, false,
     VERDICT_NOT_COMPARABLE, "the chat template"},
    {"tokenizer", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TOKENIZER, false,
     VERDICT_NOT_COMPARABLE, "the tokenizer"},
    {"bos", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_BOS, false, VERDICT_NOT_COMPARABLE,
     "bos"},
    {"epsilon", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_EPS, false, VERDICT_NOT_COMPARABLE,
     "epsilon"},
    {"rope", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_ROPE, true, VERDICT_OTHER_MODEL,
     "rope base"},
    {"template", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_TEMPLATE, true, VERDICT_OTHER_MODEL,
     "the chat template"},
    {"bos", TINY_F32, TINY_F32, 4, 4, 0, 0, 2, false, EDIT_BOS, true, VERDICT_OTHER_MODEL, "bos"},
};

START_TEST(a_known_fault_gets_its_verdict)
{
    judge_check(&cases[_i], "cpu", false);
}
END_TEST

/* What some families alone have makes models NOT COMPARABLE too, and is named. */
START_TEST(a_field_of_a_family_is_named)
{
    static const char *const words[] = {"KV heads of full layers", "head's width in full layers",
                                        "layers that share keys", "width of layer inputs",
                                        "experts of a token"};
    struct checkpoint *m = calloc(2, sizeof *m);
    char why[200];
    ck_assert_ptr_nonnull(m);
    snprintf(m[0].hp.family, sizeof m[0].hp.family, "gemma4_text");
    m[1].hp = m[0].hp;
    judge_fields(&m[0], &m[1], why, sizeof why);
    ck_assert_str_eq(why, "");
    struct hparams *hp = &m[1].hp;
    hp->n_kv_full = _i == 0;
    hp->head_dim_full = _i == 1;
    hp->n_kv_shared = _i == 2;
    hp->d_input = _i == 3;
    hp->n_expert_used = _i == 4;
    judge_fields(&m[0], &m[1], why, sizeof why);
    ck_assert_msg(strstr(why, words[_i]) != NULL, "'%s' is not in: %s", words[_i], why);
    free(m);
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("judge");
    TCase *t = tcase_create("judge");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, a_known_fault_gets_its_verdict, 0, (int)ARRAY_LEN(cases));
    tcase_add_loop_test(t, a_field_of_a_family_is_named, 0, 5);
    suite_add_tcase(s, t);
    return s;
}
