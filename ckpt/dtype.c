/* dtype.c: names and sizes of element types. Conversions are inline in the header. */
#include "ckpt/dtype.h"

static const struct {
    const char *name;
    int bits;
} types[DT_COUNT] = {
#define X(id, text, n_bits) [id] = {text, n_bits},
    DTYPES(X)
#undef X
};

const char *dtype_name(enum dtype t)
{
    return t < DT_COUNT ? types[t].name : "unknown";
}

int dtype_bits(enum dtype t)
{
    return t < DT_COUNT ? types[t].bits : 0;
}

bool dtype_is_float(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

enum dtype dtype_find(const char *name)
{
    for (int i = 0; i < DT_COUNT; i++) {
        if (strcmp(types[i].name, name) == 0)
            return (enum dtype)i;
    }
    return DT_UNKNOWN;
}

enum dtype dtype_find_short(const char *name)
{
    static const struct {
        const char *name;
        enum dtype type;
    } names[] = {{"bf16", DT_BF16}, {"f16", DT_F16}, {"f32", DT_F32}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i].name, name) == 0)
            return names[i].type;
    }
    return DT_UNKNOWN;
}
