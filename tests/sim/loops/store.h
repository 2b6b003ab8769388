/* SPDX-License-Identifier: Apache-2.0
 *
 * The store of the simulated processes, `sim:`. It is the machine, over a network that loses,
 * delays and repeats. It outlives all processes.
 */
#ifndef HAPAX_TESTS_SIM_LOOPS_STORE_H
#define HAPAX_TESTS_SIM_LOOPS_STORE_H

#include <hapax/store.h>

#include <stdbool.h>
#include <stdint.h>

struct sim_store {
    /* 1000ths of batches. */
    unsigned request_lost, reply_lost, late, twice, refused;
    int64_t down_until_us; /* nothing can be reached before */
    int64_t jump_us; /* of its clock */
    int drift; /* in 1024ths */
    uint64_t batches;
};
extern struct sim_store sim_store;

void sim_store_reset(void);

/* The record of an id, as it is now. NULL: there is none. */
const struct hapax_record *sim_store_record(const struct hapax_id *id);

/* Called after each op that was judged, with its verdict. */
extern void (*sim_store_judged)(const struct hapax_op *op);

#endif
