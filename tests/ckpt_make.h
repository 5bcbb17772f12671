/* ckpt_make.h: builds small model files in memory, for tests and as seeds of mutation.
 *
 * Written by hand from the formats, not with the project's own writers, so that a reader is held
 * against something else than its mirror image.
 */
#ifndef ASSAY_TESTS_CKPT_MAKE_H
#define ASSAY_TESTS_CKPT_MAKE_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/container.h"
#include "ckpt/gguf.h"
#include "common/rng.h"
#include "common/str.h"

#define MAKE_FN __attribute__((unused)) static

/* ---- GGUF ------------------------------------------------------------------------------------ */

struct gguf_maker {
    struct strbuf pairs, records, data;
    uint64_t n_pairs, n_tensors;
    uint32_t align;
    struct rng rng;
};

MAKE_FN void make_u32(struct strbuf *b, uint32_t v)
{
    strbuf_append(b, &v, sizeof v);
}

MAKE_FN void make_u64(struct strbuf *b, uint64_t v)
{
    strbuf_append(b, &v, sizeof v);
}

MAKE_FN void make_text(struct strbuf *b, const char *s)
{
    make_u64(b, strlen(s));
    strbuf_puts(b, s);
}

MAKE_FN void gguf_key(struct gguf_maker *m, const char *key, uint32_t type)
{
    make_text(&m->pairs, key);
    make_u32(&m->pairs, type);
    m->n_pairs++;
}

MAKE_FN void gguf_u32(struct gguf_maker *m, const char *key, uint32_t v)
{
    gguf_key(m, key, GGUF_U32);
    make_u32(&m->pairs, v);
}

MAKE_FN void gguf_f32(struct gguf_maker *m, const char *key, float v)
{
    gguf_key(m, key, GGUF_F32);
    strbuf_append(&m->pairs, &v, sizeof v);
}

MAKE_FN void gguf_bool(struct gguf_maker *m, const char *key, bool v)
{
    gguf_key(m, key, GGUF_BOOL);
    strbuf_putc(&m->pairs, v ? 1 : 0);
}

MAKE_FN void gguf_string(struct gguf_maker *m, const char *key, const char *v)
{
    gguf_key(m, key, GGUF_STRING);
    make_text(&m->pairs, v);
}

MAKE_FN void gguf_strings(struct gguf_maker *m, const char *key, const char *const *v, size_t n)
{
    gguf_key(m, key, GGUF_ARRAY);
    make_u32(&m->pairs, GGUF_STRING);
    make_u64(&m->pairs, n);
    for (size_t i = 0; i < n; i++)
        make_text(&m->pairs, v[i]);
}

/* i32 or f32 values, four bytes each. */
MAKE_FN void gguf_words(struct gguf_maker *m, const char *key, uint32_t elem, const void *v,
                        size_t n)
{
    gguf_key(m, key, GGUF_ARRAY);
    make_u32(&m->pairs, elem);
    make_u64(&m->pairs, n);
    strbuf_append(&m->pairs, v, 4 * n);
}

/* dims are row-major; data NULL: random bytes with the exponents of f16 scales kept small. */
MAKE_FN void gguf_tensor(struct gguf_maker *m, const char *name, int type, int64_t rows, int64_t k,
                         const void *data)
{
    int elems, bytes;
    uint32_t align = m->align ? m->align : 32;
    ggml_type_block(type, &elems, &bytes);
    make_text(&m->records, name);
    make_u32(&m->records, rows ? 2 : 1);
    make_u64(&m->records, (uint64_t)k);
    if (rows)
        make_u64(&m->records, (uint64_t)rows);
    make_u32(&m->records, (uint32_t)type);
    make_u64(&m->records, m->data.len);
    m->n_tensors++;
    size_t n = (size_t)((rows ? rows : 1) * k / elems * bytes);
    if (data) {
        strbuf_append(&m->data, data, n);
    } else if (type == GGML_F32) {
        for (size_t i = 0; i < n / 4; i++) {
            float v = (float)rng_normal(&m->rng) * 0.05f;
            strbuf_append(&m->data, &v, sizeof v);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            uint8_t v = (uint8_t)rng_next(&m->rng);
            size_t at = i % (size_t)bytes;
            if (at == 1 || (at == 3 && (type == GGML_Q4_1 || type == GGML_Q5_1)))
                v = (uint8_t)((v & 0x83) | 0x20);
            strbuf_append(&m->data, &v, 1);
        }
    }
    while (m->data.len % align)
        strbuf_putc(&m->data, 0);
}

