/* cuda_price.h: what the build that states the contract's price leaves out (ASSAY_CONTRACT_PRICE),
 * in one place. Its arithmetic has a name of its own and serves bench alone; in every other build
 * all of this is what docs/numerics.md says.
 *
 * Left out: the chunks of K of products by warpgroups, where an item has a whole row; the splits of
 * keys in attention of many rows; our own exp2, for the hardware's (kernels/elem.h). Where a chunk
 * or a split is what gives a warp or a block its share of the work (few rows), it stays: without
 * the contract the work would be cut too. Blocks keep their shapes.
 */
#ifndef ASSAY_KERNELS_CUDA_CUDA_PRICE_H
#define ASSAY_KERNELS_CUDA_CUDA_PRICE_H

#ifdef ASSAY_CONTRACT_PRICE
enum { CUDA_PRICE = 1 };
#else
enum { CUDA_PRICE = 0 };
#endif

#endif
