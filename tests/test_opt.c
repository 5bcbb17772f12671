/* test_opt.c: every form of an option, every fault with its text, help and completion. */
#include <stdlib.h>
#include <string.h>

#include "common/io.h"
#include "common/opt.h"
#include "tests/check_main.h"

static bool verbose, dry;
static const char *recipe;
static int64_t threads;
static double temperature;
static int arith;
static struct opt_list extra;

static const char *const ariths[] = {"f32", "mma90", NULL};
static const struct opt table[] = {
    {.type = OPT_GROUP, .help = "What to do"},
    {.type = OPT_STRING,
     .letter = 'r',
     .name = "recipe",
     .out = &recipe,
     .arg = "FILE",
     .help = "The recipe; none by default."},
    {.type = OPT_FLAG, .letter = 'v', .name = "verbose", .out = &verbose, .help = "Say more."},
    {.type = OPT_FLAG, .letter = 'n', .name = "dry-run", .out = &dry, .help = "Only plan."},
    {.type = OPT_GROUP, .help = "How"},
    {.type = OPT_INT,
     .letter = 't',
     .name = "threads",
     .out = &threads,
     .lo = 1,
     .hi = 64,
     .arg = "N",
     .help = "Threads; all allowed cores by default."},
    {.type = OPT_DOUBLE, .name = "temperature", .out = &temperature, .lo = 0, .hi = 2},
    {.type = OPT_CHOICE, .name = "arith", .out = &arith, .choices = ariths, .help = "Arithmetic."},
    {.type = OPT_LIST, .name = "keep", .out = &extra, .arg = "GLOB", .help = "Keep these."},
    {.type = OPT_END}};
static const struct opt_cmd cmd = {.name = "quantize",
                                   .usage = "MODEL -o OUT",
                                   .about = "Packs a checkpoint by a recipe.",
                                   .examples = "  assay quantize a -r b",
                                   .opts = table,
                                   .args_min = 0,
                                   .args_max = 2};

static struct opt_list args;
static bool help, given[ARRAY_LEN(table)];
static struct err e;

