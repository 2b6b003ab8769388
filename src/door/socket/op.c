/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation in hand: a BEGIN or RESUME becomes a call, the call's news become frames, an END
 * becomes the end of the call's handler.
 *
 * Invariants. An operation is freed once its call was left, and not before. An operation with steps
 * ends after all of them: their calls point to its attempt. What a client is told of an operation
 * ends with one ANSWER or FAULT.
 */
#include "connection.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "door/consume/decide.h"
#include "ticket.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#define RETRY_AFTER_MS 1000
#define BEATS_MISSED   3 /* a process that misses so many is silent */
#define CHARGED_MIN    ((size_t)64 << 10) /* bodies below count for nothing */
#define HELD_MAX       ((size_t)256 << 20) /* of answers that clients have not read */

static void count(atomic_uint_fast64_t *counter, int64_t n)
{
    atomic_fetch_add_explicit(counter, (uint_fast64_t)n, memory_order_relaxed);
}

/* ---- the table ----------------------------------------------------------------------- */

static struct hapax__door_op *find(struct hapax__door_connection *c, int64_t number)
{
    struct hapax__door_op *op;

    LIST_FOREACH (op, &c->buckets[(uint64_t)number % HAPAX__DOOR_BUCKETS], bucket)
        if (op->number == number && number > 0)
            return op;
    return NULL;
}

/* The client is told nothing more of the operation, and may use its number again. */
static void detach(struct hapax__door_op *op)
{
    if (op->number == 0)
        return;
    LIST_REMOVE(op, bucket);
    op->number = 0;
    op->silent = true;
}

static struct hapax__door_op *op_new(struct hapax__door_connection *c, uint32_t number)
{
    struct hapax__door_op *op = calloc(1, sizeof(*op));

    if (!op)
        return NULL;
    op->c = c;
    op->number = number;
    op->as = HAPAX__AS_CALL;
    LIST_INSERT_HEAD(&c->buckets[number % HAPAX__DOOR_BUCKETS], op, bucket);
    TAILQ_INSERT_TAIL(&c->ops, op, all);
    c->op_count++;
    c->door->op_count++;
    count(&c->door->options.stats->in_hand, 1);
    return op;
}

static void charge(struct hapax__door_op *op, size_t size)
{
    op->charged += size;
    op->c->door->charged += size;
    op->c->door->held += size;
}

static void ended(struct hapax__door_op *op, enum hapax_class cls);

static void op_free(struct hapax__door_op *op)
{
    struct hapax__door_connection *c = op->c;
    struct hapax__door_op *outer = op->outer;

    detach(op);
    TAILQ_REMOVE(&c->ops, op, all);
    c->op_count--;
    c->door->op_count--;
    count(&c->door->options.stats->in_hand, -1);
    c->door->charged -= op->charged;
    c->door->held -= op->charged;
    hapax_answer_release(&op->answer);
    free(op->listing);
    explicit_bzero(&op->names, sizeof(op->names));
    free(op);
    if (outer && --outer->steps == 0 && outer->phase == HAPAX__OP_ENDING)
        ended(outer, outer->cls);
}

/* ---- the mailbox --------------------------------------------------------------------- */

