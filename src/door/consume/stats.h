/* SPDX-License-Identifier: Apache-2.0
 *
 * Counting in struct hapax_consumer_stats, while other threads count or read.
 */
#ifndef HAPAX_DOOR_CONSUME_STATS_H
#define HAPAX_DOOR_CONSUME_STATS_H

#include <hapax/consume.h>

/* Sets all counters to 0, and what is not known yet to its first value. */
void hapax__stats_clear(struct hapax_consumer_stats *stats);

void hapax__stats_add(uint64_t *counter, uint64_t n);
void hapax__stats_sub(uint64_t *gauge, uint64_t n);

/* Counts a time in its bucket and in the sum. */
void hapax__stats_time(uint64_t buckets[32], uint64_t *sum, int64_t us);

#endif
