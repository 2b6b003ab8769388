/* SPDX-License-Identifier: Apache-2.0
 *
 * The flows of one process that ask the same question. The first of them is the head: the head
 * alone asks the store, and runs the handler if its claim is granted. The others are its mates:
 * they get the head's answer, or the first mate becomes the next head. The table needs no memory
 * but its buckets, since all lists are linked through the waiters. One thread at a time.
 */
#ifndef HAPAX_CORE_WAITERS_H
#define HAPAX_CORE_WAITERS_H

#include "breaker.h"

#include <hapax/store.h>

#include <sys/queue.h>

/* Where two questions are equal, the verdict on one CLAIM answers both. */
struct hapax__question {
    struct hapax_id id;
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    bool reconciles;
    bool rerun_completed;
    enum hapax_on_expired on_expired;
    uint32_t attempts_max;
};

struct hapax__waiter {
    struct hapax__question question;
    struct hapax__waiters *table;
    /* Itself, the head that it follows, or NULL: it is in no list of mates. */
    struct hapax__waiter *head;
    TAILQ_HEAD(hapax__mates, hapax__waiter) mates; /* of a head */
    TAILQ_ENTRY(hapax__waiter) mate;
    LIST_ENTRY(hapax__waiter) bucket; /* of heads */
    STAILQ_ENTRY(hapax__waiter) ready;
    bool is_ready;
};

LIST_HEAD(hapax__bucket, hapax__waiter);

struct hapax__waiters {
    struct hapax__bucket *buckets; /* the door's memory */
    size_t size; /* a power of two */
    STAILQ_HEAD(hapax__ready, hapax__waiter) ready;
    struct hapax__breaker breaker; /* of the store that these flows ask */
};

void hapax__waiters_init(struct hapax__waiters *table, struct hapax__bucket *buckets, size_t size);

/* Takes the first waiter out of the ready list; NULL: the list is empty. */
struct hapax__waiter *hapax__waiters_ready(struct hapax__waiters *table);

/* Puts a waiter at the end of the ready list, unless the waiter stands there already. */
void hapax__waiters_wake(struct hapax__waiter *waiter);

/* Finds the head that asks the same question, or makes this waiter a head and returns it. */
struct hapax__waiter *hapax__waiters_head(struct hapax__waiter *waiter);

/* Makes a waiter the last mate of a head. */
void hapax__waiters_follow(struct hapax__waiter *waiter, struct hapax__waiter *head);

/* The first mate of a head; NULL where there is none, and for a waiter that is no head. */
struct hapax__waiter *hapax__waiters_mate(struct hapax__waiter *waiter);

/* Takes a waiter out. Where it was a head, its first mate becomes the head of the other mates and
 * is returned. NULL: nobody follows. */
struct hapax__waiter *hapax__waiters_leave(struct hapax__waiter *waiter);

#endif
