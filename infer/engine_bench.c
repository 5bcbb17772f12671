/* engine_bench.c: figures, arms and rounds. */
#include "infer/engine_bench.h"

#include <stdlib.h>

#include "common/log.h"
#include "common/rng.h"
#include "common/stats.h"
#include "infer/kv.h"

#define STEPS_MAX 4096 /* of one arm */

enum what { DECODE, PREFILL, MIXED };
static const char *const names[] = {"decode", "prefill", "mixed"};

struct figure {
    enum what what;
    int rows;       /* that decode */
    int64_t tokens; /* of the prompt, or of its piece; of the context without one */
    int steps;      /* of one arm, found before the first round */
    double *arm[2]; /* seconds of a step in each round; the second arm is the null arm */
};

struct bench {
    struct engine *en;
    const struct engine_bench *b;
    struct figure *figures;
    int n_figures;
    int32_t *ids;   /* of the longest prompt */
    int32_t *pages; /* [sequences][per_seq] */
    int per_seq;
    int64_t beside; /* first page that no decoding sequence has */
    struct step_piece *pieces;
};

static int most_rows(const struct engine_bench *b)
{
    int n = 1;
    for (int i = 0; i < b->n_rows; i++)
        n = MAX2(n, (int)b->rows[i]);
    for (int i = 0; i < b->n_mixed; i++)
        n = MAX2(n, (int)b->mixed[i]);
    return n;
}

static bool decodes(const struct engine_bench *b)
{
    return b->n_rows || b->n_mixed;
}

/* Tokens of the longest sequence. */
static int64_t most_tokens(const struct engine_bench *b)
{
    int64_t n = decodes(b) ? b->context + 1 : 1;
    for (int i = 0; i < b->n_prompt; i++)
        n = MAX2(n, b->prompt[i]);
    return n;
}

/* Pages of one sequence while decoding; a prompt may take those of its neighbours. */
static int64_t decode_pages(const struct engine_bench *b)
{
    return decodes(b) ? kv_pages_for(b->context + 1) : 1;
}

/* Tokens of the prompt in a mixed step; engines of fewer rows than sequences do not exist. */
static int64_t piece_tokens(const struct engine_bench *b, int batch_tokens, int64_t rows)
{
    return MIN2(MAX2((int64_t)batch_tokens - rows, (int64_t)1), most_tokens(b));
}

void engine_bench_options(const struct engine_bench *b, struct engine_options *o)
{
    int64_t pages = MAX2(decode_pages(b) * most_rows(b), kv_pages_for(most_tokens(b)));
    const int beside = b->n_mixed > 0; /* a sequence more */
    o->batch_seqs = most_rows(b) + beside;
    o->out_rows = most_rows(b) + beside;
    o->ctx = most_tokens(b);
    o->batch_tokens = MAX2(o->batch_tokens ? o->batch_tokens : 512, most_rows(b) + beside);
    if (beside)
        pages += kv_pages_for(most_tokens(b));
    o->kv_tokens = pages * KERN_PAGE;
}

/* ---- what is timed ----------------------------------------------------------------------------
 */
static enum err_code run_step(struct bench *b, int n_pieces, struct err *e)
{
    struct step s = {.pieces = b->pieces, .n_pieces = n_pieces};
    if (b->b->interrupted && *b->b->interrupted)
        return err_set(e, ERR_INTERRUPTED, "interrupted");
    return engine_step(b->en, &s, e);
}

/* One token of each sequence, at the same position every time; the piece of a prompt behind them.
 */
static enum err_code decode_step(struct bench *b, const struct figure *f, struct err *e)
{
    for (int i = 0; i < f->rows; i++)
        b->pieces[i] = (struct step_piece){.ids = b->ids + i,
                                           .n = 1,
                                           .pos = b->b->context,
                                           .pages = b->pages + (ptrdiff_t)i * b->per_seq,
                                           .n_pages = b->per_seq};
    if (f->what == DECODE)
        return run_step(b, f->rows, e);
    b->pieces[f->rows] = (struct step_piece){.ids = b->ids,
                                             .n = (int)f->tokens,
                                             .pages = b->pages + b->beside,
                                             .n_pages = (int)kv_pages_for(f->tokens),
                                             .out_from = (int)f->tokens - 1};
    return run_step(b, f->rows + 1, e);
}

