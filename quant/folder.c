/* folder.c: the files beside the tensors. */
#include "quant/folder.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/io.h"

static json_t *format_entry(struct qformat q)
{
    return json_pack("{s:i,s:i,s:s}", "group_size", q.group, "bits", q.bits, "mode",
                     qformat_mode(q));
}

/* mlx-lm reads its defaults from the root of the block and then looks up every module path. */
static enum err_code quantization_block(const struct plan *p, json_t **out, struct err *e)
{
    struct qformat root;
    *out = NULL;
    if (!plan_root_format(p, &root))
        return ERR_OK;
    json_t *block = format_entry(root);
    int bad = block ? 0 : 1;
    for (size_t i = 0; i < p->n_items && !bad; i++) {
        char module[CKPT_NAME_MAX];
        if (!p->items[i].packed)
            continue;
        enum err_code rc = pack_name(p, &p->items[i], module, e);
        if (rc != ERR_OK) {
            json_decref(block);
            return rc;
        }
        bad |= json_object_set_new(block, module, format_entry(p->items[i].q));
    }
    if (bad) {
        json_decref(block);
        return err_set(e, ERR_NOMEM, "out of memory: config.json");
    }
    *out = block;
    return ERR_OK;
}

enum err_code folder_config(const struct plan *p, const char *torch_dtype, json_t **out,
                            struct err *e)
{
    json_t *block = NULL;
    *out = NULL;
    enum err_code rc = quantization_block(p, &block, e);
    if (rc != ERR_OK)
        return rc;
    json_t *config = p->ckpt->config ? json_deep_copy(p->ckpt->config) : json_object();
    int bad = config ? 0 : 1;
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    if (torch_dtype && !bad) {
        const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
        bad |= json_object_set_new(config, key, json_string(torch_dtype));
    }
    if (block && !bad) {
        bad |= json_object_set(config, "quantization", block);
        bad |= json_object_set_new(config, "quantization_config", json_deep_copy(block));
    }
    json_decref(block);
    if (bad) {
        json_decref(config);
        return err_set(e, ERR_NOMEM, "out of memory: config.json");
    }
    *out = config;
    return ERR_OK;
}

static enum err_code put_text(const char *dir, const char *name, const char *text, size_t len,
                              struct folder_files *files, struct err *e)
{
    struct pack_file *f = &files->file[files->n];
    uint8_t digest[32];
    char *path = io_join(dir, name);
    enum err_code rc =
        path ? io_write_all(path, text, len, false, e) : err_set(e, ERR_NOMEM, "out of memory");
    free(path);
    if (rc != ERR_OK)
        return rc;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->bytes = len;
    sha256_of(text, len, digest);
    sha256_hex(digest, f->sha256);
    files->n++;
    return ERR_OK;
}

static enum err_code put_json(const char *dir, const char *name, const json_t *v,
                              struct folder_files *files, struct err *e)
{
    struct strbuf text = {0};
    json_put(&text, v, JSON_INDENT(2));
    strbuf_putc(&text, '\n');
    enum err_code rc = strbuf_ok(&text, e);
    if (rc == ERR_OK)
        rc = put_text(dir, name, text.data, text.len, files, e);
    strbuf_free(&text);
    return rc;
}

enum err_code folder_write(const struct plan *p, const char *torch_dtype, const char *dir,
                           struct folder_files *files, struct err *e)
{
    const struct checkpoint *c = p->ckpt;
    json_t *config = NULL;
    files->n = 0;
    enum err_code rc = folder_config(p, torch_dtype, &config, e);
    if (rc == ERR_OK)
        rc = put_json(dir, "config.json", config, files, e);
    json_decref(config);
    if (rc == ERR_OK && c->generation)
        rc = put_json(dir, "generation_config.json", c->generation, files, e);
    if (rc == ERR_OK && c->tokenizer_json)
        rc = put_text(dir, "tokenizer.json", c->tokenizer_json, c->tokenizer_len, files, e);
    if (rc == ERR_OK && c->tokenizer_config)
        rc = put_json(dir, "tokenizer_config.json", c->tokenizer_config, files, e);
    if (rc == ERR_OK && c->chat_template)
        rc = put_text(dir, "chat_template.jinja", c->chat_template, strlen(c->chat_template), files,
                      e);
    return rc;
}
