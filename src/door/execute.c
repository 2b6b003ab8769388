/* SPDX-License-Identifier: Apache-2.0
 *
 * The C door as its callers see it. The caller's own thread checks and hashes the request, gives
 * the call to the pulse (pulse.c), and waits until it may run the handler or has the answer. So a
 * handler runs where its caller expects it, with the stack, the locks and the thread-local state of
 * that thread, and may itself call hapax_execute().
 *
 * Invariant: nothing begins before everything was checked. The end of a handler reaches the pulse
 * exactly once. A caller leaves only with its answer.
 *
 * Rejected: hapax_store_run() in the caller's thread. A caller that is alone would save two changes
 * of thread, and a thousand callers would pay an fsync each.
 */
#include "call.h"

#include "base/fail.h"
#include "http/prometheus.h"
#include "pulse.h"
#include "store/rotation/rotation.h"

#include <hapax/metrics.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX_DEFAULT 4096u

struct hapax {
    struct hapax__pulse *pulse;
    uint32_t calls_max;
    struct hapax__traces *traces; /* NULL: none */
    bool rotates; /* the secret is being changed */
    size_t secret_len, old_len;
    uint8_t secret[]; /* and behind it the old one */
};

/* ---- open and close ------------------------------------------------------------------ */

static void hapax_free(struct hapax *h)
{
    explicit_bzero(h->secret, h->secret_len + h->old_len);
    free(h);
}

static struct hapax *hapax_new(const struct hapax_options *options)
{
    size_t len = options ? options->secret.len : 0, old = options ? options->secret_old.len : 0;
    struct hapax *h = calloc(1, sizeof(*h) + len + old);

    if (!h)
        return NULL;
    h->calls_max = options && options->calls_max > 0 ? options->calls_max : CALLS_MAX_DEFAULT;
    h->secret_len = len;
    if (len > 0)
        memcpy(h->secret, options->secret.ptr, len);
    h->rotates = options && options->secret_old.ptr;
    h->old_len = old;
    if (old > 0)
        memcpy(h->secret + len, options->secret_old.ptr, old);
    return h;
}

static struct hapax__secrets secrets_of(const struct hapax *h)
{
    struct hapax__secrets secrets = {.now = {h->secret, h->secret_len}};

    if (h->rotates)
        secrets.old = (struct hapax_span){h->secret + h->secret_len, h->old_len};
    return secrets;
}

/* Opens the store and checks that it belongs to our secret. No operation is under way yet, so a
 * lost reply only means that the store cannot be reached. */
