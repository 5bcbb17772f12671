/* test_svg.c: places of points, gaps, ranges that doubles can hardly hold. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "common/svg.h"
#include "tests/check_main.h"

static const struct svg_plot plot = {
    .title = "KL <by> position", .x_label = "position", .y_label = "nats"};

static size_t count(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *p = strstr(text, part); p; p = strstr(p + 1, part))
        n++;
    return n;
}

START_TEST(points_stand_where_the_axes_say)
{
    double x[] = {0, 5, 10}, y[] = {0, 50, 100};
    struct svg_series s = {"a", x, y, 3, NULL};
    struct strbuf b = {0};
    svg_lines(&b, &plot, &s, 1);
    /* The frame is 72..624 by 272..36; the ticks end at the data. */
    ck_assert_ptr_nonnull(strstr(b.data, "d=\"M72 272L348 154L624 36\""));
    ck_assert_ptr_nonnull(strstr(b.data, ">100</text>"));
    ck_assert_ptr_nonnull(strstr(b.data, "<title>KL &lt;by&gt; position</title>"));
    ck_assert_ptr_nonnull(strstr(b.data, "nats by position</desc>"));
    ck_assert_uint_eq(count(b.data, "<svg"), count(b.data, "</svg>"));
    strbuf_free(&b);
}
END_TEST

START_TEST(what_is_not_finite_leaves_a_gap)
{
    double x[] = {0, 1, 2, 3, 4}, y[] = {1, 2, (double)NAN, 3, (double)INFINITY};
    struct svg_series s = {NULL, x, y, 5, NULL};
    struct strbuf b = {0};
    svg_lines(&b, &plot, &s, 1);
    const char *path = strstr(b.data, "d=\"");
    ck_assert_ptr_nonnull(path);
    ck_assert_uint_eq(count(path, "M"), 2);
    ck_assert_uint_eq(count(path, "L"), 1);
    ck_assert_ptr_null(strstr(b.data, "nan"));
    ck_assert_ptr_null(strstr(b.data, "inf"));
    strbuf_free(&b);
}
END_TEST

START_TEST(a_logarithmic_axis_has_decades)
{
    double x[] = {0, 1, 2}, y[] = {0.001, 0, 10};
    struct svg_series s = {NULL, x, y, 3, NULL};
    struct svg_plot p = plot;
    struct strbuf b = {0};
    p.y_log = true;
    svg_scatter(&b, &p, &s, 1);
    ck_assert_uint_eq(count(b.data, "<circle"), 2); /* zero has no logarithm */
    ck_assert_ptr_nonnull(strstr(b.data, ">1e-3<"));
    ck_assert_ptr_nonnull(strstr(b.data, ">1e1<"));
    ck_assert_ptr_nonnull(strstr(b.data, "cy=\"272\""));
    ck_assert_ptr_nonnull(strstr(b.data, "cy=\"36\""));
    strbuf_free(&b);
}
END_TEST

START_TEST(several_series_have_colours_and_a_legend_and_points_their_words)
{
    double x[] = {1, 2}, y[] = {1, 2};
    static const char *const words[] = {"q4", "<q8>"};
    struct svg_series s[] = {{"one", x, y, 2, words}, {"two", x, y, 2, NULL}};
    struct strbuf b = {0};
    svg_scatter(&b, &plot, s, 2);
    static const char *const there[] = {"var(--s0,", "var(--s1,", ">one<",
                                        ">two<",     ">q4<",      "&lt;q8&gt;"};
    for (size_t i = 0; i < ARRAY_LEN(there); i++)
        ck_assert_msg(strstr(b.data, there[i]) != NULL, "%s", there[i]);
    strbuf_free(&b);
}
END_TEST

