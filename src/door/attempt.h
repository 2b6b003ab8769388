/* SPDX-License-Identifier: Apache-2.0
 *
 * An attempt as the C doors keep it, and the memory of outcomes: the outcome that a handler sets
 * and the outcome of an answer may be the same bytes, which both own.
 */
#ifndef HAPAX_DOOR_ATTEMPT_H
#define HAPAX_DOOR_ATTEMPT_H

#include "core/question.h"
#include "core/trace.h"
#include <hapax/hapax.h>

#include <stdatomic.h>

/* The bytes of an outcome, counted by the attempt and the answers that point into them. */
struct hapax__bytes;

/* Executes a call inside the handler of `outer`, through the same door, as the door's own function
 * does. One thing differs: the name of a step may begin with '.'. */
typedef enum hapax_error
hapax__execute_inner(const struct hapax_attempt *outer, const struct hapax_policy *policy,
                     const struct hapax_request *request, hapax_handler *handler, void *arg,
                     struct hapax_answer *answer, char text[HAPAX_TEXT_MAX]);

struct hapax_attempt {
    /* ---- of the call, set by hapax__attempt_init() ---- */

    hapax__execute_inner *execute_inner;
    void *door; /* a struct hapax or a PGconn */
    /* What execute_inner() writes is committed with the handler's rows, or not at all. */
    bool in_transaction;
    const struct hapax_policy *policy; /* borrowed from the caller, as is `request` */
    const struct hapax_request *request;
    const struct hapax_attempt *outer; /* the operation's, where this is a step's; else NULL */
    size_t key_len;
    uint8_t key[HAPAX_KEY_MAX]; /* for the next service */
    atomic_uint listed; /* how many records the list of steps has */
    char trace[HAPAX_TRACE_MAX]; /* where the run stands among traces; "": nowhere */
    uint8_t trace_line[HAPAX__TRACE_LINE]; /* the same, for the outcome */

    /* ---- of the attempt, set by hapax__attempt_begin() ---- */

    uint32_t number;
    uint32_t spent; /* of the record, before this attempt */
    uint64_t fence;
    bool stale;
    int64_t created_us; /* when the record was made, by the store's clock; 0: none */
    bool resolved; /* an operator has decided about it since */
    bool has_token; /* the handler may have it */
    struct hapax_id id;
    struct hapax_token token;

    /* ---- written while the handler runs ---- */

    atomic_bool lost;
    struct hapax_outcome outcome;
    struct hapax__bytes *memory; /* of the outcome */
};

/* Sets what a zeroed attempt knows of its call, which was checked. execute_inner and door are set
 * already. policy and request are borrowed as long as the handler may run. */
void hapax__attempt_init(struct hapax_attempt *attempt, const struct hapax_policy *policy,
                         const struct hapax_request *request, const struct hapax_attempt *outer);

/* Says where the run stands among traces, before it begins. */
void hapax__attempt_trace(struct hapax_attempt *attempt, const struct hapax__trace *trace);

/* Makes the attempt the one for which a flow says RUN or RECONCILE, with an empty outcome. An
 * earlier outcome is freed. */
void hapax__attempt_begin(struct hapax_attempt *attempt, const struct hapax__flow *flow);

/* Frees the outcome, and wipes the attempt with its token. */
void hapax__attempt_release(struct hapax_attempt *attempt);

/* Gives a flow's answer. *to is the caller's, to be released. Where its outcome is the attempt's
 * own, both share the memory. False: out of memory, and *to is zeroed. */
bool hapax__answer_take(struct hapax_answer *to, const struct hapax__flow *flow,
                        const struct hapax_attempt *attempt);

/* Whether both can stand in a line `Name: value\r\n` of an outcome's headers. A door that replays
 * headers leaves out those that cannot. */
HAPAX__SHARED bool hapax__line_is_whole(struct hapax_span name, struct hapax_span value);

/* Checks a call against the limits of hapax.h and the policy. inner: by a hapax__execute_inner.
 * reconciles: there is a hook. INVALID: text names the limit. */
enum hapax_error hapax__call_check(const struct hapax_policy *policy,
                                   const struct hapax_request *request, bool inner, bool reconciles,
                                   char text[HAPAX_TEXT_MAX]);

/* The bytes that a call's flow borrows. */
struct hapax__call_names {
    uint8_t scope[HAPAX_SCOPE_MAX];
    uint8_t what[HAPAX_WHAT_MAX];
};

/* Writes the question of a checked request to *to: the id, the owner's digest, the scope (`default`
 * where the request has none) and what the operation is, both copied to *names, and a fresh token.
 * False: no random bytes. */
bool hapax__call_identify(struct hapax__flow_request *to, struct hapax__call_names *names,
                          const struct hapax_request *request,
                          const struct hapax__secrets *secrets);

/* How long ago a key says that it was made; 0: it does not say, or the policy does not ask.
 * Negative: the clocks differ. */
HAPAX__SHARED int64_t hapax__key_age_ms(const struct hapax_policy *policy, struct hapax_span key);

#endif
