/* opt.h: one table of options per command makes its parser, its help and its completion.
 *
 * Bad usage is ERR_USAGE with one line that names the option and the nearest valid one.
 */
#ifndef ASSAY_COMMON_OPT_H
#define ASSAY_COMMON_OPT_H

#include "common/err.h"
#include "common/str.h"

enum opt_type {
    OPT_FLAG,   /* bool *; --name and --no-name */
    OPT_STRING, /* const char ** */
    OPT_INT,    /* int64_t *, in [lo, hi] */
    OPT_DOUBLE, /* double *, in [lo, hi] */
    OPT_CHOICE, /* int *; `choices` is a NULL-ended list, the value is the index */
    OPT_LIST,   /* struct opt_list *; may be given again and again */
    OPT_GROUP,  /* a heading in the help; `help` is its text */
    OPT_END
};

struct opt_list {
    const char **items; /* heap; opt_list_free */
    size_t n;
};

struct opt {
    enum opt_type type;
    char letter;      /* 0: none */
    const char *name; /* without dashes */
    void *out;
    double lo, hi;
    const char *const *choices;
    const char *arg;  /* "FILE", "N" */
    const char *help; /* one sentence; the default is said in it */
};

struct opt_cmd {
    const char *name;     /* "quantize" */
    const char *usage;    /* "MODEL -o OUT --recipe R" */
    const char *about;    /* two or three sentences */
    const char *examples; /* lines, or NULL */
    const struct opt *opts;
    int args_min, args_max; /* positional arguments; max -1: any number */
};

/* Parses argv[1..]. Positionals are collected in *args (borrowed strings, heap array inside).
 * *help is set when --help was given: the caller prints opt_help and returns 0. `given`, when not
 * NULL, gets one bool per option of the table: was it on the command line. */
MUST_USE enum err_code opt_parse(const struct opt_cmd *cmd, int argc, char **argv,
                                 struct opt_list *args, bool *help, bool *given, struct err *e);
void opt_help(const struct opt_cmd *cmd, struct strbuf *out);
/* Words of a bash completion for this command. */
void opt_complete(const struct opt_cmd *cmd, struct strbuf *out);
/* The options of a parsed table whose values are not those of `defaults`, a table of the same rows,
 * as words of a command line, each with a blank before it: " --exact --prompts p.jsonl". Files and
 * folders by their base names. Names in `skip` (NULL-ended) are left out. */
void opt_words(const struct opt *opts, const struct opt *defaults, const char *const *skip,
               struct strbuf *out);
void opt_list_free(struct opt_list *l);

#endif
