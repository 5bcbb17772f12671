/* cuda_device.cu: the CUDA backend's device: opening, memory, copies, scratch, and the table.
 *
 * Owns the stream, the pinned pieces through which every copy goes, and the words of device errors.
 * The CUDA runtime is linked statically; the driver is looked for when a device is opened, so that
 * the program starts without one.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "kernels/cuda/cuda_slot.h"
#include "kernels/cuda/cuda_page.h"

bool cuda_starts_late; /* cuda_launch.cuh */

extern "C" enum err_code cuda_checked(int found, const char *doing, struct err *e)
{
    if (found == cudaSuccess)
        return ERR_OK;
    return err_set(e, ERR_DEVICE, "CUDA: %s: %s (%s)", doing,
                   cudaGetErrorString((cudaError_t)found), cudaGetErrorName((cudaError_t)found));
}

#define TRY(call, doing)                                                                           \
    do {                                                                                           \
        enum err_code rc_ = cuda_checked(call, doing, e);                                          \
        if (rc_ != ERR_OK)                                                                         \
            return rc_;                                                                            \
    } while (0)

extern "C" enum err_code cuda_launched(const char *op, struct err *e)
{
    TRY(cudaGetLastError(), op);
    return ERR_OK;
}

/* ---- memory -------------------------------------------------------------------------------------
 */
static enum err_code cuda_alloc(struct kern *k, size_t bytes, void **p, struct err *e)
{
    size_t room = 0, all = 0;
    bytes = MAX2(bytes, (size_t)1);
    cudaError_t found = cudaMalloc(p, bytes);
    if (found == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        *p = NULL;
        TRY(cudaMemGetInfo(&room, &all), "memory info");
        return err_set(e, ERR_NOMEM, "%s: out of memory: %zu bytes asked for, %zu of %zu are free",
                       k->device, bytes, room, all);
    }
    TRY(found, "allocation");
    TRY(cudaMemsetAsync(*p, 0, bytes, cuda_of(k)->stream), "clearing new memory");
    return ERR_OK;
}

/* The stream may still use the block; cudaFree waits for the device. */
static void cuda_free(struct kern *k, void *p)
{
    (void)k;
    (void)cudaFree(p);
}

static enum err_code cuda_upload(struct kern *k, void *dst, const void *src, size_t bytes,
                                 struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    const uint8_t *from = (const uint8_t *)src;
    for (size_t at = 0; at < bytes; at += CUDA_STAGE_BYTES) {
        int s = c->next_stage;
        size_t n = MIN2(bytes - at, (size_t)CUDA_STAGE_BYTES);
        uint8_t *piece = c->staging + (size_t)s * CUDA_STAGE_BYTES;
        c->next_stage = (s + 1) % CUDA_STAGES;
        TRY(cudaEventSynchronize(c->staged[s]), "upload");
        memcpy(piece, from + at, n);
        TRY(cudaMemcpyAsync((uint8_t *)dst + at, piece, n, cudaMemcpyHostToDevice, c->stream),
            "upload");
        TRY(cudaEventRecord(c->staged[s], c->stream), "upload");
    }
    return ERR_OK;
}

static enum err_code check_fault(struct cuda_kern *c, struct err *e)
{
    const struct cuda_fault f = *c->fault_seen;
    if (f.kind == CUDA_FAULT_NONE)
        return ERR_OK;
    TRY(cudaMemsetAsync(c->fault, 0, sizeof f, c->stream), "clearing a fault");
    return err_set(e, ERR_INTERNAL, "row %d: token %d of %d", f.row, f.value, f.limit);
}

