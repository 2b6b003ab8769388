/* SPDX-License-Identifier: Apache-2.0
 *
 * The histogram of `hapax bench`: quantiles within 2 % of the true ones, whatever the values.
 */
#include "../cases.h"
#include "cli/histogram.h"

#include <stdlib.h>
#include <string.h>

#define VALUES 20000

static struct histogram histogram;
static uint64_t values[VALUES];

static int clear(void **state)
{
    memset(&histogram, 0, sizeof(histogram));
    return 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void assert_close(uint64_t got, uint64_t truth)
{
    uint64_t off = got > truth ? got - truth : truth - got;

    if (off * 50 > truth)
        fail_msg("%llu stands for %llu", (unsigned long long)got, (unsigned long long)truth);
}

/* No values have no quantile. */
CASE_WITH(an_empty_histogram_says_zero, clear, NULL)
{
    assert_int_equal(histogram_quantile(&histogram, 500), 0);
}

/* Small values are told apart one by one. */
CASE_WITH(small_values_are_exact, clear, NULL)
{
    for (uint64_t value = 0; value < 100; value++)
        histogram_add(&histogram, value);
    for (unsigned percent = 1; percent <= 100; percent++)
        assert_int_equal(histogram_quantile(&histogram, percent * 10), percent - 1);
}

/* Every value that stands alone in a bucket, at every edge of every power of two, is 2 % off at
 * most. */
CASE_WITH(no_value_is_moved_far, clear, NULL)
{
    for (unsigned bit = 0; bit < HISTOGRAM_TOP; bit++) {
        for (int step = -2; step <= 2; step++) {
            uint64_t value = (UINT64_C(1) << bit) + (uint64_t)(int64_t)step;

            if (value >= UINT64_C(1) << HISTOGRAM_TOP)
                continue;
            clear(NULL);
            histogram_add(&histogram, value);
            histogram_add(&histogram, (UINT64_C(1) << HISTOGRAM_TOP) - 1);
            assert_close(histogram_quantile(&histogram, 500), value);
        }
    }
}

/* Quantiles of values over seven powers of ten are those that sorting gives, within 2 %. */
CASE_WITH(quantiles_are_those_of_sorting, clear, NULL)
{
    static const unsigned asked[] = {1, 100, 500, 900, 990, 999, 1000};
    uint64_t random = 88172645463325252u;

    for (size_t i = 0; i < VALUES; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        values[i] = random % (UINT64_C(10) << (random >> 32) % 24);
        histogram_add(&histogram, values[i]);
    }
    qsort(values, VALUES, sizeof(values[0]), by_value);
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        assert_close(histogram_quantile(&histogram, asked[i]),
                     values[(size_t)VALUES * asked[i] / 1000 - 1]);
}

/* A value over the top is counted, not lost, and breaks nothing. */
CASE_WITH(values_over_the_top_are_counted, clear, NULL)
{
    histogram_add(&histogram, 5);
    histogram_add(&histogram, UINT64_MAX);
    assert_int_equal(histogram.n, 2);
    assert_int_equal(histogram_quantile(&histogram, 500), 5);
    assert_int_equal(histogram_quantile(&histogram, 1000), (UINT64_C(1) << HISTOGRAM_TOP) - 1);
}
