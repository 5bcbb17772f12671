/* kv.c: free stack, idle list and the table of known pages.
 *
 * Known pages hang in hash buckets by (parent serial, tokens). A serial is given once and never
 * again, so a page whose parent was evicted can not be found by accident: it is unreachable, and
 * leaves by age. The idle list is doubly linked, oldest first.
 */
#include "infer/kv.h"

#include <assert.h>
#include <stdlib.h>

#include "common/hash.h"

#define NO_PAGE (-1)

struct page {
    int32_t ids[KERN_PAGE];  /* when known */
    uint64_t parent, serial; /* serial 0: not known */
    int32_t uses;
    int32_t bucket_next;
    int32_t older, newer; /* idle list */
    bool idle;
};

struct kv {
    struct page *pages;
    int32_t *free_stack;
    int32_t *bucket;
    uint32_t bucket_mask;
    int32_t n_pages, n_free, n_idle;
    int32_t oldest, newest;
    uint64_t last_serial;
    bool share;
    enum kv_fault fault;
};

static size_t bucket_count(int32_t n_pages)
{
    size_t n = 16;
    while (n < (size_t)n_pages * 2)
        n *= 2;
    return n;
}

size_t kv_bytes(int32_t n_pages)
{
    size_t n = (size_t)n_pages;
    return sizeof(struct kv) + n * (sizeof(struct page) + sizeof(int32_t)) +
           bucket_count(n_pages) * sizeof(int32_t);
}

struct kv *kv_new(int32_t n_pages, bool share)
{
    assert(n_pages > 0);
    struct kv *kv = calloc(1, sizeof *kv);
    if (!kv)
        return NULL;
    size_t n_buckets = bucket_count(n_pages);
    kv->pages = calloc((size_t)n_pages, sizeof *kv->pages);
    kv->free_stack = calloc((size_t)n_pages, sizeof *kv->free_stack);
    kv->bucket = calloc(n_buckets, sizeof *kv->bucket);
    if (!kv->pages || !kv->free_stack || !kv->bucket) {
        kv_free(kv);
        return NULL;
    }
    for (size_t i = 0; i < n_buckets; i++)
        kv->bucket[i] = NO_PAGE;
    for (int32_t i = 0; i < n_pages; i++)
        kv->free_stack[i] = n_pages - 1 - i;
    kv->bucket_mask = (uint32_t)(n_buckets - 1);
    kv->n_pages = kv->n_free = n_pages;
    kv->oldest = kv->newest = NO_PAGE;
    kv->share = share;
    return kv;
}

void kv_free(struct kv *kv)
{
    if (!kv)
        return;
    free(kv->pages);
    free(kv->free_stack);
    free(kv->bucket);
    free(kv);
}

int32_t kv_free_pages(const struct kv *kv)
{
    return kv->n_free + kv->n_idle;
}

int32_t kv_total_pages(const struct kv *kv)
{
    return kv->n_pages;
}

void kv_plant(struct kv *kv, enum kv_fault f)
{
    kv->fault = f;
}

/* ---- idle list ------------------------------------------------------------------------------- */

static void push_idle(struct kv *kv, int32_t p)
{
    struct page *page = &kv->pages[p];
    page->idle = true;
    page->older = kv->newest;
    page->newer = NO_PAGE;
    if (kv->newest != NO_PAGE)
        kv->pages[kv->newest].newer = p;
    else
        kv->oldest = p;
    kv->newest = p;
    kv->n_idle++;
}

static void unlink_idle(struct kv *kv, int32_t p)
{
    struct page *page = &kv->pages[p];
    if (page->older != NO_PAGE)
        kv->pages[page->older].newer = page->newer;
    else
        kv->oldest = page->newer;
    if (page->newer != NO_PAGE)
        kv->pages[page->newer].older = page->older;
    else
        kv->newest = page->older;
    page->idle = false;
    kv->n_idle--;
}

/* ---- known pages ----------------------------------------------------------------------------- */

static int32_t *find_bucket(const struct kv *kv, uint64_t parent, const int32_t *ids)
{
    uint64_t h = kv->fault == KV_FAULT_PARENT ? 0 : hash_mix64(parent);
    for (uint64_t i = 0; i < KERN_PAGE; i++)
        h += hash_row_word(i, (uint32_t)ids[i]);
    return &kv->bucket[(uint32_t)hash_mix64(h) & kv->bucket_mask];
}

static int32_t find_known(const struct kv *kv, uint64_t parent, const int32_t *ids)
{
    for (int32_t p = *find_bucket(kv, parent, ids); p != NO_PAGE; p = kv->pages[p].bucket_next) {
        const struct page *page = &kv->pages[p];
        if (page->parent != parent && kv->fault != KV_FAULT_PARENT)
            continue;
        if (memcmp(page->ids, ids, sizeof page->ids) == 0)
            return p;
    }
    return NO_PAGE;
}

