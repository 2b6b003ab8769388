/* SPDX-License-Identifier: Apache-2.0
 *
 * The C door as its callers see it: what they ask for is checked and hashed in their own thread,
 * then their call goes to the pulse (pulse.c), and they sit until told to run the handler or
 * given the answer. So a handler runs where its caller expects it, with that thread's stack, locks
 * and thread-local state, and may itself call hapax_execute().
 *
 * What it keeps: nothing is begun before everything was checked; whatever a handler does, its end is
 * posted exactly once; a caller leaves only with its answer.
 *
 * Rejected: calling hapax_store_run() from the caller's thread. One caller alone would save two
 * changes of thread, and a thousand would each pay their own fsync.
 */
#include "pulse.h"

#include "store/types.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define CALLS_MAX_DEFAULT 4096u

struct hapax {
    struct hapax__pulse *pulse;
    uint32_t calls_max;
    size_t secret_len;
    uint8_t secret[];
};

/* ---- open and close ------------------------------------------------------------------ */

static void hapax_free(struct hapax *h)
{
    explicit_bzero(h->secret, h->secret_len);
    free(h);
}

static struct hapax *hapax_new(const struct hapax_options *options)
{
    size_t len = options ? options->secret.len : 0;
    struct hapax *h = calloc(1, sizeof(*h) + len);

    if (!h)
        return NULL;
    h->calls_max = options && options->calls_max > 0 ? options->calls_max : CALLS_MAX_DEFAULT;
    h->secret_len = len;
    if (len > 0)
        memcpy(h->secret, options->secret.ptr, len);
    return h;
}

static struct hapax_span secret_of(const struct hapax *h)
{
    return (struct hapax_span){h->secret, h->secret_len};
}

/* Opens the store and sees whether it is for our secret. Nothing of a caller's is at stake yet, so
 * that a lost reply is no more than a store out of reach. */
