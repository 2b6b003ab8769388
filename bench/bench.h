/* SPDX-License-Identifier: Apache-2.0
 *
 * What the benches share: a clock, a counter of instructions, an exit with a reason, keys in random
 * order, comparisons for qsort(), and a temporary folder that is removed at the end.
 */
#ifndef HAPAX_BENCH_H
#define HAPAX_BENCH_H

#include <errno.h>
#include <ftw.h>
#include <linux/perf_event.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Ends the bench with status 2; `why` may be NULL. */
static inline _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s%s%s\n", program_invocation_short_name, what, why ? ": " : "",
            why ? why : "");
    exit(2);
}

static inline int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t now_us(void)
{
    return now_ns() / 1000;
}

/* Counts from now on the instructions of a process (0: this one), and of the threads and processes
 * that it starts. Those of the kernel for them count, too. Others on the machine do not change the
 * count. 0: nothing can be counted here; one may have to be root. */
static inline int count_instructions(int pid)
{
    struct perf_event_attr attr = {.type = PERF_TYPE_HARDWARE,
                                   .size = sizeof(attr),
                                   .config = PERF_COUNT_HW_INSTRUCTIONS,
                                   .inherit = 1,
                                   .exclude_hv = 1};
    long fd = syscall(SYS_perf_event_open, &attr, pid, -1, -1, 0);

    return fd > 0 ? (int)fd : 0;
}

/* What such a counter says; 0: nothing can be counted. */
static inline int64_t counted(int counter)
{
    int64_t count = 0;

    if (counter > 0 && read(counter, &count, sizeof(count)) != (ssize_t)sizeof(count))
        die("counter of instructions", strerror(errno));
    return count;
}

/* The next random number of a counter (splitmix64). Many threads may draw from one counter. */
static inline uint64_t random_number(atomic_ullong *counter)
{
    uint64_t x = atomic_fetch_add(counter, UINT64_C(0x9e3779b97f4a7c15));

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline void draw(atomic_ullong *counter, void *out, size_t size)
{
    for (size_t at = 0; at < size; at += 8) {
        uint64_t number = random_number(counter);

        memcpy((uint8_t *)out + at, &number, size - at < 8 ? size - at : 8);
    }
}

/* For qsort(): of int64_t, of double. */
static inline int by_size(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static inline int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static inline int bench__remove(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void remove_folder(const char *path)
{
    nftw(path, bench__remove, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
