/* hash.c: SHA-256 by libcrypto; blocks of two messages at once by sha256_ni.c.
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
#include "common/sha256_ni.h"

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

/* Feeds libcrypto's buffer up to the end of a block, so that whole blocks follow. */
static void fill_block(struct sha256 *s, const uint8_t **data, size_t *bytes)
{
    size_t n = (SHA256_CBLOCK - s->ctx.num) % SHA256_CBLOCK;
    n = MIN2(n, *bytes);
    sha256_update(s, *data, n);
    *data += n;
    *bytes -= n;
}

/* Books bytes whose blocks were compressed beside libcrypto: its count is one of bits. */
static void count_blocks(struct sha256 *s, size_t blocks)
{
    uint64_t bits = ((uint64_t)s->ctx.Nh << 32 | s->ctx.Nl) + (uint64_t)blocks * SHA256_CBLOCK * 8;
    s->ctx.Nl = (SHA_LONG)bits;
    s->ctx.Nh = (SHA_LONG)(bits >> 32);
}

void sha256_update2(struct sha256 *a, const void *data_a, size_t bytes_a, struct sha256 *b,
                    const void *data_b, size_t bytes_b)
{
    const uint8_t *x = data_a, *y = data_b;
    if (sha256_ni_here()) {
        fill_block(a, &x, &bytes_a);
        fill_block(b, &y, &bytes_b);
        size_t blocks = MIN2(bytes_a, bytes_b) / SHA256_CBLOCK, done = blocks * SHA256_CBLOCK;
        if (blocks) {
            sha256_ni_pair(a->ctx.h, x, b->ctx.h, y, blocks);
            count_blocks(a, blocks);
            count_blocks(b, blocks);
            x += done, y += done;
            bytes_a -= done, bytes_b -= done;
        }
    }
    sha256_update(a, x, bytes_a);
    sha256_update(b, y, bytes_b);
}

void sha256_update_beside(struct sha256 *s, const void *data, size_t bytes, struct sha256_piece *p)
{
    size_t n = MIN2(bytes, p->bytes);
    sha256_update2(s, data, bytes, p->sha, p->data, n);
    p->data += n;
    p->bytes -= n;
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
