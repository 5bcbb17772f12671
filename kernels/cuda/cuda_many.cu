/* cuda_many.cu: linear layers of more than 8 rows, by warpgroup products (wgmma).
 *
 * Work: an item is a block's rows of weights by its columns, rows of x; blocks are as many as
 * multiprocessors and walk a fixed list of items. Column tiles go by groups of RASTER, and inside a
 * group columns are fastest: x of a group stays in the second-level cache while all weights pass,
 * and blocks that run together share weights. Bytes: weights once for every group, x once for every
 * block of rows. Above 64 rows a block is 128 by 128, 192 by 128 or 128 by 192, whatever leaves
 * least of the last turn of items empty; below, 256 by 32 or 64, with fewer rows where blocks then
 * have equal shares.
 *
 * Pipeline and order: cuda_wide.cuh. Where whole items take longer, an item is one chunk: its sums
 * go to their own slots in scratch, and a second kernel adds them ascending. Planted fault: the
 * other direction, of chunks or of slots.
 *
 * The kernel starts early (cuda_launch.cuh): the weights of its first stages are on their way when
 * it waits for the kernels before it.
 *
 * Shapes: x and its rows aligned to 16 bytes, and the formats listed in cuda_many_run. The plain
 * kernel takes what is left.
 */
#include "kernels/cuda/cuda_product.h"

#include "kernels/cuda/cuda_price.h"
#include "kernels/cuda/cuda_wide.cuh"
#include "kernels/mma90.h"

#define RASTER 8u /* column tiles that go through all rows before the next ones */

struct many_plan {
    int n_row_blocks, n_column_tiles, n_chunks, chunk_pieces, n_items;
    int part_blocks[LINEAR_PARTS_MAX]; /* row blocks of each part */
    int item_tiles;                    /* of a block; the last ones of a part have fewer */
    int64_t all_rows;                  /* of all parts: a slot's row length */
    float *slots; /* [chunk][row of x][row of the parts], or NULL: totals in registers */
    bool no_wait, frees_early; /* planted faults */
};

/* ---- items --------------------------------------------------------------------------------------
 */
struct many_item {
    int part, tile0;   /* first tile of the block in the part */
    int64_t row_first; /* of the part among all rows */
    int column;        /* first row of x */
    int chunk, end;    /* chunks [chunk, end) */
};

template <int COLUMNS>
__device__ static struct many_item find_item(const struct cuda_products &all,
                                             const struct many_plan &p, int index)
{
    struct many_item it = {};
    unsigned rest = (unsigned)index, n_chunks = (unsigned)p.n_chunks;
    if (p.slots) {
        it.chunk = (int)(rest % n_chunks);
        rest /= n_chunks;
        it.end = it.chunk + 1;
    } else {
        it.end = p.n_chunks;
    }
    int block = (int)rest;
    if (p.n_column_tiles > 1) { /* a division is 100 cycles in which nothing else happens */
        unsigned blocks = (unsigned)p.n_row_blocks, group = rest / (blocks * RASTER) * RASTER;
        unsigned columns = MIN2(RASTER, (unsigned)p.n_column_tiles - group);
        rest -= group * blocks;
        it.column = (int)(group + rest % columns) * COLUMNS;
        block = (int)(rest / columns);
    }
    while (block >= p.part_blocks[it.part]) {
        block -= p.part_blocks[it.part];
        it.row_first += all.part[it.part++].rows;
    }
    it.tile0 = block * p.item_tiles;
    return it;
}

/* Where an item's sums go: to the output or to a slot. */
struct many_place {
    float *out;        /* of the block's first row and column */
    const float *bias; /* of that row, or NULL */
    int stride;
    int rows, columns; /* that are there */
    int chunk, end;
};

__device__ static struct many_place
find_place(const struct cuda_products &all, const struct many_plan &p, const struct many_item &it)
{
    const struct cuda_product &part = all.part[it.part];
    int64_t r = (int64_t)it.tile0 * CUDA_TILE_ROWS;
    struct many_place to = {part.out, NULL, (int)part.out_stride};
    if (p.slots) {
        to.stride = (int)p.all_rows;
        to.out = p.slots + it.chunk * all.n_tok * p.all_rows + it.row_first;
    } else if (part.bias) {
        to.bias = part.bias + r;
    }
    to.out += (int64_t)it.column * to.stride + r;
    to.rows = (int)MIN2(part.rows - r, (int64_t)p.item_tiles * CUDA_TILE_ROWS);
    to.columns = all.n_tok - it.column;
    to.chunk = it.chunk;
    to.end = it.end;
    return to;
}

