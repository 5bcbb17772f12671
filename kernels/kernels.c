/* kernels.c: opens a device by name, has arguments checked (kernels_check.c) once for all
 * backends, keeps the sticky error, and calls through the backend's table.
 *
 * A wrong argument is a fault of the caller: ERR_INTERNAL with the numbers, and the device is not
 * touched. Only what the device itself reports (ERR_DEVICE) sticks.
 */
#include "kernels/cuda/cuda_private.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "common/log.h"

#define RACE_NS 50000

static enum kern_fault planted;
static _Atomic int n_open;            /* kerns that are open */
static _Atomic uint32_t n_arrived[2]; /* threads of even and odd number, for KERN_FAULT_THREADS */
static _Atomic uint32_t n_races;      /* products since the start, for KERN_FAULT_RACE */

void kern_plant(enum kern_fault f)
{
    planted = f;
}

enum kern_fault kern_planted(void)
{
    return planted;
}

/* A thread waits for another one to arrive, though not for long, and takes the parity of how often
 * it looked: only their timing decides. */
static bool race_of_threads(int thread)
{
    uint32_t mine = atomic_fetch_add(&n_arrived[thread & 1], 1) + 1, looked = 0;
    uint64_t end = clock_ns() + RACE_NS;
    while ((int32_t)(atomic_load(&n_arrived[~thread & 1]) - mine) < 0 && clock_ns() < end)
        looked++;
    return looked & 1;
}

bool kern_planted_order(int thread, int64_t k)
{
    /* A hash, so that no number of products makes two runs alike. */
    if (planted == KERN_FAULT_RACE)
        return ((n_races++ * 2654435761u) >> 31) != 0;
    if (planted == KERN_FAULT_THREADS)
        return k > 256 && race_of_threads(thread); /* no product of one chunk has an order */
    return planted == KERN_FAULT_COMPANY && n_open > 1;
}

#ifdef ASSAY_CONTRACT_PRICE
#define TENSOR(name) name "-without-contract"
#else
#define TENSOR(name) name
#endif
static const char *const arith_names[KERN_ARITHS] = {
    [KERN_F32] = "f32",
    [KERN_MMA90] = TENSOR("mma90"),
    [KERN_MMA80] = TENSOR("mma80"),
    [KERN_MMA86] = TENSOR("mma86"),
    [KERN_MMA89] = TENSOR("mma89"),
    [KERN_MMA100] = TENSOR("mma100"),
    [KERN_MMA120] = TENSOR("mma120"),
};

const char *kern_arith_name(enum kern_arith a)
{
    return arith_names[a];
}

bool kern_arith_find(const char *name, enum kern_arith *a)
{
    for (size_t i = 0; i < ARRAY_LEN(arith_names); i++) {
        if (strcmp(name, arith_names[i]) == 0) {
            *a = (enum kern_arith)i;
            return true;
        }
    }
    return false;
}

bool kern_arith_measured(enum kern_arith a)
{
    return a == KERN_F32 || a == KERN_MMA90;
}

static bool is_cuda(const char *device)
{
    return strncmp(device, "cuda", 4) == 0 && (device[4] == 0 || device[4] == ':');
}

enum err_code kern_device_arith(const char *device, enum kern_arith *a, struct err *e)
{
    *a = KERN_MMA90;
    if (is_cuda(device)) {
#ifdef ASSAY_HAVE_CUDA
        return cuda_arith(device, a, e);
#else
        return err_set(e, ERR_DEVICE, "device '%s': this build has no CUDA backend", device);
#endif
    }
#ifdef ASSAY_HAVE_CUDA
    if (strcmp(device, "auto") == 0 && cuda_arith(device, a, NULL) != ERR_OK)
        *a = KERN_MMA90;
#endif
    return ERR_OK;
}

static enum err_code open_cuda(struct kern **k, const struct kern_options *o, struct err *e)
{
#ifdef ASSAY_HAVE_CUDA
    return cuda_open(k, o, e);
#else
    *k = NULL;
    return err_set(e, ERR_DEVICE, "device '%s': this build has no CUDA backend", o->device);
#endif
}

/* "auto" is CUDA where it can compute the arithmetic, else the CPU; e then holds why not CUDA. */
static enum err_code open_any(struct kern **k, const struct kern_options *o, struct err *e)
{
    const char *device = o->device ? o->device : "auto";
    bool any = strcmp(device, "auto") == 0;
    struct kern_options chosen = *o;
    *k = NULL;
    chosen.device = device;
    if (is_cuda(device))
        return open_cuda(k, &chosen, e);
    if (!any && strcmp(device, "cpu") != 0)
        return err_set(e, ERR_USAGE, "unknown device '%s': expected cpu, cuda:N or auto", device);
    /* What succeeds leaves no error behind: why the GPU was passed over is doctor's to say. */
    if (any && o->arith != KERN_F32 && open_cuda(k, &chosen, NULL) == ERR_OK)
        return ERR_OK;
    return cpu_open(k, &chosen, e);
}

