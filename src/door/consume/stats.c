/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters that several threads add to and any thread may read. Each is right by itself. Two of
 * them may be of different moments, which is enough for a scrape. Rejected: a lock, at which the
 * threads of handlers would meet.
 */
#include "stats.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* The counters that stand one after another, from `taken` to `lag`. */
#define WORDS (offsetof(struct hapax_consumer_stats, lag) / sizeof(uint64_t))

void hapax__stats_clear(struct hapax_consumer_stats *stats)
{
    uint64_t *words = &stats->taken;

    for (size_t i = 0; i < WORDS; i++)
        __atomic_store_n(&words[i], 0, __ATOMIC_RELAXED);
    for (size_t i = 0; i < 32; i++) {
        __atomic_store_n(&stats->handler_us[i], 0, __ATOMIC_RELAXED);
        __atomic_store_n(&stats->message_us[i], 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&stats->handler_us_sum, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->message_us_sum, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->lag, -1, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->connected, false, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->store_up, true, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->store_dead, false, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->handler_up, true, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->draining, false, __ATOMIC_RELAXED);
}

void hapax__stats_add(uint64_t *counter, uint64_t n)
{
    (void)__atomic_add_fetch(counter, n, __ATOMIC_RELAXED);
}

void hapax__stats_sub(uint64_t *gauge, uint64_t n)
{
    uint64_t left = __atomic_sub_fetch(gauge, n, __ATOMIC_RELAXED);

    assert(left <= UINT64_MAX - n);
}

void hapax__stats_time(uint64_t buckets[32], uint64_t *sum, int64_t us)
{
    unsigned i = 0;

    assert(us >= 0);
    while (i < 31 && us >= INT64_C(1) << i)
        i++;
    hapax__stats_add(&buckets[i], 1);
    hapax__stats_add(sum, (uint64_t)us);
}

void hapax_consumer_read(struct hapax_consumer_stats *out, const struct hapax_consumer_stats *stats)
{
    const uint64_t *from = &stats->taken;
    uint64_t *to = &out->taken;

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < WORDS; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    out->lag = __atomic_load_n(&stats->lag, __ATOMIC_RELAXED);
    out->connected = __atomic_load_n(&stats->connected, __ATOMIC_RELAXED);
    out->store_up = __atomic_load_n(&stats->store_up, __ATOMIC_RELAXED);
    out->store_dead = __atomic_load_n(&stats->store_dead, __ATOMIC_RELAXED);
    out->handler_up = __atomic_load_n(&stats->handler_up, __ATOMIC_RELAXED);
    out->draining = __atomic_load_n(&stats->draining, __ATOMIC_RELAXED);
    for (size_t i = 0; i < 32; i++) {
        out->handler_us[i] = __atomic_load_n(&stats->handler_us[i], __ATOMIC_RELAXED);
        out->message_us[i] = __atomic_load_n(&stats->message_us[i], __ATOMIC_RELAXED);
    }
    out->handler_us_sum = __atomic_load_n(&stats->handler_us_sum, __ATOMIC_RELAXED);
    out->message_us_sum = __atomic_load_n(&stats->message_us_sum, __ATOMIC_RELAXED);
}