/* Writes sums [first, first + n) of what a thread holds of its warp's tile. */
template <int N>
__device__ static inline void store_sums(const struct many_place &place, unsigned thread,
                                         const float (&sum)[N], int first, int n)
{
    const struct many_place to = place; /* or stores might change it */
    int row = (int)(thread / 32 * CUDA_TILE_ROWS + thread % 32 / 4);
    int column = first / 4 * 8 + (int)(thread % 4 * 2), left = to.columns - column;
    bool has[2] = {row < to.rows, row + 8 < to.rows};
    float add[2] = {-0.0f, -0.0f}; /* which changes nothing */
    float *out = to.out + (int64_t)column * to.stride + row;
    __builtin_assume(__isGlobal(out));
    if (to.bias) {
        add[0] = has[0] ? to.bias[row] : 0.0f;
        add[1] = has[1] ? to.bias[row + 8] : 0.0f;
    }
#pragma unroll
    for (int i = first; i < first + n; i++) { /* rows g, then g + 8, of eight columns */
        int h = i / 2 % 2, j = (i / 4 - first / 4) * 8 + i % 2;
        if (has[h] && j < left)
            out[(int64_t)j * to.stride + 8 * h] = sum[i] + add[h];
    }
}

/* The parts of linear layers as work of wide_run. */
template <int COLUMNS> struct linear_work {
    typedef struct many_item item;
    typedef struct many_place place;
    const struct cuda_products &all;
    const struct many_plan &p;

    __device__ int n_items(void) const
    {
        return p.n_items;
    }
    __device__ int item_tiles(void) const
    {
        return p.item_tiles;
    }
    __device__ int chunk_pieces(void) const
    {
        return p.chunk_pieces;
    }
    __device__ const struct cuda_order &order(void) const
    {
        return all.part[0].order;
    }
    __device__ item find(int index) const
    {
        return find_item<COLUMNS>(all, p, index);
    }
    __device__ const uint8_t *tile(const item &it, int i) const
    {
        const struct cuda_product &part = all.part[it.part];
        return part.data + MIN2(it.tile0 + i, part.n_tiles - 1) * part.tile_bytes;
    }
    __device__ int from(int chunk) const
    {
        return all.descending && !p.slots ? p.n_chunks - 1 - chunk : chunk;
    }
    __device__ bool frees_early(void) const
    {
        return p.frees_early;
    }
    __device__ place place_of(const item &it) const
    {
        return find_place(all, p, it);
    }
    template <int N>
    __device__ void store(const place &to, unsigned thread, const float (&sum)[N], int first,
                          int n) const
    {
        store_sums(to, thread, sum, first, n);
    }
};

template <class W, int BITS, enum cuda_scale SCALE>
__global__ static void __maxnreg__(W::at_launch)
    linear_many(const __grid_constant__ struct cuda_products all,
                const __grid_constant__ struct many_plan p, const __grid_constant__ CUtensorMap x)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    launch_trigger();
    wide_run<W, BITS, SCALE>(linear_work<W::columns>{all, p}, x, shared, !p.no_wait);
}

#define SLOTS_AHEAD 14 /* loads of a thread on their way at once */

/* Adds the slots of each output in ascending chunk order. */
__global__ static void add_slots(const __grid_constant__ struct cuda_products all,
                                 const __grid_constant__ struct many_plan p)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = blockIdx.y;
    int64_t step = all.n_tok * p.all_rows, r = at;
    int i = 0;
    launch_wait();
    launch_trigger();
    if (at >= p.all_rows)
        return;
    while (r >= all.part[i].rows)
        r -= all.part[i++].rows;
    const float *slot = p.slots + t * p.all_rows + at;
    if (all.descending) {
        slot += (p.n_chunks - 1) * step;
        step = -step;
    }
    float total = *slot, next[SLOTS_AHEAD];
    for (int first = 1; first < p.n_chunks; first += SLOTS_AHEAD) {
#pragma unroll
        for (int i = 0; i < SLOTS_AHEAD; i++)
            next[i] = first + i < p.n_chunks ? slot[(first + i) * step] : 0.0f;
#pragma unroll
        for (int i = 0; i < SLOTS_AHEAD; i++)
            total = first + i < p.n_chunks ? total + next[i] : total;
    }
    const struct cuda_product &part = all.part[i];
    part.out[t * part.out_stride + r] = part.bias ? total + part.bias[r] : total;
}

