/* cmd_bench.c: speed of this machine: every kernel of the CPU (kernels/cpu/cpu_bench.h), the whole
 * engine on a model or on a published shape (infer/engine_bench.h), and synthetic checkpoints of
 * those shapes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/log.h"
#include "infer/engine_bench.h"
#include "infer/model_opts.h"
#include "infer/shapes.h"
#include "kernels/cpu/cpu_bench.h"
#include "kernels/cuda/cuda_measure.h"
#include "quant/quantize.h"

#define ENGINE_ROWS_MAX 4096

/* ---- the whole engine
 * ------------------------------------------------------------------------------- */

/* What is asked of the engine part. */
struct engine_args {
    const char *model, *shape;         /* one of the two, or neither */
    const char *rows, *prompt, *mixed; /* lists; NULL: the default of the device */
    struct engine_bench bench;
};

static enum err_code parse_list(const char *text, const char *name, int64_t *out, int *n,
                                struct err *e)
{
    *n = 0;
    for (const char *at = text; *at;) {
        char *end = NULL;
        long long v = strtoll(at, &end, 10);
        if (end == at || v < 1 || v > 1 << 24 || *n == ENGINE_BENCH_MAX || (*end && *end != ','))
            return err_set(e, ERR_USAGE, "--%s '%.80s': expected up to %d numbers with commas",
                           name, text, ENGINE_BENCH_MAX);
        out[(*n)++] = v;
        at = *end ? end + 1 : end;
    }
    return ERR_OK;
}

/* The default on the CPU is short, since its prefill is slow. */
static enum err_code read_lists(struct engine_args *a, bool cpu, struct err *e)
{
    const char *few = a->rows ? a->rows : cpu ? "1,16" : "1,8,16,32,64";
    const char *prompt = a->prompt ? a->prompt : cpu ? "512" : "512,2048,8192";
    enum err_code rc = parse_list(few, "rows", a->bench.rows, &a->bench.n_rows, e);
    if (rc == ERR_OK)
        rc = parse_list(prompt, "prefill", a->bench.prompt, &a->bench.n_prompt, e);
    if (rc == ERR_OK)
        rc = parse_list(a->mixed ? a->mixed
                        : cpu    ? ""
                                 : "8,64",
                        "mixed", a->bench.mixed, &a->bench.n_mixed, e);
    for (int i = 0; rc == ERR_OK && i < a->bench.n_mixed; i++) {
        if (a->bench.mixed[i] > ENGINE_ROWS_MAX)
            rc = err_set(e, ERR_USAGE, "--mixed %lld, expected at most %d",
                         (long long)a->bench.mixed[i], ENGINE_ROWS_MAX);
    }
    for (int i = 0; rc == ERR_OK && i < a->bench.n_rows; i++) {
        if (a->bench.rows[i] > ENGINE_ROWS_MAX)
            rc = err_set(e, ERR_USAGE, "--rows %lld, expected at most %d",
                         (long long)a->bench.rows[i], ENGINE_ROWS_MAX);
    }
    return rc;
}

static enum err_code open_engine(const struct engine_args *a, const struct engine_options *o,
                                 struct engine **en, struct err *e)
{
    struct checkpoint *c = NULL;
    enum err_code rc =
        a->shape ? shapes_checkpoint(&c, a->shape, e) : checkpoint_open(&c, a->model, e);
    if (rc == ERR_OK)
        rc = engine_new(en, c, o, e);
    if (a->shape)
        shapes_free(c);
    else
        checkpoint_close(c);
    return rc;
}

/* Of this process, mapped files included. */
static json_int_t peak_memory(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (json_int_t)u.ru_maxrss * 1024 : 0;
}

