/* mutate.c: runs one parser over mutated seeds, the same on every machine.
 *
 *   mutate_<parser> [N [SEED]]
 *   mutate_<parser> --seeds DIR    writes the seeds as files: a corpus for fuzz_<parser>
 *
 * Each of N inputs is a seed with one to eight changes: bits, bytes, runs cut, doubled or moved,
 * numbers replaced by extreme ones, the end cut off, or a piece of another seed. Inputs lie in
 * blocks of exactly their size, so that a sanitizer sees every read past the end.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/fuzz/fuzz.h"

#define SEEDS_MAX 32

static void replace(struct strbuf *b, size_t at, size_t n, const void *with, size_t n_with)
{
    struct strbuf out = {0};
    strbuf_append(&out, b->data, at);
    strbuf_append(&out, with, n_with);
    strbuf_append(&out, b->data + at + n, b->len - at - n);
    strbuf_free(b);
    *b = out;
}

/* A number that sits on an edge of some type, often of the input itself. */
static uint64_t extreme(struct rng *r, size_t len)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     0x7f,
                                     0x80,
                                     0xff,
                                     0xffff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     UINT64_MAX,
                                     INT64_MAX,
                                     (uint64_t)1 << 62,
                                     (uint64_t)1 << 32};
    uint64_t pick = rng_below(r, ARRAY_LEN(edges) + 2);
    if (pick < ARRAY_LEN(edges))
        return edges[pick];
    return pick == ARRAY_LEN(edges) ? len : rng_below(r, 300);
}

static void mutate_once(struct rng *r, struct strbuf *b, const struct strbuf *other)
{
    if (b->len == 0)
        return;
    /* Half of all changes fall into the first 512 bytes, where headers are. */
    size_t reach = rng_below(r, 2) ? b->len : MIN2(b->len, (size_t)512);
    size_t at = (size_t)rng_below(r, reach), room = b->len - at;
    size_t run = (size_t)rng_below(r, MIN2(room, (size_t)63) + 1);
    uint64_t number = extreme(r, b->len);
    switch (rng_below(r, 9)) {
    case 0:
        b->data[at] = (char)(b->data[at] ^ 1 << rng_below(r, 8));
        break;
    case 1:
        b->data[at] = (char)rng_next(r);
        break;
    case 2:
        replace(b, at, run, "", 0);
        break;
    case 3: {
        struct strbuf copy = {0};
        strbuf_append(&copy, b->data + at, run);
        replace(b, (size_t)rng_below(r, b->len), 0, copy.data ? copy.data : "", copy.len);
        strbuf_free(&copy);
        break;
    }
    case 4: {
        size_t wide = (size_t)1 << rng_below(r, 4), n = MIN2(room, wide);
        memcpy(b->data + at, &number, n);
        break;
    }
    case 5:
        replace(b, at, room, "", 0);
        break;
    case 6: {
        size_t from = other->len ? (size_t)rng_below(r, other->len) : 0;
        size_t n = (size_t)rng_below(r, MIN2(other->len - from, (size_t)127) + 1);
        replace(b, at, run, other->data ? other->data + from : "", n);
        break;
    }
    case 7: {
        char digits[24];
        int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
        replace(b, at, (size_t)rng_below(r, MIN2(room, (size_t)3) + 1), digits, (size_t)n);
        break;
    }
    default: {
        static const char marks[] = "{}[]\",:\\0-.e \n\xff";
        b->data[at] = marks[rng_below(r, sizeof marks)];
    }
    }
}

static bool run_one(const char *data, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        return false;
    if (n)
        memcpy(exact, data, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return true;
}

static int write_seeds(const char *dir)
{
    struct strbuf seeds[SEEDS_MAX] = {0};
    size_t n = fuzz_seeds(seeds, SEEDS_MAX);
    bool ok = n > 0;
    for (size_t i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/seed-%02zu", dir, i);
        FILE *f = fopen(path, "wb");
        ok = ok && f && fwrite(seeds[i].data, 1, seeds[i].len, f) == seeds[i].len;
        if (f && fclose(f))
            ok = false;
        strbuf_free(&seeds[i]);
    }
    return ok ? 0 : 5;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0)
        return write_seeds(argv[2]);
    struct strbuf seeds[SEEDS_MAX] = {0};
    int64_t n = 2000, seed = 1;
    if ((argc > 1 && !str_to_i64(argv[1], 1, INT32_MAX, &n)) ||
        (argc > 2 && !str_to_i64(argv[2], 0, INT64_MAX, &seed)) || argc > 3) {
        fprintf(stderr, "usage: %s [N [SEED]]\n", argv[0]);
        return 2;
    }
    size_t n_seeds = fuzz_seeds(seeds, SEEDS_MAX);
    struct rng r = {(uint64_t)seed, 0};
    bool ok = n_seeds > 0;
    for (size_t i = 0; ok && i < n_seeds; i++)
        ok = run_one(seeds[i].data, seeds[i].len);
    for (int64_t i = 0; ok && i < n; i++) {
        const struct strbuf *from = &seeds[rng_below(&r, n_seeds)];
        const struct strbuf *other = &seeds[rng_below(&r, n_seeds)];
        struct strbuf b = {0};
        strbuf_append(&b, from->data, from->len);
        for (uint64_t changes = 1 + rng_below(&r, 8); changes; changes--)
            mutate_once(&r, &b, other);
        ok = run_one(b.data ? b.data : "", b.len);
        strbuf_free(&b);
    }
    for (size_t i = 0; i < n_seeds; i++)
        strbuf_free(&seeds[i]);
    printf("%s: %lld inputs from %zu seeds\n%d passed, %d failed, 0 skipped\n", argv[0],
           (long long)n, n_seeds, ok, !ok);
    return ok ? 0 : 1;
}
