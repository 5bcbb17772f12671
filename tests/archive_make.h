/* archive_make.h: writes archives with libarchive, for tests and as seeds of mutation. */
#ifndef ASSAY_TESTS_ARCHIVE_MAKE_H
#define ASSAY_TESTS_ARCHIVE_MAKE_H

#include <stdlib.h>

#include <archive.h>
#include <archive_entry.h>

#include "common/str.h"

struct archive_part {
    const char *name;
    const void *data;
    size_t bytes;
};

enum archive_kind { MAKE_TAR, MAKE_TAR_GZ, MAKE_TAR_ZST, MAKE_TAR_XZ, MAKE_ZIP, MAKE_ZIP_STORED };

/* False when libarchive could not. */
__attribute__((unused)) static bool make_archive(struct strbuf *out, enum archive_kind kind,
                                                 const struct archive_part *parts, size_t n)
{
    size_t cap = 1 << 16, used = 0;
    for (size_t i = 0; i < n; i++)
        cap += parts[i].bytes + 4096;
    char *buf = malloc(cap);
    struct archive *a = archive_write_new();
    bool zip = kind == MAKE_ZIP || kind == MAKE_ZIP_STORED;
    bool ok = buf && a;
    if (ok && zip) {
        ok = archive_write_set_format_zip(a) == ARCHIVE_OK &&
             archive_write_set_options(a, kind == MAKE_ZIP ? "zip:compression=deflate"
                                                           : "zip:compression=store") == ARCHIVE_OK;
    } else if (ok) {
        ok = archive_write_set_format_pax_restricted(a) == ARCHIVE_OK;
        if (kind == MAKE_TAR_GZ)
            ok = archive_write_add_filter_gzip(a) == ARCHIVE_OK;
        else if (kind == MAKE_TAR_ZST)
            ok = archive_write_add_filter_zstd(a) == ARCHIVE_OK;
        else if (kind == MAKE_TAR_XZ)
            ok = archive_write_add_filter_xz(a) == ARCHIVE_OK;
    }
    ok = ok && archive_write_open_memory(a, buf, cap, &used) == ARCHIVE_OK;
    for (size_t i = 0; ok && i < n; i++) {
        struct archive_entry *entry = archive_entry_new();
        archive_entry_set_pathname(entry, parts[i].name);
        archive_entry_set_size(entry, (int64_t)parts[i].bytes);
        archive_entry_set_filetype(entry, AE_IFREG);
        archive_entry_set_perm(entry, 0644);
        ok = archive_write_header(a, entry) == ARCHIVE_OK &&
             archive_write_data(a, parts[i].data, parts[i].bytes) == (la_ssize_t)parts[i].bytes;
        archive_entry_free(entry);
    }
    ok = a && archive_write_close(a) == ARCHIVE_OK && ok;
    archive_write_free(a);
    if (ok)
        strbuf_append(out, buf, used);
    free(buf);
    return ok && !out->failed;
}

#endif