static enum err_code bench_engine(const struct engine_args *a, struct engine_options *o,
                                  json_t *out, struct err *e)
{
    struct engine *en = NULL;
    json_t *figures = NULL;
    uint64_t at = clock_ns();
    engine_bench_options(&a->bench, o);
    enum err_code rc = open_engine(a, o, &en, e);
    if (rc == ERR_OK) {
        const struct engine_plan *p = engine_get_plan(en);
        json_object_set_new(out, "model", json_string(a->shape ? a->shape : io_base(a->model)));
        json_object_set_new(out, "synthetic", json_boolean(a->shape != NULL));
        json_object_set_new(out, "load_seconds", json_real((double)(clock_ns() - at) * 1e-9));
        const struct engine_times *t = engine_get_times(en);
        json_object_set_new(out, "hash_seconds", json_real(t->hash));
        json_object_set_new(out, "weights_seconds", json_real(t->weights));
        json_object_set_new(out, "weights_bytes_per_s",
                            json_real((double)p->weights / MAX2(t->weights, 1e-9)));
        json_object_set_new(out, "peak_memory_bytes", json_integer(peak_memory()));
        json_object_set_new(out, "weight_bytes", json_integer((json_int_t)p->weights));
        json_object_set_new(out, "kv_bytes", json_integer((json_int_t)p->kv));
        json_object_set_new(out, "batch_tokens", json_integer(p->batch_tokens));
        rc = engine_bench_run(en, &a->bench, &figures, e);
    }
    if (rc == ERR_OK)
        json_object_set_new(out, "figures", figures);
    engine_free(en);
    return rc;
}

/* ---- a synthetic checkpoint on disk
 * ------------------------------------------------------------------------------- */

static enum err_code make_checkpoint(const char *shape, const char *dir, int threads,
                                     const volatile int *interrupted, struct err *e)
{
    struct checkpoint *c = NULL;
    struct plan *p = NULL;
    struct quantize_summary sum;
    struct strbuf text = {0};
    enum err_code rc = shapes_checkpoint(&c, shape, e);
    if (rc == ERR_OK)
        rc = plan_keep_all(&p, c, e);
    struct quantize_job job = {.plan = p, .out = dir, .command = "bench"};
    job.torch_dtype = "bfloat16";
    job.pack.threads = threads;
    job.pack.interrupted = interrupted;
    if (rc == ERR_OK)
        rc = quantize_run(&job, &sum, e);
    if (rc == ERR_OK) {
        strbuf_printf(&text, "%s: %s, %zu tensors, %.3f GB, synthetic\n", dir, shape, sum.n_tensors,
                      (double)sum.bytes * 1e-9);
        rc = cmd_print(&text, e);
    }
    plan_free(p);
    shapes_free(c);
    return rc;
}

/* ---- the command
 * ------------------------------------------------------------------------------------- */
static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void put_kernels(struct strbuf *b, const json_t *all)
{
    size_t i;
    const json_t *k;
    strbuf_printf(b, "read bandwidth %.1f GB/s\n\n", number(all, "stream_bytes_per_s") * 1e-9);
    strbuf_printf(b, "%-10s %-46s %12s %8s %9s %8s %10s\n", "kernel", "shape", "us", "GB/s",
                  "GFLOP/s", "stream", "null arm");
    json_array_foreach(json_object_get(all, "kernels"), i, k)
    {
        strbuf_printf(b, "%-10s %-46s %12.1f %8.2f %9.1f %7.1f%%",
                      json_string_value(json_object_get(k, "kernel")),
                      json_string_value(json_object_get(k, "shape")), number(k, "seconds") * 1e6,
                      number(k, "bytes_per_s") * 1e-9, number(k, "flop_per_s") * 1e-9,
                      number(k, "stream_share") * 100);
        if (json_object_get(k, "null_ratio"))
            strbuf_printf(b, " %+9.2f%%", (number(k, "null_ratio") - 1) * 100);
        strbuf_putc(b, '\n');
    }
    strbuf_putc(b, '\n');
}

static void put_pass(struct strbuf *b, const json_t *all)
{
    size_t i;
    const json_t *k;
    strbuf_printf(b, "linear layers of an 8B model, 4 bits, against cuBLAS in bf16\n\n");
    strbuf_printf(b, "%6s %10s %9s %10s %9s %7s %10s\n", "rows", "ms", "TFLOP/s", "cuBLAS ms",
                  "TFLOP/s", "ratio", "null arm");
    json_array_foreach(json_object_get(all, "linear_pass"), i, k) strbuf_printf(
        b, "%6lld %10.3f %9.1f %10.3f %9.1f %7.3f %+9.2f%%\n", (long long)number(k, "rows"),
        number(k, "seconds") * 1e3, number(k, "flop_per_s") * 1e-12,
        number(k, "blas_seconds") * 1e3, number(k, "blas_flop_per_s") * 1e-12, number(k, "ratio"),
        (number(k, "null_ratio") - 1) * 100);
    strbuf_putc(b, '\n');
}

