/* checkpoint_rig.h: a test's folder, the checkpoint that is opened in it, and what is expected of
 * the opening.
 */
#ifndef ASSAY_TESTS_CHECKPOINT_RIG_H
#define ASSAY_TESTS_CHECKPOINT_RIG_H

#include "ckpt/checkpoint.h"
#include "tests/check_main.h"
#include "tests/ckpt_make.h"

static char dir[64];
static struct err err;
static struct checkpoint *c; /* closed by the next opening and by teardown */

static inline void setup(void)
{
    ck_assert_ptr_nonnull(make_folder(dir));
    c = NULL;
}

static inline void teardown(void)
{
    checkpoint_close(c);
    remove_folder(dir);
}

static inline void good(const char *path)
{
    checkpoint_close(c);
    if (checkpoint_open(&c, path, &err) != ERR_OK)
        ck_abort_msg("%s", err.text);
}

static inline void good_and_runs(const char *path)
{
    good(path);
    if (!c->hp_ok)
        ck_abort_msg("%s", c->hp_err.text);
}

static inline void expect(const char *text, const char *words)
{
    if (!strstr(text, words))
        ck_abort_msg("'%s' does not say '%s'", text, words);
}

static inline void bad(const char *path, const char *words)
{
    checkpoint_close(c);
    ck_assert_int_eq(checkpoint_open(&c, path, &err), ERR_INPUT);
    ck_assert_ptr_null(c);
    ck_assert_ptr_nonnull(strstr(err.text, dir)); /* the place */
    expect(err.text, words);
}

static inline void good_but(const char *path, const char *words)
{
    good(path);
    ck_assert(!c->hp_ok);
    expect(c->hp_err.text, words);
}

/* The path of a file in the folder. */
static inline const char *at(const char *name)
{
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static inline void put_st(const char *name, struct st_maker *m)
{
    struct strbuf b = {0};
    st_finish(m, &b);
    write_file(dir, name, b.data, b.len);
    strbuf_free(&b);
}

static inline void put_tiny(bool packed, const char *config)
{
    struct strbuf b = {0};
    tiny_st(&b, packed);
    write_file(dir, "model.safetensors", b.data, b.len);
    write_text(dir, "config.json", config);
    strbuf_free(&b);
}

#endif
