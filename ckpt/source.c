/* source.c: folders, files and archives behind one list of names.
 *
 * Files of a folder are mapped on first use and stay mapped. In an archive without a named member
 * the checkpoint is looked for: the one folder with a config.json and safetensors, or the one GGUF
 * (a split one counts once, by its first file).
 */
#include "ckpt/source.h"

#include <stdlib.h>

#include "ckpt/archive.h"
#include "common/arena.h"
#include "common/io.h"

struct entry {
    const char *name;
    const char *path; /* made on demand */
    size_t member;    /* in the archive */
    struct io_map map;
    bool mapped;
};

struct source {
    enum source_kind kind;
    struct arena *arena;
    const char *root;   /* folder, or archive */
    const char *prefix; /* inside the archive: "" or "x/" */
    struct archive_map *archive;
    struct entry *entries;
    size_t n;
};

static enum err_code add_entry(struct source *s, const char *name, size_t member, struct err *e)
{
    struct entry *t = realloc(s->entries, (s->n + 1) * sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "out of memory");
    s->entries = t;
    t[s->n] = (struct entry){.name = arena_strdup(s->arena, name), .member = member};
    if (!t[s->n].name)
        return arena_error(s->arena, strlen(name), e);
    s->n++;
    return ERR_OK;
}

/* ---- folders and files ------------------------------------------------------------------------
 */

static enum err_code open_folder(struct source *s, const char *path, struct err *e)
{
    char **names;
    size_t n;
    enum err_code rc = io_list(path, &names, &n, e);
    if (rc != ERR_OK)
        return rc;
    for (size_t i = 0; rc == ERR_OK && i < n; i++) {
        char *full = io_join(path, names[i]);
        if (!full)
            rc = err_set(e, ERR_NOMEM, "out of memory");
        else if (!io_is_dir(full))
            rc = add_entry(s, names[i], 0, e);
        free(full);
    }
    io_names_free(names, n);
    s->kind = SOURCE_FOLDER;
    s->root = arena_strdup(s->arena, path);
    if (rc == ERR_OK && !s->root)
        rc = arena_error(s->arena, strlen(path), e);
    return rc;
}

/* The folder of a file is listed too: the parts of a split checkpoint lie beside each other. */
static enum err_code open_file(struct source *s, const char *path, struct err *e)
{
    const char *base = io_base(path);
    char *dir = strndup(path, (size_t)(base - path));
    enum err_code rc =
        dir ? open_folder(s, *dir ? dir : ".", e) : err_set(e, ERR_NOMEM, "out of memory");
    free(dir);
    s->kind = SOURCE_FILE;
    for (size_t i = 0; rc == ERR_OK && i < s->n; i++) {
        if (strcmp(s->entries[i].name, base) == 0) {
            struct entry found = s->entries[i];
            memmove(s->entries + 1, s->entries, i * sizeof found);
            found.path = arena_strdup(s->arena, path);
            s->entries[0] = found;
            return ERR_OK;
        }
    }
    return rc != ERR_OK ? rc : err_set(e, ERR_INPUT, "%s: no such file", path);
}

/* ---- archives ---------------------------------------------------------------------------------
 */

/* Which members of a compressed tar are kept in memory: what a checkpoint is made of, below the
 * asked-for name or, without one, anywhere. */
static bool want_member(const void *ctx, const char *name)
{
    static const char *const endings[] = {".safetensors", ".gguf", ".json", ".jinja"};
    const char *member = ctx;
    if (member && strcmp(member, name) == 0)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(endings); i++) {
        if (str_ends(name, endings[i]))
            return !member || str_starts(name, member) || str_ends(member, ".gguf");
    }
    return false;
}

static size_t folder_length(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? (size_t)(slash - name) + 1 : 0;
}

static bool same_folder(const char *a, const char *b)
{
    size_t n = folder_length(a);
    return n == folder_length(b) && memcmp(a, b, n) == 0;
}