START_TEST(bars_start_at_zero_and_bins_touch)
{
    static const char *const names[] = {"a", "b", "c"};
    double values[] = {-1, 2, (double)NAN};
    uint64_t counts[] = {0, 4, 1};
    struct strbuf b = {0};
    svg_bars(&b, &plot, names, values, 3);
    ck_assert_uint_eq(count(b.data, "fill=\"var(--s0"), 2);
    ck_assert_ptr_nonnull(strstr(b.data, ">c<"));
    strbuf_clear(&b);
    svg_histogram(&b, &plot, 0, 3, counts, 3);
    ck_assert_uint_eq(count(b.data, "fill=\"var(--s0"), 2);
    strbuf_free(&b);
}
END_TEST

/* Ranges where steps vanish, overflow or fall below the spacing of doubles: all must end, and no
 * coordinate may leave the picture by far. */
START_TEST(no_range_is_too_odd)
{
    static const double odd[] = {
        0,    -0.0,     1,      1 + DBL_EPSILON, DBL_MAX, -DBL_MAX, DBL_MIN,  5e-324,
        1e15, 1e15 + 1, 1e-290, 1e290,           -1e290,  123456.7, 123456.8, -3};
    struct svg_plot p = plot;
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        for (size_t k = 0; k < ARRAY_LEN(odd); k++) {
            double x[] = {odd[i], odd[k]}, y[] = {odd[k], odd[i]};
            static const char *const names[] = {"a", "b"};
            struct svg_series s = {NULL, x, y, 2, NULL};
            struct strbuf b = {0};
            for (int log = 0; log < 2; log++) {
                p.y_log = log;
                svg_lines(&b, &p, &s, 1);
                svg_scatter(&b, &p, &s, 1);
                svg_bars(&b, &p, names, x, 2);
            }
            ck_assert_ptr_null(strstr(b.data, "nan"));
            ck_assert_ptr_null(strstr(b.data, "inf"));
            ck_assert_uint_lt(b.len, 60000);
            strbuf_free(&b);
        }
    }
}
END_TEST

START_TEST(no_data_makes_an_empty_frame)
{
    struct strbuf b = {0};
    struct svg_series s = {NULL, NULL, NULL, 0, NULL};
    svg_lines(&b, &plot, &s, 1);
    svg_scatter(&b, &plot, NULL, 0);
    svg_bars(&b, &plot, NULL, NULL, 0);
    svg_histogram(&b, &plot, 0, 0, NULL, 0);
    ck_assert_uint_eq(count(b.data, "</svg>"), 4);
    strbuf_free(&b);
}
END_TEST

START_TEST(a_band_is_shaded_and_on_the_axis)
{
    const double x[] = {1, 2}, y[] = {5, 6};
    const struct svg_series series = {.x = x, .y = y, .n = 2};
    const struct svg_band wide = {0, 10}, line = {5, 5}, none = {(double)NAN, 1};
    const struct svg_band *const bands[] = {&wide, &line, &none};
    const char *const heights[] = {"height=\"236\"", "height=\"2\"", NULL};
    for (int i = 0; i < 3; i++) {
        struct svg_plot p = plot;
        struct strbuf b = {0};
        p.band = bands[i];
        svg_lines(&b, &p, &series, 1);
        ck_assert_uint_eq(count(b.data, "fill-opacity"), heights[i] ? 1 : 0);
        ck_assert(!heights[i] || strstr(b.data, heights[i]));
        strbuf_free(&b);
    }
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("svg");
    TCase *t = tcase_create("svg");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, points_stand_where_the_axes_say);
    tcase_add_test(t, what_is_not_finite_leaves_a_gap);
    tcase_add_test(t, a_logarithmic_axis_has_decades);
    tcase_add_test(t, several_series_have_colours_and_a_legend_and_points_their_words);
    tcase_add_test(t, bars_start_at_zero_and_bins_touch);
    tcase_add_test(t, no_range_is_too_odd);
    tcase_add_test(t, no_data_makes_an_empty_frame);
    tcase_add_test(t, a_band_is_shaded_and_on_the_axis);
    suite_add_tcase(s, t);
    return s;
}
