/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the primary of a master's name is: what the sentinels of the URI answer.
 */
#ifndef HAPAX_STORE_REDIS_SENTINEL_H
#define HAPAX_STORE_REDIS_SENTINEL_H

#include "node.h"

struct hapax__redis_sentinels {
    const char *master; /* the name that the sentinels watch */
    size_t count;
    /* In the order in which they are asked: a sentinel that was of no use goes to the end. */
    struct hapax__redis_node *at[HAPAX__REDIS_HOSTS_MAX];
    struct hapax__redis_access access;
};

/* Connects `primary` to the node that a sentinel names and that itself answers that it is a
 * primary. Each sentinel is asked once. *answered: whether any sentinel answered. text says what
 * failed. It is "" or from earlier in this run before the call; a question that the deadline cut
 * short changes text only where it is "". */
enum hapax_error hapax__redis_sentinel_connect(struct hapax__redis_sentinels *sentinels,
                                               struct hapax__redis_node *primary, bool *answered,
                                               int64_t deadline_us, char text[HAPAX_TEXT_MAX]);

/* The primary in use may be a former one: the sentinel that named it is asked last from now on. */
void hapax__redis_sentinel_doubt(struct hapax__redis_sentinels *sentinels);

/* Asks sentinel k for all that it knows of the master (SENTINEL MASTER). The caller frees the
 * reply. */
enum hapax_error hapax__redis_sentinel_master(struct hapax__redis_sentinels *sentinels, size_t k,
                                              struct hapax__resp **reply, int64_t deadline_us,
                                              char text[HAPAX_TEXT_MAX]);

#endif
