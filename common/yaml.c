/* yaml.c: the three passes over a text.
 *
 * 1. Events: bounds and syntax, so that nothing later sees an alias or a deep nest.
 * 2. The document's tree beside the schema: keys that are unknown or come twice, numbers that are
 *    none, values that are none of an enumeration, said with their own line and what would have
 *    been right. libcyaml is laxer and knows only the place of the value before.
 * 3. libcyaml fills the structs; its log becomes the error's text.
 */
#include "common/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yaml.h>

#include "common/io_private.h"

#define DEPTH_MAX  32
#define EVENTS_MAX 100000
#define KEYS_MAX   256 /* names of one mapping or enumeration that an error offers */

struct text {
    const char *bytes, *name;
    size_t len;
    struct err *e;
};

static enum err_code fault(const struct text *t, yaml_mark_t at, const char *what)
{
    return err_set(t->e, ERR_INPUT, "%s: line %zu, column %zu: %s", t->name, at.line + 1,
                   at.column + 1, what);
}

static enum err_code parser_fault(const struct text *t, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR)
        return err_set(t->e, ERR_NOMEM, "%s: out of memory: reading YAML", t->name);
    if (p->error == YAML_READER_ERROR)
        return err_set(t->e, ERR_INPUT, "%s: byte %zu: %s", t->name, p->problem_offset,
                       p->problem ? p->problem : "unreadable");
    return fault(t, p->problem_mark, p->problem ? p->problem : "no YAML");
}

static enum err_code start_parser(const struct text *t, yaml_parser_t *p)
{
    if (io_fault_hit(IO_FAULT_ALLOC) || !yaml_parser_initialize(p))
        return err_set(t->e, ERR_NOMEM, "%s: out of memory: reading YAML", t->name);
    yaml_parser_set_input_string(p, (const unsigned char *)t->bytes, t->len);
    yaml_parser_set_encoding(p, YAML_UTF8_ENCODING);
    return ERR_OK;
}

static bool has_anchor(const yaml_event_t *ev)
{
    switch (ev->type) {
    case YAML_ALIAS_EVENT:
        return true;
    case YAML_SCALAR_EVENT:
        return ev->data.scalar.anchor != NULL;
    case YAML_SEQUENCE_START_EVENT:
        return ev->data.sequence_start.anchor != NULL;
    case YAML_MAPPING_START_EVENT:
        return ev->data.mapping_start.anchor != NULL;
    default:
        return false;
    }
}

static enum err_code check_event(const struct text *t, const yaml_event_t *ev, int *depth,
                                 int *documents)
{
    if (has_anchor(ev))
        return fault(t, ev->start_mark, "anchors and aliases are not supported");
    switch (ev->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents > 1)
            return fault(t, ev->start_mark, "a second document, expected one");
        break;
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (++*depth > DEPTH_MAX)
            return fault(t, ev->start_mark, "nested deeper than 32 levels");
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        --*depth;
        break;
    default:
        break;
    }
    return ERR_OK;
}

static enum err_code check_events(const struct text *t)
{
    yaml_parser_t p;
    enum err_code rc = start_parser(t, &p);
    if (rc != ERR_OK)
        return rc;
    int depth = 0, documents = 0;
    bool end = false;
    for (int n = 0; rc == ERR_OK && !end; n++) {
        yaml_event_t ev;
        if (!yaml_parser_parse(&p, &ev)) {
            rc = parser_fault(t, &p);
            break;
        }
        rc = n < EVENTS_MAX ? check_event(t, &ev, &depth, &documents)
                            : fault(t, ev.start_mark, "more than 100000 values");
        end = ev.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&ev);
    }
    yaml_parser_delete(&p);
    if (rc == ERR_OK && documents == 0)
        rc = err_set(t->e, ERR_INPUT, "%s: is empty", t->name);
    return rc;
}

