/* SPDX-License-Identifier: Apache-2.0
 *
 * What is counted of flows, of a lane, and of a store, as plain words. Each struct of counts has
 * one writer at a time; any thread or process may read each word by itself. Two words may be of
 * different moments, which is enough for a scrape.
 *
 * Rejected: counters with a locked instruction. A flow would pay for a dozen of them, and nobody
 * contends.
 */
#ifndef HAPAX_CORE_COUNTS_H
#define HAPAX_CORE_COUNTS_H

#include <hapax/store.h>

#define HAPAX__TIMES 32u /* [i]: under 2^i µs, and at least 2^(i-1); the last: all that is longer */
#define HAPAX__SIZES 12u /* [i]: up to 2^i, and over 2^(i-1); the last: all that is more */

struct hapax__times {
    uint64_t n[HAPAX__TIMES];
    uint64_t us; /* the sum */
};

/* What would have become of a request that is only watched (struct hapax__flow, `shadow`): an enum
 * hapax_answer_kind, where FRESH is a first run; or one of these. */
enum hapax__would {
    HAPAX__WOULD_RUN_AGAIN = HAPAX_ANSWER_EXPIRED + 1, /* a run after a former attempt */
    HAPAX__WOULD_ASK, /* the reconcile hook */
    HAPAX__WOULD_NOT_KNOWN, /* not judged: the door could not ask */
    HAPAX__WOULDS
};

/* Of flows: struct hapax__flow counts in here. All members are uint64_t, so that the counts of
 * several processes can be added word by word. */
struct hapax__counts {
    uint64_t answers[HAPAX_ANSWER_EXPIRED + 1];
    uint64_t unrecorded; /* FRESH whose outcome is not stored yet */
    uint64_t unasked; /* answers that did not ask a dead store */
    uint64_t would[HAPAX__WOULDS]; /* requests that were only watched */
    uint64_t repeats[2]; /* of them, those to be replayed: 0 as the first answer, 1 otherwise */
    uint64_t attempts[HAPAX_CLASS_UNKNOWN + 1]; /* handlers that ended, by class */
    uint64_t reconciles[HAPAX_CLASS_UNKNOWN + 1]; /* hooks that ended, by class */
    uint64_t takeovers; /* claims granted after an attempt that had died */
    uint64_t lost; /* attempts that found their claim gone */
    uint64_t ops[HAPAX_OP_READ + 1]; /* asked of the store, by kind */
    uint64_t errors[-HAPAX_ERR_SEALED + 1]; /* ops without a verdict, by -error */
    struct hapax__times op; /* from ASK to told() */
    struct hapax__times handler; /* handlers and hooks */
    struct hapax__times waiting; /* from begin to ANSWER, without handler and hook */
};

/* Of a lane. */
struct hapax__lane_counts {
    uint64_t sizes[HAPAX__SIZES]; /* batches, by their ops */
    uint64_t ops; /* the sum */
    struct hapax__times sync; /* waits for the disk */
};

/* What a census found in a store (lane/census.h). */
enum hapax__census_state {
    HAPAX__CENSUS_STARTED, /* with a live lease */
    HAPAX__CENSUS_OVER, /* started, and the lease is over */
    HAPAX__CENSUS_FAILED,
    HAPAX__CENSUS_UNKNOWN,
    HAPAX__CENSUS_STATES
};

struct hapax__census_found {
    bool up; /* the last census was answered; otherwise all else is of the one before */
    bool whole; /* all unfinished operations were seen, and not only the first */
    int64_t us; /* how long it took; 0: there was none yet */
    uint64_t n[HAPAX__CENSUS_STATES];
    int64_t oldest_us[HAPAX__CENSUS_STATES]; /* since the first claim */
    struct hapax_vitals vitals; /* of the store; if it did not answer, only what still holds */
};

static inline void hapax__count(uint64_t *word, uint64_t n)
{
    __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

/* The bucket of a time. */
static inline unsigned hapax__time_at(int64_t us)
{
    unsigned bits = us > 0 ? 64u - (unsigned)__builtin_clzll((unsigned long long)us) : 0;

    return bits < HAPAX__TIMES ? bits : HAPAX__TIMES - 1;
}

static inline void hapax__count_time(struct hapax__times *times, int64_t us)
{
    hapax__count(&times->n[hapax__time_at(us)], 1);
    hapax__count(&times->us, (uint64_t)us);
}

#endif
