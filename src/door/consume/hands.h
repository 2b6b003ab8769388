/* SPDX-License-Identifier: Apache-2.0
 *
 * The hands: threads that begin operations and run their handlers, each one at a time. The loop gives
 * them entries, and gets each back once, with `ended` and `operation` set. Between the two an entry is
 * with a hand, or waits for the store without one.
 */
#ifndef HAPAX_DOOR_CONSUME_HANDS_H
#define HAPAX_DOOR_CONSUME_HANDS_H

#include "inhand.h"

struct hapax__hands;

/* What the hands work with; borrowed until they are closed. */
struct hapax__work {
    struct hapax *h;
    const struct hapax_consumer *consumer;
    const struct hapax__ask *ask;
    hapax_message_handler *handler;
    hapax_message_handler *reconcile; /* or NULL */
    void *arg;
    struct hapax_consumer_stats *stats;
    uint64_t seed; /* of operation hashes */
    /* Set by the loop. A claim that goes through clears it, and wakes the loop. */
    atomic_bool store_away;
    atomic_bool hurry; /* handlers should return */
};

/* Starts consumer->concurrency threads. NOMEM: no memory, threads or descriptors. */
enum hapax_error hapax__hands_open(struct hapax__hands **out, struct hapax__work *work);

/* Ends and joins the threads. All entries that were given must be reaped. NULL is fine. */
void hapax__hands_close(struct hapax__hands *hands);

/* Gives an entry to the next free hand; at most `concurrency` entries are out. The entry's delivery
 * stays until the entry is back. */
void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry);

/* Readable when entries are back, or the store is. */
int hapax__hands_fd(const struct hapax__hands *hands);

/* Moves all entries that are back to *back, in the order in which they ended. */
void hapax__hands_reap(struct hapax__hands *hands, struct hapax__entries *back);

#endif