/* A prompt in steps as long as the engine takes; the last token gives logits. */
static enum err_code prefill(struct bench *b, int64_t tokens, int seq, struct err *e)
{
    const int most = engine_get_plan(b->en)->batch_tokens;
    enum err_code rc = ERR_OK;
    for (int64_t at = 0; rc == ERR_OK && at < tokens; at += most) {
        int n = (int)MIN2(tokens - at, (int64_t)most);
        bool last = at + n == tokens;
        b->pieces[0] = (struct step_piece){.ids = b->ids + at,
                                           .n = n,
                                           .pos = at,
                                           .pages = b->pages + (ptrdiff_t)seq * b->per_seq,
                                           .n_pages = (int)kv_pages_for(tokens),
                                           .out_from = last ? n - 1 : n};
        rc = run_step(b, 1, e);
    }
    return rc;
}

static enum err_code run_once(struct bench *b, const struct figure *f, struct err *e)
{
    return f->what == PREFILL ? prefill(b, f->tokens, 0, e) : decode_step(b, f, e);
}

static enum err_code time_arm(struct bench *b, const struct figure *f, int steps, double *seconds,
                              struct err *e)
{
    enum err_code rc = ERR_OK;
    uint64_t start = clock_ns();
    for (int i = 0; rc == ERR_OK && i < steps; i++)
        rc = run_once(b, f, e);
    *seconds = (double)(clock_ns() - start) * 1e-9 / steps;
    return rc;
}

/* ---- rounds -----------------------------------------------------------------------------------
 */

/* Every sequence gets its context, so that decoding reads what a prompt has written. */
static enum err_code fill_context(struct bench *b, struct err *e)
{
    enum err_code rc = ERR_OK;
    for (int i = 0; rc == ERR_OK && decodes(b->b) && i < most_rows(b->b); i++)
        rc = prefill(b, b->b->context, i, e);
    return rc;
}

/* Runs a figure until it is warm and says how many steps an arm needs. */
static enum err_code choose_steps(struct bench *b, struct figure *f, struct err *e)
{
    double seconds = 0;
    enum err_code rc = run_once(b, f, e);
    if (rc == ERR_OK)
        rc = time_arm(b, f, 1, &seconds, e);
    double wanted = b->b->seconds / MAX2(seconds, 1e-9);
    f->steps = wanted > STEPS_MAX ? STEPS_MAX : MAX2((int)wanted, 1);
    return rc;
}

static enum err_code run_rounds(struct bench *b, struct err *e)
{
    enum err_code rc = fill_context(b, e);
    for (int i = 0; rc == ERR_OK && i < b->n_figures; i++)
        rc = choose_steps(b, &b->figures[i], e);
    for (int round = 0; round < b->b->rounds; round++) {
        for (int i = 0; i < b->n_figures; i++) {
            struct figure *f = &b->figures[i];
            for (int arm = 0; rc == ERR_OK && arm < 2; arm++)
                rc = time_arm(b, f, f->steps, &f->arm[(arm + round) % 2][round], e);
        }
    }
    return rc;
}

/* ---- making and saying ------------------------------------------------------------------------
 */
/* Figure i of all: decode, then prefill, then mixed. */
static void set_figure(const struct bench *b, struct figure *f, int i)
{
    const int prompt = i - b->b->n_rows, mixed = prompt - b->b->n_prompt;
    *f = (struct figure){.what = prompt < 0 ? DECODE : mixed < 0 ? PREFILL : MIXED};
    if (f->what == DECODE) {
        f->rows = (int)b->b->rows[i];
        f->tokens = b->b->context;
    } else if (f->what == PREFILL) {
        f->tokens = b->b->prompt[prompt];
    } else {
        f->rows = (int)b->b->mixed[mixed];
        f->tokens = piece_tokens(b->b, engine_get_plan(b->en)->batch_tokens, f->rows);
    }
}

