/* cuda_graph.cu: recorded steps: CUDA graphs of the launches of a step, by its shape.
 *
 * A graph is captured from the very calls that run without it, so there is one list of launches.
 * The first step of a shape runs as it is, which also loads its kernels; the second is captured and
 * launched; later ones are launches alone. Shapes are exact, so no row is padded. The shapes used
 * last are kept.
 */
#include "kernels/cuda/cuda_private.h"

#include <cuda_runtime.h>

static bool same_shape(const struct kern_step *a, const struct kern_step *b)
{
    return a->n_tok == b->n_tok && a->n_seq == b->n_seq && a->n_out == b->n_out &&
           a->keys_max == b->keys_max;
}

static void drop(struct cuda_graph *g)
{
    if (g->exec)
        (void)cudaGraphExecDestroy(g->exec);
    *g = (struct cuda_graph){};
}

/* The graph of a shape, or the place of the one not used for longest, emptied for it. */
static struct cuda_graph *find(struct cuda_kern *c, const struct kern_step *s)
{
    struct cuda_graph *oldest = &c->graph[0];
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        struct cuda_graph *g = &c->graph[i];
        if (g->used && same_shape(&g->shape, s))
            return g;
        if (g->used < oldest->used)
            oldest = g;
    }
    drop(oldest);
    oldest->shape = *s;
    return oldest;
}

__global__ static void plant_trap(void)
{
    __trap();
}

extern "C" enum err_code cuda_step_begin(struct kern *k, const struct kern_step *s, bool *replayed,
                                         struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    struct cuda_graph *g = find(c, s);
    bool seen = g->used > 0;
    g->used = ++c->steps;
    if (kern_planted() == KERN_FAULT_TRAP)
        plant_trap<<<1, 1, 0, c->stream>>>();
    if (g->exec) {
        *replayed = true;
        return cuda_checked(cudaGraphLaunch(g->exec, c->stream), "launching a step", e);
    }
    if (!seen)
        return ERR_OK;
    c->recording = g;
    return cuda_checked(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                        "recording a step", e);
}

extern "C" enum err_code cuda_step_end(struct kern *k, bool failed, struct err *e)
{
    struct cuda_kern *c = cuda_of(k);
    struct cuda_graph *g = c->recording;
    cudaGraph_t graph = NULL;
    if (!g)
        return ERR_OK;
    c->recording = NULL;
    cudaError_t found = cudaStreamEndCapture(c->stream, &graph);
    if (failed) {
        (void)cudaGetLastError();
        found = cudaSuccess;
    } else if (found == cudaSuccess) {
        found = cudaGraphInstantiate(&g->exec, graph, 0);
    }
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (failed || found != cudaSuccess)
        drop(g);
    else
        found = cudaGraphLaunch(g->exec, c->stream);
    return cuda_checked(found, "recording a step", e);
}

extern "C" void cuda_graphs_free(struct cuda_kern *c)
{
    for (int i = 0; i < CUDA_GRAPHS; i++)
        drop(&c->graph[i]);
}
