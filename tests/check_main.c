/* check_main.c: the runner that every test program is linked with, and its scratch folders.
 *
 * The program gives `Suite *test_suite(void)`. Suites run in forked children (a crash is one failed
 * test); a run in which nothing was tested fails. Skips are counted by test_skip and printed.
 */
#include "tests/check_main.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDERS_MAX 256
#define PATH_BYTES  512

static const char *skipped;

static char folders[FOLDERS_MAX][64];
static int n_folders;
static pid_t folders_owner; /* a fork made inside a test must not remove its parent's folders */

void test_skip(const char *why)
{
    skipped = why;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static void remove_folders(void)
{
    for (int i = 0; folders_owner == getpid() && i < n_folders; i++) {
        chmod(folders[i], 0700);
        nftw(folders[i], remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    }
}

const char *test_folder(void)
{
    ck_assert_int_lt(n_folders, FOLDERS_MAX);
    if (folders_owner != getpid()) {
        folders_owner = getpid();
        n_folders = 0;
        atexit(remove_folders);
    }
    char *path = folders[n_folders];
    snprintf(path, sizeof folders[0], "%s/assay-test-XXXXXX", P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(path));
    n_folders++;
    return path;
}

const char *test_path(const char *folder, const char *name)
{
    static char paths[64][PATH_BYTES];
    static int turn;
    char *path = paths[turn++ % 64];
    ck_assert_int_lt(snprintf(path, PATH_BYTES, "%s/%s", folder, name), PATH_BYTES);
    return path;
}

void test_spill(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot make %s", path);
    ck_assert_uint_eq(fwrite(data, 1, bytes, f), bytes);
    ck_assert_int_eq(fclose(f), 0);
}

char *test_slurp(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "cannot read %s", path);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    ck_assert_int_ge(size, 0);
    rewind(f);
    char *data = calloc(1, (size_t)size + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, (size_t)size, f), (size_t)size);
    fclose(f);
    if (bytes)
        *bytes = (size_t)size;
    return data;
}

static int no_dots(const struct dirent *d)
{
    return strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
}

const char *test_names(const char *folder)
{
    static char all[4096];
    struct dirent **list;
    int n = scandir(folder, &list, no_dots, alphasort);
    ck_assert_int_ge(n, 0);
    all[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(all);
        snprintf(all + len, sizeof all - len, "%s%s", i ? " " : "", list[i]->d_name);
        free(list[i]);
    }
    free(list);
    return all;
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

size_t test_mutate(char *text, size_t len, size_t cap, uint64_t *state)
{
    static const char marks[] = "{}[]()<>,:;-+.?&*!|'\"#%@`=~^\\/_\n\t 0159eux\0\xff";
    for (uint64_t n = 1 + draw(state, 4); n && len; n--) {
        size_t at = draw(state, len), kind = draw(state, 4);
        char mark = marks[draw(state, sizeof marks - 1)];
        if (kind == 0) {
            text[at] = (char)draw(state, 256);
        } else if (kind == 1) {
            text[at] = mark;
        } else if (kind == 2) {
            memmove(text + at, text + at + 1, len - at - 1);
            len--;
        } else if (len < cap) {
            memmove(text + at + 1, text + at, len - at);
            text[at] = mark;
            len++;
        }
    }
    return len;
}

int main(void)
{
    Suite *suite = test_suite();
    SRunner *runner = srunner_create(suite);
    if (skipped)
        printf("SKIP: %s\n", skipped);
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (run == 0 && skipped)
        return 77;
    if (run == 0)
        fprintf(stderr, "no test ran\n");
    return run == 0 || failed ? 1 : 0;
}
