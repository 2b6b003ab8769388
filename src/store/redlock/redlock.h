/* SPDX-License-Identifier: Apache-2.0
 *
 * Redlock: a lock on a majority of independent Redis nodes, taken for as long as its arithmetic
 * says. With one node it is that node's lock.
 *
 * Redlock does not promise that only one owner acts. An owner may pause past its lock's validity, a
 * node may lose a lock (a restart without its log, a failover), and clocks may jump (Kleppmann,
 * "How to do distributed locking", 2016). So a lock reduces contention and nothing more: what must
 * happen once is granted by a store with a fence, which refuses an owner that comes late.
 *
 * Locks are keys of the nodes (the prefix, then the name). Locks and records must have different
 * names.
 */
#ifndef HAPAX_STORE_REDLOCK_REDLOCK_H
#define HAPAX_STORE_REDLOCK_REDLOCK_H

#include "nodes.h"

/* One lock of a batch. */
struct hapax__redlock_item {
    struct hapax_span name; /* the key, without the prefix */
    /* Unique to this owner of the lock. A release compares it, and so does a repeated take, which
     * gets the whole time again. */
    struct hapax_span value;
    int64_t ttl_ms;

    /* answered by take */
    bool taken;
    /* taken: how long from now on the lock is surely ours: ttl − time used − drift */
    int64_t valid_ms;
    bool known; /* not taken: some node answered with another's value */
    struct hapax_span
        other; /* that value, of the first such node; the lock's until its next call */
};

/* Opens a lock over the nodes of these URIs (redis://, rediss://, or redis+sentinel://, one node
 * each), without a connection. Errors as hapax__redis_uri(); INVALID also where count is 0,
 * even, or over 9; two nodes are the same, or have different prefixes; a node has `wait`, or is
 * a cluster. */
enum hapax_error hapax__redlock_open(struct hapax__redlock **out, const char *const *uris,
                                     size_t count, char text[HAPAX_TEXT_MAX]);
void hapax__redlock_close(struct hapax__redlock *lock);

/* Tries each lock once on every node: all nodes at the same time, with one batch for each. A
 * lock that did not reach a majority, or reached it too late to be valid, is released
 * everywhere. A node that is down counts as a no. A node that does not answer is waited for a
 * tenth of the shortest ttl_ms (5 to 200 ms), and then left out for a second. Nodes that have no
 * connection yet are connected to before that, all within as long. n: at most HAPAX_BATCH_MAX.
 * Returns NONE where a majority of the nodes answered. Otherwise nothing is taken: UNAVAILABLE
 * (text: why), or NOMEM, and nothing was sent. */
enum hapax_error hapax__redlock_take(struct hapax__redlock *lock, struct hapax__redlock_item *items,
                                     size_t n, char text[HAPAX_TEXT_MAX]);

/* Deletes each lock whose value is still there (compare and delete, in one step per node). Best
 * effort: a lock that is not released runs out. */
void hapax__redlock_release(struct hapax__redlock *lock, const struct hapax__redlock_item *items,
                            size_t n);

/* The arithmetic: the part of ttl_ms that is left after elapsed_us, less the drift of the nodes'
 * clocks (a hundredth of ttl_ms, and 2 ms). A lock is valid while this is above 0. */
int64_t hapax__redlock_valid_us(int64_t ttl_ms, int64_t elapsed_us);
size_t hapax__redlock_majority(size_t nodes);

#endif
