/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a message, by the answer of its operation: the table at the head of
 * hapax/consume.h as a function. Pure: no clock, no randomness, no memory.
 */
#ifndef HAPAX_DOOR_CONSUME_DECIDE_H
#define HAPAX_DOOR_CONSUME_DECIDE_H

#include "broker/letter.h"

#include <hapax/consume.h>

enum hapax__act {
    HAPAX__ACT_ACK = 1,
    HAPAX__ACT_RETRY, /* again after a pause, perhaps by way of the broker */
    HAPAX__ACT_WAIT, /* it stays in memory, and asks again after a pause */
    HAPAX__ACT_DEAD, /* to the dead letters */
    HAPAX__ACT_PARK, /* to the parked letters */
    /* Back to the broker, after a pause: the broker delivers it again at once. */
    HAPAX__ACT_RETURN,
    HAPAX__ACT_REJECT
};

/* Why a message waits in memory. */
enum hapax__wait {
    HAPAX__WAIT_NOT = 0,
    HAPAX__WAIT_FAILED, /* for a retry, where the broker cannot keep the message */
    HAPAX__WAIT_AWAY, /* it did not run: nobody listens, or the handler turned it away */
    HAPAX__WAIT_DUPLICATE, /* another attempt of the operation is in flight */
    HAPAX__WAIT_LEASE, /* its result is not known until the lease is over */
    HAPAX__WAIT_STORE, /* the store is away, or has not taken the outcome */
    HAPAX__WAIT_HOOK, /* UNKNOWN, and the reconcile hook may still tell */
    HAPAX__WAIT_MEMORY, /* there was no memory to ask with */
    HAPAX__WAIT_RETURN, /* the pause before ACT_RETURN */
    HAPAX__WAITS
};

/* The answer for the operation of a delivery. Fields that the answer does not set are 0. */
struct hapax__ended {
    enum hapax_answer_kind kind; /* 0: there was no memory to ask with */
    enum hapax_class cls;
    enum hapax_error error;
    enum hapax_differs differs;
    bool recorded;
    bool unprotected; /* BYPASS under on_store_error=open */
    bool unasked; /* as in the answer */
    bool refused; /* by the handler, with hapax_delivery_refuse() */
    int status;
    uint32_t spent; /* of the record (struct hapax_answer); 0: not known */
    int64_t retry_after_ms; /* -1: none */
    uint32_t key_min; /* BAD_KEY: the key has fewer bytes; 0: it is malformed */
    const char *why; /* of BAD_KEY, MISSING_OWNER and TOO_LARGE: static; otherwise NULL */
};

/* What happened to the delivery before. */
struct hapax__before {
    uint32_t attempts; /* how many may have run, without this one */
    enum hapax__wait wait; /* why it waited last */
    unsigned waits; /* how often in a row it waited for that */
};

enum hapax__store_seen { HAPAX__STORE_NOT_SEEN = 0, HAPAX__STORE_UP, HAPAX__STORE_AWAY };

/* What the answer of an operation says about the store. */
enum hapax__store_seen hapax__store_of(const struct hapax__ended *ended);

struct hapax__decision {
    enum hapax__act act;
    enum hapax__wait wait; /* RETRY, WAIT, RETURN: why it waits */
    int64_t after_ms; /* and for how long; at least 1 */
    bool told; /* the handler said for how long */
    enum hapax__reason reason; /* DEAD, PARK */
    bool ran; /* one more attempt may have run */
    enum hapax__store_seen store;
};

/* Decides. random: for the jitter of pauses, ±20 %. */
struct hapax__decision hapax__decide(const struct hapax_consumer *consumer,
                                     const struct hapax__ended *ended,
                                     const struct hapax__before *before, uint32_t random);

/* least_ms doubled n times, but not over most_ms, ±20 %; at least 1. */
int64_t hapax__pause_ms(int64_t least_ms, int64_t most_ms, unsigned n, uint32_t random);

/* Writes hapax-error: a line for people, without keys or bodies. refused: the handler's own line,
 * where the handler refused the message. */
void hapax__reason_line(char line[HAPAX_TEXT_MAX], enum hapax__reason reason,
                        const struct hapax__ended *ended, const char *refused);

#endif