static void put_engine(struct strbuf *b, const json_t *en)
{
    size_t i;
    const json_t *f;
    strbuf_printf(b,
                  "%s%s: %.3f GB of weights in %.3f s: hashed in %.3f s, loaded in %.3f s at %.2f "
                  "GB/s; peak host memory %.3f GB\n\n",
                  json_string_value(json_object_get(en, "model")),
                  json_is_true(json_object_get(en, "synthetic")) ? " (synthetic)" : "",
                  number(en, "weight_bytes") * 1e-9, number(en, "load_seconds"),
                  number(en, "hash_seconds"), number(en, "weights_seconds"),
                  number(en, "weights_bytes_per_s") * 1e-9, number(en, "peak_memory_bytes") * 1e-9);
    strbuf_printf(b, "%-8s %6s %8s %12s %12s %10s\n", "figure", "rows", "tokens", "tok/s", "ms",
                  "null arm");
    json_array_foreach(json_object_get(en, "figures"), i, f)
    {
        bool decode = json_object_get(f, "rows") != NULL;
        bool tokens = json_object_get(f, "tokens") != NULL;
        strbuf_printf(b, "%-8s %6lld %8lld %12.1f %12.3f %+9.2f%%\n",
                      json_string_value(json_object_get(f, "what")),
                      decode ? (long long)number(f, "rows") : 1ll,
                      (long long)number(f, tokens ? "tokens" : "context"), number(f, "tok_per_s"),
                      number(f, "seconds") * 1e3, (number(f, "null_ratio") - 1) * 100);
    }
}

static void put_text(struct strbuf *b, const json_t *all)
{
    strbuf_printf(b, "%s on %s (%s), %lld threads\n",
                  json_string_value(json_object_get(all, "arith")),
                  json_string_value(json_object_get(all, "device")),
                  json_string_value(json_object_get(all, "variant")),
                  (long long)json_integer_value(json_object_get(all, "threads")));
    if (json_object_get(all, "kernels"))
        put_kernels(b, all);
    if (json_object_get(all, "linear_pass"))
        put_pass(b, all);
    if (json_object_get(all, "engine"))
        put_engine(b, json_object_get(all, "engine"));
}

/* Kernel by kernel, and against cuBLAS. */
static enum err_code bench_kernels(struct kern *k, const struct engine_args *a, bool kernels,
                                   bool blas, json_t *all, struct err *e)
{
    const bool cpu = strcmp(kern_device(k), "cpu") == 0;
    enum err_code rc = ERR_OK;
    if (kernels && cpu)
        rc = cpu_bench_run(k, a->bench.seconds, a->bench.interrupted, all, e);
#ifdef ASSAY_HAVE_CUDA
    if (kernels && !cpu)
        rc = cuda_bench_run(k, a->bench.rounds, a->bench.interrupted, all, e);
    if (rc == ERR_OK && blas && !cpu)
        rc = cuda_blas_run(k, a->bench.rounds, a->bench.interrupted, all, e);
#endif
    if (rc == ERR_OK && blas && cpu)
        rc = err_set(e, ERR_USAGE, "--cublas is for CUDA, not for %s", kern_device(k));
    return rc;
}

static enum err_code run_bench(struct engine_args *a, bool kernels, bool blas,
                               struct engine_options *o, json_t *all, struct err *e)
{
    struct kern *k = NULL;
    enum err_code rc = kern_open(&k, &o->kern, e);
    if (rc != ERR_OK)
        return rc;
    const bool cpu = strcmp(kern_device(k), "cpu") == 0;
    json_object_set_new(all, "arith", json_string(kern_arith_name(kern_arith(k))));
    json_object_set_new(all, "device", json_string(kern_device(k)));
    json_object_set_new(all, "variant", json_string(kern_isa(k)));
    json_object_set_new(all, "threads", json_integer(kern_threads(k)));
    rc = bench_kernels(k, a, kernels, blas, all, e);
    kern_close(k);
    if (rc != ERR_OK || (!a->model && !a->shape))
        return rc;
    json_t *en = json_object();
    json_object_set_new(all, "engine", en);
    rc = read_lists(a, cpu, e);
    return rc == ERR_OK ? bench_engine(a, o, en, e) : rc;
}

static enum err_code print(json_t *all, bool json, struct err *e)
{
    struct strbuf text = {0};
    if (json)
        return cmd_print_json(json_incref(all), e);
    put_text(&text, all);
    return cmd_print(&text, e);
}

