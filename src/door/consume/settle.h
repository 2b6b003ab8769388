/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a message, by what was answered for its operation: the table at the head of hapax/consume.h
 * as a function. Pure: no clock, no random, no memory.
 */
#ifndef HAPAX_DOOR_CONSUME_SETTLE_H
#define HAPAX_DOOR_CONSUME_SETTLE_H

#include "parts.h"

enum hapax__act {
    HAPAX__ACT_ACK = 1,
    HAPAX__ACT_RETRY, /* again after a pause; may go by way of the broker */
    HAPAX__ACT_HOLD, /* it is kept, and asked for again after a pause */
    HAPAX__ACT_DEAD,
    HAPAX__ACT_PARK,
    HAPAX__ACT_RETURN, /* to the broker, after a pause: one that is given back comes again at once */
    HAPAX__ACT_REJECT
};

/* Why a message is held in memory. */
enum hapax__hold {
    HAPAX__HOLD_NOT = 0,
    HAPAX__HOLD_FAILED, /* RETRY, where the broker cannot keep it */
    HAPAX__HOLD_AWAY, /* it did not run: nobody listens, or it was turned away */
    HAPAX__HOLD_TWIN, /* another attempt of the operation is in flight */
    HAPAX__HOLD_LEASE, /* its fate is not known until the lease is over */
    HAPAX__HOLD_STORE, /* the store is away, or has not taken the outcome */
    HAPAX__HOLD_HOOK, /* UNKNOWN, and the reconcile hook may still tell */
    HAPAX__HOLD_MEMORY, /* there was none to ask with */
    HAPAX__HOLD_RETURN, /* ACT_RETURN's pause */
    HAPAX__HOLDS
};

/* How asking for a delivery's operation ended. Zeroed but for what is said. */
struct hapax__ended {
    enum hapax_answer_kind kind; /* 0: there was no memory to ask with */
    enum hapax_class cls;
    enum hapax_error error;
    enum hapax_differs differs;
    bool recorded;
    bool unprotected; /* BYPASS under on_store_error=open */
    bool refused; /* the handler said so (hapax_delivery_refuse()) */
    int status;
    uint32_t spent; /* of the record (struct hapax_answer); 0: not known */
    int64_t retry_after_ms; /* -1: none */
    const char *why; /* of BAD_KEY and TOO_LARGE: static; else NULL */
};

/* What befell the delivery before. */
struct hapax__before {
    uint32_t attempts; /* how many may have run, this one not counted */
    enum hapax__hold hold; /* why it was held last */
    unsigned holds; /* and how often in a row for that */
};

enum hapax__store_seen { HAPAX__STORE_NOT_SEEN = 0, HAPAX__STORE_UP, HAPAX__STORE_AWAY };

struct hapax__settling {
    enum hapax__act act;
    enum hapax__hold hold; /* RETRY, HOLD, RETURN: why it waits */
    int64_t after_ms; /* and for how long; at least 1 */
    const char *reason; /* DEAD, PARK: hapax-reason; static */
    bool ran; /* one more attempt may have run */
    enum hapax__store_seen store;
};

/* `random`: for the jitter of pauses, ±20 %. */
struct hapax__settling hapax__settle_rule(const struct hapax_consumer *consumer,
                                          const struct hapax__ended *ended,
                                          const struct hapax__before *before, uint32_t random);

/* least_ms doubled n times, most_ms at most, ±20 %; at least 1. */
int64_t hapax__settle_pause_ms(int64_t least_ms, int64_t most_ms, unsigned n, uint32_t random);

#endif
