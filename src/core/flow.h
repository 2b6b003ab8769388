/* SPDX-License-Identifier: Apache-2.0
 *
 * The door's side of an operation: one logical request as a state machine without I/O, clock or
 * memory of its own. The door gives it events; after each event hapax__flow_drive() (drive.h) calls
 * hapax__flow_next() until that returns PAUSE or END, and the door does what it returns. Times are
 * µs of a clock that is never set and that runs on while the machine is suspended
 * (hapax__boot_us()).
 *
 *     begin ─► next ─► ASK ───────► (store) ─► told ─► next ─► …
 *                      RUN ───────► (handler) ─► handled ─► next ─► …
 *                      RECONCILE ─► (hook) ─► reconciled ─► next ─► …
 *                      ANSWER       the client has its answer; the flow may go on saving
 *                      PAUSE        until an event or wake_us
 *                      END          the flow is over, its memory is the door's again
 *
 * Flows of one process meet in a table of waiters (waiters.h): those that ask the same question
 * share one claim, so an event to one flow can give other flows something to do.
 */
#ifndef HAPAX_CORE_FLOW_H
#define HAPAX_CORE_FLOW_H

#include "counts.h"
#include "limit.h"
#include "waiters.h"

enum hapax__flow_do {
    HAPAX__FLOW_PAUSE, /* nothing until an event; call next again at wake_us (INT64_MAX: never) */
    HAPAX__FLOW_ASK, /* run flow->op, then hapax__flow_told(); one at a time */
    HAPAX__FLOW_RUN, /* run the handler, then hapax__flow_handled() */
    HAPAX__FLOW_RECONCILE, /* ask the hook, then hapax__flow_reconciled() */
    HAPAX__FLOW_ABANDON, /* the claim is lost: tell the handler; it still ends with handled() */
    /* Give flow->answer to the client, now: its outcome points into the handler's memory or into an
     * answered op's, which will go. */
    HAPAX__FLOW_ANSWER,
    HAPAX__FLOW_END
};

enum hapax__flow_phase {
    /* Over a limit, or with a key that is too old: only what the store knows may be claimed. */
    HAPAX__FLOW_LOOKING,
    HAPAX__FLOW_CLAIMING, /* a CLAIM has no verdict yet, or a mate waits for its head's */
    HAPAX__FLOW_WAITING, /* another attempt runs, and the policy waits */
    HAPAX__FLOW_CONFIRMING, /* claimed, but a RENEW must succeed before the handler may run */
    HAPAX__FLOW_RECONCILING, /* claimed and stale: the hook is asked */
    HAPAX__FLOW_RUNNING, /* the handler runs */
    HAPAX__FLOW_READING, /* handler or hook ended; the record may know more of what happened */
    HAPAX__FLOW_SAVING, /* the end is being stored */
    HAPAX__FLOW_CHASING, /* answered, but a CLAIM may have landed: it is repeated to find out */
    HAPAX__FLOW_RELEASING, /* the claim is not used: it is failed as not run */
    HAPAX__FLOW_BYPASSING, /* the handler runs without any protection */
    HAPAX__FLOW_OVER
};

enum hapax__key_given {
    HAPAX__KEY_NONE = 1,
    HAPAX__KEY_BAD,
    HAPAX__KEY_GIVEN,
    HAPAX__KEY_UNOWNED /* given, by a request that does not say whose it is */
};

/* What a flow is about. Without KEY_GIVEN only `key` is read. */
struct hapax__flow_request {
    enum hapax__key_given key;
    bool too_large; /* over policy max_request */
    uint8_t key_len; /* bytes of the client's key */
    int64_t key_age_ms; /* how long ago the key says that it was made; 0: it does not say */
    bool reconciles; /* the door has a reconcile hook */
    struct hapax_id id;
    struct hapax_token token; /* fresh random bytes */
    struct hapax_digest owner;
    struct hapax_span scope; /* borrowed until END, as is what */
    struct hapax_span what;
    struct hapax_digest fingerprint;
    struct hapax_digest caller;
    bool has_old;
    struct hapax_identity old; /* under the old secret */
    struct hapax__over over; /* the limit that its owner has reached */
};

struct hapax__flow {
    struct hapax__waiter waiter; /* first: hapax__flow_of() */

    /* for the door */
    struct hapax_op op; /* with ASK: in, and answered by told() */
    /* With ANSWER; its memory is the door's to fill. kind: 0 until it is answered. cls: 0 until the
     * handler has ended (or the hook, while RECONCILING). */
    struct hapax_answer answer;
    int64_t wake_us; /* with PAUSE */
    uint32_t attempt; /* with RUN and RECONCILE */
    uint32_t spent; /* of the record, before the handler ended */
    uint64_t fence;
    bool stale;
    int64_t created_us; /* of the record, by the store's clock; 0: none */
    bool resolved; /* an operator has decided about the record */
    enum hapax__limit limited; /* with LIMITED: by which limit */
    /* When it began to wait for another attempt, when RUN or RECONCILE was returned, and when the
     * handler had ended; 0: not. */
    int64_t begun_us, wait_us, run_us, handled_us;
    /* Set these before begin or resume. */
    void *door; /* the door's own */
    struct hapax__counts *counts; /* the flow counts in here; NULL: nowhere */
    /* The flow is only watched: its handler runs in any case, and nobody is given its answer. All
     * is stored as ever, but `would` is counted in the place of answer and attempt. */
    bool shadow;
    unsigned would; /* of a shadow, enum hapax__would; 0: not known yet */