/* Appends the file to out and empties m. */
MAKE_FN void gguf_finish(struct gguf_maker *m, struct strbuf *out)
{
    size_t begin = out->len;
    strbuf_puts(out, "GGUF");
    make_u32(out, 3);
    make_u64(out, m->n_tensors);
    make_u64(out, m->n_pairs);
    strbuf_append(out, m->pairs.data, m->pairs.len);
    strbuf_append(out, m->records.data, m->records.len);
    while ((out->len - begin) % (m->align ? m->align : 32))
        strbuf_putc(out, 0);
    strbuf_append(out, m->data.data, m->data.len);
    strbuf_free(&m->pairs);
    strbuf_free(&m->records);
    strbuf_free(&m->data);
    *m = (struct gguf_maker){0};
}

/* ---- a tiny Llama: 2 layers, 64 wide, 2 heads over 1, 96 hidden, 16 tokens
 * ------------------------ */

#define TINY_VOCAB 16

MAKE_FN void tiny_gguf_keys(struct gguf_maker *m)
{
    gguf_string(m, "general.architecture", "llama");
    gguf_u32(m, "llama.embedding_length", 64);
    gguf_u32(m, "llama.block_count", 2);
    gguf_u32(m, "llama.feed_forward_length", 96);
    gguf_u32(m, "llama.attention.head_count", 2);
    gguf_u32(m, "llama.attention.head_count_kv", 1);
    gguf_u32(m, "llama.context_length", 128);
    gguf_u32(m, "llama.rope.dimension_count", 32);
    gguf_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_f32(m, "llama.rope.freq_base", 10000);
}

MAKE_FN void tiny_gguf_vocab(struct gguf_maker *m)
{
    static const char *const tokens[TINY_VOCAB] = {
        "<s>", "</s>", "a", "b", "c", "d", "e", "f", "ab", "cd", "ef", "abc", "h", "i", "j", "<u>"};
    static const int32_t types[TINY_VOCAB] = {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4};
    static const char *const merges[] = {"a b", "c d", "e f", "ab c"};
    gguf_string(m, "tokenizer.ggml.model", "gpt2");
    gguf_string(m, "tokenizer.ggml.pre", "smollm");
    gguf_strings(m, "tokenizer.ggml.tokens", tokens, TINY_VOCAB);
    gguf_words(m, "tokenizer.ggml.token_type", GGUF_I32, types, TINY_VOCAB);
    gguf_strings(m, "tokenizer.ggml.merges", merges, ARRAY_LEN(merges));
    gguf_u32(m, "tokenizer.ggml.bos_token_id", 0);
    gguf_u32(m, "tokenizer.ggml.eos_token_id", 1);
    gguf_string(m, "tokenizer.chat_template", "{{ messages[0].content }}");
}

/* Layers [first, last), each matrix of another type. */
MAKE_FN void tiny_gguf_layers(struct gguf_maker *m, int first, int last)
{
    static const struct {
        const char *name;
        int64_t rows, k;
        int type;
    } parts[] = {{"attn_norm", 0, 64, GGML_F32},     {"attn_q", 64, 64, GGML_Q4_0},
                 {"attn_k", 32, 64, GGML_Q4_1},      {"attn_v", 32, 64, GGML_Q5_0},
                 {"attn_output", 64, 64, GGML_Q5_1}, {"ffn_norm", 0, 64, GGML_F32},
                 {"ffn_gate", 96, 64, GGML_Q8_0},    {"ffn_up", 96, 64, GGML_F16},
                 {"ffn_down", 64, 96, GGML_MXFP4}};
    char name[64];
    for (int l = first; l < last; l++) {
        for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].name);
            gguf_tensor(m, name, parts[i].type, parts[i].rows, parts[i].k, NULL);
        }
    }
}

MAKE_FN void tiny_gguf(struct strbuf *out)
{
    struct gguf_maker m = {.rng = {1, 0}};
    tiny_gguf_keys(&m);
    tiny_gguf_vocab(&m);
    gguf_tensor(&m, "token_embd.weight", GGML_Q8_0, TINY_VOCAB, 64, NULL);
    tiny_gguf_layers(&m, 0, 2);
    gguf_tensor(&m, "output_norm.weight", GGML_F32, 0, 64, NULL);
    gguf_finish(&m, out);
}

/* ---- safetensors --------------------------------------------------------------------------------
 */

struct st_maker {
    struct strbuf header, data;
    struct rng rng;
};

