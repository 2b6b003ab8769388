/* SPDX-License-Identifier: Apache-2.0
 *
 * The flows of one process that wait for the same operation. The first of those that ask an equal
 * question is their head: it alone asks the store, and runs where it is granted the claim;
 * the others, its mates, get its answer, or one of them takes its place. Everything is linked
 * through the flows, so the table needs no memory but its buckets. One thread at a time.
 */
#ifndef HAPAX_CORE_WAITERS_H
#define HAPAX_CORE_WAITERS_H

#include "flow.h"

struct hapax__waiters {
    struct hapax__flow **buckets; /* the door's memory: `size` of them, a power of two */
    size_t size;
    struct hapax__flow *ready;
    struct hapax__flow **ready_end;
};

void hapax__waiters_init(struct hapax__waiters *waiters, struct hapax__flow **buckets, size_t size);

/* Takes a flow that has something to do because of another's event; call hapax__flow_next() on it.
 * NULL: none is left. */
struct hapax__flow *hapax__waiters_ready(struct hapax__waiters *waiters);

/* ---- for the flow ---- */

/* The head that asks the same question, or NULL. */
struct hapax__flow *hapax__waiters_head(struct hapax__waiters *waiters,
                                        const struct hapax__flow *flow);

/* Makes a flow the head of its question, or the last mate of a head. */
void hapax__waiters_lead(struct hapax__flow *flow);
void hapax__waiters_follow(struct hapax__flow *flow, struct hapax__flow *head);

/* Takes a flow out. Where it was a head, its first mate becomes head and is returned, else NULL. */
struct hapax__flow *hapax__waiters_leave(struct hapax__flow *flow);

void hapax__waiters_wake(struct hapax__flow *flow);

#endif
