/* SPDX-License-Identifier: Apache-2.0 */
#include "waiters.h"

#include <assert.h>
#include <string.h>

void hapax__waiters_init(struct hapax__waiters *table, struct hapax__bucket *buckets, size_t size)
{
    assert(size > 0 && (size & (size - 1)) == 0);
    memset(buckets, 0, size * sizeof(*buckets));
    table->buckets = buckets;
    table->size = size;
    STAILQ_INIT(&table->ready);
    hapax__breaker_init(&table->breaker);
}

struct hapax__waiter *hapax__waiters_ready(struct hapax__waiters *table)
{
    struct hapax__waiter *waiter = STAILQ_FIRST(&table->ready);

    if (!waiter)
        return NULL;
    STAILQ_REMOVE_HEAD(&table->ready, ready);
    waiter->is_ready = false;
    return waiter;
}

void hapax__waiters_wake(struct hapax__waiter *waiter)
{
    if (waiter->is_ready)
        return;
    waiter->is_ready = true;
    STAILQ_INSERT_TAIL(&waiter->table->ready, waiter, ready);
}

static struct hapax__bucket *bucket_of(const struct hapax__waiter *waiter)
{
    size_t hash;

    memcpy(&hash, waiter->question.id.bytes, sizeof(hash));
    hash &= waiter->table->size - 1;
    assert(hash < waiter->table->size);
    return &waiter->table->buckets[hash];
}

static bool same_question(const struct hapax__question *x, const struct hapax__question *y)
{
    return memcmp(&x->id, &y->id, sizeof(x->id)) == 0 &&
           memcmp(&x->fingerprint, &y->fingerprint, sizeof(x->fingerprint)) == 0 &&
           memcmp(&x->caller, &y->caller, sizeof(x->caller)) == 0 &&
           x->reconciles == y->reconciles && x->on_expired == y->on_expired &&
           x->attempts_max == y->attempts_max && x->rerun_completed == y->rerun_completed;
}

static void lead(struct hapax__waiter *waiter)
{
    waiter->head = waiter;
    LIST_INSERT_HEAD(bucket_of(waiter), waiter, bucket);
}

struct hapax__waiter *hapax__waiters_head(struct hapax__waiter *waiter)
{
    struct hapax__waiter *head;

    assert(!waiter->head);
    LIST_FOREACH (head, bucket_of(waiter), bucket)
        if (same_question(&head->question, &waiter->question))
            return head;
    TAILQ_INIT(&waiter->mates);
    lead(waiter);
    return waiter;
}

void hapax__waiters_follow(struct hapax__waiter *waiter, struct hapax__waiter *head)
{
    assert(!waiter->head && head->head == head);
    TAILQ_INSERT_TAIL(&head->mates, waiter, mate);
    waiter->head = head;
}

struct hapax__waiter *hapax__waiters_mate(struct hapax__waiter *waiter)
{
    return waiter->head == waiter ? TAILQ_FIRST(&waiter->mates) : NULL;
}

struct hapax__waiter *hapax__waiters_leave(struct hapax__waiter *waiter)
{
    struct hapax__waiter *head = waiter->head, *next, *mate;

    waiter->head = NULL;
    if (!head)
        return NULL;
    if (head != waiter) {
        TAILQ_REMOVE(&head->mates, waiter, mate);
        return NULL;
    }
    LIST_REMOVE(waiter, bucket);
    next = TAILQ_FIRST(&waiter->mates);
    if (!next)
        return NULL;
    TAILQ_REMOVE(&waiter->mates, next, mate);
    TAILQ_INIT(&next->mates);
    TAILQ_CONCAT(&next->mates, &waiter->mates, mate);
    TAILQ_FOREACH (mate, &next->mates, mate)
        mate->head = next;
    lead(next);
    return next;
}