    /* the flow's own */
    const struct hapax_policy *policy;
    struct hapax__flow_request request;
    enum hapax__flow_phase phase;
    enum hapax__flow_do due; /* PAUSE: nothing */
    enum hapax__flow_ask { HAPAX__ASK_NONE, HAPAX__ASK_DUE, HAPAX__ASK_OUT } ask;
    bool ghost; /* a CLAIM went out whose result is not known: it may have landed */
    bool seen; /* the store gave a verdict on this operation, here or to a former head */
    bool lost; /* a RENEW found the claim gone */
    bool reconciled; /* the hook said "it did not happen" */
    bool bodiless; /* the store refused the outcome for its size */
    bool bare; /* and without its body for its headers */
    bool died; /* the handler's process */
    unsigned tries; /* in a row, for the pauses between them */
    int64_t asked_us; /* the last op */
    int64_t ask_at_us;
    int64_t limit_us; /* when this phase gives up */
    /* When the lease began at the earliest: of our attempt, or of the one in flight. */
    int64_t lease_us;
    int64_t lease_end_us;
    int64_t run_until_us; /* when renewing ends */
    int64_t ran_us; /* how long handler and hook took */
    struct hapax_outcome outcome; /* the handler's or the hook's */
    struct {
        enum hapax_op_kind kind; /* COMPLETE or FAIL */
        bool ran;
        bool as_unknown;
        enum hapax_answer_kind answer; /* once it is stored */
    } end;
};

static inline struct hapax__flow *hapax__flow_of(struct hapax__waiter *waiter)
{
    return (struct hapax__flow *)waiter;
}

/* Begins. policy, table and the flow stay where they are until END. */
void hapax__flow_begin(struct hapax__flow *flow, const struct hapax_policy *policy,
                       struct hapax__waiters *table, const struct hapax__flow_request *request,
                       int64_t now_us);

/* A claim that was granted to another process of this door, which is gone. Its handler, or its
 * hook, still runs: it is not this door's child. */
struct hapax__flow_claim {
    uint32_t attempt;
    uint32_t spent;
    uint64_t fence;
    bool stale;
    bool resolved;
    bool reconciling; /* the hook was asked, and not the handler */
    int64_t created_us;
};

/* Begins in the place of hapax__flow_begin(), with the claim of request->token. next() returns RUN
 * or RECONCILE: the end follows as ever. A RENEW finds out whether the claim still stands; if not,
 * ABANDON follows. */
void hapax__flow_resume(struct hapax__flow *flow, const struct hapax_policy *policy,
                        struct hapax__waiters *table, const struct hapax__flow_request *request,
                        const struct hapax__flow_claim *claim, int64_t now_us);

enum hapax__flow_do hapax__flow_next(struct hapax__flow *flow, int64_t now_us);

/* The store answered flow->op. Where the store could not be asked, op's error says so. */
void hapax__flow_told(struct hapax__flow *flow, int64_t now_us);

/* The handler ended. The outcome's memory stays until END. */
void hapax__flow_handled(struct hapax__flow *flow, enum hapax_class cls,
                         const struct hapax_outcome *outcome, int64_t now_us);

/* Handler or hook did not end: its process is surely dead, so nothing of the attempt will write any
 * more. Under `rerun` and `reconcile` the next attempt need not wait for the lease. */
void hapax__flow_died(struct hapax__flow *flow, int64_t now_us);

/* In the place of handler or hook, when RUN or RECONCILE was returned: the owner has reached a
 * limit. The claim is given back. */
void hapax__flow_refused(struct hapax__flow *flow, struct hapax__over over, int64_t now_us);

/* Whether nothing has run for the operation before this claim. */
bool hapax__flow_is_new(const struct hapax__flow *flow);

/* The hook ended. FINAL: it happened, with this outcome (memory until END). NOT_RUN: it did not.
 * Any other class: the hook cannot tell. */
void hapax__flow_reconciled(struct hapax__flow *flow, enum hapax_class cls,
                            const struct hapax_outcome *outcome, int64_t now_us);

/* The client is gone, or the door closes. What has not run is given up; a handler that runs goes
 * on; an answered flow stops saving, and the claim is left to its lease. */
void hapax__flow_stop(struct hapax__flow *flow, int64_t now_us);

/* In the place of hapax__flow_told(), where the op was not put: the flow ends, and its claim stays
 * until its lease is over. Another flow may go on with the claim by its token. */
void hapax__flow_leave(struct hapax__flow *flow, int64_t now_us);

#endif