/* Two pieces at a time: one is copied out while the other arrives. */
static enum err_code cuda_download(struct kern *k, void *dst, const void *src, size_t bytes,
                                   struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    const size_t step = CUDA_STAGE_BYTES;
    size_t pieces = (bytes + step - 1) / step;
    TRY(cudaMemcpyAsync(c->fault_seen, c->fault, sizeof *c->fault, cudaMemcpyDeviceToHost,
                        c->stream),
        "download");
    for (size_t i = 0; i < pieces + 1; i++) {
        int s = c->next_stage, before = (s + CUDA_STAGES - 1) % CUDA_STAGES;
        if (i < pieces) {
            c->next_stage = (s + 1) % CUDA_STAGES;
            TRY(cudaEventSynchronize(c->staged[s]), "download");
            TRY(cudaMemcpyAsync(c->staging + (size_t)s * step, (const uint8_t *)src + i * step,
                                MIN2(bytes - i * step, step), cudaMemcpyDeviceToHost, c->stream),
                "download");
            TRY(cudaEventRecord(c->staged[s], c->stream), "download");
        }
        if (i > 0) {
            size_t at = (i - 1) * step;
            TRY(cudaEventSynchronize(c->staged[before]), "download");
            memcpy((uint8_t *)dst + at, c->staging + (size_t)before * step, MIN2(bytes - at, step));
        }
    }
    TRY(cudaStreamSynchronize(c->stream), "download");
    return check_fault(c, e);
}

extern "C" enum err_code cuda_move(struct kern *k, void *dst, const void *src, size_t bytes,
                                   struct err *e)
{
    TRY(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda_of(k)->stream),
        "copying memory");
    return ERR_OK;
}

static enum err_code cuda_fill(struct kern *k, void *dst, uint8_t byte, size_t bytes, struct err *e)
{
    if (bytes)
        TRY(cudaMemsetAsync(dst, byte, bytes, cuda_of(k)->stream), "filling memory");
    return ERR_OK;
}

static enum err_code cuda_poison(struct kern *k, struct err *e)
{
    const struct cuda_scratch s = cuda_of(k)->scratch_bytes;
    return cuda_fill(k, cuda_of(k)->scratch, 0xff, s.linear + s.attention + s.logits + s.moe, e);
}

static enum err_code cuda_wait(struct kern *k, struct err *e)
{
    TRY(cudaStreamSynchronize(cuda_of(k)->stream), "waiting for an operation");
    return ERR_OK;
}

extern "C" size_t cuda_page_bytes(const struct kern *k, int n_kv, int head_dim)
{
    (void)k;
    return (size_t)n_kv * 2 * (size_t)cuda_page_half(cuda_page_dims(head_dim)) * sizeof(uint16_t);
}

/* ---- scratch ------------------------------------------------------------------------------------
 */
static struct cuda_scratch scratch_of(const struct kern *k, const struct kern_limits *l)
{
    const struct cuda_kern *c = (const struct cuda_kern *)k;
    struct cuda_scratch s;
    s.linear = align_up(cuda_linear_scratch_bytes(c, l), 256);
    s.attention = align_up(cuda_attention_scratch_bytes(c, l), 256);
    s.logits = align_up(cuda_logits_scratch_bytes(c, l), 256);
    s.moe = align_up(cuda_moe_scratch_bytes(c, l), 256);
    return s;
}

static size_t cuda_scratch_bytes(const struct kern *k, const struct kern_limits *l)
{
    struct cuda_scratch s = scratch_of(k, l);
    return s.linear + s.attention + s.logits + s.moe;
}

static enum err_code cuda_reserve(struct kern *k, const struct kern_limits *l, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    struct cuda_scratch s = scratch_of(k, l);
    void *p = NULL;
    enum err_code rc = cuda_alloc(k, s.linear + s.attention + s.logits + s.moe, &p, e);
    if (rc != ERR_OK)
        return err_wrap(e, rc, "scratch");
    cuda_graphs_free(c); /* they know the old scratch */
    (void)cudaFree(c->scratch);
    c->scratch = (uint8_t *)p;
    c->scratch_bytes = s;
    c->scratch_linear = c->scratch;
    c->scratch_attention = c->scratch_linear + s.linear;
    c->scratch_logits = c->scratch_attention + s.attention;
    c->scratch_moe = c->scratch_logits + s.logits;
    c->limits = *l;
    return ERR_OK;
}

/* ---- opening ------------------------------------------------------------------------------------
 */
