/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock's arithmetic.
 */
#include "../cases.h"
#include "store/redlock/redlock.h"

#include <stdio.h>

/* What is left is the time to live, less what went by, a hundredth of it and 2 ms. */
CASE(the_time_left_is_what_the_algorithm_says)
{
    static const struct {
        int64_t ttl_ms, elapsed_us, valid_us;
    } cases[] = {
        {10000, 0, 9898000}, /* drift: 100 ms and 2 ms */
        {10000, 50000, 9848000},
        {10000, 9897999, 1}, /* the last moment */
        {10000, 9898000, 0}, /* and the one after */
        {10000, 10000000, -102000},
        {100, 0, 97000},
        {3, 0, 970},
        {2, 0, -20}, /* shorter than the drift: never valid */
        {1, 0, -1010},
        {30000, 12345, 29685655},
        {HAPAX_DURATION_MAX_MS, 0, INT64_C(312206399998000)},
        {1000, INT64_C(400000000000000), INT64_C(-399999999012000)}, /* asleep for years */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_true(hapax__redlock_valid_us(cases[i].ttl_ms, cases[i].elapsed_us) ==
                    cases[i].valid_us);
}

/* Two majorities of the same nodes always have one in common. */
CASE(two_majorities_share_a_node)
{
    static const size_t majorities[] = {0, 1, 2, 2, 3, 3, 4, 4, 5, 5};

    for (size_t n = 1; n < sizeof(majorities) / sizeof(majorities[0]); n++) {
        assert_int_equal(hapax__redlock_majority(n), majorities[n]);
        assert_true(2 * hapax__redlock_majority(n) > n);
    }
}
