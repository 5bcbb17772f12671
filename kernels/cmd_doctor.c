/* cmd_doctor.c: what this machine can do, and why not: processor, memory, devices, libraries.
 *
 * Facts are collected into one JSON object; the text is a view of it.
 */
#include <archive.h>
#include <cpuid.h>
#include <openssl/crypto.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>

#include "common/cmd.h"
#include "common/io.h"
#include "common/json.h"
#include "common/opt.h"
#include "common/par.h"
#include "kernels/kernels.h"

static json_t *processor_facts(void)
{
    unsigned int r[12] = {0};
    char name[49] = "unknown";
    if ((unsigned int)__get_cpuid_max(0x80000000u, NULL) >= 0x80000004u) {
        for (unsigned int i = 0; i < 3; i++)
            __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
        memcpy(name, r, 48);
        name[48] = 0;
    }
    const char *start = name;
    while (*start == ' ')
        start++;
    json_t *features = json_array();
#define FEATURE(text)                                                                              \
    do {                                                                                           \
        if (__builtin_cpu_supports(text))                                                          \
            json_array_append_new(features, json_string(text));                                    \
    } while (0)
    FEATURE("avx");
    FEATURE("avx2");
    FEATURE("fma");
    FEATURE("avx512f");
    FEATURE("avx512bw");
    FEATURE("avx512dq");
    FEATURE("avx512vl");
#undef FEATURE
    json_t *isas = json_array();
    for (const char *const *isa = kern_isa_list(); *isa; isa++)
        json_array_append_new(isas, json_string(*isa));
    return json_pack("{s:s, s:I, s:i, s:i, s:o, s:o}", "name", start, "online",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "allowed", par_allowed_cores(),
                     "threads", par_default_threads(), "features", features, "variants", isas);
}

/* Bytes of a line "Name:  N kB" of /proc/meminfo; 0 when there is none. */
static json_int_t meminfo(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? (json_int_t)strtoll(at + strlen(name), NULL, 10) * 1024 : 0;
}

static json_t *memory_facts(void)
{
    json_int_t total = 0, available = 0;
    char text[4096];
    FILE *f = fopen("/proc/meminfo", "r");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        total = meminfo(text, "MemTotal:");
        available = meminfo(text, "MemAvailable:");
        fclose(f);
    }
    return json_pack("{s:I, s:I}", "total", total, "available", available);
}

/* Devices by trying to open them: the reason is the error's own text. */
static json_t *device_facts(void)
{
    static const struct {
        const char *device;
        bool f32; /* else the device's own */
    } tries[] = {{"cpu", true}, {"cpu", false}, {"cuda:0", false}};
    json_t *out = json_array();
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        struct kern_options o = {.device = tries[i].device, .arith = KERN_F32};
        struct kern *k = NULL;
        struct err e = {.text = ""};
        enum err_code rc = ERR_OK;
        if (!tries[i].f32)
            rc = kern_device_arith(o.device, &o.arith, &e);
        if (rc == ERR_OK)
            rc = kern_open(&k, &o, &e);
        json_t *d = json_pack("{s:s, s:s, s:b, s:b}", "device", tries[i].device, "arith",
                              kern_arith_name(o.arith), "measured", kern_arith_measured(o.arith),
                              "usable", rc == ERR_OK);
        if (rc == ERR_OK)
            json_object_set_new(d, "variant", json_string(kern_isa(k)));
        else
            json_object_set_new(d, "reason", json_string(e.text));
        json_array_append_new(out, d);
        kern_close(k);
    }
    return out;
}

static json_t *library_facts(void)
{
    char pcre[64] = "unknown";
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) < (int)sizeof pcre)
        pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "jansson", jansson_version_str(),
                     "libarchive", archive_version_string(), "zlib", zlibVersion(), "libyaml",
                     yaml_get_version_string(), "pcre2", pcre, "utf8proc", utf8proc_version(),
                     "openssl", OpenSSL_version(OPENSSL_VERSION_STRING));
}

