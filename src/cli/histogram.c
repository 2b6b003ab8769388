/* SPDX-License-Identifier: Apache-2.0
 *
 * Each power of two has 64 buckets, and the highest 7 bits of a value say which one is the value's.
 * A bucket counts as its middle, so the error is half a bucket's width: 1/128 at most.
 */
#include "histogram.h"

#include <assert.h>

static unsigned bucket_of(uint64_t value)
{
    unsigned shift = 0;

    if (value >= UINT64_C(2) << HISTOGRAM_BITS)
        shift = 63u - HISTOGRAM_BITS - (unsigned)__builtin_clzll(value);
    return (shift << HISTOGRAM_BITS) + (unsigned)(value >> shift);
}

static uint64_t middle_of(unsigned bucket)
{
    unsigned shift = bucket >> HISTOGRAM_BITS;

    if (shift <= 1)
        return bucket;
    shift--;
    return (((uint64_t)(bucket - (shift << HISTOGRAM_BITS)) << shift) + (UINT64_C(1) << shift) / 2);
}

void histogram_add(struct histogram *histogram, uint64_t value)
{
    unsigned bucket;

    if (value >= UINT64_C(1) << HISTOGRAM_TOP)
        value = (UINT64_C(1) << HISTOGRAM_TOP) - 1;
    bucket = bucket_of(value);
    assert(bucket < HISTOGRAM_BUCKETS);
    histogram->counts[bucket]++;
    histogram->n++;
    if (value > histogram->max)
        histogram->max = value;
}

uint64_t histogram_quantile(const struct histogram *histogram, unsigned per_mille)
{
    uint64_t rank =
        (histogram->n / 1000) * per_mille + (histogram->n % 1000 * per_mille + 999) / 1000;
    uint64_t seen = 0;

    assert(per_mille >= 1 && per_mille <= 1000);
    if (histogram->n == 0)
        return 0;
    assert(rank >= 1 && rank <= histogram->n);
    if (rank == histogram->n)
        return histogram->max;
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        seen += histogram->counts[bucket];
        if (seen >= rank) {
            uint64_t middle = middle_of(bucket);

            return middle < histogram->max ? middle : histogram->max;
        }
    }
    assert(0 && "counts below n");
    return histogram->max;
}
