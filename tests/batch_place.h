/* batch_place.h: the batch store under test: a prompt file, an output beside it, and processes that
 * work on them and are gone.
 *
 * Answers are made up from the request's number, so thousands of runs cost little; what is compared
 * is always the whole of OUT, byte for byte, with that of a run that nothing happened to. Faults of
 * the rig itself fail the test.
 */
#ifndef ASSAY_TESTS_BATCH_PLACE_H
#define ASSAY_TESTS_BATCH_PLACE_H

#include "infer/batch_store.h"

#define BATCH_PLACE_N 60

struct batch_place {
    const char *dir;
    char *prompts, *out, *journal, *run, *damaged;
    struct census census;
    json_t *identity;
    uint64_t n;     /* requests of the input; 60 */
    int changed;    /* this request has another text; -1: none */
    bool some_fail; /* answers are error lines where n % 7 == 3 */
};

struct batch_place batch_place_new(void);
void batch_place_free(struct batch_place *p);
/* Writes the prompt file that n and changed ask for, and counts it. */
void batch_place_write(struct batch_place *p);
/* Removes OUT and what is beside it. */
void batch_place_clear(struct batch_place *p);
/* OUT holds the answers to all of the input, and nothing else. */
void batch_place_expect(const struct batch_place *p);

enum { RESUME = 1, FORCE = 2, RETRY = 4 }; /* flags */

enum err_code batch_place_open(struct batch_store **s, struct batch_place *p, int flags,
                               struct err *e);
/* A run to its end, or to its first error; seed: the order in which answers end. */
enum err_code batch_place_run(struct batch_place *p, int flags, uint64_t seed, struct err *e);
void batch_place_must_run(struct batch_place *p, int flags, uint64_t seed);
/* A process that answers at most `most` requests and is gone: by a signal, or in order when it is
 * 0. */
void batch_place_cut(struct batch_place *p, int flags, uint64_t seed, uint64_t most,
                     int signal_number);

#endif
