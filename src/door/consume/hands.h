/* SPDX-License-Identifier: Apache-2.0
 *
 * The hands: threads that ask for operations and run their handlers, one each at a time. The loop gives them
 * entries and gets each back once, with `ended` and `operation` set. Between the two an entry is with one of them, or waits
 * for the store without any.
 */
#ifndef HAPAX_DOOR_CONSUME_HANDS_H
#define HAPAX_DOOR_CONSUME_HANDS_H

#include "inhand.h"

struct hapax__hands;

/* What hands work with; lent until they are closed. */
struct hapax__work {
    struct hapax *h;
    const struct hapax_consumer *consumer;
    const struct hapax__ask *ask;
    hapax_message_handler *handler;
    hapax_message_handler *reconcile; /* or NULL */
    void *arg;
    struct hapax_consumer_stats *stats;
    uint64_t seed; /* of operation hashes */
    atomic_bool
        store_away; /* the loop's; a claim that goes through clears it, and wakes the loop */
    atomic_bool hurry; /* handlers should return */
};

/* Starts consumer->concurrency threads. NOMEM: no memory, threads or descriptors. */
enum hapax_error hapax__hands_open(struct hapax__hands **out, struct hapax__work *work);

/* Ends and joins the threads; none may be at work, and all that were given are reaped. NULL is fine. */
void hapax__hands_close(struct hapax__hands *hands);

/* Gives an entry to the next hand that is free; at most `concurrency` are out. Its delivery stays until it is back. */
void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry);

/* Readable when some are back, or the store is. */
int hapax__hands_fd(const struct hapax__hands *hands);

/* All that are back, by `next`, in the order they ended; NULL: none. */
struct hapax__entry *hapax__hands_reap(struct hapax__hands *hands);

#endif