/* What the options ask of a backend that is open. */
static enum err_code check_ways(const struct kern *k, const struct kern_options *o, struct err *e)
{
    static const char *const names[KERN_LAUNCH_KINDS] = {"usual", "eager", "blocking", "graph"};
    int n_paths = 0;
    if (o->launch >= KERN_LAUNCH_KINDS)
        return err_set(e, ERR_USAGE, "launch %d: expected below %d", (int)o->launch,
                       KERN_LAUNCH_KINDS);
    if (!kern_launches(k, o->launch))
        return err_set(e, ERR_DEVICE, "%s: no launch '%s' in this backend", k->device,
                       names[o->launch]);
    while (kern_paths(k)[n_paths])
        n_paths++;
    if (o->path < 0 || o->path > n_paths)
        return err_set(e, ERR_DEVICE, "%s: kernel path %d, expected 0..%d", k->device, o->path,
                       n_paths);
    return ERR_OK;
}

enum err_code kern_open(struct kern **k, const struct kern_options *o, struct err *e)
{
    enum err_code rc = open_any(k, o, e);
    if (rc != ERR_OK)
        return rc;
    n_open++;
    rc = check_ways(*k, o, e);
    if (rc != ERR_OK) {
        kern_close(*k);
        *k = NULL;
        return rc;
    }
    (*k)->launch = o->launch;
    (*k)->expand = o->expand;
    return ERR_OK;
}

void kern_close(struct kern *k)
{
    if (!k)
        return;
    n_open--;
    k->table->close(k);
}

bool kern_launches(const struct kern *k, enum kern_launch way)
{
    return way == KERN_LAUNCH_USUAL || (k->launches >> way & 1) != 0;
}

const char *const *kern_paths(const struct kern *k)
{
    static const char *const none[] = {NULL};
    return k->paths ? k->paths : none;
}

enum kern_arith kern_arith(const struct kern *k)
{
    return k->arith;
}

size_t kern_act_bytes(const struct kern *k)
{
    return k->arith == KERN_F32 ? 4 : 2;
}

const char *kern_device(const struct kern *k)
{
    return k->device;
}

const char *kern_isa(const struct kern *k)
{
    return k->isa;
}

int kern_threads(const struct kern *k)
{
    return k->threads;
}

const char *const *kern_isa_list(void)
{
    return cpu_isa_list();
}

/* ---- sticky errors ----------------------------------------------------------------------------
 */
static enum err_code healthy(struct kern *k, struct err *e)
{
    if (k->failed == ERR_OK)
        return ERR_OK;
    if (e)
        *e = k->failure;
    return k->failed;
}

static enum err_code keep(struct kern *k, enum err_code rc, const struct err *found, struct err *e)
{
    if (rc == ERR_DEVICE && k->failed == ERR_OK) {
        k->failed = rc;
        k->failure = *found;
    }
    if (rc != ERR_OK && e && e != found)
        *e = *found;
    return rc;
}

/* Runs one call of the table between the two. */
#define GUARDED(k, e, call)                                                                        \
    do {                                                                                           \
        struct err found_ = {.text = ""};                                                          \
        enum err_code rc_ = healthy(k, e);                                                         \
        if (rc_ != ERR_OK)                                                                         \
            return rc_;                                                                            \
        rc_ = (k)->table->call;                                                                    \
        return keep(k, rc_, &found_, e);                                                           \
    } while (0)

/* ---- memory and weights ------------------------------------------------------------------------
 */
enum err_code kern_alloc(struct kern *k, size_t bytes, void **p, struct err *e)
{
    *p = NULL;
    GUARDED(k, e, alloc(k, bytes, p, &found_));
}

void kern_free(struct kern *k, void *p)
{
    if (p)
        k->table->free(k, p);
}

enum err_code kern_upload(struct kern *k, void *dst, const void *src, size_t bytes, struct err *e)
{
    GUARDED(k, e, upload(k, dst, src, bytes, &found_));
}

enum err_code kern_download(struct kern *k, void *dst, const void *src, size_t bytes, struct err *e)
{
    GUARDED(k, e, download(k, dst, src, bytes, &found_));
}

enum err_code kern_fill(struct kern *k, void *dst, uint8_t byte, size_t bytes, struct err *e)
{
    GUARDED(k, e, fill(k, dst, byte, bytes, &found_));
}

enum err_code kern_poison(struct kern *k, struct err *e)
{
    GUARDED(k, e, poison(k, &found_));
}

static enum err_code load_parts(struct kern *k, const struct ckpt_weight *const *parts, int n,
                                struct kern_weight **w, struct err *e)
{
    GUARDED(k, e, weight_load(k, parts, n, w, &found_));
}