static void knock(struct hapax__door *door)
{
    uint64_t one = 1;
    ssize_t written = write(door->told_fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

void hapax__door_told(struct hapax__call *calls)
{
    struct hapax__door *door = calls->owner;
    bool first;

    pthread_mutex_lock(&door->lock);
    first = STAILQ_EMPTY(&door->calls) && STAILQ_EMPTY(&door->lost);
    for (struct hapax__call *next; calls; calls = next) {
        next = STAILQ_NEXT(calls, next);
        STAILQ_INSERT_TAIL(&door->calls, calls, next);
    }
    if (first)
        knock(door);
    pthread_mutex_unlock(&door->lock);
}

void hapax__door_abandoned(struct hapax__call *call)
{
    struct hapax__door_op *op = call->data;
    struct hapax__door *door = call->owner;

    pthread_mutex_lock(&door->lock);
    STAILQ_INSERT_TAIL(&door->lost, op, lost);
    knock(door);
    pthread_mutex_unlock(&door->lock);
}

/* ---- refusals ------------------------------------------------------------------------ */

static bool refuse(struct hapax__door_connection *c, const struct hapax__door_frame *frame,
                   enum hapax_error error, const char *text)
{
    hapax__door_fault(c, frame->op, frame->kind, error, text);
    return true;
}

/* Refuses a BEGIN or RESUME whose operation was made. */
static bool drop(struct hapax__door_op *op, const struct hapax__door_frame *frame,
                 enum hapax_error error, const char *text)
{
    refuse(op->c, frame, error, text);
    op_free(op);
    return true;
}

/* The frame waits. */
static bool put_off(struct hapax__door_op *op)
{
    op_free(op);
    return false;
}

/* ---- BEGIN --------------------------------------------------------------------------- */

/* Whether an operation was resumed and is about to run. */
static bool is_resuming(const struct hapax__door_op *op)
{
    return op && op->resumed && op->phase == HAPAX__OP_ASKED;
}

/* The operation that a step is part of. NULL: there is none that runs; text says so. */
static struct hapax__door_op *find_outer(struct hapax__door_connection *c, int64_t number,
                                         char text[HAPAX_TEXT_MAX])
{
    struct hapax__door_op *outer = number > 0 ? find(c, number) : NULL;

    if (outer && !outer->outer && outer->phase == HAPAX__OP_RUNNING && !outer->reconciling)
        return outer;
    hapax__fail(text, HAPAX_ERR_INVALID, "member \"in\" names no operation that runs here");
    return NULL;
}

/* Makes the request and the policy of a step. */
static enum hapax_error take_step(struct hapax__door_op *op, const struct hapax__meta_begin *begin,
                                  char text[HAPAX_TEXT_MAX])
{
    struct hapax__door_op *outer = find_outer(op->c, begin->in, text);
    struct hapax_request request;
    enum hapax_error error;

    if (!outer)
        return HAPAX_ERR_INVALID;
    error = hapax__step_check(&outer->call->attempt, begin->step, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    hapax__step_policy(&op->policy, &outer->policy);
    request = outer->request;
    request.step = begin->step;
    error = hapax__call_check(&op->policy, &request, true, false, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    hapax__door_request_keep(op, &request);
    op->listing = calloc(1, sizeof(*op->listing));
    if (!op->listing)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    op->outer = outer;
    outer->steps++;
    return HAPAX_ERR_NONE;
}

/* Makes the operation's call. False: no memory; text says so. */
static bool make_call(struct hapax__door_op *op, char text[HAPAX_TEXT_MAX])
{
    struct hapax__door *door = op->c->door;

    op->call = hapax__call_new(door->options.h, &op->policy, &op->request,
                               op->outer ? &op->outer->call->attempt : NULL, op->reconciles, text);
    op->request.trace = (struct hapax_span){NULL, 0}; /* of the frame; the attempt has it */
    if (!op->call)
        return false;
    op->call->told = hapax__door_told;
    op->call->abandoned = hapax__door_abandoned;
    op->call->owner = door;
    op->call->data = op;
    op->call->heard_us = &op->c->heard_us;
    op->call->silence_us =
        hapax__most(op->policy.lease_ms, BEATS_MISSED * door->beat_ms) * US_PER_MS;
    return true;
}

/* A step whose operation is lost, or of which nothing runs, is answered without a call. */
static void answer_now(struct hapax__door_op *op, enum hapax_answer_kind kind)
{
    op->answer.kind = kind;
    op->answer.retry_after_ms = -1;
    op->answer.silent_ms = -1;
    op->phase = HAPAX__OP_ANSWERED;
    STAILQ_INSERT_TAIL(&op->c->answered, op, answered);
}

static bool begin(struct hapax__door_op *op, const struct hapax__door_frame *frame)
{
    struct hapax__door *door = op->c->door;
    struct hapax__meta_begin meta;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    error = hapax__meta_begin_read(&meta, &door->arena, frame->meta, text);
    if (error != HAPAX_ERR_NONE)
        return drop(op, frame, error, text);
    /* A handler in hand is given time to end: so its steps go on. */
    if (door->stopping && meta.step.len == 0)
        return drop(op, frame, HAPAX_ERR_UNAVAILABLE, "the door ends");
    if (is_resuming(find(op->c, meta.in)))
        return put_off(op);
    op->as = meta.as;
    op->message = meta.message;
    op->reconciles = meta.reconciles && meta.step.len == 0;
    if (meta.step.len > 0)
        error = take_step(op, &meta, text);
    else
        error = hapax__door_request_take(op, &meta, frame->body, text);
    if (error != HAPAX_ERR_NONE)
        return drop(op, frame, error, text);
    if (op->outer && hapax_attempt_lost(&op->outer->call->attempt)) {
        answer_now(op, HAPAX_ANSWER_IN_FLIGHT);
        return true;
    }
    if (!make_call(op, text))
        return drop(op, frame, HAPAX_ERR_NOMEM, text);
    if (op->why) {
        op->call->request.key = HAPAX__KEY_BAD;
    } else if (!op->outer && op->request.key.len > 0 && hapax__door_request_is_unowned(&meta)) {
        op->call->request.key = HAPAX__KEY_UNOWNED;
        op->why = "its owner or its caller is empty";
    }
    op->call->request.too_large =
        op->as == HAPAX__AS_HTTP && frame->body.len > op->policy.max_request;
    if (meta.nonce.is) {
        struct hapax_token nonce;

        memcpy(nonce.bytes, meta.nonce.bytes.ptr, sizeof(nonce.bytes));
        op->call->shared = hapax__nonces_add(&door->nonces, &nonce);
        if (op->call->shared)
            op->call->request.token = nonce;
    }
    if (hapax__call_begin(op->call, text) != HAPAX_ERR_NONE)
        return drop(op, frame, HAPAX_ERR_NOMEM, text);
    return true;
}

/* ---- RESUME -------------------------------------------------------------------------- */

static enum hapax_error take_ticket(struct hapax__door_op *op, struct hapax__ticket *ticket,
                                    const struct hapax__meta_begin *meta, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__ticket_read(ticket, &op->c->door->arena, meta->ticket, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    error = hapax__call_check(&ticket->policy, &ticket->request, false, ticket->reconciles, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    op->policy = ticket->policy;
    op->reconciles = ticket->reconciles;
    hapax__door_request_keep(op, &ticket->request);
    if (ticket->request.step.len == 0)
        return HAPAX_ERR_NONE;
    op->outer = find_outer(op->c, meta->in, text);
    if (!op->outer)
        return HAPAX_ERR_INVALID;
    op->outer->steps++;
    return HAPAX_ERR_NONE;
}

static bool resume(struct hapax__door_op *op, const struct hapax__door_frame *frame)
{
    struct hapax__door *door = op->c->door;
    struct hapax__meta_begin meta;
    struct hapax__ticket ticket;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    error = hapax__meta_begin_read(&meta, &door->arena, frame->meta, text);
    if (error == HAPAX_ERR_NONE && is_resuming(find(op->c, meta.in)))
        return put_off(op);
    if (error == HAPAX_ERR_NONE)
        error = take_ticket(op, &ticket, &meta, text);
    if (error != HAPAX_ERR_NONE)
        return drop(op, frame, error, text);
    op->as = meta.as;
    op->message = meta.message;
    op->resumed = true;
    if (!make_call(op, text))
        return drop(op, frame, HAPAX_ERR_NOMEM, text);
    op->call->request.token = ticket.token;
    op->call->claim = ticket.claim;
    atomic_store(&op->call->left, true);
    (void)hapax__nonces_add(&door->nonces, &ticket.token);
    explicit_bzero(&ticket, sizeof(ticket));
    if (hapax__call_begin(op->call, text) != HAPAX_ERR_NONE)
        return drop(op, frame, HAPAX_ERR_NOMEM, text);
    count(&door->options.stats->resumed, 1);
    return true;
}

/* A frame that makes an operation. */
static bool make(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    struct hapax__door *door = c->door;
    struct hapax__door_op *op;
    char text[HAPAX_TEXT_MAX];

    if (find(c, frame->op))
        return refuse(c, frame, HAPAX_ERR_INVALID, "an operation of this number is in hand");
    if (c->op_count >= HAPAX__DOOR_OPS_MAX) {
        hapax__fail(text, HAPAX_ERR_NOMEM,
                    "%u operations of this connection are in hand, the limit", c->op_count);
        return refuse(c, frame, HAPAX_ERR_NOMEM, text);
    }
    if (frame->kind == HAPAX__DOOR_BEGIN && door->held >= HELD_MAX / 2) {
        c->waits = true; /* until the next tick */
        return false;
    }
    op = op_new(c, frame->op);
    if (!op)
        return refuse(c, frame, HAPAX_ERR_NOMEM, "out of memory");
    return frame->kind == HAPAX__DOOR_BEGIN ? begin(op, frame) : resume(op, frame);
}

/* ---- END, CANCEL --------------------------------------------------------------------- */

/* Gives up an operation that was not told to run. */
static void give_up(struct hapax__door_op *op)
{
    op->given_up = true;
    if (op->phase == HAPAX__OP_ASKED)
        hapax__call_stop(op->call);
}

/* The handler or the hook has ended, and so have all steps. */
static void ended(struct hapax__door_op *op, enum hapax_class cls)
{
    op->phase = HAPAX__OP_ASKED;
    if (op->died)
        hapax__call_died(op->call);
    else if (op->withdrawn)
        hapax__call_withdraw(op->call);
    else
        hapax__call_ended(op->call, cls);
}

/* The handler or the hook has ended. */
static void end(struct hapax__door_op *op, enum hapax_class cls)
{
    struct hapax__door_op *step;

    assert(op->phase == HAPAX__OP_RUNNING);
    count(&op->c->door->options.stats->running, -1);
    if (op->steps == 0) {
        ended(op, cls);
        return;
    }
    op->phase = HAPAX__OP_ENDING;
    op->cls = cls;
    TAILQ_FOREACH (step, &op->c->ops, all)
        if (step->outer == op && !step->resumed) /* a resumed step runs */
            give_up(step);
}

static enum hapax_class class_of(const struct hapax__door_op *op,
                                 const struct hapax__meta_end *meta)
{
    enum hapax_class cls;

    if (meta->refuse.is)
        return HAPAX_CLASS_FAILED;
    if (meta->cls)
        return meta->cls;
    cls = hapax_class_of_response(&op->policy, (int)meta->status, meta->headers);
    if (op->as == HAPAX__AS_MESSAGE && cls == HAPAX_CLASS_FINAL && meta->status / 100 != 2)
        return HAPAX_CLASS_FAILED;
    return cls;
}

static enum hapax_error take_outcome(struct hapax__door_op *op, enum hapax_class *cls,
                                     const struct hapax__door_frame *frame,
                                     char text[HAPAX_TEXT_MAX])
{
    struct hapax__door *door = op->c->door;
    struct hapax__meta_end meta;
    enum hapax_error error =
        hapax__meta_end_read(&meta, &door->arena, frame->meta, op->as == HAPAX__AS_HTTP, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    /* Where nothing ran, or nobody can tell, there may be no response. */
    if (op->as == HAPAX__AS_HTTP && !op->outer && !op->reconciling && meta.status < 100 &&
        (meta.refuse.is || (meta.cls != HAPAX_CLASS_NOT_RUN && meta.cls != HAPAX_CLASS_UNKNOWN)))
        return hapax__fail(text, HAPAX_ERR_INVALID, "member \"status\" is missing, or below 100");
    if (!meta.body_kept && frame->body.len > 0)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "member \"body_kept\" is false, and there is a body");
    if (frame->body.len > HAPAX_BODY_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "a body of %zu bytes is over %u",
                           frame->body.len, HAPAX_BODY_MAX);
    error = hapax_attempt_outcome(&op->call->attempt, meta.status < 0 ? 0 : (int)meta.status,
                                  meta.headers, frame->body);
    if (error != HAPAX_ERR_NONE)
        return hapax__fail(text, error,
                           error == HAPAX_ERR_NOMEM ? "out of memory" : "the headers are no lines");
    op->call->attempt.outcome.body_kept = meta.body_kept;
    if (frame->body.len >= CHARGED_MIN)
        charge(op, frame->body.len);
    *cls = class_of(op, &meta);
    op->refused = meta.refuse.is;
    if (op->refused)
        (void)snprintf(
            op->text, sizeof(op->text), "%.*s",
            (int)(meta.refuse.bytes.len < HAPAX_TEXT_MAX ? meta.refuse.bytes.len : HAPAX_TEXT_MAX),
            (const char *)meta.refuse.bytes.ptr);
    return HAPAX_ERR_NONE;
}

static bool take_end(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    struct hapax__door_op *op = find(c, frame->op);
    enum hapax_class cls = HAPAX_CLASS_UNKNOWN;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (is_resuming(op))
        return false;
    if (!op || op->phase != HAPAX__OP_RUNNING)
        return refuse(c, frame, HAPAX_ERR_INVALID, "no operation of this number runs");
    error = take_outcome(op, &cls, frame, text);
    if (error != HAPAX_ERR_NONE) {
        refuse(c, frame, error, text);
        detach(op);
    }
    end(op, cls);
    return true;
}

static bool cancel(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    struct hapax__door_op *op = find(c, frame->op);

    if (op && (op->phase == HAPAX__OP_ASKED || op->phase == HAPAX__OP_LISTING) && !op->resumed)
        give_up(op);
    return true;
}

bool hapax__door_op_take(struct hapax__door_connection *c, const struct hapax__door_frame *frame)
{
    char text[HAPAX_TEXT_MAX];
    bool taken;

    switch (frame->kind) {
    case HAPAX__DOOR_BEGIN:
    case HAPAX__DOOR_RESUME:
        taken = make(c, frame);
        break;
    case HAPAX__DOOR_END:
        taken = take_end(c, frame);
        break;
    case HAPAX__DOOR_CANCEL:
        taken = cancel(c, frame);
        break;
    default:
        hapax__fail(text, HAPAX_ERR_UNSUPPORTED, "kind %u is none", frame->kind);
        taken = refuse(c, frame, HAPAX_ERR_UNSUPPORTED, text);
    }
    hapax__arena_reset(&c->door->arena);
    return taken;
}

/* ---- news of calls ------------------------------------------------------------------- */

static void tell_lost(struct hapax__door_op *op)
{
    if (op->phase != HAPAX__OP_RUNNING || op->silent || op->told_lost)
        return;
    op->told_lost = true;
    hapax__json_clear(&op->c->door->json);
    hapax__json_put(&op->c->door->json, "{}");
    hapax__door_put(op->c, HAPAX__DOOR_LOST, op->number, (struct hapax_span){NULL, 0});
}

void hapax__door_op_run(struct hapax__door_op *op)
{
    struct hapax__door_stats *stats = op->c->door->options.stats;

    op->phase = HAPAX__OP_RUNNING;
    count(&stats->running, 1);
    if (op->resumed) {
        op->resumed = false;
    } else {
        count(&stats->run, op->reconciling ? 0 : 1);
        hapax__door_put_run(op);
        atomic_store(&op->call->left, true);
    }
    /* A fast store may have said so before this thread took the RUN. */
    if (hapax_attempt_lost(&op->call->attempt))
        tell_lost(op);
}

static void may_run(struct hapax__door_op *op, bool reconcile)
{
    op->reconciling = reconcile;
    op->withdrawn = op->given_up && !op->resumed;
    if (op->withdrawn)
        ended(op, HAPAX_CLASS_NOT_RUN);
    else if (op->listing && !op->resumed)
        hapax__door_step_may_run(op);
    else
        hapax__door_op_run(op);
}

/* The operation's connection is gone, and the client may come back. Nobody knows what a handler
 * did. From a hook the door takes its question back. */
static void desert(struct hapax__door_op *op)
{
    op->withdrawn = op->reconciling;
    end(op, HAPAX_CLASS_UNKNOWN);
}

/* The claim was given back, and the client was never told to run: that is no outcome. A step may
 * have been refused by what precedes its run. */
static void answer_not_run(struct hapax__door_op *op)
{
    struct hapax__door_listing *listing = op->listing;
    bool refused = listing && listing->refused;

    if (!refused && (!op->withdrawn || op->answer.kind == HAPAX_ANSWER_IN_FLIGHT))
        return;
    hapax_answer_release(&op->answer);
    op->answer.kind = refused ? listing->refused : HAPAX_ANSWER_IN_FLIGHT;
    op->answer.error = refused ? listing->error : HAPAX_ERR_NONE;
    op->answer.retry_after_ms = refused ? -1 : 0;
    op->answer.silent_ms = -1;
    if (refused)
        (void)snprintf(op->text, sizeof(op->text), "%s", listing->text);
}

/* An operation that was given up need not have asked. */
static void see_store(const struct hapax__door_op *op)
{
    const struct hapax_answer *answer = &op->answer;
    const struct hapax__ended ended = {.kind = answer->kind,
                                       .cls = answer->cls,
                                       .error = answer->error,
                                       .recorded = answer->recorded,
                                       .unprotected = answer->unprotected};
    enum hapax__store_seen seen = hapax__store_of(&ended);

    if (seen != HAPAX__STORE_NOT_SEEN && !op->given_up)
        atomic_store(&op->c->door->options.stats->store_up, seen == HAPAX__STORE_UP);
}

/* Counts what was stored, and is to be sent. Where nothing has run, and others have not read too
 * much of the like, it is given to who asks later. */
static void charge_answer(struct hapax__door_op *op)
{
    struct hapax_answer *answer = &op->answer;
    size_t size = answer->outcome.headers.len + answer->outcome.body.len;

    if (op->charged > 0) /* it is of this operation's own END */
        return;
    if (answer->cls || op->c->door->held == 0 || op->c->door->held + size <= HELD_MAX) {
        charge(op, size);
        return;
    }
    hapax_answer_release(answer);
    answer->kind = HAPAX_ANSWER_STORE_DOWN;
    answer->error = HAPAX_ERR_NOMEM;
    answer->recorded = false;
    answer->retry_after_ms = RETRY_AFTER_MS;
    hapax__fail(op->text, HAPAX_ERR_NOMEM, "answers of %zu MiB are not read yet, the limit",
                HELD_MAX >> 20);
}

static void answered(struct hapax__door_op *op)
{
    struct hapax__door_stats *stats = op->c->door->options.stats;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax_answer *answer = &op->answer;

    /* The call may live on, and save the outcome. */
    count(&stats->saving, (int64_t)op->charged);
    op->call->saving = &stats->saving;
    op->call->saving_size = op->charged;
    error = hapax__call_leave(op->call, &op->answer, text);
    op->call = NULL;
    if (!op->refused || answer->error != HAPAX_ERR_NONE)
        memcpy(op->text, text, sizeof(text));
    if (error != HAPAX_ERR_NONE || (op->listing && op->listing->no_memory)) {
        if (!op->silent)
            hapax__door_fault(op->c, op->number, HAPAX__DOOR_BEGIN, HAPAX_ERR_NOMEM,
                              error != HAPAX_ERR_NONE ? text : op->listing->text);
        detach(op);
    } else {
        see_store(op);
        answer_not_run(op);
        charge_answer(op);
    }
    op->phase = HAPAX__OP_ANSWERED;
    STAILQ_INSERT_TAIL(&op->c->answered, op, answered);
}

void hapax__door_op_told(struct hapax__call *call)
{
    struct hapax__door_op *op = call->data;

    if (op->listing && call == op->listing->call) {
        hapax__door_step_told(op);
        return;
    }
    assert(call == op->call && op->phase == HAPAX__OP_ASKED);
    if (call->state == HAPAX__FLOW_ANSWER) {
        answered(op);
        return;
    }
    may_run(op, call->state == HAPAX__FLOW_RECONCILE);
    /* A connection that is gone has nobody who waits for a handler that was resumed. */
    if (op->given_up && op->phase == HAPAX__OP_RUNNING)
        desert(op);
}

/* A step is lost with its operation. */
void hapax__door_op_lost(struct hapax__door_op *op)
{
    struct hapax__door_op *step;

    tell_lost(op);
    TAILQ_FOREACH (step, &op->c->ops, all)
        if (step->outer == op)
            tell_lost(step);
}

void hapax__door_op_answer(struct hapax__door_op *op)
{
    assert(op->phase == HAPAX__OP_ANSWERED && !op->call);
    if (!op->silent)
        hapax__door_put_answer(op);
    op_free(op);
}

/* ---- the end of a connection --------------------------------------------------------- */

void hapax__door_ops_desert(struct hapax__door_connection *c, bool died)
{
    struct hapax__door_op *op;

    TAILQ_FOREACH (op, &c->ops, all) {
        op->silent = true;
        if (op->call && !died)
            atomic_store(&op->call->deserted, true);
        if (op->phase == HAPAX__OP_RUNNING) {
            count(&c->door->options.stats->deserted, 1);
            op->given_up = true;
            op->died = died;
            desert(op);
        } else if (op->phase != HAPAX__OP_ENDING) {
            op->died = died && op->resumed; /* it is about to be known to run */
            give_up(op);
        }
    }
    while ((op = STAILQ_FIRST(&c->answered))) {
        STAILQ_REMOVE_HEAD(&c->answered, answered);
        hapax__door_op_answer(op);
    }
}
