/* SPDX-License-Identifier: Apache-2.0
 *
 * A store that fails on purpose, around one that works: for tests only, in no library. It answers
 * as the store inside does, but for the ops its plan names.
 *
 * A plan is the test's. It outlives the handles that follow it, may be changed while they run, and
 * every call on it is safe from any thread. One plan may serve several handles.
 *
 *     hapax__plan_init(&plan);
 *     hapax_store_open(&inner, "memory:", text);
 *     hapax__faulty_wrap(&store, inner, &plan);          or: hapax__faulty_use(&plan), and
 *     hapax__plan_set(&plan, HAPAX__LOSE_REPLY, 3, 1);       hapax_open(&h, "faulty:memory:", …)
 */
#ifndef HAPAX_TESTS_STORE_FAULTY_H
#define HAPAX_TESTS_STORE_FAULTY_H

#include <hapax/store.h>
#include <pthread.h>

enum hapax__fault {
    HAPAX__NO_FAULT = 0,
    HAPAX__FAIL_BEFORE, /* UNAVAILABLE; the store inside never sees it */
    HAPAX__LOSE_OP, /* INDETERMINATE; the store inside never sees it */
    HAPAX__LOSE_REPLY, /* INDETERMINATE; the store inside has applied it */
    HAPAX__DELAY, /* waits for hapax__plan_go(), then goes on as if nothing had been */
    HAPAX__DELAY_REPLY, /* applied, then waits so before it is answered */
    HAPAX__DUPLICATE, /* applied twice; the second answer counts */
    /* Calls the crash hook; where the hook returns, this op and all after it are left. */
    HAPAX__CRASH_BEFORE,
    HAPAX__CRASH_AFTER /* applied, then the same */
};

/* Says what befalls an op: `number` counts the ops that came since the last change of the plan,
 * from
 * 1. Called under the plan's lock. */
typedef enum hapax__fault hapax__decide(void *arg, uint64_t number, const struct hapax_op *op);

struct hapax__plan {
    pthread_mutex_t lock; /* of all that follows, which only faulty.c touches */
    pthread_cond_t changed;
    hapax__decide *decide;
    void *arg;
    enum hapax__fault fault;
    uint64_t at;
    uint64_t times;
    void (*crash)(void *arg);
    void *crash_arg;
    uint64_t number;
    uint64_t ops;
    uint64_t applied;
    uint64_t runs;
    uint64_t longest;
    uint32_t held;
    uint64_t releases;
};

#define HAPAX__FOR_EVER UINT64_MAX

/* A plan in which nothing fails. */
void hapax__plan_init(struct hapax__plan *plan);

/* No handle may follow it any more. */
void hapax__plan_release(struct hapax__plan *plan);

/* From now on ops at, at+1, …, `times` of them, meet the fault; counted anew from 1. at 0 or
 * NO_FAULT: none does. */
void hapax__plan_set(struct hapax__plan *plan, enum hapax__fault fault, uint64_t at,
                     uint64_t times);

/* From now on decide() says it for every op. */
void hapax__plan_decide(struct hapax__plan *plan, hapax__decide *decide, void *arg);

/* What CRASH_BEFORE and CRASH_AFTER call, without the lock: _exit(), or a test's own note. */
void hapax__plan_crash(struct hapax__plan *plan, void (*crash)(void *arg), void *arg);

/* Waits until n ops at least are held by a delay. False: not within timeout_ms. */
bool hapax__plan_wait(struct hapax__plan *plan, uint32_t n, int64_t timeout_ms);

/* Lets go of every op that is held now; those that come later are held anew. */
void hapax__plan_go(struct hapax__plan *plan);

struct hapax__plan_counts {
    uint64_t ops; /* that came to the faulty store */
    uint64_t applied; /* that went on to the store inside, duplicates twice */
    uint64_t runs; /* batches that came */
    uint64_t longest; /* of them, in ops */
};

/* Counted over the plan's life. */
struct hapax__plan_counts hapax__plan_counts(struct hapax__plan *plan);

/* Wraps an open store. On success inner is the handle's, which closes it; on failure (NOMEM) it is
 * still yours. The handle takes the batches, bodies and repeated ids that inner takes. */
enum hapax_error hapax__faulty_wrap(struct hapax_store **out, struct hapax_store *inner,
                                    struct hapax__plan *plan);

/* Makes `faulty:URI` open URI, wrapped, under this plan: also for hapax_open(). The last call
 * counts. */
void hapax__faulty_use(struct hapax__plan *plan);

#endif
