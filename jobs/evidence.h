/* evidence.h: what a cell's children brought back, and the words for what it comes to.
 *
 * Evidence is measured or read once and judged by gates.h against the evidence of a baseline; the
 * store keeps both. Nothing here runs anything.
 */
#ifndef ASSAY_JOBS_EVIDENCE_H
#define ASSAY_JOBS_EVIDENCE_H

#include "common/hash.h"
#include "common/stats.h"
#include "jobs/grid.h"

/* In the order in which they are judged. */
enum gate { GATE_REPEAT, GATE_INVARIANCE, GATE_TOKENS, GATE_QUALITY, GATE_SPEED, GATE_COUNT };
const char *gate_name(enum gate g); /* "repeat" */
bool gate_find(const char *name, enum gate *g);

/* From good to bad: a cell is as bad as its worst gate. Only the first two are a pass. */
enum verdict {
    VERDICT_PASS,
    VERDICT_IMPROVED,
    VERDICT_UNRESOLVED,     /* a change smaller than the noise: nobody can say */
    VERDICT_NO_BASELINE,    /* nothing was accepted yet */
    VERDICT_SKIPPED,        /* not run: the run's time was over, or a gate before it failed */
    VERDICT_NOT_COMPARABLE, /* the baseline answers another question */
    VERDICT_MISSING,        /* no model, or a cell of the baseline that the sweep lost */
    VERDICT_BROKEN,         /* a child crashed, hung or failed */
    VERDICT_FAILED,
    VERDICT_NONDETERMINISTIC,
    VERDICT_COUNT
};
const char *verdict_name(enum verdict v); /* "NO BASELINE" */
bool verdict_find(const char *name, enum verdict *v);
bool verdict_passes(enum verdict v);
/* How many of each: "3 PASS, 1 FAILED"; "no cells" for none. */
void verdict_counts(const size_t counts[VERDICT_COUNT], char *out, size_t size);

struct judgement {
    bool asked;
    enum verdict verdict;
    char words[400]; /* what was found, with numbers */
    char more[900];  /* the command that shows more, or empty */
};

/* One answer of the reference, forced through the variant. */
struct answer_loss {
    char id[128];                          /* custom_id, and #turn after the first turn */
    char text[17];                         /* hash of what was forced */
    double positions, kl, agree, nll_diff; /* counts and sums over positions */
};

struct quality {
    struct answer_loss *answers; /* heap */
    size_t n;
    struct stats_interval kl, agreement, log_ppl_ratio; /* means with 95 % intervals */
    double not_finite; /* positions with NaN or Inf, which have no figures */
};
void quality_free(struct quality *q);
/* From compare's report.json (docs/formats.md), its only pair. Another version of the report, no
 * forced pass or figures that are none: ERR_INPUT. */
MUST_USE enum err_code quality_read(struct quality *q, const char *path, struct err *e);

/* Seconds a token of one round of the speed gate: the accepted program, this one, the accepted one
 * again: the pair that is judged sits inside the pair that shows the noise. */
struct speed_round {
    double base, now, base_again;
};

struct evidence {
    char model[SHA256_HEX];  /* of the files, or of assay.json of a variant */
    char trace[SHA256_HEX];  /* of the first run's trace; empty: none */
    char report[SHA256_HEX]; /* of compare's report.json; empty: none */
    struct quality quality;
    struct speed_round *rounds; /* heap */
    size_t n_rounds;
    double tokens_per_second; /* median over the repeats; NaN: not run */
    double tps_lo, tps_hi;    /* slowest and quickest of them */
};
void evidence_free(struct evidence *ev);

struct cell_result {
    const char *name, *definition;
    struct evidence now;
    struct judgement gate[GATE_COUNT];
    enum verdict verdict; /* the worst */
    enum err_code error;  /* of what broke it; ERR_OK */
    char words[400];      /* of what broke it, or what the worst gate says */
};
/* The worst verdict of the gates asked, with its words, unless the cell is broken already. */
void cell_result_conclude(struct cell_result *r);

#endif