/* ---- the host's side ----------------------------------------------------------------------------
 */
/* A block's shape, and what a piece of its items costs: so much, and for each tile so much.
 * Measured on an H200 (docs/speed-log.md); choices alone depend on it. */
struct many_form {
    int tiles, least_tiles; /* of a block; bytes count more than products where it may have fewer */
    int columns;
    int piece_ns, tile_ns;
};

#define SLOTS_NS      3000 /* the kernel that adds slots, */
#define SLOT_BYTES_NS 2500 /* and bytes of slots a ns, written and read */

static int blocks_of(const struct cuda_product *part, int tiles)
{
    return (part->n_tiles + tiles - 1) / tiles;
}

static int row_blocks(const struct cuda_products *all, int tiles)
{
    int n = 0;
    for (int i = 0; i < all->n_parts; i++)
        n += blocks_of(&all->part[i], tiles);
    return n;
}

/* Whole items or one for each chunk, and how many tiles: whatever ends first by the form's costs,
 * which are returned. */
static int64_t make_plan(const struct cuda_kern *c, const struct cuda_products *all,
                         const struct many_form *form, struct many_plan *p)
{
    const struct cuda_order *o = &all->part[0].order;
    int64_t best = INT64_MAX;
    *p = (struct many_plan){};
    for (int i = 0; i < all->n_parts; i++)
        p->all_rows += all->part[i].rows;
    p->n_column_tiles = (all->n_tok + form->columns - 1) / form->columns;
    p->chunk_pieces = (int)mma90_chunk(o->k) / CUDA_PIECE_K;
    p->n_chunks = (o->n_pieces + p->chunk_pieces - 1) / p->chunk_pieces;
    int64_t need = p->n_chunks * all->n_tok * p->all_rows * (int64_t)sizeof(float);
    bool may_split = p->n_chunks > 1 && (size_t)need <= c->scratch_bytes.linear;
    for (int split = 0; split <= may_split; split++)
        for (int t = form->tiles; t >= form->least_tiles; t--) {
            int blocks = row_blocks(all, t);
            int items = blocks * p->n_column_tiles * (split ? p->n_chunks : 1);
            int64_t turns = (items + c->n_sm - 1) / c->n_sm;
            int64_t pieces = turns * (split ? p->chunk_pieces : o->n_pieces);
            int64_t ns = pieces * (form->piece_ns + t * form->tile_ns);
            ns += split ? SLOTS_NS + need / SLOT_BYTES_NS : 0;
            if (ns >= best)
                continue;
            best = ns;
            p->slots = split ? (float *)c->scratch_linear : NULL;
            p->item_tiles = t;
            p->n_row_blocks = blocks;
            p->n_items = items;
        }
    for (int i = 0; i < all->n_parts; i++)
        p->part_blocks[i] = blocks_of(&all->part[i], p->item_tiles);
    if (CUDA_PRICE && !p->slots) {
        p->chunk_pieces = o->n_pieces;
        p->n_chunks = 1;
    }
    return best;
}

size_t cuda_many_scratch_bytes(const struct cuda_kern *c, const struct kern_limits *l)
{
    size_t chunk = (size_t)mma90_chunk(l->k_max), n_chunks = ((size_t)l->k_max + chunk - 1) / chunk;
    size_t most = (size_t)c->n_sm * 128 * 128 * 3 / 4; /* more outputs fill the device unsplit */
    size_t outputs = (size_t)l->n_tok * (size_t)l->rows_max;
    return n_chunks * MIN2(outputs, most) * sizeof(float);
}