static void cuda_close(struct kern *k)
{
    struct cuda_kern *c = cuda_of(k);
    if (c->stream)
        (void)cudaStreamSynchronize(c->stream);
    cuda_graphs_free(c);
    for (int i = 0; i < CUDA_STAGES; i++) {
        if (c->staged[i])
            (void)cudaEventDestroy(c->staged[i]);
    }
    (void)cudaFree(c->scratch);
    (void)cudaFree(c->fault);
    (void)cudaFree(c->staging_device);
    (void)cudaFreeHost(c->fault_seen);
    (void)cudaFreeHost(c->staging);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream);
    free(c);
}

static const struct kern_table *cuda_table(void)
{
    static struct kern_table t;
    t.close = cuda_close;
    t.alloc = cuda_alloc;
    t.free = cuda_free;
    t.upload = cuda_upload;
    t.download = cuda_download;
    t.fill = cuda_fill;
    t.poison = cuda_poison;
    t.wait = cuda_wait;
    t.weight_load = cuda_weight_load;
    t.weight_copy = cuda_weight_copy;
    t.weight_free = cuda_weight_free;
    t.weight_bytes = cuda_weight_bytes;
    t.page_bytes = cuda_page_bytes;
    t.scratch_bytes = cuda_scratch_bytes;
    t.reserve = cuda_reserve;
    t.step_begin = cuda_step_begin;
    t.step_end = cuda_step_end;
#define X(op) t.op = cuda_##op;
    KERN_OPS(X)
#undef X
    return &t;
}

/* "cuda" and "auto" are device 0. */
static enum err_code parse_number(const char *device, int *n, struct err *e)
{
    const char *at = strchr(device, ':');
    char *end = NULL;
    *n = 0;
    if (!at)
        return ERR_OK;
    long v = strtol(at + 1, &end, 10);
    if (end == at + 1 || *end || v < 0 || v > 4095)
        return err_set(e, ERR_USAGE, "device '%s': expected cuda:N", device);
    *n = (int)v;
    return ERR_OK;
}