MAKE_FN void st_shaped(struct st_maker *m, const char *name, const char *dtype, size_t elem_bytes,
                       int n_dim, const int64_t *dim)
{
    size_t begin = m->data.len, n = elem_bytes;
    for (int i = 0; i < n_dim; i++)
        n *= (size_t)dim[i];
    for (size_t i = 0; i < n; i++) {
        /* Numbers of any float type stay small when their top byte does. */
        uint8_t v = (uint8_t)rng_next(&m->rng);
        strbuf_putc(&m->data, (char)(i % elem_bytes == elem_bytes - 1 ? (v & 0x83) | 0x38 : v));
    }
    strbuf_printf(&m->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", m->header.len ? "," : "{",
                  name, dtype);
    for (int i = 0; i < n_dim; i++)
        strbuf_printf(&m->header, "%s%lld", i ? "," : "", (long long)dim[i]);
    strbuf_printf(&m->header, "],\"data_offsets\":[%zu,%zu]}", begin, m->data.len);
}

/* rows 0: a vector. */
MAKE_FN void st_tensor(struct st_maker *m, const char *name, const char *dtype, size_t elem_bytes,
                       int64_t rows, int64_t k)
{
    const int64_t dim[2] = {rows, k};
    st_shaped(m, name, dtype, elem_bytes, rows ? 2 : 1, rows ? dim : dim + 1);
}

/* A packed module: weight, scales and biases. */
MAKE_FN void st_packed(struct st_maker *m, const char *module, int bits, int group, int64_t rows,
                       int64_t k)
{
    char name[256];
    snprintf(name, sizeof name, "%s.weight", module);
    st_tensor(m, name, "U32", 4, rows, k * bits / 32);
    snprintf(name, sizeof name, "%s.scales", module);
    st_tensor(m, name, "BF16", 2, rows, k / group);
    snprintf(name, sizeof name, "%s.biases", module);
    st_tensor(m, name, "BF16", 2, rows, k / group);
}

MAKE_FN void st_finish(struct st_maker *m, struct strbuf *out)
{
    strbuf_puts(&m->header, m->header.len ? "}" : "{}");
    make_u64(out, m->header.len);
    strbuf_append(out, m->header.data, m->header.len);
    strbuf_append(out, m->data.data, m->data.len);
    strbuf_free(&m->header);
    strbuf_free(&m->data);
    *m = (struct st_maker){0};
}

/* The tiny Llama's layers; packed: all matrices in 4 bits and groups of 32. */
MAKE_FN void tiny_st_layers(struct st_maker *m, int first, int last, bool packed)
{
    static const struct {
        const char *name;
        int64_t rows, k;
    } parts[] = {{"input_layernorm", 0, 64},   {"self_attn.q_proj", 64, 64},
                 {"self_attn.k_proj", 32, 64}, {"self_attn.v_proj", 32, 64},
                 {"self_attn.o_proj", 64, 64}, {"post_attention_layernorm", 0, 64},
                 {"mlp.gate_proj", 96, 64},    {"mlp.up_proj", 96, 64},
                 {"mlp.down_proj", 64, 96}};
    char name[128];
    for (int l = first; l < last; l++) {
        for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
            bool matrix = packed && parts[i].rows;
            snprintf(name, sizeof name, "model.layers.%d.%s%s", l, parts[i].name,
                     matrix ? "" : ".weight");
            if (matrix)
                st_packed(m, name, 4, 32, parts[i].rows, parts[i].k);
            else
                st_tensor(m, name, "BF16", 2, parts[i].rows, parts[i].k);
        }
    }
}

MAKE_FN void tiny_st(struct strbuf *out, bool packed)
{
    struct st_maker m = {.rng = {2, 0}};
    if (packed)
        st_packed(&m, "model.embed_tokens", 4, 32, TINY_VOCAB, 64);
    else
        st_tensor(&m, "model.embed_tokens.weight", "BF16", 2, TINY_VOCAB, 64);
    tiny_st_layers(&m, 0, 2, packed);
    st_tensor(&m, "model.norm.weight", "BF16", 2, 0, 64);
    st_finish(&m, out);
}

#define TINY_CONFIG                                                                                \
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"                       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"vocab_size\":16,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"                             \
    "\"tie_word_embeddings\":true,\"max_position_embeddings\":128,\"bos_token_id\":0,"             \
    "\"eos_token_id\":1"
#define TINY_QUANT ",\"quantization\":{\"group_size\":32,\"bits\":4}"

/* ---- files --------------------------------------------------------------------------------------
 */

/* A fresh folder under /tmp, into buf. */
MAKE_FN const char *make_folder(char buf[64])
{
    snprintf(buf, 64, "/tmp/assay-test-XXXXXX");
    return mkdtemp(buf);
}

MAKE_FN void write_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) {
        perror(path);
        exit(1);
    }
}

MAKE_FN void write_text(const char *dir, const char *name, const char *text)
{
    write_file(dir, name, text, strlen(text));
}

/* The folder and the files in it. */
MAKE_FN void remove_folder(const char *dir)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command))
        perror(dir);
}

#endif
