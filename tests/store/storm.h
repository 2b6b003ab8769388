/* SPDX-License-Identifier: Apache-2.0
 *
 * A storm: processes that claim and complete keys of one window until they are killed, and what
 * they hold each other to. What they must agree on stands in memory they share, where it outlives
 * them: an effect is noted before anything else is done under its claim, an outcome when it was
 * acknowledged or seen. Odd keys are under `hold`, even ones under `rerun`.
 */
#ifndef HAPAX_TESTS_STORM_H
#define HAPAX_TESTS_STORM_H

#include "store_test.h"

#include <stdatomic.h>

#define STORM_KEYS  262144u
#define STORM_SLOTS 64u
#define BODY_MAX    64u

struct storm {
    unsigned window; /* keys that are worked on at a time */
    atomic_uint first; /* of them; first + window stays within STORM_KEYS */
    atomic_uint effects[STORM_KEYS];
    atomic_ulong stored[STORM_KEYS]; /* hash of an outcome that was acknowledged, or seen */
    atomic_uint in_op[STORM_SLOTS]; /* number of the op this process is in; 0: in none */
    atomic_uint ops;
    atomic_uint acknowledged;
    atomic_uint taken_over;
    atomic_uint unknown;
    atomic_uint replayed;
    atomic_bool over;
};

/* One process in the storm. */
struct storm_client {
    const struct suite *suite;
    struct storm *storm;
    struct hapax_store *store;
    unsigned slot; /* below STORM_SLOTS, its own */
    uint64_t random;
    unsigned reads_max; /* ops that a handler takes at most; 1 or more */

    /* Runs one op until it has a verdict. */
    void (*run)(const struct storm_client *client, struct hapax_op *op);
};

/* The bytes that complete a key: they tell keys and tokens apart. */
struct hapax_span body_of(char text[BODY_MAX], unsigned who, unsigned key);

/* Works on random keys of the window until the storm is over. */
void storm_run(struct storm_client *client);

/* Each key that anyone saw completed still is, with the same outcome; no effect is forgotten; and
 * the other keys can be had, or are known to be unknown. */
void storm_look_back(const struct storm_client *client);

#endif
