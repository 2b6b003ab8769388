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
#include "begun.h"

#include "base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- execute ------------------------------------------------------------------------- */

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
    if (request->key.len > 0 &&
        !hapax__call_identify(&call->request, call->scope, request, secret_of(h))) {
        hapax__call_free(call);
        return hapax__fail(text, HAPAX_ERR_NOMEM, "cannot begin the call: no random bytes");
    }
    *out = call;
    return HAPAX_ERR_NONE;
}

static hapax__nest nest;

enum hapax_error hapax__begin(struct hapax__begun *begun, struct hapax *h,
                              const struct hapax_policy *policy,
                              const struct hapax_request *request, bool reconciles,
                              char text[HAPAX_TEXT_MAX])
{
    struct hapax__call *call;
    enum hapax_error error = call_new(&call, h, policy, request, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    begun->origin.nest = nest;
    begun->origin.door = h;
    hapax__origin_init(&begun->origin, policy, request, begun->outer);
    call->attempt.origin = &begun->origin;
    call->request.reconciles = reconciles;
    hapax__seat_init(&begun->seat, begun->ear);
    call->seat = &begun->seat;
    begun->call = call;
    if (hapax__pulse_begin(h->pulse, call))
        return HAPAX_ERR_NONE;
    hapax__call_free(call);
    hapax__seat_release(&begun->seat);
    begun->call = NULL;
    return hapax__fail(text, HAPAX_ERR_NOMEM, "calls_max of %u calls in hand is reached",
                       h->calls_max);
}

enum hapax__flow_do hapax__begun_wait(struct hapax__begun *begun)
{
    return hapax__seat_wait(&begun->seat);
}

enum hapax__flow_do hapax__begun_heard(struct hapax__begun *begun)
{
    return hapax__seat_heard(&begun->seat);
}

void hapax__begun_ended(struct hapax__begun *begun, struct hapax *h, enum hapax_class cls)
{
    hapax__pulse_ended(h->pulse, begun->call, cls);
}

enum hapax_error hapax__begun_leave(struct hapax__begun *begun, struct hapax *h,
                                    struct hapax_answer *answer, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = begun->seat.error;

    hapax__pulse_leave(h->pulse, &begun->seat.answer, text);
    *answer = begun->seat.answer;
    begun->call = NULL;
    hapax__seat_release(&begun->seat);
    if (error == HAPAX_ERR_NONE)
        return error;
    return hapax__fail(text, error, "out of memory for an outcome that is stored; ask again");
}

/* Sits until there is an answer, running what is to be run. With ANSWER the call is gone. */
static void attend(struct hapax *h, struct hapax__begun *begun, hapax_handler *handler,
                   hapax_reconciler *reconcile, void *arg)
{
    enum hapax__flow_do told;

    while ((told = hapax__begun_wait(begun)) != HAPAX__FLOW_ANSWER) {
        hapax_handler *run = told == HAPAX__FLOW_RUN ? handler : reconcile;

        assert(run);
        hapax__begun_ended(begun, h, run(&begun->call->attempt, arg));
    }
}

/* A call that was checked; `outer` is NULL unless it is nested. */
static enum hapax_error execute(struct hapax *h, const struct hapax_policy *policy,
                                const struct hapax_request *request,
                                const struct hapax_attempt *outer, hapax_handler *handler,
                                hapax_reconciler *reconcile, void *arg, struct hapax_answer *answer,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__begun begun = {.outer = outer};
    enum hapax_error error = hapax__begin(&begun, h, policy, request, reconcile != NULL, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    attend(h, &begun, handler, reconcile, arg);
    return hapax__begun_leave(&begun, h, answer, text);
}

static enum hapax_error nest(const struct hapax_attempt *outer, const struct hapax_policy *policy,
                             const struct hapax_request *request, hapax_handler *handler, void *arg,
                             struct hapax_answer *answer, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__call_check(policy, request, true, false, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    return execute(outer->origin->door, policy, request, outer, handler, NULL, arg, answer, text);
}

enum hapax_error hapax_execute(struct hapax *h, const struct hapax_policy *policy,
                               const struct hapax_request *request, hapax_handler *handler,
                               hapax_reconciler *reconcile, void *arg, struct hapax_answer *answer,
                               char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    assert(handler);
    memset(answer, 0, sizeof(*answer));
    text[0] = '\0';
    error = hapax__call_check(policy, request, false, reconcile != NULL, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    return execute(h, policy, request, NULL, handler, reconcile, arg, answer, text);
}
