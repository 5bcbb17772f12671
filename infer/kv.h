/* kv.h: which page belongs to whom. Bookkeeping of the pages of a paged KV cache, on the host.
 *
 * A page holds KERN_PAGE tokens of every layer. A sequence owns a table of page numbers in
 * ascending position. Full pages of prompt tokens can be shared: such a page is known by its tokens
 * and by everything before it (the page it follows, compared exactly, never by hash alone). A
 * shared page that nobody uses stays, idle, until its room is needed; the one idle longest goes
 * first, and of one prompt the last page before the first. Idle pages count as free.
 *
 * Does not own the bytes of pages, and does not say when a request gets pages (sched.h). All
 * memory is taken by kv_new. Invariants, which kv_check verifies:
 *     every page is in exactly one state: free, idle (known, unused), used
 *     uses[page] = number of tables that hold it; only known pages are in two tables
 */
#ifndef ASSAY_INFER_KV_H
#define ASSAY_INFER_KV_H

#include "common/err.h"
#include "kernels/kernels.h"

struct kv;

/* One sequence's pages. The caller owns `page`, room for page_max numbers. */
struct kv_seq {
    int32_t *page;
    int n_pages, page_max;
    int n_known;    /* leading pages that went through kv_commit or kv_attach */
    uint64_t chain; /* serial of the last of them; 0: none */
};

static inline int64_t kv_pages_for(int64_t n_tok)
{
    return (n_tok + KERN_PAGE - 1) / KERN_PAGE;
}

/* share: keep full prompt pages for later requests. NULL: out of memory. */
struct kv *kv_new(int32_t n_pages, bool share);
void kv_free(struct kv *kv);
/* Bytes that kv_new takes: the memory plan. */
size_t kv_bytes(int32_t n_pages);
int32_t kv_free_pages(const struct kv *kv); /* free and idle */
int32_t kv_total_pages(const struct kv *kv);

/* How many of the first n_ids tokens stand in known pages: a multiple of KERN_PAGE. *idle gets the
 * number of those pages that count as free now. */
int64_t kv_probe(const struct kv *kv, const int32_t *ids, int64_t n_ids, int32_t *idle);
/* Gives an empty table the known pages of the first n_ids tokens; returns the tokens covered. */
int64_t kv_attach(struct kv *kv, struct kv_seq *s, const int32_t *ids, int64_t n_ids);
/* Extends the table to hold n_tok tokens. False, and no change, when there are too few pages. The
 * new pages, from the old s->n_pages on, hold old bytes: the caller zeroes them. */
MUST_USE bool kv_extend(struct kv *kv, struct kv_seq *s, int64_t n_tok);
/* The KV of the first n_ids tokens is written: full pages become known. */
void kv_commit(struct kv *kv, struct kv_seq *s, const int32_t *ids, int64_t n_ids);
/* Gives all pages back and empties the table. */
void kv_release(struct kv *kv, struct kv_seq *s);

/* True when the invariants hold for these tables being all there are. Tests. */
bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, int n);

/* Tests only: faults that the invariances must find. */
enum kv_fault {
    KV_FAULT_NONE,
    KV_FAULT_PARENT, /* a page is taken for known whatever came before it */
    KV_FAULT_LEAK    /* a released page keeps one use */
};
void kv_plant(struct kv *kv, enum kv_fault f);

#endif
