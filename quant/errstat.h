/* errstat.h: how far decoded values lie from their source, in sums that repeat to the bit.
 *
 * Inside a group, lane l takes elements l, l + 16, ... in f32; groups are added in order, in
 * double, one sum a lane; runs are added in order of their index. So the sums depend on the data
 * and on the cut into runs (errstat_run_rows), never on threads or instruction sets.
 */
#ifndef ASSAY_QUANT_ERRSTAT_H
#define ASSAY_QUANT_ERRSTAT_H

#include "common/err.h"

#define ERRSTAT_LANES 16

struct errstat {
    double ww[ERRSTAT_LANES]; /* source squared */
    double we[ERRSTAT_LANES]; /* source times error; error = source - decoded */
    double ee[ERRSTAT_LANES]; /* error squared */
    float e_max[ERRSTAT_LANES];
};

/* Adds n / group groups of source values w and decoded values d; a last short group is fine. */
void errstat_add(struct errstat *st, const float *w, const float *d, int64_t n, int group);
void errstat_merge(struct errstat *into, const struct errstat *from);

/* Rows of one run: about 256 Ki elements, at least one row; the cut that every sum is made with. */
int64_t errstat_run_rows(int64_t rows, int64_t k);

/* What people read, rounded to 6 significant digits. */
struct errstat_figures {
    double rel_rms; /* sqrt(sum e^2 / sum w^2); 0 when there is no error */
    double max;     /* largest |e| */
    double sqnr_db; /* 10 log10(sum w^2 / sum e^2); infinite when there is no error */
    double cosine;  /* of source and decoded; 1 when both are zero */
};
void errstat_figures(const struct errstat *st, struct errstat_figures *f);

/* log10 from IEEE operations alone, for finite x > 0: the same bits with every C library. */
double errstat_log10(double x);
double errstat_round6(double x); /* to 6 significant digits */

#endif
