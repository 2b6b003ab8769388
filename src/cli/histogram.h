/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of values in buckets whose width grows with the value. Gives any quantile of any number of
 * values at most 1 % off, in 20 KiB. Each value below 128 has a bucket of its own.
 */
#ifndef HAPAX_CLI_HISTOGRAM_H
#define HAPAX_CLI_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BITS    6u /* buckets in a power of two: 64 */
#define HISTOGRAM_TOP     44u /* values from 2^44 on count as 2^44 - 1: nearly five hours in ns */
#define HISTOGRAM_BUCKETS ((HISTOGRAM_TOP - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS)

struct histogram { /* begins as zero */
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t n;
    uint64_t max;
};

void histogram_add(struct histogram *histogram, uint64_t value);

/* The value that `per_mille` of a thousand values do not pass (500: the median); 0: no values. The
 * greatest value is exact. per_mille: 1 to 1000. */
uint64_t histogram_quantile(const struct histogram *histogram, unsigned per_mille);

#endif