/* Splits `line` at blanks and parses it. */
static enum err_code parse(const char *line)
{
    static char copy[256];
    char *argv[32] = {"quantize"};
    int argc = 1;
    verbose = dry = false;
    recipe = NULL;
    threads = 7;
    temperature = 1;
    arith = -1;
    opt_list_free(&extra);
    opt_list_free(&args);
    strcpy(copy, line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return opt_parse(&cmd, argc, argv, &args, &help, given, &e);
}

static void free_lists(void)
{
    opt_list_free(&extra);
    opt_list_free(&args);
}

START_TEST(all_forms_of_an_option_set_it)
{
    ck_assert_int_eq(parse("--recipe=a -t4 m -vn --temperature 0.5 --arith mma90 x"), ERR_OK);
    ck_assert_str_eq(recipe, "a");
    ck_assert_int_eq(threads, 4);
    ck_assert(verbose && dry && temperature == 0.5 && arith == 1);
    ck_assert_uint_eq(args.n, 2);
    ck_assert_str_eq(args.items[0], "m");
    ck_assert_str_eq(args.items[1], "x");
    ck_assert(given[1] && given[2] && given[3] && given[5] && given[6] && given[7] && !given[8]);
    ck_assert_int_eq(parse("-vt 9 --threads=10 -r -"), ERR_OK);
    ck_assert(verbose && threads == 10);
    ck_assert_str_eq(recipe, "-");
    ck_assert_int_eq(parse("--verbose --no-verbose -r -x"), ERR_OK);
    ck_assert(!verbose && given[2]);
    ck_assert_str_eq(recipe, "-x");
    ck_assert_int_eq(parse("--recipe="), ERR_OK);
    ck_assert_str_eq(recipe, "");
    free_lists();
}
END_TEST

START_TEST(lists_collect_and_a_double_dash_ends_options)
{
    ck_assert_int_eq(parse("--keep a --keep=b --keep c --keep d --keep e -- --recipe -v"), ERR_OK);
    ck_assert_uint_eq(extra.n, 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_int_eq(extra.items[i][0], "abcde"[i]);
    ck_assert_uint_eq(args.n, 2);
    ck_assert_str_eq(args.items[0], "--recipe");
    ck_assert_int_eq(parse("-"), ERR_OK);
    ck_assert_str_eq(args.items[0], "-");
    free_lists();
}
END_TEST

static const struct {
    const char *line, *text;
} faults[] = {
    {"--recpe x", "unknown option '--recpe'; did you mean '--recipe'?"},
    {"--no-verbos", "unknown option '--no-verbos'; did you mean '--no-verbose'?"},
    {"--no-recipe", "unknown option '--no-recipe'; did you mean '--recipe'?"},
    {"--zzz=1", "unknown option '--zzz'; 'assay quantize --help' lists the options"},
    {"-vz", "unknown option '-z' in '-vz'; 'assay quantize --help' lists the options"},
    {"--recipe", "option '--recipe' needs a value: --recipe FILE"},
    {"--recipe --verbose", "option '--recipe' needs a value: --recipe FILE"},
    {"-r", "option '--recipe' needs a value: --recipe FILE"},
    {"--verbose=1", "option '--verbose' takes no value, found '1'"},
    {"--threads 0", "option '--threads': found '0', expected an integer from 1 to 64"},
    {"--threads 65", "option '--threads': found '65', expected an integer from 1 to 64"},
    {"--threads 4.5", "option '--threads': found '4.5', expected an integer from 1 to 64"},
    {"--threads 99999999999999999999", "option '--threads': found '99999999999999999999', "
                                       "expected an integer from 1 to 64"},
    {"--temperature nan", "option '--temperature': found 'nan', expected a number from 0 to 2"},
    {"--arith mma9",
     "option '--arith': found 'mma9', expected one of f32, mma90; did you mean 'mma90'?"},
    {"a b c", "3 arguments, expected at most 2; usage: assay quantize MODEL -o OUT"},
};

START_TEST(bad_usage_says_what_and_what_is_near)
{
    ck_assert_int_eq(parse(faults[_i].line), ERR_USAGE);
    ck_assert_str_eq(e.text, faults[_i].text);
    ck_assert_ptr_null(args.items);
    free_lists();
}
END_TEST

START_TEST(help_is_asked_for_in_any_place_and_counts_no_arguments)
{
    ck_assert_int_eq(parse("a b c --help"), ERR_OK);
    ck_assert(help);
    ck_assert_int_eq(parse("-vh"), ERR_OK);
    ck_assert(help);
    ck_assert_int_eq(parse("a"), ERR_OK);
    ck_assert(!help);
    free_lists();
}
END_TEST

START_TEST(help_shows_groups_ranges_choices_and_examples)
{
    static const char *const parts[] = {
        "usage: assay quantize MODEL -o OUT\n",
        "Packs a checkpoint by a recipe.\n",
        "\nWhat to do:\n",
        "  -r, --recipe FILE         The recipe; none by default.\n",
        "\nHow:\n",
        "(1 to 64)",
        "--arith f32|mma90",
        "May be given again.",
        "  -h, --help ",
        "\nexamples:\n  assay quantize a -r b\n"};
    struct strbuf b = {0};
    opt_help(&cmd, &b);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        ck_assert_msg(strstr(b.data, parts[i]) != NULL, "'%s' in\n%s", parts[i], b.data);
    for (const char *line = b.data; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        ck_assert_uint_le(strcspn(line, "\n"), 100);
    }
    strbuf_clear(&b);
    opt_complete(&cmd, &b);
    ck_assert_ptr_nonnull(strstr(b.data, "--no-dry-run\n"));
    ck_assert_ptr_nonnull(strstr(b.data, "--arith=mma90\n"));
    ck_assert_ptr_null(strstr(b.data, "--no-recipe"));
    strbuf_free(&b);
}
END_TEST

START_TEST(words_are_what_is_not_the_default)
{
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"", ""},
        {"-v -t 4 --temperature 0.25 m", " --verbose --temperature 0.25"},
        {"-r a/b/recipe.yaml --arith mma90", " --recipe recipe.yaml --arith mma90"},
        {"--keep it's --keep *.b", " --keep 'it'\\''s' --keep '*.b'"},
    };
    static const char *const skip[] = {"threads", NULL};
    bool no = false;
    const char *none = NULL;
    int64_t zero = 0;
    double warm = 1;
    int unset = -1;
    struct opt_list empty = {0};
    struct opt defaults[ARRAY_LEN(table)];
    memcpy(defaults, table, sizeof table);
    void *const outs[] = {NULL, &none, &no, &no, NULL, &zero, &warm, &unset, &empty, NULL};
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        defaults[i].out = outs[i];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = {0};
        ck_assert_int_eq(parse(cases[i].line), ERR_OK);
        opt_words(table, defaults, skip, &b);
        ck_assert_str_eq(b.data ? b.data : "", cases[i].words);
        strbuf_free(&b);
        free_lists();
    }
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    int failed = 0;
    for (int nth = 1; nth < 50; nth++) {
        io_fault_set(IO_FAULT_ALLOC, nth);
        enum err_code rc = parse("--keep a --keep b --keep c x y");
        io_fault_set(IO_FAULT_ALLOC, 0);
        if (rc == ERR_OK)
            break;
        failed++;
        ck_assert_int_eq(rc, ERR_NOMEM);
    }
    ck_assert_int_eq(failed, 5);
    free_lists();
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("opt");
    TCase *t = tcase_create("opt");
    tcase_add_test(t, all_forms_of_an_option_set_it);
    tcase_add_test(t, lists_collect_and_a_double_dash_ends_options);
    tcase_add_loop_test(t, bad_usage_says_what_and_what_is_near, 0, ARRAY_LEN(faults));
    tcase_add_test(t, help_is_asked_for_in_any_place_and_counts_no_arguments);
    tcase_add_test(t, help_shows_groups_ranges_choices_and_examples);
    tcase_add_test(t, words_are_what_is_not_the_default);
    tcase_add_test(t, any_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}