/* The tree of the one document; release with yaml_document_delete. */
static enum err_code load_tree(const struct text *t, yaml_document_t *doc)
{
    if (t->len > YAML_BYTES_MAX)
        return err_set(t->e, ERR_INPUT, "%s: %zu bytes, expected at most %zu", t->name, t->len,
                       YAML_BYTES_MAX);
    enum err_code rc = check_events(t);
    if (rc != ERR_OK)
        return rc;
    yaml_parser_t p;
    rc = start_parser(t, &p);
    if (rc != ERR_OK)
        return rc;
    if (!yaml_parser_load(&p, doc))
        rc = parser_fault(t, &p);
    yaml_parser_delete(&p);
    return rc;
}

static const char *scalar(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static enum err_code unknown_key(const struct text *t, const yaml_node_t *key,
                                 const cyaml_schema_field_t *fields)
{
    const char *names[KEYS_MAX] = {NULL}, *text = scalar(key);
    size_t n = 0;
    struct strbuf b = {0};
    for (; fields[n].key && n < KEYS_MAX; n++)
        names[n] = fields[n].key;
    const char *near = str_nearest(text, names, n);
    strbuf_printf(&b, "unknown key '%.100s'", text);
    if (near)
        strbuf_printf(&b, "; did you mean '%s'?", near);
    else
        strbuf_puts(&b, "; known are");
    for (size_t i = 0; !near && i < n; i++)
        strbuf_printf(&b, "%s %s", i ? "," : "", names[i]);
    enum err_code rc = strbuf_ok(&b, t->e);
    if (rc == ERR_OK)
        rc = fault(t, key->start_mark, b.data);
    strbuf_free(&b);
    return rc;
}

static enum err_code check_enum(const struct text *t, const yaml_node_t *node,
                                const cyaml_schema_value_t *schema)
{
    const char *text = scalar(node);
    const char *names[KEYS_MAX];
    size_t n = MIN2(schema->enumeration.count, (uint32_t)KEYS_MAX);
    if (!text || !(schema->flags & CYAML_FLAG_STRICT))
        return ERR_OK;
    for (size_t i = 0; i < n; i++) {
        names[i] = schema->enumeration.strings[i].str;
        if (strcmp(names[i], text) == 0)
            return ERR_OK;
    }
    struct strbuf b = {0};
    strbuf_printf(&b, "found '%.100s', expected one of", text);
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&b, "%s %s", i ? "," : "", names[i]);
    const char *near = str_nearest(text, names, n);
    if (near)
        strbuf_printf(&b, "; did you mean '%s'?", near);
    enum err_code rc = strbuf_ok(&b, t->e);
    if (rc == ERR_OK)
        rc = fault(t, node->start_mark, b.data);
    strbuf_free(&b);
    return rc;
}

