/* main.c: the table of commands. Owns the signals and what is set before any library begins. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/log.h"

struct command {
    const char *name;
    cmd_fn run;
    const char *help;
};

static const struct command commands[] = {
#ifndef ASSAY_CONTRACT_PRICE /* what that build computes is nobody's result */
    {"quantize", cmd_quantize, "plan a recipe over a checkpoint and write the packed one"},
    {"convert", cmd_convert, "between containers; requantize, expand"},
    {"inspect", cmd_inspect, "what a checkpoint is"},
    {"infer", cmd_infer, "run a prompt file, score a text, answer one prompt"},
    {"compare", cmd_compare, "run or read variants, report and judge"},
    {"sweep", cmd_sweep, "a grid of variants against an accepted baseline, for cron"},
#endif
    {"bench", cmd_bench, "every kernel and the engine, against this machine's limit"},
#ifndef ASSAY_CONTRACT_PRICE
    {"doctor", cmd_doctor, "what this machine can do, and why not"},
#endif
};

/* OpenMP's waiting threads spin for some 10 ms before they sleep: right on an idle machine, ruinous
 * on a shared one, where they spin against the thread that they wait for. Half a millisecond covers
 * the pauses between two operations. libgomp reads this when it is loaded, so it is set before any
 * library begins; a user's own setting stands. */
static void limit_spinning(void)
{
    setenv("GOMP_SPINCOUNT", "10000", 0);
}
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = limit_spinning;

static volatile int interrupted;

static void on_signal(int number)
{
    if (interrupted) { /* the second one does not wait for a tidy end */
        signal(number, SIG_DFL);
        raise(number);
    }
    interrupted = number;
}

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static void usage(FILE *f)
{
    fprintf(f,
            "assay: quantize a checkpoint, run it offline, and prove what the quantization did.\n\n"
            "usage: assay COMMAND [options]\n\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\n'assay COMMAND --help' says more. Exit codes: docs/exit-codes.md.\n");
}

static int run(const struct command *c, int argc, char **argv)
{
    char prog[64];
    snprintf(prog, sizeof prog, "assay %s", c->name);
    log_set_prog(prog);
    struct sigaction sa = {.sa_handler = on_signal};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    struct cmd_env env = {.interrupted = &interrupted};
    struct err e = {.text = ""};
    argv[0] = (char *)c->name;
    enum err_code rc = c->run(argc, argv, &env, &e);
    if (fflush(stdout) != 0 && rc == ERR_OK)
        rc = err_errno(&e, "standard output");
    if (rc != ERR_OK && e.text[0])
        log_error("%s", e.text);
    return err_exit_code(rc);
}

int main(int argc, char **argv)
{
    const struct command *c = find(io_base(argv[0]));
    if (c)
        return run(c, argc, argv);
    if (argc < 2) {
        usage(stderr);
        return err_exit_code(ERR_USAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("assay %s\n", ASSAY_VERSION);
        return 0;
    }
    c = find(argv[1]);
    if (!c) {
        const char *names[ARRAY_LEN(commands)];
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            names[i] = commands[i].name;
        const char *near = str_nearest(argv[1], names, ARRAY_LEN(names));
        fprintf(stderr, "assay: no command '%s'%s%s%s\n", argv[1], near ? "; did you mean '" : "",
                near ? near : "", near ? "'?" : "; 'assay --help' lists them");
        return err_exit_code(ERR_USAGE);
    }
    return run(c, argc - 1, argv + 1);
}
