/* cuda_launch.cuh: kernels that start while the one before them in the stream still runs
 * (programmatic dependent launch).
 *
 * A kernel launched by launch_early must call launch_wait before it reads anything that an earlier
 * kernel wrote and before it writes anything at all: the wait returns when all earlier kernels have
 * ended and their writes are seen. Before it, only what no kernel of a step writes may be read:
 * weights; and the lists of experts where cuda_kern.lists_stand says so. launch_trigger lets the
 * next early kernel begin; where it stands changes the time alone. Kernels launched in the ordinary
 * way wait by themselves.
 *
 * Cards before 9.0 know no early start. A process that has opened one of them starts nothing early:
 * that is a matter of time alone.
 *
 * All ask for the largest share of shared memory: a multiprocessor changes its share only when it
 * is empty, so a kernel with another one could not begin beside its predecessor.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_LAUNCH_CUH
#define ASSAY_KERNELS_CUDA_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

extern bool cuda_starts_late; /* cuda_device.cu: nothing of this process starts early */

__device__ static inline void launch_trigger(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ static inline void launch_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* In clusters of `cluster` blocks; errors come back through cuda_launched. */
template <typename... params, typename... args>
static inline void launch_clusters(int cluster, void (*kernel)(params...), dim3 grid, int threads,
                                   size_t shared, cudaStream_t stream, const args &...a)
{
    cudaLaunchAttribute attribute[3] = {};
    cudaLaunchConfig_t config = {};
    int n = 0;
    attribute[n].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute[n++].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    if (!cuda_starts_late) {
        attribute[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[n++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[n].id = cudaLaunchAttributeClusterDimension;
        attribute[n].val.clusterDim.x = (unsigned)cluster;
        attribute[n].val.clusterDim.y = attribute[n].val.clusterDim.z = 1;
        n++;
    }
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = (unsigned)n;
    (void)cudaLaunchKernelEx(&config, kernel, a...);
}

/* Blocks of a kernel, in clusters of `cluster` and one a multiprocessor, that the device holds at
 * once: not every group of multiprocessors is a multiple of four. n_sm where it cannot say. */
template <typename... params>
static inline int launch_most_blocks(int cluster, void (*kernel)(params...), int threads,
                                     size_t shared, int n_sm)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)cluster);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters < 1) {
        (void)cudaGetLastError();
        return n_sm;
    }
    return clusters * cluster;
}

template <typename... params, typename... args>
static inline void launch_early(void (*kernel)(params...), dim3 grid, int threads, size_t shared,
                                cudaStream_t stream, const args &...a)
{
    launch_clusters(1, kernel, grid, threads, shared, stream, a...);
}

#endif
