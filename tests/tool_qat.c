/* tool_qat.c: the grid search over made matrices, for tests/reference/qat_grids.py.
 *
 *   tool_qat made GROUPS         every kind of made grid: a line each, and what was recovered
 *   tool_qat random GROUPS       random bf16 groups against every form: how many were accepted
 *   tool_qat speed MIB           CPU seconds a GB of bf16: looking, then encoding
 */
#include <stdio.h>
#include <time.h>

#include "quant/qat_grid.h"
#include "tests/qat_make.h"

#define GROUPS_A_ROW 64

/* Values of the packed rows that differ from the source's after one rounding. */
static int64_t count_wrong(const struct grid_made *g, const struct grid_form *f, int64_t *codes_off)
{
    struct err e = {.text = ""};
    int64_t rows = g->w.dim[0], k = g->w.dim[1], wrong = 0;
    struct qformat q = grid_format(f, k);
    size_t scales = (size_t)(rows * (k / q.group) * dtype_bits(q.scale) / 8);
    uint8_t *codes = malloc((size_t)rows * qformat_row_bytes(q, k)), *s = malloc(2 * scales);
    if (!codes || !s)
        exit(5);
    if (grid_encode(&g->w, f, 0, rows, codes, s, s + scales, &e) != ERR_OK) {
        printf("%s\n", e.text);
        wrong = rows * k;
    }
    for (int64_t i = 0; i < rows * k && wrong < rows * k; i++) {
        const uint8_t *row = codes + (size_t)(i / k) * qformat_row_bytes(q, k);
        uint32_t u = qformat_code(row, q.bits, i % k);
        float sc = qformat_scale(s, q.scale, i / q.group);
        float b = qformat_scale(s + scales, q.scale, i / q.group);
        float want = qformat_scale(g->data, g->w.dtype, i), got = fmaf((float)u, sc, b);
        if (g->w.dtype == DT_BF16)
            got = bf16_to_f32(qformat_bf16(u, sc, b, q.scale));
        else if (g->w.dtype == DT_F16)
            got = f16_to_f32(f16_from_f32(got));
        wrong += got != want;
        int zero = f->kind == GRID_OFFSET ? 0 : 1 << (f->bits - 1);
        int code = (int)u - zero;
        *codes_off += code != g->code[i] && -code != g->code[i];
    }
    free(codes);
    free(s);
    return wrong;
}

static void one(const struct grid_maker *m)
{
    static const char *const like[] = {"gaussian", "heavy", "unused", "ends"};
    struct grid_made g;
    struct grid_report r;
    struct err e = {.text = ""};
    int64_t wrong = 0, off = 0;
    grid_make(m, &g);
    if (grid_look(&g.w, &(struct grid_options){.threads = 2}, &r, &e) != ERR_OK) {
        printf("%s\n", e.text);
        exit(1);
    }
    if (r.on == r.units)
        wrong = count_wrong(&g, &r.form, &off);
    char text[80];
    printf(
        "%s %d bits group %d scale %s in %s codes %s: units %lld on %lld wrong %lld codes-differ "
        "%lld as %s\n",
        m->offset ? "offset" : "symmetric", m->bits, m->group, dtype_name(m->scale),
        dtype_name(m->source), like[m->codes], (long long)r.units, (long long)r.on,
        (long long)wrong, (long long)off, grid_form_text(&r.form, text));
    fflush(stdout);
    grid_unmake(&g);
}

static void made(int64_t n_groups)
{
    static const enum dtype types[] = {DT_BF16, DT_F16, DT_F32};
    static const int bits[] = {4, 5, 8};
    uint64_t seed = 1;
    for (int offset = 0; offset < 2; offset++)
        for (int b = 0; b < 3 - offset; b++)
            for (int t = 0; t < 3; t++)
                for (int like = 0; like < 4; like++)
                    for (int source = 0; source < 3; source++) {
                        struct grid_maker m = {.rows = n_groups / GROUPS_A_ROW,
                                               .k = 32 * GROUPS_A_ROW,
                                               .group = 32,
                                               .bits = bits[b],
                                               .offset = offset,
                                               .scale = types[t],
                                               .source = types[source],
                                               .codes = (enum codes_like)like,
                                               .seed = seed++};
                        if (source == 2 && t == 2)
                            continue; /* f32 products of f32 scales: not what anybody stores */
                        one(&m);
                    }
}

static void random_groups(int64_t n)
{
    struct rng r = {7, 0};
    uint8_t data[64];
    int64_t accepted = 0;
    struct ckpt_weight w = {.name = "random.weight",
                            .enc = CKPT_DENSE,
                            .dtype = DT_BF16,
                            .n_dim = 2,
                            .dim = {1, 32},
                            .data = data,
                            .bytes = 64};
    for (int64_t i = 0; i < n; i++) {
        struct grid_report report;
        for (int64_t j = 0; j < 32; j++)
            put_value(data, DT_BF16, j, (float)rng_normal(&r) * 0.02f);
        if (grid_look(&w, &(struct grid_options){.sample = true}, &report, NULL) != ERR_OK)
            exit(1);
        accepted += report.on > 0;
    }
    printf("random groups %lld accepted %lld\n", (long long)n, (long long)accepted);
}

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void speed(int64_t mib)
{
    static const struct grid_maker makers[] = {
        {.group = 32, .bits = 4, .scale = DT_BF16},
        {.group = 32, .bits = 4, .scale = DT_F16},
        {.group = 128, .bits = 4, .scale = DT_BF16},
        {.group = 32, .bits = 8, .scale = DT_F16},
        {.group = 32, .bits = 4, .scale = DT_F16, .offset = true}};
    for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
        struct grid_maker m = makers[i];
        struct grid_made g;
        struct grid_report r;
        int64_t off = 0;
        m.k = 4096;
        m.rows = mib * 1048576 / 2 / m.k;
        m.source = DT_BF16;
        m.seed = i;
        m.codes = m.offset ? CODES_ENDS : CODES_GAUSSIAN;
        grid_make(&m, &g);
        double t0 = cpu();
        if (grid_look(&g.w, &(struct grid_options){.threads = 1}, &r, NULL) != ERR_OK)
            exit(1);
        double t1 = cpu(), gb = (double)g.w.bytes * 1e-9;
        struct qformat q = grid_format(&r.form, m.k);
        size_t scales = (size_t)(m.rows * (m.k / q.group) * dtype_bits(q.scale) / 8);
        uint8_t *codes = malloc((size_t)m.rows * qformat_row_bytes(q, m.k)),
                *s = malloc(2 * scales);
        memset(codes, 0, (size_t)m.rows * qformat_row_bytes(q, m.k));
        memset(s, 0, 2 * scales);
        double t2 = cpu();
        if (grid_encode(&g.w, &r.form, 0, m.rows, codes, s, s + scales, NULL) != ERR_OK)
            exit(1);
        double t3 = cpu();
        (void)off;
        char text[80];
        printf("%s: look %.2f encode %.2f CPU s/GB\n", grid_form_text(&r.form, text),
               (t1 - t0) / gb, (t3 - t2) / gb);
        free(codes);
        free(s);
        grid_unmake(&g);
    }
}

int main(int argc, char **argv)
{
    int64_t n = argc == 3 ? atoll(argv[2]) : 0;
    if (n > 0 && strcmp(argv[1], "made") == 0)
        made(n);
    else if (n > 0 && strcmp(argv[1], "random") == 0)
        random_groups(n);
    else if (n > 0 && strcmp(argv[1], "speed") == 0)
        speed(n);
    else
        return 2;
    return 0;
}
