/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores of the simulated processes, which outlive all of them. Both are the machine, over the
 * same records. `sim:` stands behind a network that loses, delays and repeats. `disk:` is in the
 * process, which must be alone. It judges at once, and what it wrote is durable when it was synced;
 * when a sync fails, or the power does, writes that were not are lost.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_STORE_H
#define HAPAX_TESTS_SIM_LOOPS_STORE_H

#include <hapax/store.h>

#include <stdbool.h>
#include <stdint.h>

#define SIM_STORE_SLOW_US 1000000

struct sim_store {
    /* 1000ths of batches. */
    unsigned request_lost, reply_lost, late, twice, refused;
    unsigned slow; /* answered after up to SIM_STORE_SLOW_US; those behind it wait */
    int64_t down_until_us; /* nothing can be reached before */
    int64_t jump_us; /* of its clock */
    int drift; /* in 1024ths */
    uint64_t batches;
    /* Of `disk:`, 1000ths: of syncs that fail, and that take long, and of batches that do. */
    unsigned sync_failed, sync_slow, judge_slow;
    unsigned syncs_failed; /* how often it came to that */
};
extern struct sim_store sim_store;

void sim_store_reset(void);

/* Draws the faults of a store behind its network (play.h). */
void sim_store_draw(bool all);

/* The record of an id, as it is now. NULL: there is none. */
const struct hapax_record *sim_store_record(const struct hapax_id *id);

/* Called after each op that was judged, with its verdict. */
extern void (*sim_store_judged)(const struct hapax_op *op);

/* The process that has the disk; -1: none. */
int sim_disk_of(void);

/* Whether it has writes that are not synced. */
bool sim_disk_waits(void);

/* The process that has the disk is dead, and its machine perhaps, too: then the last writes that
 * were not synced are lost. Returns how many. */
unsigned sim_disk_dead(bool power);

/* Called when the disk loses its last writes, from this one on. */
extern void (*sim_disk_lost)(uint64_t from);

/* The write to the disk that made the record what it is; 0: there was none. */
uint64_t sim_store_number(const struct hapax_id *id);

#endif