/* libcyaml would read "4x" as 4, "010" as 8 and "maybe" as true. */
static enum err_code check_number(const struct text *t, const yaml_node_t *node,
                                  const cyaml_schema_value_t *schema)
{
    const char *text = scalar(node);
    unsigned bits = 8 * MIN2(schema->data_size, 8u);
    int64_t i;
    double d;
    if (!text || bits == 0)
        return ERR_OK;
    char what[200];
    int64_t hi = (int64_t)(UINT64_MAX >> 1 >> (64 - bits));
    if (schema->type == CYAML_INT && !str_to_i64(text, -hi - 1, hi, &i))
        snprintf(what, sizeof what, "found '%.80s', expected an integer of %u bits", text, bits);
    else if (schema->type == CYAML_UINT &&
             !str_to_i64(text, 0, bits < 64 ? (int64_t)(UINT64_MAX >> (64 - bits)) : INT64_MAX, &i))
        snprintf(what, sizeof what, "found '%.80s', expected an integer from 0, of %u bits", text,
                 bits);
    else if (schema->type == CYAML_FLOAT && !str_to_double(text, &d))
        snprintf(what, sizeof what, "found '%.80s', expected a number", text);
    else if (schema->type == CYAML_BOOL && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        snprintf(what, sizeof what, "found '%.80s', expected true or false", text);
    else
        return ERR_OK;
    return fault(t, node->start_mark, what);
}

static enum err_code check_node(const struct text *t, yaml_document_t *doc, yaml_node_t *node,
                                const cyaml_schema_value_t *schema);

/* Quadratic in the keys before the first unknown or repeated one, so in the schema's fields. */
static enum err_code check_twice(const struct text *t, yaml_document_t *doc,
                                 const yaml_node_pair_t *start, const yaml_node_pair_t *at)
{
    const yaml_node_t *key = yaml_document_get_node(doc, at->key);
    for (const yaml_node_pair_t *p = start; p < at; p++) {
        const yaml_node_t *other = yaml_document_get_node(doc, p->key);
        if (strcmp(scalar(other), scalar(key)) != 0)
            continue;
        char what[160];
        snprintf(what, sizeof what, "key '%.80s' again, first on line %zu", scalar(key),
                 other->start_mark.line + 1);
        return fault(t, key->start_mark, what);
    }
    return ERR_OK;
}

static enum err_code check_mapping(const struct text *t, yaml_document_t *doc, yaml_node_t *node,
                                   const cyaml_schema_field_t *fields)
{
    const yaml_node_pair_t *start = node->data.mapping.pairs.start;
    enum err_code rc = ERR_OK;
    for (const yaml_node_pair_t *p = start; rc == ERR_OK && p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(doc, p->key);
        if (!scalar(key))
            return fault(t, key->start_mark, "a key that is no plain word");
        rc = check_twice(t, doc, start, p);
        const cyaml_schema_field_t *f = fields;
        while (f->key && strcmp(f->key, scalar(key)) != 0)
            f++;
        if (rc == ERR_OK)
            rc = f->key ? check_node(t, doc, yaml_document_get_node(doc, p->value), &f->value)
                        : unknown_key(t, key, fields);
    }
    return rc;
}

/* A node of another kind than the schema's is left to libcyaml, which says so itself. The depth of
 * the recursion is that of the text, DEPTH_MAX at most. */
static enum err_code check_node(const struct text *t, yaml_document_t *doc, yaml_node_t *node,
                                const cyaml_schema_value_t *schema)
{
    enum err_code rc = ERR_OK;
    if (schema->type == CYAML_ENUM)
        return check_enum(t, node, schema);
    if (node->type == YAML_SCALAR_NODE)
        return check_number(t, node, schema);
    if (schema->type == CYAML_MAPPING && node->type == YAML_MAPPING_NODE)
        return check_mapping(t, doc, node, schema->mapping.fields);
    if ((schema->type == CYAML_SEQUENCE || schema->type == CYAML_SEQUENCE_FIXED) &&
        node->type == YAML_SEQUENCE_NODE) {
        const yaml_node_item_t *i = node->data.sequence.items.start;
        for (; rc == ERR_OK && i < node->data.sequence.items.top; i++)
            rc = check_node(t, doc, yaml_document_get_node(doc, *i), schema->sequence.entry);
    }
    return rc;
}

/* ---- libcyaml ------------------------------------------------------------------------------- */

/* The first message and the innermost line of the backtrace that follows it. */
struct messages {
    char what[256], where[256];
    int n;
};

static void on_message(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
    PRINTF_LIKE(3, 0);
static void on_message(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    struct messages *m = ctx;
    char *to = m->n == 0 ? m->what : m->where;
    if (level < CYAML_LOG_ERROR || m->n > 2)
        return;
    vsnprintf(to, sizeof m->what, fmt, args);
    to[strcspn(to, "\n")] = 0;
    m->n++;
}

static void *allocate(void *ctx, void *p, size_t size)
{
    (void)ctx;
    if (size == 0) {
        free(p);
        return NULL;
    }
    return io_fault_hit(IO_FAULT_ALLOC) ? NULL : realloc(p, size);
}

static cyaml_config_t config_of(struct messages *m)
{
    return (cyaml_config_t){.log_fn = m ? on_message : NULL,
                            .log_ctx = m,
                            .mem_fn = allocate,
                            .log_level = CYAML_LOG_ERROR,
                            .flags = CYAML_CFG_NO_ALIAS};
}

/* "Load: Invalid INT value: 'x'" and "  in mapping field 'bits' (line: 4, column: 10)" become
 * "line 4, column 10: mapping field 'bits': Invalid INT value: 'x'". */
static enum err_code cyaml_fault(const struct text *t, const struct messages *m, cyaml_err_t err)
{
    if (err == CYAML_ERR_OOM)
        return err_set(t->e, ERR_NOMEM, "%s: out of memory: reading YAML", t->name);
    const char *what = m->n ? m->what : cyaml_strerror(err);
    what += str_starts(what, "Load: ") ? 6 : 0;
    const char *in = strstr(m->where, "in "), *at = strstr(m->where, " (line: ");
    unsigned line, column;
    if (m->n < 3 || !in || !at || sscanf(at, " (line: %u, column: %u)", &line, &column) != 2)
        return err_set(t->e, ERR_INPUT, "%s: %s", t->name, what);
    return err_set(t->e, ERR_INPUT, "%s: line %u, column %u: %.*s: %s", t->name, line, column,
                   (int)(at - in - 3), in + 3, what);
}

enum err_code yaml_load(const char *text, size_t len, const char *name,
                        const cyaml_schema_value_t *schema, void **out, struct err *e)
{
    const struct text t = {text, name, len, e};
    yaml_document_t doc;
    *out = NULL;
    enum err_code rc = load_tree(&t, &doc);
    if (rc != ERR_OK)
        return rc;
    rc = check_node(&t, &doc, yaml_document_get_root_node(&doc), schema);
    yaml_document_delete(&doc);
    if (rc != ERR_OK)
        return rc;
    struct messages m = {.n = 0};
    cyaml_config_t config = config_of(&m);
    cyaml_data_t *data = NULL;
    cyaml_err_t err = cyaml_load_data((const uint8_t *)text, len, &config, schema, &data, NULL);
    if (err != CYAML_OK)
        return cyaml_fault(&t, &m, err);
    *out = data;
    return data ? ERR_OK : err_set(e, ERR_INPUT, "%s: is empty", name);
}

enum err_code yaml_read(const char *path, const cyaml_schema_value_t *schema, void **out,
                        struct err *e)
{
    struct strbuf text = {0};
    *out = NULL;
    enum err_code rc = io_read_all(path, YAML_BYTES_MAX, &text, e);
    if (rc == ERR_OK)
        rc = yaml_load(text.data ? text.data : "", text.len, path, schema, out, e);
    strbuf_free(&text);
    return rc;
}

void yaml_release(const cyaml_schema_value_t *schema, void *data)
{
    cyaml_config_t config = config_of(NULL);
    if (data)
        cyaml_free(&config, schema, data, 0);
}

enum err_code yaml_item_lines(const char *text, size_t len, const char *name, const char *key,
                              int64_t *lines, size_t max, size_t *n, struct err *e)
{
    const struct text t = {text, name, len, e};
    yaml_document_t doc;
    *n = 0;
    enum err_code rc = load_tree(&t, &doc);
    if (rc != ERR_OK)
        return rc;
    const yaml_node_t *root = yaml_document_get_root_node(&doc), *items = NULL;
    if (root && root->type == YAML_MAPPING_NODE) {
        const yaml_node_pair_t *p = root->data.mapping.pairs.start;
        for (; p < root->data.mapping.pairs.top && !items; p++) {
            const char *word = scalar(yaml_document_get_node(&doc, p->key));
            if (word && strcmp(word, key) == 0)
                items = yaml_document_get_node(&doc, p->value);
        }
    }
    if (items && items->type == YAML_SEQUENCE_NODE) {
        const yaml_node_item_t *i = items->data.sequence.items.start;
        for (; i < items->data.sequence.items.top; i++, ++*n) {
            if (*n < max)
                lines[*n] = (int64_t)yaml_document_get_node(&doc, *i)->start_mark.line + 1;
        }
    }
    yaml_document_delete(&doc);
    return rc;
}
