/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: one hapax_execute() in parts, for doors whose handler is no function, or whose threads
 * should not wait for a store. A door makes a call and begins it. told() then says that the handler
 * may run, or that the answer is there. The door reports how the handler ended, and at last leaves
 * the call with its answer. One thread may have any number of calls under way, so the claims of a
 * batch of messages are one batch of the store.
 *
 * A call has two owners, the door and the pulse (pulse.h). The owner that lets go last frees it. A
 * call can live on after the door has left, while its outcome is still being stored.
 */
#ifndef HAPAX_DOOR_CALL_H
#define HAPAX_DOOR_CALL_H

#include "attempt.h"
#include "base/heap.h"
#include "http/traces.h"
#include "lane/lane.h"
#include <hapax/hapax.h>

#include <semaphore.h>
#include <stdio.h>
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
    void *data; /* the door's own */

    /* Called in the pulse's thread when the claim is lost while handler or hook runs, once at most
     * per run. It must not block. NULL: the door looks at attempt.lost. */
    void (*abandoned)(struct hapax__call *call);
    /* When the handler's process was heard last, by hapax__boot_us(). While that is longer ago than
     * silence_us, the claim is not renewed. NULL: the handler runs in this process. */
    const atomic_int_fast64_t *heard_us;
    int64_t silence_us;
    bool shared; /* whoever made its token may ask another door for the same claim */
    /* The client can go on with the claim by another call. Stopped, withdrawn or too late, this
     * call does not give the claim back, but leaves it to its lease. May be set at any time. */
    atomic_bool left;
    atomic_bool deserted; /* the client is away; may be set at any time */
    /* Goes on with a claim of request.token (flow.h) that another process of this door was granted.
     * Its fence is 0 otherwise. */
    struct hapax__flow_claim claim;
    /* Is lowered by saving_size when the call is freed: at hapax__call_leave(), or once its outcome
     * is saved. NULL: nothing is. May be set up to hapax__call_leave(). */
    atomic_uint_fast64_t *saving;
    uint64_t saving_size;

    /* ---- the door reads these from told() on ---- */

    /* PAUSE: no new state. RUN, RECONCILE: the door runs the handler or the hook, then calls
     * hapax__call_ended() or hapax__call_died(). ANSWER: the door calls hapax__call_leave(). */
    enum hapax__flow_do state;
    struct hapax_attempt attempt; /* the handler's, while the state is RUN or RECONCILE */

    /* ---- the pulse's own ---- */

    struct hapax__pulse *pulse;
    atomic_uint owners;
    sem_t wake; /* posted by hapax__call_wake() */
    STAILQ_ENTRY(hapax__call) next; /* in the inbox, or in a list for told() */
    STAILQ_ENTRY(hapax__call) stops; /* in the list of calls to stop */
    bool stopped; /* the door's thread: hapax__call_stop() was called */
    struct hapax_policy policy;
    struct hapax__flow_request request; /* its spans point into `names` */
    struct hapax__call_names names;
    enum hapax_class cls; /* how the handler ended; 0: it has not run yet */
    bool died; /* it did not end: its process is dead */
    bool withdrawn; /* nothing ended: the door takes the claim back */
    struct hapax_answer answer;
    struct hapax__traces *traces; /* NULL: it is not told */
    struct hapax__traced traced;
    bool no_memory; /* there is an answer, but no memory for it */
    struct hapax__timer timer;
    struct hapax__flow flow;
    struct hapax__job job;
};

/* Has all calls of a handle told by spans and events. To be called before the first call; traces is
 * closed after the handle. NULL: none. */
void hapax__use_traces(struct hapax *h, struct hapax__traces *traces);

/* Makes a call of a policy and a request that hapax__call_check() has passed, or that are known to
 * be within its limits. Both are borrowed until hapax__call_leave(). outer: the operation's
 * attempt, where the call is a step; otherwise NULL. reconciles: the door has a reconcile hook.
 * Returns a call that hapax__call_begin() takes over. NULL: no memory or no random bytes; text says
 * which. */
HAPAX__SHARED struct hapax__call *hapax__call_new(struct hapax *h,
                                                  const struct hapax_policy *policy,
                                                  const struct hapax_request *request,
                                                  const struct hapax_attempt *outer,
                                                  bool reconciles, char text[HAPAX_TEXT_MAX]);

/* Begins a call. Before this function returns, another thread may have run the call and freed it.
 * So the door's `h` must outlive this function and hapax__call_ended(), not only the call. NOMEM:
 * calls_max is reached; the call is freed, and text says so. */
HAPAX__SHARED enum hapax_error hapax__call_begin(struct hapax__call *call,
                                                 char text[HAPAX_TEXT_MAX]);

/* A told() for doors whose threads wait in hapax__call_wait(). */
HAPAX__SHARED void hapax__call_wake(struct hapax__call *calls);

/* Waits until the call has a new state, and returns the state. The call's `told` must be
 * hapax__call_wake(). */
HAPAX__SHARED enum hapax__flow_do hapax__call_wait(struct hapax__call *call);

/* Reports how the handler or the hook ended. Safe from any thread. A new state follows. */
HAPAX__SHARED void hapax__call_ended(struct hapax__call *call, enum hapax_class cls);

/* Reports, in the place of hapax__call_ended(), that the process of the handler or of the hook is
 * surely dead: nothing of the attempt will write any more. An outcome that was set is dropped, and
 * the next attempt need not wait for the lease. The call gets its answer: after a handler FRESH, of
 * the class UNKNOWN and without an outcome. Safe from any thread. */
void hapax__call_died(struct hapax__call *call);

/* Reports, in the place of hapax__call_ended(), that the door did not run the handler, or that
 * nobody waits for the hook any more: the claim is given back, or the operation is `unknown`; but
 * neither where the call is left. */
void hapax__call_withdraw(struct hapax__call *call);

/* Gives a call up that was begun and has not been told RUN or RECONCILE: it is answered soon, and
 * its claim, if it gets one, is given back, unless the call is left. A state that was on its way
 * comes nevertheless. Does nothing the second time. */
void hapax__call_stop(struct hapax__call *call);

/* The door ends, and another may follow at its place: from now on `shared` calls count as `left`
 * where they are deserted, or have their answer. */
void hapax__claims_leave(struct hapax *h);

/* Leaves a call in the state ANSWER: moves its answer to *answer, and lets go of the call. The
 * caller releases the answer. text: the store's last failure where the answer has an error,
 * otherwise "". NOMEM: the outcome is stored, but there was no memory to return it. */
HAPAX__SHARED enum hapax_error
hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer, char text[HAPAX_TEXT_MAX]);

/* What the flows of a handle count. */
HAPAX__SHARED const struct hapax__counts *hapax__counts_of(const struct hapax *h);

/* Writes what a handle counts to a page (http/prometheus.h). answers: its answers, too; a door that
 * counts them itself writes its own. Safe from any thread. */
HAPAX__SHARED void hapax__page_handle(FILE *out, const struct hapax *h, bool answers);

#endif