static enum err_code make_bench(struct bench *b, struct err *e)
{
    const int64_t n_vocab = engine_hparams(b->en)->n_vocab;
    const int rows = most_rows(b->b), rounds = b->b->rounds;
    const int64_t n_pages = engine_get_plan(b->en)->pages;
    const int64_t n_ids = MAX2(most_tokens(b->b), (int64_t)rows);
    struct rng r = {.seed = 1};
    b->per_seq = (int)decode_pages(b->b);
    b->beside = n_pages - kv_pages_for(most_tokens(b->b));
    b->n_figures = b->b->n_rows + b->b->n_prompt + b->b->n_mixed;
    b->figures = calloc((size_t)b->n_figures + 1, sizeof *b->figures);
    b->ids = malloc((size_t)n_ids * sizeof *b->ids);
    b->pages = malloc((size_t)n_pages * sizeof *b->pages);
    b->pieces = calloc((size_t)rows + 1, sizeof *b->pieces);
    if (!b->figures || !b->ids || !b->pages || !b->pieces)
        return err_set(e, ERR_NOMEM, "out of memory for %d figures", b->n_figures);
    for (int i = 0; i < b->n_figures; i++) {
        struct figure *f = &b->figures[i];
        set_figure(b, f, i);
        for (int arm = 0; arm < 2; arm++) {
            f->arm[arm] = calloc((size_t)rounds, sizeof *f->arm[arm]);
            if (!f->arm[arm])
                return err_set(e, ERR_NOMEM, "out of memory for %d rounds", rounds);
        }
    }
    for (int64_t i = 0; i < n_ids; i++)
        b->ids[i] = (int32_t)rng_below(&r, (uint64_t)n_vocab);
    for (int64_t i = 0; i < n_pages; i++)
        b->pages[i] = (int32_t)i;
    return ERR_OK;
}

static void free_bench(struct bench *b)
{
    for (int i = 0; b->figures && i < b->n_figures; i++) {
        free(b->figures[i].arm[0]);
        free(b->figures[i].arm[1]);
    }
    free(b->figures);
    free(b->ids);
    free(b->pages);
    free(b->pieces);
}

static json_t *say_figure(const struct figure *f, int rounds, int64_t context)
{
    const size_t n = (size_t)rounds;
    stats_sort(f->arm[0], n);
    stats_sort(f->arm[1], n);
    double s = stats_quantile(f->arm[0], n, 0.5), null = stats_quantile(f->arm[1], n, 0.5);
    double tokens = f->what == DECODE ? f->rows : (double)(f->rows + f->tokens);
    json_t *o = json_pack("{s:s, s:I}", "what", names[f->what],
                          f->what == DECODE ? "context" : "tokens", (json_int_t)f->tokens);
    if (f->what != PREFILL)
        json_object_set_new(o, "rows", json_integer(f->rows));
    if (f->what == MIXED)
        json_object_set_new(o, "context", json_integer((json_int_t)context));
    json_object_set_new(o, "tok_per_s", json_real(tokens / s));
    json_object_set_new(o, "seconds", json_real(s));
    json_object_set_new(o, "null_seconds", json_real(null));
    json_object_set_new(o, "null_ratio", json_real(null / s));
    json_object_set_new(o, "low_seconds", json_real(f->arm[0][0]));
    json_object_set_new(o, "high_seconds", json_real(f->arm[0][n - 1]));
    json_object_set_new(o, "rounds", json_integer(rounds));
    json_object_set_new(o, "steps", json_integer(f->steps));
    return o;
}

enum err_code engine_bench_run(struct engine *en, const struct engine_bench *options, json_t **out,
                               struct err *e)
{
    struct bench b = {.en = en, .b = options};
    *out = NULL;
    enum err_code rc = make_bench(&b, e);
    if (rc == ERR_OK)
        rc = run_rounds(&b, e);
    json_t *list = rc == ERR_OK ? json_array() : NULL;
    for (int i = 0; list && i < b.n_figures; i++)
        json_array_append_new(list, say_figure(&b.figures[i], options->rounds, options->context));
    if (rc == ERR_OK && !list)
        rc = err_set(e, ERR_NOMEM, "out of memory for the figures");
    free_bench(&b);
    *out = list;
    return rc;
}
