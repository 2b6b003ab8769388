/* SPDX-License-Identifier: Apache-2.0
 *
 * An attempt as the C doors keep it, and the memory of outcomes: what a handler sets and what an
 * answer gives may be the same bytes, held by both.
 */
#ifndef HAPAX_DOOR_ATTEMPT_H
#define HAPAX_DOOR_ATTEMPT_H

#include "core/flow.h"

#include <stdatomic.h>

/* The bytes of an outcome, which an attempt and an answer may hold together. */
struct hapax__bytes;

struct hapax__origin;

/* Runs a call within a handler of `outer` and by the same way as that one came, as the doors' own
 * functions do, but that a step's name may begin with '.'. */
typedef enum hapax_error hapax__nest(const struct hapax_attempt *outer,
                                     const struct hapax_policy *policy,
                                     const struct hapax_request *request, hapax_handler *handler,
                                     void *arg, struct hapax_answer *answer,
                                     char text[HAPAX_TEXT_MAX]);

/* Where an attempt's call came from, for its steps. It is its caller's, often on a stack, and gone with
 * the answer. */
struct hapax__origin {
    hapax__nest *nest;
    void *door; /* nest's: a struct hapax or a PGconn */
    bool in_transaction; /* what nest writes is committed with the handler's rows, or with none */
    const struct hapax_policy *policy; /* the caller's, as is the request */
    const struct hapax_request *request;
    const struct hapax_attempt *outer; /* of the operation, where this is a step's; else NULL */
    size_t key_len;
    uint8_t key[HAPAX_KEY_MAX]; /* to hand on */
    atomic_uint listed; /* by this attempt: places of the list of steps that are taken */
};

struct hapax_attempt {
    struct hapax__origin *origin; /* set by the call, before it begins */
    uint32_t number;
    uint64_t fence;
    bool stale;
    int64_t created_us; /* when the record was made, by the store's clock; 0: none */
    bool resolved; /* an operator has decided about it since */
    atomic_bool lost; /* may be written while the handler runs; all else is not */
    bool has_token; /* the handler may have it */
    struct hapax_id id;
    struct hapax_token token;
    struct hapax_outcome outcome;
    struct hapax__bytes *memory; /* of the outcome */
};

/* Makes an attempt what a flow that said RUN or RECONCILE is about, with an empty outcome. What it
 * held before goes; a zeroed one is fine. */
void hapax__attempt_begin(struct hapax_attempt *attempt, const struct hapax__flow *flow);

/* Frees what it holds; its token is gone after this. */
void hapax__attempt_release(struct hapax_attempt *attempt);

/* Gives a flow's answer: *to is the caller's, to be released, and shares the attempt's memory
 * where its outcome is the attempt's own. False: out of memory, and *to is zeroed. */
bool hapax__answer_take(struct hapax_answer *to, const struct hapax__flow *flow,
                        const struct hapax_attempt *attempt);

/* Whether both can stand in a line `Name: value\r\n` of an outcome's headers. Who replays headers leaves out what cannot. */
bool hapax__line_is_whole(struct hapax_span name, struct hapax_span value);

/* What the limits of hapax.h and the policy say of a call; INVALID, and text names it. `nested`: by a
 * hapax__nest. `reconciles`: there is a hook. */
enum hapax_error hapax__call_check(const struct hapax_policy *policy,
                                   const struct hapax_request *request, bool nested,
                                   bool reconciles, char text[HAPAX_TEXT_MAX]);

/* Says where a checked call comes from; nest, door and in_transaction are set already. */
void hapax__origin_init(struct hapax__origin *origin, const struct hapax_policy *policy,
                        const struct hapax_request *request, const struct hapax_attempt *outer);

/* Says in *to what a checked request asks: id, scope (`default` where it has none; copied to
 * `scope`), a fresh token. False: no random bytes. */
bool hapax__call_identify(struct hapax__flow_request *to, uint8_t scope[HAPAX_SCOPE_MAX],
                          const struct hapax_request *request, struct hapax_span secret);

#endif