/* The runtime calls a driver that is not there too old. */
static bool has_driver(void)
{
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

/* The device and what is known of its kind; ERR_DEVICE where this build cannot run on it. */
static enum err_code find_device(int n, cudaDeviceProp *p, const struct cuda_chip **chip,
                                 struct err *e)
{
    int count = 0;
    cudaError_t found = cudaGetDeviceCount(&count);
    if (found != cudaSuccess)
        return err_set(e, ERR_DEVICE, "CUDA is not usable: %s",
                       has_driver() ? cudaGetErrorString(found) : "there is no NVIDIA driver");
    if (n >= count)
        return err_set(e, ERR_DEVICE, "cuda:%d: this machine has %d CUDA devices", n, count);
    TRY(cudaGetDeviceProperties(p, n), "device properties");
    *chip = cuda_chip_find(p->major, p->minor);
    if (!*chip)
        return err_set(e, ERR_DEVICE,
                       "cuda:%d: %s has compute capability %d.%d, whose arithmetic has no name; "
                       "8.0, 8.6, 8.9, 9.0, 10.0 and 12.0 have one",
                       n, p->name, p->major, p->minor);
    if (cuda_build_archs()[0] && !cuda_chip_runs(*chip, cuda_build_archs()))
        return err_set(e, ERR_DEVICE,
                       "cuda:%d: %s has compute capability %d.%d, and this build has code for %s "
                       "alone (ASSAY_CUDA_ARCHS)",
                       n, p->name, p->major, p->minor, cuda_build_archs());
    return ERR_OK;
}

/* As if the device were a smaller card, for tests; its arithmetic stays. */
static const struct cuda_chip *planted_chip(const struct cuda_chip *own, cudaDeviceProp *p)
{
    int planted = cuda_planted_capability();
    const struct cuda_chip *chip = cuda_chip_find(planted / 10, planted % 10);
    if (!chip)
        return own;
    p->sharedMemPerBlockOptin = MIN2(p->sharedMemPerBlockOptin, chip->block_shared);
    p->sharedMemPerMultiprocessor = MIN2(p->sharedMemPerMultiprocessor, chip->sm_shared);
    return chip;
}

extern "C" enum err_code cuda_arith(const char *device, enum kern_arith *a, struct err *e)
{
    const struct cuda_chip *chip;
    cudaDeviceProp p;
    int n = 0;
    enum err_code rc = parse_number(device, &n, e);
    if (rc == ERR_OK)
        rc = find_device(n, &p, &chip, e);
    if (rc == ERR_OK)
        *a = chip->arith;
    return rc;
}

/* In the order of enum cuda_path, without the choice by size: those that the device has. */
static const char *const *paths_of(unsigned kernels)
{
    static const char *const names[][5] = {{"plain", "few", NULL},
                                           {"plain", "few", "stream", NULL},
                                           {"plain", "few", "stream", "many", NULL}};
    return names[kernels >> CUDA_KERNEL_LINEAR_MANY & 1     ? 2
                 : kernels >> CUDA_KERNEL_LINEAR_STREAM & 1 ? 1
                                                            : 0];
}

static enum err_code take_resources(struct cuda_kern *c, struct err *e)
{
    TRY(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "stream");
    TRY(cudaMallocHost((void **)&c->staging, (size_t)CUDA_STAGES * CUDA_STAGE_BYTES),
        "pinned memory");
    TRY(cudaMalloc((void **)&c->staging_device, SLOT_BYTES), "allocation");
    TRY(cudaMemsetAsync(c->staging_device, 0, SLOT_BYTES, c->stream), "clearing memory");
    TRY(cudaMallocHost((void **)&c->fault_seen, sizeof *c->fault_seen), "pinned memory");
    TRY(cudaMalloc((void **)&c->fault, sizeof *c->fault), "allocation");
    TRY(cudaMemsetAsync(c->fault, 0, sizeof *c->fault, c->stream), "clearing memory");
    for (int i = 0; i < CUDA_STAGES; i++)
        TRY(cudaEventCreateWithFlags(&c->staged[i], cudaEventDisableTiming), "event");
    return ERR_OK;
}

extern "C" enum err_code cuda_open(struct kern **k, const struct kern_options *o, struct err *e)
{
    const struct cuda_chip *own = NULL, *chip;
    cudaDeviceProp p;
    int n = 0;
    *k = NULL;
    enum err_code rc = parse_number(o->device ? o->device : "auto", &n, e);
    if (rc == ERR_OK && o->arith == KERN_F32)
        rc = err_set(e, ERR_USAGE,
                     "cuda:%d computes the arithmetic of its tensor cores only, "
                     "not f32",
                     n);
    if (rc == ERR_OK)
        rc = find_device(n, &p, &own, e);
    if (rc == ERR_OK && o->arith != own->arith)
        rc = err_set(e, ERR_USAGE, "cuda:%d: %s computes %s, not %s", n, p.name,
                     kern_arith_name(own->arith), kern_arith_name(o->arith));
    if (rc != ERR_OK)
        return rc;
    TRY(cudaSetDevice(n), "choosing the device");
    chip = planted_chip(own, &p);
    struct cuda_kern *c = (struct cuda_kern *)calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory: %zu bytes", sizeof *c);
    c->base.table = cuda_table();
    c->base.arith = o->arith;
    c->base.threads = 1;
    c->base.isa = chip->isa;
    c->base.records = o->launch == KERN_LAUNCH_USUAL || o->launch == KERN_LAUNCH_GRAPH;
    c->base.launches =
        1u << KERN_LAUNCH_EAGER | 1u << KERN_LAUNCH_BLOCKING | 1u << KERN_LAUNCH_GRAPH;
    c->force_path = o->path;
    snprintf(c->base.device, sizeof c->base.device, "cuda:%d", n);
    c->device = n;
    c->n_sm = p.multiProcessorCount;
    c->l2_bytes = (size_t)p.l2CacheSize;
    c->shared_max = p.sharedMemPerBlockOptin;
    c->shared_sm = p.sharedMemPerMultiprocessor;
    c->kernels = cuda_kernels_of(own, c->shared_max) & cuda_kernels_of(chip, c->shared_max);
    c->base.paths = paths_of(c->kernels);
    if (!(chip->hardware & CUDA_EARLY))
        cuda_starts_late = true;
    rc = take_resources(c, e);
    if (rc != ERR_OK) {
        cuda_close(&c->base);
        return rc;
    }
    *k = &c->base;
    return ERR_OK;
}
