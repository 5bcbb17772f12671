/* compare.h: variants of a model held against a reference.
 *
 * Each variant is a checkpoint that is run here, or a trace of a run elsewhere. Free-running
 * answers are compared token by token; then, where both models are at hand, the variant is forced
 * along the reference's own answers and the rows of logits are compared (docs/compare.md). A pair
 * that answers different questions (prompts, tokenizer, template) is NOT COMPARABLE: no figure.
 */
#ifndef ASSAY_EVALS_COMPARE_H
#define ASSAY_EVALS_COMPARE_H

#include <math.h>

#include "evals/compare_gates.h"
#include "evals/figures.h"
#include "evals/script_census.h"
#include "evals/self.h"
#include "evals/weights.h"
#include "evals/where.h"
#include "infer/batch.h"

/* A position is decided when the reference's margin is above the noise floor; above so many logits
 * where the floor was not measured. */
#define COMPARE_DECIDED 1.0f

/* One answer of both sides, free-running. */
struct pair_answer {
    int64_t edits; /* -1: not counted (measure.h) */
    struct script_census_answer ref, var;
};

struct variant {
    const char *path;
    char name[128]; /* base name, made unique by "#2" */
    bool is_trace;
    struct trace *trace;    /* what it answered */
    uint64_t bytes;         /* of all weights; 0: a trace */
    double bits_per_weight; /* over all weights; NaN: a trace */
    struct batch_result run;
    double run_seconds; /* speed.json only */
    bool checked;       /* against itself: repeats, and paths where a pair differs */
    struct self_report checks;
};

/* Which of the faults that look alike (judge.h); UNKNOWN: other tokens, and nothing can be run. */
enum pair_verdict {
    VERDICT_SAME,
    VERDICT_QUANTIZATION,
    VERDICT_PATH,
    VERDICT_UNKNOWN,
    VERDICT_OTHER_MODEL,
    VERDICT_NOT_COMPARABLE,
    VERDICT_NONDETERMINISTIC
};

struct pair {
    const struct variant *ref, *var;
    char not_comparable[256]; /* why, or empty */
    bool forced_compare;      /* compared all the same */
    enum pair_verdict verdict;
    char evidence[512], unchecked[512]; /* in words */
    struct parting *partings;           /* one per record of the reference */
    size_t n_records;
    bool same_ids, same_bits;   /* of every record */
    size_t n_same;              /* records with the same ids */
    bool forced;                /* positions are filled */
    struct position *positions; /* by record, then index */
    size_t n_positions;
    struct figures f; /* of the positions */
    bool has_roles;
    struct figures_role by_role[ROLE_OF_KINDS]; /* of the prompts; answers are in f */
    struct pair_answer *answers;                /* one per record */
    bool has_census;                            /* scripts and coherence are known */
    /* Over answers, by prompt: share with the same tokens; of the reference's tokens, the share at
     * the start that is common and the edits; tokens of the variant for each of the reference;
     * share of the variant's tokens before its first fault. */
    struct stats_interval exact, common, edits, length, coherent;
    struct weight_error *weights; /* two models only */
    size_t n_weights;
    bool whole_weights;  /* every tensor of both is among them */
    struct where *where; /* of the verdict quantization; NULL: not looked for */
    struct compare_gate_result gates[COMPARE_GATES];
    int n_gates;
};

/* The greatest of the pairs'; NONDETERMINISTIC above NOT_COMPARABLE above DIFFER. */
enum compare_verdict {
    COMPARE_SAME,
    COMPARE_DIFFER,
    COMPARE_NOT_COMPARABLE,
    COMPARE_NONDETERMINISTIC
};

struct comparison {
    struct variant *variants; /* [0] is the reference */
    size_t n_variants;
    struct pair *pairs; /* n_variants - 1 */
    struct census census;
    char arith[16], device[32];
    int32_t *cluster; /* of each record of the reference: its line */
    size_t n_clusters;
    /* The reference against itself on another path: what a figure may be without any loss. */
    bool has_floor;
    struct figures floor;
    char floor_path[32]; /* "mma90" */
    float decided;       /* margin above which a position is decided */
    bool exact;          /* bits were demanded */
    enum compare_verdict verdict;
    bool has_gates;       /* DIFFER is decided by them then, and not by tokens */
    char gate[320];       /* the first that failed, in words, or empty */
    char *how, *how_self; /* for the report: options of the command, and of its --self */
    bool with_speed;      /* measured times may stand in the page */
};

struct compare_options {
    const char *const *paths;
    size_t n_paths;
    const char *prompts; /* NULL: every path is a trace */
    struct engine_options engine;
    struct prompt_defaults defaults;
    bool special, exact, no_forced;
    bool no_floor;       /* the noise floor is not measured */
    bool forced_prompts; /* the prompts too, by role of token */
    bool no_judge;       /* no repeats, no paths: tokens alone */
    bool force_compare;
    bool oracle;                       /* of a device: its arithmetic on the CPU too */
    const struct compare_gates *gates; /* NULL: none */
    /* Copied: options as words, " --arith f32 --exact", those of a run and of --self. NULL: none */
    const char *how, *how_self;
    bool with_speed;       /* see comparison */
    int64_t where;         /* flips explained, with a remedy; 0: none; -1: the worst by the lens */
    int64_t forced_max;    /* positions of a record that are forced at most; 0: all */
    const char *trace_dir; /* traces of runs made here are written there */
    const volatile int *interrupted;
    lm_on_plan on_plan;
    /* total units ("answers", "ways") follow; a phase may end with fewer */
    void (*on_phase)(void *ctx, const char *what, const char *name, const char *unit,
                     uint64_t total);
    void (*on_progress)(void *ctx, uint64_t done);
    void *ctx;
    /* Tests: before the variant's runs (and before the reference's), to plant a fault. */
    void (*before)(void *ctx, size_t variant);
};

MUST_USE enum err_code compare_run(struct comparison **c, const struct compare_options *o,
                                   struct err *e);
void compare_free(struct comparison *c);
const char *compare_verdict_name(enum compare_verdict v); /* "same", "differ", ... */
const char *pair_verdict_name(enum pair_verdict v);       /* "path", "quantization", ... */

/* A reference's tokenizer, for reports that show text: opened from the first model among the
 * paths; NULL when all are traces. Owned by the comparison. */
const struct tokenizer *compare_tokenizer(const struct comparison *c);

#endif