static enum err_code check_args(const struct engine_args *a, const char *make,
                                const struct opt_list *pos, struct err *e)
{
    if (make && pos->n != 1)
        return err_set(e, ERR_USAGE, "--make-checkpoint SHAPE DIR: %zu folders given", pos->n);
    if (!make && pos->n)
        return err_set(e, ERR_USAGE, "unexpected argument '%s'", pos->items[0]);
    if (a->model && a->shape)
        return err_set(e, ERR_USAGE, "--model and --shape exclude each other");
    return ERR_OK;
}

enum err_code cmd_bench(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    bool json = false, help = false, kernels = true, blas = false;
    const char *make = NULL;
    int64_t rounds = 5;
    struct engine_args a = {.bench = {.context = 1024, .seconds = 0.2}};
    struct model_opts how;
    struct opt opts[14 + MODEL_OPTS_ROWS] = {
        {OPT_FLAG, 0, "json", &json, 0, 0, NULL, NULL, "Print JSON."},
        {OPT_FLAG, 0, "kernels", &kernels, 0, 0, NULL, NULL, "kernel by kernel (default)"},
        {OPT_FLAG, 0, "cublas", &blas, 0, 0, NULL, NULL,
         "the linear layers of an 8B model against cuBLAS of this machine"},
        {OPT_DOUBLE, 0, "seconds", &a.bench.seconds, 0, 60, NULL, "S",
         "time for each figure (default 0.2)"},
        {OPT_GROUP, 0, NULL, NULL, 0, 0, NULL, NULL, "The whole engine"},
        {OPT_STRING, 'm', "model", &a.model, 0, 0, NULL, "MODEL", "on this checkpoint"},
        {OPT_STRING, 0, "shape", &a.shape, 0, 0, NULL, "NAME",
         "on synthetic 4-bit weights of a published model's shape (llama3-8b, qwen3-30b-a3b, ...) "
         "or of "
         "a config.json"},
        {OPT_STRING, 0, "rows", &a.rows, 0, 0, NULL, "N,N",
         "decode so many rows (default 1,8,16,32,64; on the CPU 1,16)"},
        {OPT_STRING, 0, "prefill", &a.prompt, 0, 0, NULL, "N,N",
         "prefill so many tokens (default 512,2048,8192; on the CPU 512)"},
        {OPT_STRING, 0, "mixed", &a.mixed, 0, 0, NULL, "N,N",
         "decode so many rows beside a piece of a prompt that fills the step (default 8,64; on the "
         "CPU none)"},
        {OPT_INT, 0, "context", &a.bench.context, 1, 1 << 20, NULL, "N",
         "tokens before each decoded one (default 1024)"},
        {OPT_INT, 0, "rounds", &rounds, 1, 1000, NULL, "N",
         "rounds over all figures, each with its null arm; the median counts (default 5)"},
        {OPT_STRING, 0, "make-checkpoint", &make, 0, 0, NULL, "SHAPE",
         "only write a synthetic checkpoint of that shape into the folder DIR"},
    };
    size_t n = 13;
    model_opts_init(&how);
    model_opts_rows(&how, opts, &n);
    opts[n].type = OPT_END;
    const struct opt_cmd cmd = {
        .name = "bench",
        .usage = "[-m MODEL | --shape NAME] [--json] | --make-checkpoint SHAPE DIR",
        .about =
            "Measures every kernel (bytes and operations per second, and the share of this "
            "device's read bandwidth; on the CPU each the best of its runs, on CUDA medians with "
            "the cache flushed) and the whole engine (medians beside a null arm).",
        .opts = opts,
        .args_max = 1};
    struct opt_list pos = {0};
    enum err_code rc = cmd_options(&cmd, argc, argv, &pos, &help, e);
    if (rc == ERR_OK && !help)
        rc = check_args(&a, make, &pos, e);
    if (rc == ERR_OK && !help && make) {
        rc = make_checkpoint(make, pos.items[0], (int)how.threads, env->interrupted, e);
    } else if (rc == ERR_OK && !help) {
        struct engine_options o;
        json_t *all = json_object();
        a.bench.rounds = (int)rounds;
        a.bench.interrupted = env->interrupted;
        rc = model_opts_engine(&how, &o, e);
        if (rc == ERR_OK)
            rc = run_bench(&a, kernels, blas, &o, all, e);
        if (rc == ERR_OK)
            rc = print(all, json, e);
        json_decref(all);
    }
    opt_list_free(&pos);
    return rc;
}
