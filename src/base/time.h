/* SPDX-License-Identifier: Apache-2.0
 *
 * Units of time, and the nearer and the later of two moments. Pure: clocks are read in clock.h.
 */
#ifndef HAPAX_BASE_TIME_H
#define HAPAX_BASE_TIME_H

#include <stdint.h>
#include <time.h>

#define US_PER_MS INT64_C(1000)
#define US_PER_S  INT64_C(1000000)

static inline int64_t hapax__least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t hapax__most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* How far a moment lies after `to`; before `from`, as a negative number; between them: 0. */
static inline int64_t hapax__outside(int64_t us, int64_t from, int64_t to)
{
    return us > to ? us - to : us < from ? us - from : 0;
}

/* A span of time for ppoll() and the like; 0 where `us` is negative. */
static inline struct timespec hapax__timespec(int64_t us)
{
    us = hapax__most(us, 0);
    return (struct timespec){.tv_sec = (time_t)(us / US_PER_S), .tv_nsec = us % US_PER_S * 1000};
}

#endif
