/* cmd.h: the entry point of every command. Only main.c and the cmd_*.c files include it. */
#ifndef ASSAY_COMMON_CMD_H
#define ASSAY_COMMON_CMD_H

#include "common/json.h"
#include "common/opt.h"

/* What main.c knows of the world outside: signals. */
struct cmd_env {
    const volatile int *interrupted; /* set by SIGINT and SIGTERM to the signal's number */
};

/* argv[0] is the command's name. Returns ERR_OK or another code with its text in *e; main.c prints
 * the text and maps the code to the exit code. */
typedef enum err_code (*cmd_fn)(int argc, char **argv, const struct cmd_env *env, struct err *e);

/* Parses; with --help prints the help and sets *help: the command is done then. So does --complete
 * alone, with the words for docs/completion.bash. */
MUST_USE enum err_code cmd_options(const struct opt_cmd *cmd, int argc, char **argv,
                                   struct opt_list *args, bool *help, struct err *e);
/* Writes the text to standard output and frees it, whatever happens. */
MUST_USE enum err_code cmd_print(struct strbuf *text, struct err *e);
/* The same for a JSON value, indented; v is taken and may be NULL (out of memory). */
MUST_USE enum err_code cmd_print_json(json_t *v, struct err *e);

enum err_code cmd_quantize(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_convert(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_inspect(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_infer(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_compare(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_sweep(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_bench(int argc, char **argv, const struct cmd_env *env, struct err *e);
enum err_code cmd_doctor(int argc, char **argv, const struct cmd_env *env, struct err *e);

#endif