static bool is_later_split(const char *name)
{
    return str_glob("*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf", name) &&
           !str_glob("*-00001-of-[0-9][0-9][0-9][0-9][0-9].gguf", name);
}

static bool holds_checkpoint(const struct archive_map *a, size_t config)
{
    const char *name = archive_map_name(a, config);
    for (size_t i = 0; i < archive_map_count(a); i++) {
        const char *other = archive_map_name(a, i);
        if (str_ends(other, ".safetensors") && same_folder(name, other))
            return true;
    }
    return false;
}

/* The one checkpoint of an archive, as the member that names it. */
static enum err_code choose_member(const struct archive_map *a, const char *path,
                                   const char **member, struct err *e)
{
    const char *found = NULL;
    for (size_t i = 0; i < archive_map_count(a); i++) {
        const char *name = archive_map_name(a, i);
        bool config = strcmp(io_base(name), "config.json") == 0 && holds_checkpoint(a, i);
        bool gguf = str_ends(name, ".gguf") && !is_later_split(name);
        if (!config && !gguf)
            continue;
        if (found) {
            return err_set(e, ERR_INPUT,
                           "%s: holds more than one checkpoint ('%s', '%s'); name one as "
                           "archive:member",
                           path, found, name);
        }
        found = name;
    }
    if (!found) {
        return err_set(e, ERR_INPUT,
                       "%s: no checkpoint among its %zu members, expected a GGUF or a folder "
                       "with config.json and safetensors",
                       path, archive_map_count(a));
    }
    *member = found;
    return ERR_OK;
}

static enum err_code list_members(struct source *s, const char *path, const char *member,
                                  struct err *e)
{
    const struct archive_map *a = s->archive;
    size_t exact = SIZE_MAX, below = strlen(member);
    enum err_code rc = ERR_OK;
    while (below && member[below - 1] == '/')
        below--;
    for (size_t i = 0; i < archive_map_count(a); i++) {
        if (strcmp(archive_map_name(a, i), member) == 0)
            exact = i;
    }
    s->kind = exact == SIZE_MAX ? SOURCE_FOLDER : SOURCE_FILE;
    size_t keep = exact == SIZE_MAX ? below + (below > 0) : folder_length(member);
    s->prefix = arena_strndup(s->arena, member, keep);
    if (!s->prefix)
        return arena_error(s->arena, keep, e);
    if (exact != SIZE_MAX)
        rc = add_entry(s, member + keep, exact, e);
    for (size_t i = 0; rc == ERR_OK && i < archive_map_count(a); i++) {
        const char *name = archive_map_name(a, i);
        bool inside = strncmp(name, member, below) == 0 && (below == 0 || name[below] == '/');
        bool in = exact == SIZE_MAX ? inside && !strchr(name + keep, '/')
                                    : i != exact && same_folder(name, member);
        if (in)
            rc = add_entry(s, name + keep, i, e);
    }
    if (rc == ERR_OK && s->n == 0)
        rc = err_set(e, ERR_INPUT, "%s: no member '%s' among its %zu", path, member,
                     archive_map_count(a));
    return rc;
}

