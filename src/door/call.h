/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: one hapax_execute(), in parts, for doors whose handler is no function or whose threads
 * should not wait for a store. A door makes a call and begins it. told() then says that the handler
 * may run, or that the answer is there. The door says how the handler ended, and at last it leaves
 * with the answer. One thread may have any number of calls under way, so that the claims of a batch
 * are one batch of the store's.
 *
 * A call has two owners, the door and the pulse (pulse.h), and is freed by the one that lets go
 * last. It can outlive the door's answer while its outcome is still being stored.
 */
#ifndef HAPAX_DOOR_CALL_H
#define HAPAX_DOOR_CALL_H

#include "attempt.h"
#include "base/heap.h"
#include "lane/lane.h"

#include <semaphore.h>
#include <sys/queue.h>

struct hapax__pulse;

struct hapax__call {
    /* ---- the door sets these before hapax__call_begin() ---- */

    /* Called in the pulse's thread, once or more per turn, with a list of calls (linked by `next`)
     * that have a new state. The calls of one list have the same `told` and the same `owner`. From
     * here on a call with the state ANSWER belongs to the door alone. told() must not block, and
     * reads `next` before it hands a call on: another thread may free it at once. */
    void (*told)(struct hapax__call *calls);
    void *owner;
    void *data; /* whatever the door likes */

    /* ---- the door reads these once it was told ---- */

    /* PAUSE: nothing new. RUN, RECONCILE: run the handler or the hook, then hapax__call_ended().
     * ANSWER: hapax__call_leave(). */
    enum hapax__flow_do state;
    struct hapax_attempt attempt; /* the handler's, while the state is RUN or RECONCILE */

    /* ---- the pulse's own ---- */

    struct hapax__pulse *pulse;
    atomic_uint owners;
    sem_t wake; /* posted by hapax__call_wake() */
    STAILQ_ENTRY(hapax__call) next; /* in the inbox, or among those to be told */
    struct hapax_policy policy;
    struct hapax__flow_request request; /* its scope points to `scope` */
    uint8_t scope[HAPAX_SCOPE_MAX];
    enum hapax_class cls; /* how the handler ended; 0: it has not run yet */
    struct hapax_answer answer;
    bool no_memory; /* there is an answer, but no memory for it */
    struct hapax__timer timer;
    struct hapax__flow flow;
    struct hapax__job job;
};

/* Makes a call of a policy and a request that hapax__call_check() passed. Both are borrowed until
 * hapax__call_leave(). outer: the operation's attempt, where the call is a step; otherwise NULL.
 * reconciles: the door has a reconcile hook. NULL: no memory or no random bytes; text says which. */
struct hapax__call *hapax__call_new(struct hapax *h, const struct hapax_policy *policy,
                                    const struct hapax_request *request,
                                    const struct hapax_attempt *outer, bool reconciles,
                                    char text[HAPAX_TEXT_MAX]);

/* Begins a call. By the time this returns another thread may have run and freed it, so `h` must
 * outlive this function and hapax__call_ended(), not only the call. NOMEM: calls_max is reached; the
 * call is freed, and text says so. */
enum hapax_error hapax__call_begin(struct hapax__call *call, char text[HAPAX_TEXT_MAX]);

/* A told() for doors that wait in hapax__call_wait(). */
void hapax__call_wake(struct hapax__call *calls);

/* Waits until the call has a new state, and returns it. `told` must be hapax__call_wake(). */
enum hapax__flow_do hapax__call_wait(struct hapax__call *call);

/* Says how the handler or the hook ended. Safe from any thread. A new state follows. */
void hapax__call_ended(struct hapax__call *call, enum hapax_class cls);

/* After ANSWER: gives the answer, to be released, and lets go of the call. NOMEM: the outcome is
 * stored, and there was no memory to give it. text: the store's last words where the answer has an
 * error, else "". */
enum hapax_error hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer,
                                   char text[HAPAX_TEXT_MAX]);

#endif