static enum hapax_error open_store(struct hapax_store **out, const struct hapax *h, const char *uri,
                                   struct hapax_span keys, char text[HAPAX_TEXT_MAX])
{
    const struct hapax__secrets secrets = secrets_of(h);
    enum hapax_error error = hapax_store_open(out, uri, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    error = hapax_store_keys(*out, keys);
    if (error == HAPAX_ERR_NONE)
        error = hapax__store_bind(out, &secrets);
    if (error != HAPAX_ERR_NONE) {
        hapax__fail(text, error, "cannot use the store: %s", hapax_store_text(*out));
        hapax_store_close(*out);
        *out = NULL;
    }
    return error == HAPAX_ERR_INDETERMINATE ? HAPAX_ERR_UNAVAILABLE : error;
}

/* The store is the lane's, or closed. */
static enum hapax_error open_pulse(struct hapax *h, struct hapax_store *store,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__lane *lane;

    /* A call has at most one op under way, so a queue of this size is never full. */
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
    error = open_store(&store, h, uri, options ? options->keys : hapax_str(NULL), text);
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

const struct hapax__counts *hapax__counts_of(const struct hapax *h)
{
    return hapax__pulse_counts(h->pulse);
}

void hapax__page_handle(FILE *out, const struct hapax *h, bool answers)
{
    const struct hapax__page_zone all = {"", hapax__pulse_counts(h->pulse)};

    if (answers)
        hapax__page_answers(out, &all, 1);
    hapax__page_flows(out, &all, 1);
    hapax__page_lane(out, hapax__pulse_lane_counts(h->pulse));
}

void hapax_metrics(FILE *out, const struct hapax *h)
{
    const struct hapax__page_number dead = {
        "hapax_store_dead", hapax_store_dead(h),
        "Whether the store is dead, and no operation waits for it."};

    hapax__page_build(out, "c");
    hapax__page_handle(out, h, true);
    hapax__page_numbers(out, "gauge", &dead, 1);
}

bool hapax_store_dead(const struct hapax *h)
{
    return hapax__pulse_store_dead(h->pulse);
}

void hapax__claims_leave(struct hapax *h)
{
    hapax__pulse_leave_claims(h->pulse);
}

void hapax__use_traces(struct hapax *h, struct hapax__traces *traces)
{
    h->traces = traces;
}

/* ---- execute ------------------------------------------------------------------------- */

static hapax__execute_inner execute_inner;

static void trace(struct hapax__call *call, struct hapax__traces *traces)
{
    struct hapax__trace run;

    call->traces = traces;
    hapax__traces_begin(traces, &call->traced, hapax_str(call->attempt.trace));
    if (hapax__traces_run(&run, &call->traced))
        hapax__attempt_trace(&call->attempt, &run);
}

struct hapax__call *hapax__call_new(struct hapax *h, const struct hapax_policy *policy,
                                    const struct hapax_request *request,
                                    const struct hapax_attempt *outer, bool reconciles,
                                    char text[HAPAX_TEXT_MAX])
{
    const struct hapax__secrets secrets = secrets_of(h);
    struct hapax__call *call = calloc(1, sizeof(*call));

    if (!call) {
        hapax__fail(text, HAPAX_ERR_NOMEM, "cannot begin the call: out of memory");
        return NULL;
    }
    call->request.key = HAPAX__KEY_NONE;
    if (request->key.len > 0 &&
        !hapax__call_identify(&call->request, &call->names, request, &secrets)) {
        free(call);
        hapax__fail(text, HAPAX_ERR_NOMEM, "cannot begin the call: no random bytes");
        return NULL;
    }
    if (!outer) /* the steps of an operation go on for as long as it does */
        call->request.key_age_ms = hapax__key_age_ms(policy, request->key);
    call->request.reconciles = reconciles;
    call->policy = *policy;
    call->pulse = h->pulse;
    if (request->step.len == 0 || request->step.ptr[0] != '.') /* no record of a list of steps */
        call->flow.counts = hapax__pulse_counts(h->pulse);
    atomic_init(&call->owners, 1);
    (void)sem_init(&call->wake, 0, 0);
    call->attempt.execute_inner = execute_inner;
    call->attempt.door = h;
    hapax__attempt_init(&call->attempt, policy, request, outer);
    /* The list of an operation's steps is no operation of anybody's. */
    if (h->traces && (request->step.len == 0 || request->step.ptr[0] != '.'))
        trace(call, h->traces);
    return call;
}

/* A call that was checked; `outer` is NULL unless the call is a step. */
static enum hapax_error execute(struct hapax *h, const struct hapax_policy *policy,
                                const struct hapax_request *request,
                                const struct hapax_attempt *outer, hapax_handler *handler,
                                hapax_reconciler *reconcile, void *arg, struct hapax_answer *answer,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__call *call = hapax__call_new(h, policy, request, outer, reconcile != NULL, text);
    enum hapax_error error;
    enum hapax__flow_do state;

    if (!call)
        return HAPAX_ERR_NOMEM;
    call->told = hapax__call_wake;
    error = hapax__call_begin(call, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    while ((state = hapax__call_wait(call)) != HAPAX__FLOW_ANSWER) {
        hapax_handler *run = state == HAPAX__FLOW_RUN ? handler : reconcile;

        assert(run);
        hapax__call_ended(call, run(&call->attempt, arg));
    }
    return hapax__call_leave(call, answer, text);
}

static enum hapax_error execute_inner(const struct hapax_attempt *outer,
                                      const struct hapax_policy *policy,
                                      const struct hapax_request *request, hapax_handler *handler,
                                      void *arg, struct hapax_answer *answer,
                                      char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__call_check(policy, request, true, false, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    return execute(outer->door, policy, request, outer, handler, NULL, arg, answer, text);
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