static json_t *collect(void)
{
#ifdef ASSAY_HAVE_CUDA
    bool cuda = true;
#else
    bool cuda = false;
#endif
    return json_pack("{s:s, s:s, s:b, s:o, s:o, s:o, s:o}", "version", ASSAY_VERSION, "compiler",
                     __VERSION__, "cuda_built", cuda, "processor", processor_facts(), "memory",
                     memory_facts(), "devices", device_facts(), "libraries", library_facts());
}

static void put_words(struct strbuf *b, const char *label, const json_t *words)
{
    size_t i;
    const json_t *w;
    strbuf_printf(b, "%-12s", label);
    json_array_foreach((json_t *)(uintptr_t)words, i, w)
        strbuf_printf(b, " %s", json_string_value(w));
    strbuf_putc(b, '\n');
}

static void put_text(struct strbuf *b, const json_t *f)
{
    char a[24], t[24];
    const json_t *p = json_object_get(f, "processor"), *m = json_object_get(f, "memory");
    strbuf_printf(b, "%-12s %s (%s)\n", "assay", json_string_value(json_object_get(f, "version")),
                  json_string_value(json_object_get(f, "compiler")));
    strbuf_printf(b, "%-12s %s\n", "processor", json_string_value(json_object_get(p, "name")));
    strbuf_printf(b, "%-12s %lld online, %lld allowed, %lld threads by default\n", "cores",
                  (long long)json_integer_value(json_object_get(p, "online")),
                  (long long)json_integer_value(json_object_get(p, "allowed")),
                  (long long)json_integer_value(json_object_get(p, "threads")));
    put_words(b, "features", json_object_get(p, "features"));
    put_words(b, "variants", json_object_get(p, "variants"));
    strbuf_printf(b, "%-12s %s of %s available\n", "memory",
                  str_bytes(a, (uint64_t)json_integer_value(json_object_get(m, "available"))),
                  str_bytes(t, (uint64_t)json_integer_value(json_object_get(m, "total"))));
    size_t i;
    const json_t *d;
    json_array_foreach(json_object_get(f, "devices"), i, d)
    {
        const char *reason = json_string_value(json_object_get(d, "reason"));
        const bool measured = json_is_true(json_object_get(d, "measured"));
        strbuf_printf(b, "%-12s %s: %s%s\n", json_string_value(json_object_get(d, "device")),
                      json_string_value(json_object_get(d, "arith")),
                      reason ? reason : json_string_value(json_object_get(d, "variant")),
                      measured ? "" : "; its arithmetic was not measured against an oracle");
    }
    const char *name;
    const json_t *version;
    strbuf_printf(b, "%-12s", "libraries");
    json_object_foreach(json_object_get(f, "libraries"), name, version)
        strbuf_printf(b, " %s %s", name, json_string_value(version));
    strbuf_putc(b, '\n');
}

enum err_code cmd_doctor(int argc, char **argv, const struct cmd_env *env, struct err *e)
{
    bool json = false, help = false;
    const struct opt opts[] = {
        {OPT_FLAG, 0, "json", &json, 0, 0, NULL, NULL, "Print JSON."},
        {.type = OPT_END},
    };
    const struct opt_cmd cmd = {
        .name = "doctor",
        .usage = "[--json]",
        .about = "Says what this machine can do, and why not: processor, memory, devices, "
                 "libraries.",
        .opts = opts};
    struct opt_list pos = {0};
    (void)env;
    enum err_code rc = cmd_options(&cmd, argc, argv, &pos, &help, e);
    if (rc == ERR_OK && !help) {
        struct strbuf text = {0};
        json_t *facts = collect();
        if (facts && !json)
            put_text(&text, facts);
        rc = facts && !json ? cmd_print(&text, e) : cmd_print_json(json_incref(facts), e);
        json_decref(facts);
    }
    opt_list_free(&pos);
    return rc;
}
