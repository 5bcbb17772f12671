/* self_load.c: a competitor: a second kern of a device, in a thread of its own, that runs gated
 * activations without end. On the CPU it takes cores and memory from the run; on CUDA it is a
 * stream of kernels beside the run's own. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "evals/self_private.h"

enum { ROWS = 64, WIDTH = 4096 };

struct self_load {
    pthread_t thread;
    const char *device;
    _Atomic bool stop;
    _Atomic uint64_t rounds;
    _Atomic bool ready; /* the first round is done, or it has failed */
    enum err_code rc;
    struct err e;
};

static enum err_code work(struct self_load *l, struct kern *k)
{
    const size_t in = sizeof(float) * ROWS * WIDTH;
    void *gate = NULL, *up = NULL, *out = NULL;
    uint8_t sink[64];
    enum err_code rc = kern_alloc(k, in, &gate, &l->e);
    if (rc == ERR_OK)
        rc = kern_alloc(k, in, &up, &l->e);
    if (rc == ERR_OK)
        rc = kern_alloc(k, in, &out, &l->e);
    struct act_mul_args a = {.n_rows = ROWS, .d = WIDTH, .stride = WIDTH, .act = ACT_SILU};
    a.gate = gate;
    a.up = up;
    a.out = out;
    while (rc == ERR_OK && !l->stop) {
        rc = kern_act_mul(k, &a, &l->e);
        /* Now and then the queue is drained, so that it stays short. */
        if (rc == ERR_OK && l->rounds % 64 == 0)
            rc = kern_download(k, sink, out, sizeof sink, &l->e);
        l->rounds++;
        l->ready = true;
    }
    kern_free(k, gate);
    kern_free(k, up);
    kern_free(k, out);
    return rc;
}

static void *competitor(void *ctx)
{
    struct self_load *l = ctx;
    struct kern *k;
    struct kern_options o = {.device = l->device, .threads = 2};
    l->rc = kern_device_arith(l->device, &o.arith, &l->e);
    if (l->rc == ERR_OK)
        l->rc = kern_open(&k, &o, &l->e);
    if (l->rc == ERR_OK) {
        l->rc = work(l, k);
        kern_close(k);
    }
    l->ready = true;
    return NULL;
}

enum err_code self_load_start(struct self_load **out, const char *device, struct err *e)
{
    *out = NULL;
    struct self_load *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->device = device;
    if (pthread_create(&l->thread, NULL, competitor, l) != 0) {
        free(l);
        return err_set(e, ERR_NOMEM, "no thread for a competing load");
    }
    const struct timespec nap = {.tv_nsec = 200000};
    while (!l->ready)
        nanosleep(&nap, NULL);
    *out = l;
    return ERR_OK;
}

enum err_code self_load_stop(struct self_load *l, uint64_t *rounds, struct err *e)
{
    if (!l)
        return ERR_OK;
    l->stop = true;
    pthread_join(l->thread, NULL);
    enum err_code rc = l->rc;
    *rounds = l->rounds;
    if (rc != ERR_OK && e)
        *e = l->e;
    free(l);
    return err_wrap(e, rc, "competing load");
}