template <class W, int BITS, enum cuda_scale SCALE>
static bool launch(const struct cuda_kern *c, const struct cuda_products *all,
                   const struct many_plan *plan)
{
    static bool allowed;
    constexpr int shared = W::stages * W::stage_bytes;
    struct many_plan p = *plan;
    CUtensorMap x;
    if (!cuda_tensor_map(&x, all->x, all->part[0].order.k, all->n_tok, all->x_stride, W::columns))
        return false;
    if (!allowed) {
        (void)cudaFuncSetAttribute(linear_many<W, BITS, SCALE>,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        allowed = true;
    }
    p.no_wait = c->plant_no_wait;
    p.frees_early = c->plant_frees_early;
    launch_early(linear_many<W, BITS, SCALE>, dim3((unsigned)MIN2(p.n_items, c->n_sm)), W::threads,
                 shared, c->stream, *all, p, x);
    if (p.slots) {
        dim3 grid((unsigned)((p.all_rows + 255) / 256), (unsigned)all->n_tok);
        launch_early(add_slots, grid, 256, 0, c->stream, *all, p);
    }
    return true;
}

static const struct many_form large_forms[] = {
    {8, 8, 128, 820, 0}, {12, 12, 128, 1260, 0}, {8, 8, 192, 1230, 0}};

/* The plan of the large form that ends first. */
static int best_form(const struct cuda_kern *c, const struct cuda_products *all,
                     struct many_plan *best)
{
    int form = 0;
    int64_t least = make_plan(c, all, &large_forms[0], best);
    for (int i = 1; i < (int)ARRAY_LEN(large_forms); i++) {
        struct many_plan p;
        int64_t ns = make_plan(c, all, &large_forms[i], &p);
        if (ns < least) {
            least = ns;
            *best = p;
            form = i;
        }
    }
    return form;
}

/* More than 64 rows: the shape of a block that leaves least of the last turn empty. The formats
 * that few models have do without the choice. */
template <int BITS, enum cuda_scale SCALE>
static bool launch_large(const struct cuda_kern *c, const struct cuda_products *all)
{
    struct many_plan p;
    if constexpr ((BITS == 4 || BITS == 8) &&
                  (SCALE == CUDA_SCALE_LOW || SCALE == CUDA_SCALE_FAST)) {
        int form = best_form(c, all, &p);
        if (form == 1)
            return launch<wide<BITS, 3, 128, 1>, BITS, SCALE>(c, all, &p);
        if (form == 2)
            return launch<wide<BITS, 2, 192, 1>, BITS, SCALE>(c, all, &p);
    } else {
        (void)make_plan(c, all, &large_forms[0], &p);
    }
    return launch<wide<BITS, 2, 128, 4>, BITS, SCALE>(c, all, &p);
}

template <int BITS, enum cuda_scale SCALE>
static bool launch_columns(const struct cuda_kern *c, const struct cuda_products *all)
{
    constexpr int groups = BITS == CUDA_DENSE ? 2 : 4, tiles = groups * GROUP_WARPS;
    static const struct many_form forms[] = {{tiles, tiles / 2, 32, 200, 44},
                                             {tiles, tiles / 2, 64, 270, 50}};
    struct many_plan p;
    if (all->n_tok > 64)
        return launch_large<BITS, SCALE>(c, all);
    (void)make_plan(c, all, &forms[all->n_tok > 32], &p);
    if (all->n_tok > 32)
        return launch<wide<BITS, groups, 64, 1>, BITS, SCALE>(c, all, &p);
    return launch<wide<BITS, groups, 32, 4>, BITS, SCALE>(c, all, &p);
}

bool cuda_many_run(const struct cuda_kern *c, const struct cuda_products *all)
{
    const struct cuda_order *o = &all->part[0].order;
    if (!cuda_takes(c, CUDA_KERNEL_LINEAR_MANY) || all->x_stride % 8 != 0 ||
        (uintptr_t)all->x % 16 != 0)
        return false;
    if (o->bits == CUDA_DENSE)
        return launch_columns<CUDA_DENSE, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_LOW)
        return launch_columns<4, CUDA_SCALE_LOW>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<4, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_F16)
        return launch_columns<4, CUDA_SCALE_F16>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<8, CUDA_SCALE_FAST>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_F16)
        return launch_columns<8, CUDA_SCALE_F16>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_columns<4, CUDA_SCALE_E8M0_FAST>(c, all);
    if (o->bits == 8 && o->scale == CUDA_SCALE_E8M0_FAST)
        return launch_columns<8, CUDA_SCALE_E8M0_FAST>(c, all);
    if (o->bits == 4 && o->scale == CUDA_SCALE_E4M3)
        return launch_columns<4, CUDA_SCALE_E4M3>(c, all);
    if (o->bits == 6 && o->scale == CUDA_SCALE_FAST)
        return launch_columns<6, CUDA_SCALE_FAST>(c, all);
    return false;
}
