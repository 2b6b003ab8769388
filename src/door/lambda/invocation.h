/* SPDX-License-Identifier: Apache-2.0
 *
 * One invocation of a function. Its operations are claimed, run and ended: one of an event, or one
 * of each record of a batch. A caller takes an event and calls hapax__invocation_begin(). Then the
 * caller either runs the function and ends the invocation, or posts the reply that was given.
 */
#ifndef HAPAX_DOOR_LAMBDA_INVOCATION_H
#define HAPAX_DOOR_LAMBDA_INVOCATION_H

#include "emf.h"
#include "reply.h"
#include "upstream.h"

#include "door/call.h"

#include <stdatomic.h>

/* What the invocations of one function share. */
struct hapax__function {
    const struct hapax_lambda *lambda;
    const struct hapax__ask *ask;
    _Atomic(struct hapax *) h; /* NULL: the store is not open yet */
    struct hapax_lambda_stats *stats;
    atomic_bool store_dead; /* as logged */
    struct hapax__emf_told told; /* what emf_line was told already */
};

/* Tells emf_line what was counted, before the sandbox may be frozen. */
void hapax__function_tell(struct hapax__function *function);

/* Logs a line. error: an errno; 0: none. */
void hapax__say(const struct hapax_lambda *lambda, const char *what, int error);

enum hapax__unit_state {
    HAPAX__UNIT_RUN = 1, /* runs, or is to run */
    HAPAX__UNIT_DONE,
    HAPAX__UNIT_DUPLICATE, /* of a unit that runs; gets that unit's state */
    HAPAX__UNIT_BACK /* not done: to come again */
};

/* One operation. */
struct hapax__unit {
    struct hapax_span json;
    struct hapax__asked asked;
    struct hapax__call *call; /* NULL: not begun, or answered */
    struct hapax_answer answer; /* once it is answered */
    struct hapax_id id; /* the operation's, if it was identified, once it is answered */
    bool identified;
    enum hapax__unit_state state;
    bool reported; /* by the function */
    bool blocked; /* a record in front must come again */
    bool ended; /* its call has ended, and is not answered yet */
    size_t original; /* DUPLICATE: index of the unit that runs */
    struct hapax_span item; /* of a batch: its identifier, with quotes */
    struct hapax_span group; /* of a FIFO queue; empty: none */
};

struct hapax__invocation {
    struct hapax__function *function;
    struct hapax__got event; /* the head has the headers, the body the event */
    struct hapax_span id; /* points into the head */
    struct hapax_span text; /* the body */
    struct hapax_span root; /* the value in the text; empty: no JSON */
    enum hapax_lambda_kind kind;
    bool batch;
    struct hapax_policy policy; /* with this invocation's lease */
    struct hapax__unit *units;
    size_t unit_count;
    /* The event without the records that do not run; NULL: nothing is cut. */
    char *cut;
    size_t cut_len;
    bool ended; /* `reply` is made */
    struct hapax__lambda_reply reply; /* kept, so that it can be posted again */
    atomic_uint references;
    struct hapax__invocation *next; /* in a list of the caller's */
};

/* Takes the event and claims. *run: there is something to run; otherwise *reply is to be posted.
 * The event belongs to the invocation then. NULL: out of memory, and *got still has the event. */
struct hapax__invocation *hapax__invocation_begin(struct hapax__function *function,
                                                  struct hapax__got *got, bool *run,
                                                  struct hapax__lambda_reply *reply);

/* The event as the function gets it. */
struct hapax_span hapax__invocation_event(const struct hapax__invocation *invocation);

/* Ends an invocation with the function's response, or with its error of this type. *reply is to be
 * posted. False: out of memory, and nothing can be posted; the operations have ended all the
 * same. */
bool hapax__invocation_end(struct hapax__invocation *invocation, bool error, struct hapax_span type,
                           struct hapax_span text, struct hapax__lambda_reply *reply);

/* Ends an invocation whose response is passed on as it comes, and is not kept. prelude: the JSON
 * with the status, if the response is HTTP; otherwise empty. *own: the stream is to be passed on,
 * with the text of *reply for its prelude. Otherwise *reply is to be posted in place of the stream.
 * False: as above. */
bool hapax__invocation_end_stream(struct hapax__invocation *invocation, struct hapax_span prelude,
                                  bool *own, struct hapax__lambda_reply *reply);

/* The function is gone, and how far it came is not known: its claims run out with their leases. */
void hapax__invocation_lost(struct hapax__invocation *invocation);

/* The function is gone, and never had the whole event: its claims are given back. */
void hapax__invocation_not_run(struct hapax__invocation *invocation);

/* An invocation is freed by the last free: one for the begin, and one for each pin. */
void hapax__invocation_pin(struct hapax__invocation *invocation);
void hapax__invocation_free(struct hapax__invocation *invocation);

/* ---- for the C runtime: units ended one by one ----------------------------------------------- */

/* Ends a unit that ran, with the outcome of its attempt. hapax__units_finish() must follow once all
 * units have ended. */
void hapax__unit_end(struct hapax__unit *unit, enum hapax_class cls);

/* The same, with an error for the outcome. */
void hapax__unit_fail(struct hapax__unit *unit, enum hapax_class cls, struct hapax_span type,
                      struct hapax_span text);

/* Waits for the answers of the units that have ended, and sets the states of all units. */
void hapax__units_finish(struct hapax__invocation *invocation);

/* ---- batches (batch.c) --------------------------------------------------------------------- */

/* Finds the units of a batch. False: out of memory. */
bool hapax__batch_units(struct hapax__invocation *invocation);

/* Whether unit k must not run before unit i is done. i stands before k. */
bool hapax__batch_is_behind(const struct hapax__invocation *invocation, size_t i, size_t k);

/* To be called after the claims: finds duplicates, and sets `blocked` of the units that have to
 * wait for another. The caller gives their claims back. */
void hapax__batch_order(struct hapax__invocation *invocation);

/* Makes `cut`, if something does not run. False: out of memory. */
bool hapax__batch_cut(struct hapax__invocation *invocation);

/* What a function's response reports of its batch. The units named are `reported`. */
struct hapax__report {
    struct hapax_span list; /* batchItemFailures; empty: none */
    bool all; /* an item names no record: the whole batch failed */
    size_t first; /* the first unit that is named */
};
void hapax__batch_report(struct hapax__report *report, struct hapax__invocation *invocation,
                         struct hapax_span text);

/* Whether the report says that this unit failed. */
bool hapax__batch_reports(const struct hapax__report *report,
                          const struct hapax__invocation *invocation, size_t unit);

/* Makes the response: the function's own, with the other records that are to come again. text: the
 * function's response; without a pointer, the function did not run. False: out of memory. */
bool hapax__batch_reply(struct hapax__lambda_reply *reply, struct hapax__invocation *invocation,
                        struct hapax_span text);

#endif
