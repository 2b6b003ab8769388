/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters that several threads add to and any may read. Each is right by itself; two of them may be from
 * different moments, which is all that a scrape needs. Rejected: a lock, which the handlers' threads would meet at.
 */
#include "parts.h"

#include <assert.h>
#include <string.h>

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
    const size_t head = offsetof(struct hapax_consumer_stats, lag) / sizeof(*from);

    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < head; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    out->lag = __atomic_load_n(&stats->lag, __ATOMIC_RELAXED);
    out->connected = __atomic_load_n(&stats->connected, __ATOMIC_RELAXED);
    out->store_up = __atomic_load_n(&stats->store_up, __ATOMIC_RELAXED);
    out->draining = __atomic_load_n(&stats->draining, __ATOMIC_RELAXED);
    for (size_t i = 0; i < 32; i++) {
        out->handler_us[i] = __atomic_load_n(&stats->handler_us[i], __ATOMIC_RELAXED);
        out->message_us[i] = __atomic_load_n(&stats->message_us[i], __ATOMIC_RELAXED);
    }
    out->handler_us_sum = __atomic_load_n(&stats->handler_us_sum, __ATOMIC_RELAXED);
    out->message_us_sum = __atomic_load_n(&stats->message_us_sum, __ATOMIC_RELAXED);
}
