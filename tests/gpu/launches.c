/* launches.c: which kernels a CUDA test program holds and which of them it has launched.
 *
 * Linked into every test_cuda_* program in front of the CUDA runtime (--wrap,
 * tests/CMakeLists.txt). At its start a program registers each of its kernels, every instance of a
 * template by itself; a launch, recorded or not, names the kernel's host function. With
 * ASSAY_LAUNCHES=FILE in the environment a process appends, as it exits, one line a kernel:
 * "launched NAME" or "held NAME", mangled. tests/gpu/run adds them up: a kernel that no program's
 * small case launches was seen by no sanitizer.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 4096

static struct {
    const void *host;
    const char *name;
    bool launched;
} kernels[MOST];
static int n_kernels;

/* Of the runtime, as the compiler's own code calls it. */
struct launch_config;
void __real___cudaRegisterFunction(void **binary, const char *host, char *device, const char *name,
                                   int limit, void *thread, void *block, void *block_dim,
                                   void *grid_dim, int *warp);
int __real___cudaGetKernel(void **kernel, const void *host);
int __real_cudaLaunchKernelExC(const struct launch_config *config, const void *host, void **args);
void __wrap___cudaRegisterFunction(void **binary, const char *host, char *device, const char *name,
                                   int limit, void *thread, void *block, void *block_dim,
                                   void *grid_dim, int *warp);
int __wrap___cudaGetKernel(void **kernel, const void *host);
int __wrap_cudaLaunchKernelExC(const struct launch_config *config, const void *host, void **args);

static void mark(const void *host)
{
    for (int i = 0; i < n_kernels; i++) {
        if (kernels[i].host == host)
            kernels[i].launched = true;
    }
}

void __wrap___cudaRegisterFunction(void **binary, const char *host, char *device, const char *name,
                                   int limit, void *thread, void *block, void *block_dim,
                                   void *grid_dim, int *warp)
{
    if (n_kernels == MOST) {
        fprintf(stderr, "launches.c: more than %d kernels\n", MOST);
        abort();
    }
    kernels[n_kernels].host = host;
    kernels[n_kernels++].name = name;
    __real___cudaRegisterFunction(binary, host, device, name, limit, thread, block, block_dim,
                                  grid_dim, warp);
}

/* The first launch of a kernel by <<<>>> asks for its handle. */
int __wrap___cudaGetKernel(void **kernel, const void *host)
{
    mark(host);
    return __real___cudaGetKernel(kernel, host);
}

int __wrap_cudaLaunchKernelExC(const struct launch_config *config, const void *host, void **args)
{
    mark(host);
    return __real_cudaLaunchKernelExC(config, host, args);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("ASSAY_LAUNCHES");
    FILE *f = path ? fopen(path, "a") : NULL;
    for (int i = 0; f && i < n_kernels; i++)
        fprintf(f, "%s %s\n", kernels[i].launched ? "launched" : "held", kernels[i].name);
    if (f)
        fclose(f);
}