static enum err_code open_archive(struct source *s, const char *path, const char *member,
                                  struct err *e)
{
    while (member && member[0] == '.' && member[1] == '/')
        member += 2;
    s->root = arena_strdup(s->arena, path);
    if (!s->root)
        return arena_error(s->arena, strlen(path), e);
    enum err_code rc = archive_map_open(&s->archive, path, want_member, member, e);
    if (rc != ERR_OK)
        return rc;
    char *folder = NULL;
    if (!member) {
        rc = choose_member(s->archive, path, &member, e);
        if (rc == ERR_OK && !str_ends(member, ".gguf")) {
            size_t n = folder_length(member);
            member = folder = strndup(member, n);
            if (!folder)
                rc = err_set(e, ERR_NOMEM, "out of memory");
        }
    }
    if (rc == ERR_OK)
        rc = list_members(s, path, member, e);
    free(folder);
    return rc;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

/* Cuts "archive:member" at the first colon whose left side is a file. */
static enum err_code open_member(struct source *s, const char *path, struct err *e)
{
    for (const char *colon = strchr(path, ':'); colon; colon = strchr(colon + 1, ':')) {
        char *left = strndup(path, (size_t)(colon - path));
        if (!left)
            return err_set(e, ERR_NOMEM, "out of memory");
        if (*left && io_exists(left) && !io_is_dir(left)) {
            enum err_code rc = open_archive(s, left, colon + 1, e);
            free(left);
            return rc;
        }
        free(left);
    }
    return err_set(e, ERR_INPUT, "%s: no such file or folder", path);
}

static enum err_code open_plain(struct source *s, const char *path, struct err *e)
{
    struct io_map map;
    enum err_code rc = io_map_open(&map, path, e);
    if (rc != ERR_OK)
        return rc;
    bool archive = archive_map_is(path, map.data, map.bytes);
    io_map_close(&map);
    return archive ? open_archive(s, path, NULL, e) : open_file(s, path, e);
}

enum err_code source_open(struct source **out, const char *path, struct err *e)
{
    struct source *s = calloc(1, sizeof *s);
    enum err_code rc;
    *out = NULL;
    if (!s || !(s->arena = arena_new(0))) {
        free(s);
        return err_set(e, ERR_NOMEM, "%s: out of memory", path);
    }
    s->prefix = "";
    if (io_is_dir(path))
        rc = open_folder(s, path, e);
    else if (io_exists(path))
        rc = open_plain(s, path, e);
    else
        rc = open_member(s, path, e);
    if (rc != ERR_OK)
        source_close(s);
    else
        *out = s;
    return rc;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        if (s->entries[i].mapped)
            io_map_close(&s->entries[i].map);
    }
    free(s->entries);
    archive_map_close(s->archive);
    arena_free(s->arena);
    free(s);
}

enum source_kind source_kind(const struct source *s)
{
    return s->kind;
}

size_t source_count(const struct source *s)
{
    return s->n;
}

const char *source_name(const struct source *s, size_t i)
{
    return s->entries[i].name;
}

bool source_find(const struct source *s, const char *name, size_t *i)
{
    for (*i = 0; *i < s->n; ++*i) {
        if (strcmp(s->entries[*i].name, name) == 0)
            return true;
    }
    return false;
}

static const char *make_path(struct source *s, size_t i)
{
    struct entry *t = &s->entries[i];
    if (!t->path) {
        struct strbuf b = {0};
        if (s->archive)
            strbuf_printf(&b, "%s:%s%s", s->root, s->prefix, t->name);
        else if (str_ends(s->root, "/"))
            strbuf_printf(&b, "%s%s", s->root, t->name);
        else
            strbuf_printf(&b, "%s/%s", s->root, t->name);
        if (!b.failed)
            t->path = arena_strdup(s->arena, b.data);
        strbuf_free(&b);
    }
    return t->path;
}

const char *source_path(struct source *s, size_t i)
{
    const char *path = make_path(s, i);
    return path ? path : s->entries[i].name;
}

bool source_maps(const struct source *s)
{
    return !s->archive;
}

enum err_code source_data(struct source *s, size_t i, const uint8_t **data, size_t *bytes,
                          struct err *e)
{
    struct entry *t = &s->entries[i];
    if (s->archive)
        return archive_map_data(s->archive, t->member, data, bytes, e);
    if (!t->mapped) {
        const char *path = make_path(s, i);
        if (!path)
            return err_set(e, ERR_NOMEM, "%s: out of memory", t->name);
        enum err_code rc = io_map_open(&t->map, path, e);
        if (rc != ERR_OK)
            return rc;
        t->mapped = true;
    }
    *data = t->map.data;
    *bytes = t->map.bytes;
    return ERR_OK;
}
