/* hash.c: SHA-256 by libcrypto.
 *
 * The plain SHA256_ functions are used and not EVP: they cannot fail and allocate nothing, so a
 * digest is never silently wrong when memory is out. Both reach the same assembly.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "common/hash.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/io_private.h"

struct sha256 {
    SHA256_CTX ctx;
};

struct sha256 *sha256_new(void)
{
    struct sha256 *s = io_alloc(sizeof *s);
    if (s)
        SHA256_Init(&s->ctx);
    return s;
}

void sha256_update(struct sha256 *s, const void *data, size_t bytes)
{
    if (bytes)
        SHA256_Update(&s->ctx, data, bytes);
}

void sha256_final(struct sha256 *s, uint8_t out[32])
{
    SHA256_Final(out, &s->ctx);
    free(s);
}

void sha256_of(const void *data, size_t bytes, uint8_t out[32])
{
    struct sha256 s;
    SHA256_Init(&s.ctx);
    sha256_update(&s, data, bytes);
    SHA256_Final(out, &s.ctx);
}

void sha256_hex(const uint8_t digest[32], char hex[SHA256_HEX])
{
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = "0123456789abcdef"[digest[i] >> 4];
        hex[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
    }
    hex[64] = 0;
}

#define READ_BYTES ((size_t)1 << 20)

enum err_code sha256_file(const char *path, char hex[SHA256_HEX], struct err *e)
{
    int fd;
    enum err_code rc = io_open_read(path, &fd, e);
    if (rc != ERR_OK)
        return rc;
    struct sha256 s;
    SHA256_Init(&s.ctx);
    uint8_t digest[32], *block = io_alloc(READ_BYTES);
    size_t got = 1;
    if (!block)
        rc = io_nomem(READ_BYTES, e);
    while (rc == ERR_OK && got) {
        rc = io_read_some(fd, block, READ_BYTES, &got, path, e);
        if (rc == ERR_OK)
            sha256_update(&s, block, got);
    }
    if (rc == ERR_OK) {
        SHA256_Final(digest, &s.ctx);
        sha256_hex(digest, hex);
    }
    free(block);
    close(fd);
    return rc;
}
