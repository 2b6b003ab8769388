/* SPDX-License-Identifier: Apache-2.0
 *
 * One invocation: its operations (one of an event, one of each record of a batch) claimed, run by whoever runs functions,
 * ended. Who takes events calls hapax__invocation_begin(), then either runs what it gave and ends it, or posts the
 * answer that it has already.
 */
#ifndef HAPAX_DOOR_LAMBDA_INVOCATION_H
#define HAPAX_DOOR_LAMBDA_INVOCATION_H

#include "reply.h"
#include "upstream.h"

#include "door/call.h"

#include <stdatomic.h>

/* What invocations of one function share. */
struct hapax__door {
    const struct hapax_lambda *lambda;
    const struct hapax__ask *ask;
    _Atomic(struct hapax *) h; /* NULL: the store could not be opened yet */
    struct hapax_lambda_stats *stats;
};

enum hapax__unit_state {
    HAPAX__UNIT_RUN = 1, /* to be run, or running */
    HAPAX__UNIT_DONE, /* nothing to do any more */
    HAPAX__UNIT_TWIN, /* the same operation as one that runs: its fate is that one's */
    HAPAX__UNIT_BACK /* not done: to come again */
};

/* One operation. */
struct hapax__unit {
    struct hapax_span json;
    struct hapax__asked asked;
    struct hapax__call *call; /* NULL: not begun, or answered */
    struct hapax_answer answer; /* once it is answered */
    enum hapax__unit_state state;
    bool reported; /* by the function */
    bool ended; /* its end is said, and not answered yet */
    size_t twin; /* TWIN: of which */
    struct hapax_span item; /* of a batch: what it is reported by, with its quotes */
    struct hapax_span group; /* of a FIFO queue; empty: none */
};

struct hapax__invocation {
    struct hapax__door *door;
    struct hapax__got event; /* its head has the headers, its body the event */
    struct hapax_span id; /* in the head, as the next */
    struct hapax_span text;
    struct hapax_span root; /* the value in the text; empty: it is no JSON */
    enum hapax_lambda_kind kind;
    bool batch;
    struct hapax_policy policy; /* with this invocation's lease */
    struct hapax__unit *units;
    size_t unit_count;
    char *cut; /* the event without what is not to run; NULL: nothing is cut */
    size_t cut_len;
    bool ended; /* `reply` has been made */
    struct hapax__reply reply; /* for whoever has to post it more than once */
    atomic_uint holders;
    struct hapax__invocation *next; /* for whoever keeps it */
};

/* Takes the event, which is *got's no longer, and claims. *run: there is something to run; else *reply is what to post. NULL: out of
 * memory, and the event is still *got's. */
struct hapax__invocation *hapax__invocation_begin(struct hapax__door *door, struct hapax__got *got,
                                                  bool *run, struct hapax__reply *reply);

/* What is to be handed to the function. */
struct hapax_span hapax__invocation_event(const struct hapax__invocation *invocation);

/* The function has ended with a response, or with an error of this type; *reply is what to post. False: out of memory, and nothing can
 * be posted; the operations are ended all the same. */
bool hapax__invocation_end(struct hapax__invocation *invocation, bool error, struct hapax_span type,
                           struct hapax_span text, struct hapax__reply *reply);

/* The function has begun a response that is passed on as it comes, and is not kept. prelude: what it says of its status, if it is HTTP
 * (empty: nothing). *own: the stream is to be passed on, with *reply's text for the prelude; else *reply is what to post in
 * its place. False: as above. */
bool hapax__invocation_end_stream(struct hapax__invocation *invocation, struct hapax_span prelude,
                                  bool *own, struct hapax__reply *reply);

/* The function is gone, and nobody knows how far it came: the claims are left to their leases. */
void hapax__invocation_lost(struct hapax__invocation *invocation);

/* Its event stays until each hold was followed by a free, beside the one that every invocation ends with. */
void hapax__invocation_hold(struct hapax__invocation *invocation);
void hapax__invocation_free(struct hapax__invocation *invocation);

/* ---- for the C runtime: units ended one by one ----------------------------------------------- */

/* Ends one unit that ran, with its attempt's outcome; hapax__units_settle() follows once all are ended. */
void hapax__unit_end(struct hapax__unit *unit, enum hapax_class cls);

/* The same with an error for the outcome. */
void hapax__unit_fail(struct hapax__unit *unit, enum hapax_class cls, struct hapax_span type,
                      struct hapax_span text);

void hapax__units_settle(struct hapax__invocation *invocation);

/* The same for those that are ended so far, while others run. */
void hapax__units_settle_ended(struct hapax__invocation *invocation);

/* ---- batches (batch.c) --------------------------------------------------------------------- */

/* Finds the units of a batch. False: out of memory. */
bool hapax__batch_units(struct hapax__invocation *invocation);

/* Whether unit k may not run before unit i, which stands before it, is done. */
bool hapax__batch_is_behind(const struct hapax__invocation *invocation, size_t i, size_t k);

/* After the claims: twins are found, and what has to wait for another is given back. */
void hapax__batch_order(struct hapax__invocation *invocation);

/* Cuts out of the event what is not to run. */
bool hapax__batch_cut(struct hapax__invocation *invocation);

/* What a function's response says of its batch; its units are `reported`. */
struct hapax__report {
    struct hapax_span list; /* batchItemFailures; empty: none */
    bool all; /* an item that names nothing: the whole batch failed */
    size_t first; /* the first unit that it names */
};
void hapax__batch_report(struct hapax__report *report, struct hapax__invocation *invocation,
                         struct hapax_span text);
bool hapax__batch_reports(const struct hapax__report *report,
                          const struct hapax__invocation *invocation, size_t unit);

/* The response: the function's, with what else is to come again. text: the function's; without a pointer: it did not run. */
bool hapax__batch_reply(struct hapax__reply *reply, struct hapax__invocation *invocation,
                        struct hapax_span text);

#endif
