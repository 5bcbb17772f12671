/* batch_crash.h: a mark in the journal when the process crashes, and what the machine knows of
 * processes that it ended.
 */
#ifndef ASSAY_INFER_BATCH_CRASH_H
#define ASSAY_INFER_BATCH_CRASH_H

#include "common/base.h"

/* From now on a SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT writes a DIED record of this run to the
 * end of fd before it takes its course. One run at a time. */
void batch_crash_arm(int fd, const char *run);
void batch_crash_disarm(void);

/* This start of the machine ("" when unknown) and how many processes its kernel has ended for want
 * of memory since (0 when unknown). */
void batch_crash_machine(char *boot, size_t size, int64_t *oom_kills);

#endif