/* The parts as options.expand has them: dense, beside those that hold the data. */
struct expanded {
    struct ckpt_weight *part;
    const struct ckpt_weight **list;
    void **owned;
    int n;
};

static void expanded_free(struct expanded *x)
{
    for (int i = 0; x->owned && i < x->n; i++)
        free(x->owned[i]);
    free(x->owned);
    free(x->list);
    free(x->part);
}

static enum err_code expand_parts(const struct kern *k, const struct ckpt_weight *const *parts,
                                  int n, bool shell, struct expanded *x, struct err *e)
{
    enum dtype type = k->arith == KERN_F32 ? DT_F32 : DT_BF16;
    *x = (struct expanded){.n = n};
    x->part = calloc((size_t)n, sizeof *x->part);
    x->list = calloc((size_t)n, sizeof *x->list);
    x->owned = calloc((size_t)n, sizeof *x->owned);
    if (!x->part || !x->list || !x->owned)
        return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        enum err_code rc = kern_source_expand(parts[i], type, shell, &x->part[i], &x->owned[i], e);
        if (rc != ERR_OK)
            return rc;
        x->list[i] = &x->part[i];
    }
    return ERR_OK;
}

enum err_code kern_weight_load(struct kern *k, const struct ckpt_weight *const *parts, int n,
                               struct kern_weight **w, struct err *e)
{
    *w = NULL;
    if (!k->expand || n < 1)
        return load_parts(k, parts, n, w, e);
    struct expanded x;
    enum err_code rc = expand_parts(k, parts, n, false, &x, e);
    if (rc == ERR_OK)
        rc = load_parts(k, x.list, n, w, e);
    expanded_free(&x);
    return rc;
}

enum err_code kern_weight_copy(struct kern *k, const struct kern_weight *from,
                               struct kern_weight **w, struct err *e)
{
    *w = NULL;
    if (!k->table->weight_copy)
        return ERR_OK;
    GUARDED(k, e, weight_copy(k, from, w, &found_));
}

void kern_weight_free(struct kern *k, struct kern_weight *w)
{
    if (w)
        k->table->weight_free(k, w);
}

size_t kern_weight_bytes(const struct kern *k, const struct ckpt_weight *const *parts, int n)
{
    if (!k->expand || n < 1)
        return k->table->weight_bytes(k, parts, n);
    struct expanded x;
    size_t bytes = 0;
    if (expand_parts(k, parts, n, true, &x, NULL) == ERR_OK)
        bytes = k->table->weight_bytes(k, x.list, n);
    expanded_free(&x);
    return bytes;
}

int64_t kern_weight_rows(const struct kern_weight *w)
{
    return w->rows;
}

int64_t kern_weight_k(const struct kern_weight *w)
{
    return w->k;
}

size_t kern_page_bytes(const struct kern *k, int n_kv, int head_dim)
{
    return k->table->page_bytes(k, n_kv, head_dim);
}

size_t kern_scratch_bytes(const struct kern *k, const struct kern_limits *l)
{
    return k->table->scratch_bytes(k, l);
}

enum err_code kern_reserve(struct kern *k, const struct kern_limits *l, struct err *e)
{
    GUARDED(k, e, reserve(k, l, &found_));
}

enum err_code kern_step_begin(struct kern *k, const struct kern_step *s, bool *replayed,
                              struct err *e)
{
    *replayed = false;
    if (!k->records)
        return healthy(k, e);
    GUARDED(k, e, step_begin(k, s, replayed, &found_));
}

/* Whatever the state of k: a recording must end. */
enum err_code kern_step_end(struct kern *k, bool failed, struct err *e)
{
    struct err found = {.text = ""};
    if (!k->records)
        return ERR_OK;
    return keep(k, k->table->step_end(k, failed, &found), &found, e);
}

static enum err_code wait_for(struct kern *k, struct err *e)
{
    GUARDED(k, e, wait(k, &found_));
}

#define X(op)                                                                                      \
    static enum err_code run_##op(struct kern *k, const struct op##_args *a, struct err *e)        \
    {                                                                                              \
        GUARDED(k, e, op(k, a, &found_));                                                          \
    }                                                                                              \
    enum err_code kern_##op(struct kern *k, const struct op##_args *a, struct err *e)              \
    {                                                                                              \
        enum err_code rc = kern_check_##op(a, e);                                                  \
        if (rc != ERR_OK)                                                                          \
            return err_wrap(e, rc, #op);                                                           \
        rc = run_##op(k, a, e);                                                                    \
        return rc == ERR_OK && k->launch == KERN_LAUNCH_BLOCKING ? wait_for(k, e) : rc;            \
    }
KERN_OPS(X)
#undef X