static void forget(struct kv *kv, int32_t p)
{
    struct page *page = &kv->pages[p];
    int32_t *link = find_bucket(kv, page->parent, page->ids);
    while (*link != p) {
        assert(*link != NO_PAGE);
        link = &kv->pages[*link].bucket_next;
    }
    *link = page->bucket_next;
    page->serial = 0;
}

int64_t kv_probe(const struct kv *kv, const int32_t *ids, int64_t n_ids, int32_t *idle)
{
    uint64_t parent = 0;
    int64_t n = 0;
    *idle = 0;
    while (kv->share && n + KERN_PAGE <= n_ids) {
        int32_t p = find_known(kv, parent, ids + n);
        if (p == NO_PAGE)
            break;
        parent = kv->pages[p].serial;
        *idle += kv->pages[p].idle;
        n += KERN_PAGE;
    }
    return n;
}

int64_t kv_attach(struct kv *kv, struct kv_seq *s, const int32_t *ids, int64_t n_ids)
{
    assert(s->n_pages == 0);
    int64_t n = 0;
    s->chain = 0;
    while (kv->share && n + KERN_PAGE <= n_ids && s->n_pages < s->page_max) {
        int32_t p = find_known(kv, s->chain, ids + n);
        if (p == NO_PAGE)
            break;
        if (kv->pages[p].idle)
            unlink_idle(kv, p);
        kv->pages[p].uses++;
        s->chain = kv->pages[p].serial;
        s->page[s->n_pages++] = p;
        n += KERN_PAGE;
    }
    s->n_known = s->n_pages;
    return n;
}

bool kv_extend(struct kv *kv, struct kv_seq *s, int64_t n_tok)
{
    int64_t need = kv_pages_for(n_tok) - s->n_pages;
    if (need > kv_free_pages(kv) || kv_pages_for(n_tok) > s->page_max)
        return false;
    for (; need > 0; need--) {
        int32_t p;
        if (kv->n_free > 0) {
            p = kv->free_stack[--kv->n_free];
        } else {
            p = kv->oldest;
            unlink_idle(kv, p);
            forget(kv, p);
        }
        kv->pages[p].uses = 1;
        s->page[s->n_pages++] = p;
    }
    return true;
}

void kv_commit(struct kv *kv, struct kv_seq *s, const int32_t *ids, int64_t n_ids)
{
    while (kv->share && (int64_t)(s->n_known + 1) * KERN_PAGE <= n_ids) {
        const int32_t *page_ids = ids + (int64_t)s->n_known * KERN_PAGE;
        int32_t p = s->page[s->n_known++], known = find_known(kv, s->chain, page_ids);
        if (known != NO_PAGE) {
            /* Another sequence was first; ours stays private, what follows hangs on the known. */
            s->chain = kv->pages[known].serial;
            continue;
        }
        struct page *page = &kv->pages[p];
        memcpy(page->ids, page_ids, sizeof page->ids);
        page->parent = s->chain;
        page->serial = s->chain = ++kv->last_serial;
        int32_t *bucket = find_bucket(kv, page->parent, page->ids);
        page->bucket_next = *bucket;
        *bucket = p;
    }
}

void kv_release(struct kv *kv, struct kv_seq *s)
{
    while (s->n_pages > 0) {
        int32_t p = s->page[--s->n_pages];
        struct page *page = &kv->pages[p];
        assert(page->uses > 0);
        if (kv->fault == KV_FAULT_LEAK && s->n_pages == 0)
            break;
        if (--page->uses > 0)
            continue;
        if (page->serial)
            push_idle(kv, p);
        else
            kv->free_stack[kv->n_free++] = p;
    }
    s->n_known = 0;
    s->chain = 0;
}

bool kv_check(const struct kv *kv, const struct kv_seq *const *seqs, int n)
{
    int32_t *uses = calloc((size_t)kv->n_pages, sizeof *uses);
    if (!uses)
        return false;
    bool ok = true;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < seqs[i]->n_pages; j++)
            uses[seqs[i]->page[j]]++;
    }
    int32_t n_used = 0, n_idle = 0;
    for (int32_t p = 0; p < kv->n_pages; p++) {
        const struct page *page = &kv->pages[p];
        n_used += page->uses > 0;
        n_idle += page->idle;
        ok &= page->uses == uses[p] && !(page->idle && (page->uses || !page->serial));
        ok &= page->uses < 2 || page->serial;
    }
    for (int32_t i = 0; i < kv->n_free; i++) {
        const struct page *page = &kv->pages[kv->free_stack[i]];
        ok &= page->uses == 0 && !page->idle && !page->serial;
    }
    ok &= n_idle == kv->n_idle && n_used + n_idle + kv->n_free == kv->n_pages;
    free(uses);
    return ok;
}
