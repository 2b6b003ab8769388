/* SPDX-License-Identifier: Apache-2.0
 *
 * The nodes of a lock, and the commands that are sent to all of them: what redlock.h builds on.
 */
#ifndef HAPAX_STORE_REDLOCK_NODES_H
#define HAPAX_STORE_REDLOCK_NODES_H

#include "base/arena.h"
#include "store/redis/link.h"

#define HAPAX__REDLOCK_NODES_MAX 9u
#define HAPAX__REDLOCK_CALLS_MAX 128u

/* One command. */
struct hapax__redlock_call {
    const struct hapax_span *args;
    size_t argc;
};

struct hapax__redlock_node {
    struct hapax__redis_uri uri;
    struct hapax__redis_tls *tls; /* NULL: plain */
    struct hapax__redis_link *link; /* NULL: not connected */
    int64_t pause_until_us; /* not asked before then */
    size_t waits; /* replies of the round under way that are still to come */
    size_t owed; /* replies that did not come in time, and are still to come on this link */
    /* Replies that nobody waits for. They come before the next reply that is waited for. */
    size_t told;
    bool asked; /* the take under way may have reached the node */
    /* Of the last round, one for each call; NULL: none came, or an error. */
    struct hapax__resp *replies[HAPAX__REDLOCK_CALLS_MAX];
    size_t replied; /* how many; 0: the node was not asked */
};

struct hapax__redlock {
    struct hapax_arena arena; /* of redlock.c: what a take or a release sends */
    size_t count;
    char why[HAPAX_TEXT_MAX]; /* what failed last, on any node */
    struct hapax__redlock_node nodes[HAPAX__REDLOCK_NODES_MAX];
};

void hapax__redlock_drop_link(struct hapax__redlock_node *node);
void hapax__redlock_drop_replies(struct hapax__redlock_node *node);

/* Drops the last round's replies and its `why`. */
void hapax__redlock_forget(struct hapax__redlock *lock);

/* Connects each node that has no link and whose pause is over, all of them within the patience. A
 * node that could not be connected has no link afterwards; one that there was no time for is tried
 * the next time. Behind sentinels a node may take as long again as it took to ask them. */
void hapax__redlock_connect(struct hapax__redlock *lock, int64_t patience_us);
/* Connects one, by the deadline: for the sentinels, and from their answer on as long again. Where
 * it waited in vain for half of the patience, it is paused. */
void hapax__redlock_connect_node(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                                 int64_t deadline_us, int64_t patience_us);

/* Sends all calls to a node that has a link. Where that fails, node->waits is 0 and the link is
 * gone. */
void hapax__redlock_send(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                         const struct hapax__redlock_call *calls, size_t n, int64_t deadline_us);

/* Takes the node->waits replies that a node owes to the last send. The caller frees them; NULL:
 * none came, or an error. A reply that does not come within the patience after begin_us is owed,
 * and so are those behind it. After an error about the node the link is gone: another process may
 * be at its other end. False: not all replies came. */
bool hapax__redlock_receive(struct hapax__redlock *lock, struct hapax__redlock_node *node,
                            struct hapax__resp **out, int64_t begin_us, int64_t patience_us);

/* How many nodes there are, and the prefix of each name on them. */
size_t hapax__redlock_nodes(const struct hapax__redlock *lock);
struct hapax_span hapax__redlock_prefix(const struct hapax__redlock *lock);

/* Sends n commands, at most HAPAX__REDLOCK_CALLS_MAX, to all nodes at the same time, and waits for
 * each node's answers for the patience at most. replies[i * n + j] is node i's to command j. It
 * belongs to the lock until its next take or ask; NULL: none came in time, or an error. Nodes that
 * are down or left out are treated as in take. Returns how many nodes answered all commands. text:
 * what failed last, "" if nothing did. */
size_t hapax__redlock_ask(struct hapax__redlock *lock, const struct hapax__redlock_call *calls,
                          size_t n, int64_t patience_us, struct hapax__resp **replies,
                          char text[HAPAX_TEXT_MAX]);

/* Sends n commands to all nodes and waits for no answer; the answers are dropped. A node carries
 * out its commands in order, as long as its connection lasts. Best effort. */
void hapax__redlock_tell(struct hapax__redlock *lock, const struct hapax__redlock_call *calls,
                         size_t n, int64_t patience_us);

#endif
