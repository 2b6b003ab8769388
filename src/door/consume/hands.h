/* SPDX-License-Identifier: Apache-2.0
 *
 * The hands: threads that begin operations and run their handlers, one at a time in each thread.
 * The loop gives the hands entries. Each entry comes back once, with `ended` and `operation` set.
 * Between the two an entry is with a hand, or waits for the store without a hand.
 */
#ifndef HAPAX_DOOR_CONSUME_HANDS_H
#define HAPAX_DOOR_CONSUME_HANDS_H

#include "inhand.h"

struct hapax__hands;

/* What the hands need to work. Borrowed until they are closed. */
struct hapax__work {
    struct hapax *h;
    const struct hapax_consumer *consumer;
    const struct hapax__ask *ask;
    hapax_message_handler *handler;
    hapax_message_handler *reconcile; /* or NULL */
    void *arg;
    struct hapax_consumer_stats *stats;
    uint64_t seed; /* of operation hashes */
    /* Set by the loop. A claim that goes through clears `store_away` and wakes the loop. */
    atomic_bool store_away;
    atomic_bool hurry; /* handlers should return */
};

/* Starts consumer->concurrency threads. NOMEM: no memory, threads or descriptors; *out is NULL. */
enum hapax_error hapax__hands_open(struct hapax__hands **out, struct hapax__work *work);

/* Ends and joins the threads, and frees the hands. All entries that were given must have been
 * reaped. NULL is allowed. */
void hapax__hands_close(struct hapax__hands *hands);

/* Gives an entry to the next free hand. At most `concurrency` entries may be out. The entry is
 * lent, with its delivery, until hapax__hands_reap() returns it. */
void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry);

/* Returns a descriptor that is readable when entries are back, or when the store is. */
int hapax__hands_fd(const struct hapax__hands *hands);

/* Moves all entries that are back to *back, in the order in which they ended. */
void hapax__hands_reap(struct hapax__hands *hands, struct hapax__entries *back);

#endif
