/* cmd_inspect.c: `assay inspect`. */
#include <stdio.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/opt.h"
#include "common/str.h"
#include "convert/inspect.h"
#include "convert/inspect_trace.h"

/* A file that opens as tensors is shown as that; otherwise *e stays what the checkpoint said. */
static enum err_code facts_of_file(const char *path, bool hash, json_t **facts, struct err *e)
{
    struct container *file = NULL;
    if (io_is_dir(path) || container_open(&file, path, NULL) != ERR_OK)
        return ERR_INPUT;
    char why[ERR_TEXT_MAX];
    snprintf(why, sizeof why, "%s", e->text);
    enum err_code rc = inspect_container(file, why, hash, facts, e);
    container_close(file);
    return rc;
}

static enum err_code show_trace(const char *path, bool json, struct err *e)
{
    struct trace *t = NULL;
    json_t *facts = NULL;
    struct strbuf text = {0};
    enum err_code rc = trace_read(&t, path, e);
    if (rc == ERR_OK)
        rc = inspect_trace(t, io_base(path), &facts, e);
    if (rc == ERR_OK && json) {
        rc = cmd_print_json(json_incref(facts), e);
    } else if (rc == ERR_OK) {
        inspect_trace_text(facts, &text);
        rc = cmd_print(&text, e);
    }
    json_decref(facts);
    trace_free(t);
    return rc;
}

static enum err_code show(const char *path, const struct inspect_options *o, bool json,
                          struct err *e)
{
    struct checkpoint *c = NULL;
    json_t *facts = NULL;
    struct strbuf text = {0};
    const bool config = str_ends(path, ".json") && !io_is_dir(path);
    enum err_code rc = config ? inspect_config(path, &facts, e) : checkpoint_open(&c, path, e);
    if (rc == ERR_OK && !config)
        rc = inspect_checkpoint(c, o, &facts, e);
    else if (!config && rc == ERR_INPUT)
        rc = facts_of_file(path, o->hashes, &facts, e);
    if (rc == ERR_OK && json) {
        rc = cmd_print_json(json_incref(facts), e);
    } else if (rc == ERR_OK) {
        inspect_text(facts, &text);
        rc = cmd_print(&text, e);
    }
    json_decref(facts);
    checkpoint_close(c);
    return rc;
}

enum err_code cmd_inspect(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    struct inspect_options o = {.interrupted = env->interrupted};
    bool json = false, help = false;
    const struct opt opts[] = {
        {OPT_FLAG, 0, "json", &json, 0, 0, NULL, NULL, "Print JSON."},
        {OPT_FLAG, 0, "hash", &o.hashes, 0, 0, NULL, NULL, "Also the SHA-256 of every file."},
        {OPT_FLAG, 0, "grid", &o.grids, 0, 0, NULL, NULL,
         "Look at all of every float matrix for a grid, not at some rows."},
        {.type = OPT_END},
    };
    const struct opt_cmd cmd = {
        .name = "inspect",
        .usage = "PATH",
        .about =
            "Says what a checkpoint is: family, hyperparameters, tensors with their formats, "
            "bytes by role, where it came from; whether float matrices lie on a grid. PATH is a "
            "folder, a GGUF, a safetensors file, "
            "an archive or archive:member, a trace of a run, or a config.json alone, whose tensors "
            "are listed as bf16. A family that cannot be run is listed all the same.",
        .opts = opts,
        .args_min = 1,
        .args_max = 1};
    struct opt_list pos = {0};
    enum err_code rc = cmd_options(&cmd, argc, argv, &pos, &help, e);
    if (rc == ERR_OK && !help) {
        rc = trace_is(pos.items[0]) ? show_trace(pos.items[0], json, e)
                                    : show(pos.items[0], &o, json, e);
    }
    opt_list_free(&pos);
    return rc;
}
