/* SPDX-License-Identifier: Apache-2.0
 *
 * Heaps of timers against a search through all of them; spans, digits and units of time by example.
 */
#include "../cases.h"
#include "base/heap.h"
#include "base/span.h"
#include "base/time.h"

#include <stdio.h>
#include <stdlib.h>

#define TIMERS 200

/* Random settings, clearings and takings, beside a search through all timers. */
CASE(timers_are_taken_in_the_order_they_are_due)
{
    struct hapax__timer timers[TIMERS] = {{0}}, *taken;
    struct hapax__heap heap;
    unsigned seed = 1;

    assert_int_equal(hapax__heap_init(&heap, TIMERS), HAPAX_ERR_NONE);
    assert_true(hapax__heap_due_us(&heap) == INT64_MAX);
    for (int step = 0; step < 20000; step++) {
        struct hapax__timer *timer = &timers[rand_r(&seed) % TIMERS];
        int64_t first_us = INT64_MAX;

        if (rand_r(&seed) % 4 == 0)
            hapax__heap_clear(&heap, timer);
        else
            hapax__heap_set(&heap, timer, rand_r(&seed) % 8 ? rand_r(&seed) % 1000 : INT64_MAX);
        for (size_t i = 0; i < TIMERS; i++)
            if (timers[i].index > 0)
                first_us = hapax__least(first_us, timers[i].due_us);
        assert_true(hapax__heap_due_us(&heap) == first_us);
        assert_null(hapax__heap_take(&heap, first_us - 1));
        if (rand_r(&seed) % 4 == 0 && first_us != INT64_MAX) {
            taken = hapax__heap_take(&heap, first_us);
            assert_true(taken->due_us == first_us && taken->index == 0);
        }
    }
    hapax__heap_release(&heap);
}

CASE(spans_are_compared_to_their_end)
{
    struct hapax_span none = {NULL, 0}, word = hapax_str("Word");

    assert_true(hapax__is(word, "Word") && hapax__is(none, ""));
    assert_false(hapax__is(word, "word") || hapax__is(word, "Words") || hapax__is(none, "W"));
    assert_true(hapax__name_is(word, "wORD") && hapax__name_is(none, ""));
    assert_false(hapax__name_is(word, "wor") || hapax__name_is(word, "words"));
    assert_true(hapax__begins(word, "Wo") && hapax__begins(none, ""));
    assert_false(hapax__begins(word, "wo") || hapax__begins(word, "Words"));
    assert_true(hapax__text_begins("Words", "Word"));
    assert_false(hapax__text_begins("Wor", "Word"));
}

CASE(bytes_are_written_as_two_digits_each)
{
    uint8_t bytes[256];
    char text[sizeof(bytes) * 2 + 1], expected[sizeof(text)] = "";

    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)i;
        (void)snprintf(expected + 2 * i, 3, "%02zx", i);
    }
    for (size_t from = 0; from < 8; from++) { /* not all whole fours */
        *hapax__hex(text, bytes + from, sizeof(bytes) - from) = '\0';
        assert_string_equal(text, expected + 2 * from);
    }
}

CASE(a_span_of_time_is_never_negative)
{
    assert_int_equal(hapax__timespec(-1).tv_nsec, 0);
    assert_int_equal(hapax__timespec(2 * US_PER_S + 3).tv_sec, 2);
    assert_int_equal(hapax__timespec(2 * US_PER_S + 3).tv_nsec, 3000);
    assert_int_equal(hapax__most(1, 2), 2);
}
