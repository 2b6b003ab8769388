/* SPDX-License-Identifier: Apache-2.0 */
#include "waiters.h"

#include <assert.h>
#include <string.h>

void hapax__waiters_init(struct hapax__waiters *waiters, struct hapax__flow **buckets, size_t size)
{
    assert(size > 0 && (size & (size - 1)) == 0);
    memset(buckets, 0, size * sizeof(*buckets));
    waiters->buckets = buckets;
    waiters->size = size;
    waiters->ready = NULL;
    waiters->ready_end = &waiters->ready;
}

struct hapax__flow *hapax__waiters_ready(struct hapax__waiters *waiters)
{
    struct hapax__flow *flow = waiters->ready;

    if (!flow)
        return NULL;
    waiters->ready = flow->next_ready;
    if (!waiters->ready)
        waiters->ready_end = &waiters->ready;
    flow->next_ready = NULL;
    flow->ready = false;
    return flow;
}

void hapax__waiters_wake(struct hapax__flow *flow)
{
    if (flow->ready)
        return;
    flow->ready = true;
    *flow->waiters->ready_end = flow;
    flow->waiters->ready_end = &flow->next_ready;
}

static struct hapax__flow **bucket_of(struct hapax__waiters *waiters,
                                      const struct hapax__flow *flow)
{
    size_t hash;

    memcpy(&hash, flow->request.id.bytes, sizeof(hash));
    return &waiters->buckets[hash & (waiters->size - 1)];
}

/* Whether one CLAIM's verdict answers the other's as well. */
static bool same_question(const struct hapax__flow *a, const struct hapax__flow *b)
{
    const struct hapax__flow_request *x = &a->request, *y = &b->request;

    return memcmp(&x->id, &y->id, sizeof(x->id)) == 0 &&
           memcmp(&x->fingerprint, &y->fingerprint, sizeof(x->fingerprint)) == 0 &&
           memcmp(&x->caller, &y->caller, sizeof(x->caller)) == 0 &&
           x->reconciles == y->reconciles && a->policy->on_expired == b->policy->on_expired &&
           a->policy->attempts_max == b->policy->attempts_max &&
           a->policy->rerun_completed == b->policy->rerun_completed;
}

struct hapax__flow *hapax__waiters_head(struct hapax__waiters *waiters,
                                        const struct hapax__flow *flow)
{
    struct hapax__flow *head = *bucket_of(waiters, flow);

    while (head && !same_question(head, flow))
        head = head->next_bucket;
    return head;
}

void hapax__waiters_lead(struct hapax__flow *flow)
{
    struct hapax__flow **bucket = bucket_of(flow->waiters, flow);

    assert(!flow->head || flow->head == flow);
    flow->head = flow;
    flow->next_bucket = *bucket;
    *bucket = flow;
}

void hapax__waiters_follow(struct hapax__flow *flow, struct hapax__flow *head)
{
    struct hapax__flow **end = &head->next_mate;

    assert(!flow->head && head->head == head);
    while (*end)
        end = &(*end)->next_mate;
    *end = flow;
    flow->head = head;
}

static void unlink_mate(struct hapax__flow *flow)
{
    struct hapax__flow **at = &flow->head->next_mate;

    while (*at != flow) {
        assert(*at);
        at = &(*at)->next_mate;
    }
    *at = flow->next_mate;
}

static struct hapax__flow *unlink_head(struct hapax__flow *flow)
{
    struct hapax__flow **at = bucket_of(flow->waiters, flow);
    struct hapax__flow *next = flow->next_mate;

    while (*at != flow) {
        assert(*at);
        at = &(*at)->next_bucket;
    }
    *at = flow->next_bucket;
    for (struct hapax__flow *mate = next; mate; mate = mate->next_mate)
        mate->head = next;
    if (next)
        hapax__waiters_lead(next);
    return next;
}

struct hapax__flow *hapax__waiters_leave(struct hapax__flow *flow)
{
    struct hapax__flow *next = NULL;

    if (!flow->head)
        return NULL;
    if (flow->head == flow)
        next = unlink_head(flow);
    else
        unlink_mate(flow);
    flow->head = NULL;
    flow->next_mate = NULL;
    flow->next_bucket = NULL;
    return next;
}
