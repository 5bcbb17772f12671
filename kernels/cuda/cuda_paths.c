/* cuda_paths.c: the cards that are known, and what follows from that. Pure functions, but for what
 * tests plant.
 */
#include "kernels/cuda/cuda_paths.h"

#include <stdlib.h>
#include <string.h>

#ifndef ASSAY_CUDA_ARCHS
#define ASSAY_CUDA_ARCHS ""
#endif

#define NEWER (CUDA_BULK | CUDA_CLUSTERS | CUDA_EARLY) /* from 9.0 on */
#define KIB   ((size_t)1024)

static const struct cuda_chip chips[] = {
    {8, 0, KERN_MMA80, 0, "sm_80", 163 * KIB, 164 * KIB},
    {8, 6, KERN_MMA86, 0, "sm_86", 99 * KIB, 100 * KIB},
    {8, 9, KERN_MMA89, 0, "sm_89", 99 * KIB, 100 * KIB},
    {9, 0, KERN_MMA90, CUDA_WARPGROUPS | NEWER, "sm_90", 227 * KIB, 228 * KIB},
    {10, 0, KERN_MMA100, NEWER, "sm_100", 227 * KIB, 228 * KIB},
    {12, 0, KERN_MMA120, NEWER, "sm_120", 99 * KIB, 100 * KIB}};

static const struct cuda_kernel_facts facts[] = {
#define X(kernel, operation, name, hardware, kib) {operation, name, hardware, (kib)*KIB},
    CUDA_KERNELS(X)
#undef X
};

static int planted;

const struct cuda_chip *cuda_chip_number(int i)
{
    return i >= 0 && (size_t)i < ARRAY_LEN(chips) ? &chips[i] : NULL;
}

const struct cuda_chip *cuda_chip_find(int major, int minor)
{
    for (size_t i = 0; i < ARRAY_LEN(chips); i++)
        if (chips[i].major == major && chips[i].minor == minor)
            return &chips[i];
    return NULL;
}

const char *cuda_build_archs(void)
{
    return ASSAY_CUDA_ARCHS;
}

bool cuda_chip_runs(const struct cuda_chip *chip, const char *archs)
{
    for (const char *at = archs; *at; at += strspn(at, " ")) {
        char *end;
        long arch = strtol(at, &end, 10);
        bool exact = *end == 'a', same = arch == chip->major * 10 + chip->minor;
        bool runs = arch / 10 == chip->major && arch % 10 <= chip->minor;
        if (exact ? same : runs && !(chip->hardware & CUDA_WARPGROUPS))
            return true;
        at = end + strcspn(end, " ");
    }
    return false;
}

const struct cuda_kernel_facts *cuda_kernel_facts(enum cuda_kernel kernel)
{
    return &facts[kernel];
}

unsigned cuda_kernels_of(const struct cuda_chip *chip, size_t block_shared)
{
    unsigned kernels = 0;
    for (unsigned i = 0; i < CUDA_KERNEL_COUNT; i++)
        if (!(facts[i].hardware & ~chip->hardware) && facts[i].shared <= block_shared)
            kernels |= 1u << i;
    return kernels;
}

void cuda_plant_capability(int capability)
{
    planted = capability;
}

int cuda_planted_capability(void)
{
    return planted;
}
