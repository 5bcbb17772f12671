/* test_cuda_judge.c: known faults, told apart on a CUDA device: both sides of a pair run on it, and
 * each constructed case must get its verdict. The nondeterministic ones are races between kernels
 * and between blocks: that they vary from run to run is looked at by itself.
 */
#include "evals/self_private.h"
#include "tests/cuda_rig.h"
#include "tests/judge_rig.h"

static const struct judge_case cases[] = {
    /* Same: a copy, expanded copies. */
    {"copy", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"copy", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, 0, false, VERDICT_SAME, "same bits"},
    {"expanded", TINY_PACKED, TINY_EXPANDED_BF16, 3, 3, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    {"expanded", TINY_EXPANDED_BF16, TINY_PACKED, 8, 8, 1, 0, 2, false, 0, false, VERDICT_SAME,
     "same bits"},
    /* Nondeterministic: blocks whose sums meet as they arrive, products that begin before their
     * input stands; in either side, or in both. */
    {"arrival", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_ARRIVAL, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"arrival", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_ARRIVAL, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"arrival", TINY_PACKED, TINY_PACKED, 4, 3, 1, KERN_FAULT_ARRIVAL, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "down"},
    {"arrival", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_ARRIVAL, 1, false, EDIT_ROPE, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"early", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_EARLY, 1, false, 0, false,
     VERDICT_NONDETERMINISTIC, "variant does not repeat"},
    {"early", TINY_PACKED, TINY_PACKED, 8, 3, 1, KERN_FAULT_EARLY, 0, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    {"early", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_EARLY, 2, false, 0, false,
     VERDICT_NONDETERMINISTIC, "reference does not repeat"},
    /* Path: an order that depends on the batch, K and V of fewer bits, a damaged expansion. */
    {"order", TINY_PACKED, TINY_PACKED, 4, 3, 1, KERN_FAULT_CHUNK_ORDER, 1, false, 0, false,
     VERDICT_PATH, "batch"},
    {"order", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_CHUNK_ORDER, 0, false, 0, false,
     VERDICT_PATH, "batch"},
    {"kv8", TINY_PACKED, TINY_PACKED, 4, 4, 1, KERN_FAULT_KV8, 1, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"kv8", TINY_BF16, TINY_BF16, 4, 4, 1, KERN_FAULT_KV8, 0, false, 0, false, VERDICT_PATH,
     "equal fingerprints"},
    {"expander", TINY_BF16, TINY_PACKED, 4, 4, 1, KERN_FAULT_EXPAND, 1, false, 0, false,
     VERDICT_PATH, "expand"},
    /* Quantization: fewer bits, in the head alone, in a layer, a damaged scale. */
    {"3 bits", TINY_PACKED, TINY_PACKED, 8, 3, 1, 0, 2, false, 0, false, VERDICT_QUANTIZATION,
     "weights differ"},
    {"the head", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_HEAD, false, VERDICT_QUANTIZATION,
     "most in lm_head"},
    {"a layer", TINY_BF16, TINY_BF16, 4, 4, 1, 0, 2, false, EDIT_LAYER, false, VERDICT_QUANTIZATION,
     "most in model.layers.1."},
    {"a scale", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, EDIT_SCALE, false,
     VERDICT_QUANTIZATION, "lm_head"},
    {"rope", TINY_PACKED, TINY_PACKED, 4, 4, 1, 0, 2, false, EDIT_ROPE, false,
     VERDICT_NOT_COMPARABLE, "rope base differs: 10000 and 20000"},
};

START_TEST(a_known_fault_gets_its_verdict)
{
    judge_check(&cases[_i], "cuda:0", false);
}
END_TEST

/* A device that is wrong in each of its ways is shown by the oracle. */
START_TEST(a_wrong_device_is_shown_by_the_oracle)
{
    const struct judge_case k = {"device", TINY_PACKED,       TINY_PACKED, 4,     3,
                                 1,        KERN_FAULT_DEVICE, 2,           false, 0,
                                 false,    VERDICT_PATH,      "oracle"};
    judge_check(&k, "cuda:0", true);
}
END_TEST

/* ---- races --------------------------------------------------------------------------------------
 */
#define RUNS 12

static const struct {
    const char *name;
    enum kern_fault fault;
    bool traced; /* seen in the hashes of operations: a last bit of theirs seldom reaches a logit */
} races[] = {{"none", KERN_FAULT_NONE, false},
             {"none", KERN_FAULT_NONE, true},
             {"arrival", KERN_FAULT_ARRIVAL, true},
             {"early", KERN_FAULT_EARLY, false}};

static bool are_same(struct self_log *a, struct self_log *b)
{
    const struct self_op *op;
    size_t record, row;
    bool same = !self_log_differ(a, b, &record, &row);
    for (size_t i = 0; i < a->n; i++)
        same = same && !self_log_narrow(&a->record[i], &b->record[i], &op);
    return same;
}

/* Nothing counts the runs: the device's timing alone tells one from the next. */
START_TEST(a_race_varies_from_run_to_run)
{
    char *dir = judge_model("model", TINY_PACKED, 4, 0);
    char *prompts = io_join(test_folder(), "p.jsonl");
    struct self_options o = {
        .path = dir,
        .prompts = prompts,
        .engine = {.kern = {.device = "cuda:0", .isa = "auto", .arith = KERN_MMA90},
                   .batch_seqs = 8,
                   .kv_tokens = 4096,
                   .top_k = 2}};
    struct self_log log[RUNS];
    struct self_run_result res;
    struct self_prompts p = {.n = 0};
    struct self_way way = {.name = "base"};
    struct err e = {.text = ""};
    int distinct = 0;
    struct lm *m;
    prompt_defaults_init(&o.defaults);
    ck_assert_int_eq(io_write_all(prompts, judge_prompts, strlen(judge_prompts), true, NULL),
                     ERR_OK);
    fix_ok(lm_open(&m, o.path, &o.engine, NULL, NULL, &e), &e);
    fix_ok(self_prompts_read(&p, m, &o, &e), &e);
    kern_plant(races[_i].fault);
    for (int i = 0; i < RUNS; i++) {
        bool known = false;
        fix_ok(self_run_batch(m, &p, &way, &o, races[_i].traced, &log[i], &res, &e), &e);
        for (int j = 0; j < i && !known; j++)
            known = are_same(&log[j], &log[i]);
        distinct += !known;
    }
    kern_plant(KERN_FAULT_NONE);
    printf("%s: %d distinct of %d runs\n", races[_i].name, distinct, RUNS);
    fflush(stdout);
    ck_assert(races[_i].fault == KERN_FAULT_NONE ? distinct == 1 : distinct > 2);
    for (int i = 0; i < RUNS; i++)
        self_log_free(&log[i]);
    self_prompts_free(&p);
    lm_close(m);
    free(dir);
    free(prompts);
}
END_TEST

static void add_small(TCase *c)
{
    (void)c;
}

static void add_tests(TCase *c)
{
    tcase_add_loop_test(c, a_race_varies_from_run_to_run, 0, (int)ARRAY_LEN(races));
    tcase_add_loop_test(c, a_known_fault_gets_its_verdict, 0, (int)ARRAY_LEN(cases));
    tcase_add_test(c, a_wrong_device_is_shown_by_the_oracle);
}

Suite *test_suite(void)
{
    return rig_suite("cuda judge", add_tests, add_small);
}
