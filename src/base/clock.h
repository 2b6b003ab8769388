/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of the stores that judge by their own machine's time (memory, rocksdb). It never
 * runs backwards, and nobody who sets the wall clock moves it: within one boot it follows
 * CLOCK_BOOTTIME from a persisted mark on; the wall clock is looked at only for the first
 * open after a boot, when every attempt that held a lease on this machine is dead anyway.
 */
#ifndef HAPAX_BASE_CLOCK_H
#define HAPAX_BASE_CLOCK_H

#include <hapax/hapax.h>
#include <stdbool.h>
#include <stdint.h>

/* A reading, to be persisted with what was judged by it. */
struct hapax__clock_mark {
    int64_t clock_us; /* 0: there is none */
    int64_t boot_us;
    uint8_t boot_id[16];
};

struct hapax__clock {
    int64_t ahead_us; /* of boot time */
    uint8_t boot_id[16];
};

/* Begins from the last mark (NULL: none) and this machine's readings now. */
HAPAX__SHARED void hapax__clock_start(struct hapax__clock *clock,
                                      const struct hapax__clock_mark *last,
                                      const struct hapax__clock_mark *now, int64_t wall_us);

/* Reads the machine: clock_us is the wall clock, boot_us CLOCK_BOOTTIME, and the boot's id. */
HAPAX__SHARED struct hapax__clock_mark hapax__clock_machine(void);

/* µs since 1970, for this boot time. */
HAPAX__SHARED int64_t hapax__clock_at(const struct hapax__clock *clock, int64_t boot_us);

/* CLOCK_BOOTTIME in µs: runs on through suspension, is never set. */
HAPAX__SHARED int64_t hapax__boot_us(void);

/* The wall clock: µs since 1970. */
HAPAX__SHARED int64_t hapax__wall_us(void);

/* CLOCK_MONOTONIC in µs, for deadlines. */
HAPAX__SHARED int64_t hapax__monotonic_us(void);

#endif
