/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lock is made of, for redlock.c (takes and releases) and redlock_nodes.c (links and rounds).
 */
#ifndef HAPAX_STORE_REDLOCK_NODES_H
#define HAPAX_STORE_REDLOCK_NODES_H

#include "base/arena.h"
#include "redlock.h"

struct hapax__redlock_node {
    struct hapax__redis_uri uri;
    struct hapax__redis_tls *tls;
    struct hapax__redis_link *link; /* NULL: not connected */
    int64_t pause_until_us; /* not asked before */
    size_t waits; /* replies of the round under way, which are to come */
    size_t owed; /* replies that did not come in time, and are still to come on this link */
    size_t told; /* replies that nobody waits for, in front of the next one that somebody does */
    bool asked; /* the take under way may have reached it */
    struct hapax__resp *replies[HAPAX__REDLOCK_CALLS_MAX]; /* of the last round, as many as … */
    size_t replied; /* … it had calls, or 0; NULL: none came, or an error */
};

struct hapax__redlock {
    struct hapax_arena arena;
    size_t count;
    char why[HAPAX_TEXT_MAX]; /* what failed last, on any node */
    struct hapax__redlock_node nodes[HAPAX__REDLOCK_NODES_MAX];
};

void hapax__redlock_drop_link(struct hapax__redlock_node *node);
void hapax__redlock_drop_replies(struct hapax__redlock_node *node);

/* Drops the last round's replies, and what failed in it. */
void hapax__redlock_forget(struct hapax__redlock *lock);

/* Connects those that are not, and whose pause is over. One that could not be connected has no link. */
void hapax__redlock_connect(struct hapax__redlock *lock, int64_t patience_us);
void hapax__redlock_connect_node(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                                 int64_t patience_us);

/* Sends it all to a node that has a link; waits is 0 afterwards, and the link gone, where it could not. */
void hapax__redlock_send(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                         const struct hapax__redlock_call *calls, size_t n, int64_t deadline_us);

/* Takes the replies of a node that waits: yours, as many as it waits for; NULL: none came, or an error. Where one does
 * not come by the patience after begin_us, it and those behind it are owed; after an error that says something of the
 * node the link is gone, for what stands at its other end may have changed. False: not all came. */
bool hapax__redlock_receive(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                            struct hapax__resp **out, int64_t begin_us, int64_t patience_us);

#endif