static enum hapax_error open_store(struct hapax_store **out, const struct hapax *h, const char *uri,
                                   char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax_store_open(out, uri, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    error = hapax_store_bind(*out, secret_of(h));
    if (error != HAPAX_ERR_NONE) {
        hapax__fail(text, error, "cannot use the store: %s", hapax_store_text(*out));
        hapax_store_close(*out);
        *out = NULL;
    }
    return error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE : error;
}

/* Takes the store over in any case. */
static enum hapax_error open_pulse(struct hapax *h, struct hapax_store *store,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__lane *lane;

    /* A call has one op under way at most, so that a queue of this size is never full. */
    if (hapax__lane_open(&lane, store, h->calls_max) != HAPAX_ERR_NONE) {
        hapax_store_close(store);
        return hapax__fail(text, HAPAX_ERR_NOMEM,
                           "cannot start the lane: out of memory, threads "
                           "or descriptors");
    }
    if (hapax__pulse_open(&h->pulse, lane, h->calls_max) != HAPAX_ERR_NONE) {
        hapax__lane_close(lane);
        return hapax__fail(text, HAPAX_ERR_NOMEM,
                           "cannot start the pulse: out of memory, threads "
                           "or descriptors");
    }
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax_open(struct hapax **out, const char *uri,
                            const struct hapax_options *options, char text[HAPAX_TEXT_MAX])
{
    struct hapax_store *store;
    enum hapax_error error;
    struct hapax *h;

    *out = NULL;
    text[0] = '\0';
    if (options && options->calls_max > HAPAX__CALLS_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID, "calls_max of %u is over %u",
                           options->calls_max, HAPAX__CALLS_MAX);
    h = hapax_new(options);
    if (!h)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot open store: out of memory");
    error = open_store(&store, h, uri, text);
    if (error == HAPAX_ERR_NONE)
        error = open_pulse(h, store, text);
    if (error != HAPAX_ERR_NONE) {
        hapax_free(h);
        return error;
    }
    *out = h;
    return HAPAX_ERR_NONE;
}

uint32_t hapax_close(struct hapax *h, int64_t save_wait_ms)
{
    uint32_t unsaved;

    if (!h)
        return 0;
    unsaved = hapax__pulse_close(h->pulse, save_wait_ms);
    hapax_free(h);
    return unsaved;
}

/* ---- attempts and answers ------------------------------------------------------------ */

uint32_t hapax_attempt_number(const struct hapax_attempt *attempt)
{
    return attempt->number;
}

uint64_t hapax_attempt_fence(const struct hapax_attempt *attempt)
{
    return attempt->fence;
}

bool hapax_attempt_stale(const struct hapax_attempt *attempt)
{
    return attempt->stale;
}

bool hapax_attempt_lost(const struct hapax_attempt *attempt)
{
    return atomic_load(&attempt->lost);
}

enum hapax_error hapax_attempt_outcome(struct hapax_attempt *attempt, int status,
                                       struct hapax_span headers, struct hapax_span body)
{
    const struct hapax_outcome given = {status, true, headers, body};
    struct hapax__bytes *before = attempt->memory;

    if (status < 0 || status > 999 || headers.len > HAPAX_HEADERS_MAX || body.len > HAPAX_BODY_MAX)
        return HAPAX_ERR_INVALID;
    /* Copied before the last one goes: it may be made of that. */
    if (!hapax__outcome_copy(&attempt->outcome, &attempt->memory, &given))
        return HAPAX_ERR_NOMEM;
    hapax__bytes_drop(before);
    return HAPAX_ERR_NONE;
}

void hapax_answer_release(struct hapax_answer *answer)
{
    hapax__bytes_drop(answer->memory);
    memset(answer, 0, sizeof(*answer));
}

/* ---- execute ------------------------------------------------------------------------- */

static enum hapax_error over(char text[HAPAX_TEXT_MAX], const char *what, size_t len, unsigned max)
{
    return hapax__fail(text, HAPAX_ERR_INVALID, "%s of %zu bytes is over %u", what, len, max);
}

static enum hapax_error check(const struct hapax_policy *policy,
                              const struct hapax_request *request, bool reconciles,
                              char text[HAPAX_TEXT_MAX])
{
    if (request->scope.len > HAPAX_SCOPE_MAX)
        return over(text, "scope", request->scope.len, HAPAX_SCOPE_MAX);
    if (request->key.len > HAPAX_KEY_MAX)
        return over(text, "key", request->key.len, HAPAX_KEY_MAX);
    if (request->step.len > HAPAX_STEP_MAX)
        return over(text, "step", request->step.len, HAPAX_STEP_MAX);
    if (request->step.len > 0 && memchr(request->step.ptr, ':', request->step.len))
        return hapax__fail(text, HAPAX_ERR_INVALID, "step \"%.*s\" holds a ':'",
                           (int)request->step.len, (const char *)request->step.ptr);
    if (policy->on_expired == HAPAX_EXPIRED_RECONCILE && !reconciles)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "on_expired is reconcile, and there is no handler to ask");
    return hapax_policy_check(policy, text);
}

/* What the flow needs to know of a request that has a key. */
static bool identify(struct hapax__call *call, const struct hapax *h,
                     const struct hapax_request *request)
{
    struct hapax__flow_request *asked = &call->request;
    struct hapax_span scope = request->scope.len > 0 ? request->scope : hapax_str("default");
    enum hapax_error error;

    memcpy(call->scope, scope.ptr, scope.len);
    asked->key = HAPAX__KEY_GIVEN;
    asked->scope = (struct hapax_span){call->scope, scope.len};
    asked->fingerprint = request->fingerprint;
    asked->caller = request->caller;
    error = hapax_id(&asked->id, asked->scope, request->key, request->step, secret_of(h));
    assert(error == HAPAX_ERR_NONE);
    return getrandom(asked->token.bytes, sizeof(asked->token.bytes), 0) ==
           (ssize_t)sizeof(asked->token.bytes);
}

static enum hapax_error call_new(struct hapax__call **out, const struct hapax *h,
                                 const struct hapax_policy *policy,
                                 const struct hapax_request *request, char text[HAPAX_TEXT_MAX])
{
    struct hapax__call *call = calloc(1, sizeof(*call));

    *out = NULL;
    if (!call)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot begin the call: out of memory");
    call->policy = *policy;
    call->request.key = HAPAX__KEY_NONE;
    if (request->key.len > 0 && !identify(call, h, request)) {
        hapax__call_free(call);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot begin the call: no random bytes");
    }
    *out = call;
    return HAPAX_ERR_NONE;
}

/* Sits until there is an answer, running what is to be run. With ANSWER the call is gone. */
static void attend(struct hapax *h, struct hapax__call *call, struct hapax__seat *seat,
                   hapax_handler *handler, hapax_reconciler *reconcile, void *arg)
{
    enum hapax__flow_do told;

    while ((told = hapax__seat_wait(seat)) != HAPAX__FLOW_ANSWER) {
        hapax_handler *run = told == HAPAX__FLOW_RUN ? handler : reconcile;

        assert(run);
        hapax__pulse_ended(h->pulse, call, run(&call->attempt, arg));
    }
}

enum hapax_error hapax_execute(struct hapax *h, const struct hapax_policy *policy,
                               const struct hapax_request *request, hapax_handler *handler,
                               hapax_reconciler *reconcile, void *arg, struct hapax_answer *answer,
                               char text[HAPAX_TEXT_MAX])
{
    struct hapax__call *call;
    struct hapax__seat seat;
    enum hapax_error error;

    assert(handler);
    memset(answer, 0, sizeof(*answer));
    text[0] = '\0';
    error = check(policy, request, reconcile != NULL, text);
    if (error == HAPAX_ERR_NONE)
        error = call_new(&call, h, policy, request, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    call->request.reconciles = reconcile != NULL;
    hapax__seat_init(&seat);
    call->seat = &seat;
    if (!hapax__pulse_begin(h->pulse, call)) {
        hapax__call_free(call);
        hapax__seat_release(&seat);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "calls_max of %u calls in hand is reached",
                           h->calls_max);
    }
    attend(h, call, &seat, handler, reconcile, arg);
    hapax__pulse_leave(h->pulse, &seat.answer, text);
    *answer = seat.answer;
    error = seat.error;
    hapax__seat_release(&seat);
    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax__fail(text, error, "out of memory for an outcome that is stored; ask again");
}
