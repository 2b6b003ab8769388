/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime for functions in C: takes events, runs the handler for each operation, posts replies.
 *
 * The invariants: a record's outcome is on its way to the store while the next record runs. All
 * outcomes are stored before the reply is posted. In a group or a stream, nothing runs behind a
 * record that failed.
 */
#include "base/utf8.h"
#include "invocation.h"
#include "json/raw.h"

#include "base/fail.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 1024u

struct runtime {
    struct hapax__function function;
    struct hapax__upstream *upstream;
    hapax_lambda_handler *handler;
    void *arg;
    pthread_mutex_t lock; /* of what follows */
    enum hapax_error error;
    char text[HAPAX_TEXT_MAX];
};

static void describe(struct hapax_lambda_event *event, const struct hapax__invocation *invocation,
                     const struct hapax__unit *unit)
{
    const struct hapax__head *head = &invocation->event.head;

    *event = (struct hapax_lambda_event){
        .kind = invocation->kind,
        .json = invocation->batch ? unit->json : invocation->text,
        .request_id = invocation->id,
        .function_arn = hapax__head_line(head, "Lambda-Runtime-Invoked-Function-Arn"),
        .trace_id = hapax__head_line(head, "Lambda-Runtime-Trace-Id"),
    };
    if (!hapax__raw_number(&event->deadline_ms,
                           hapax__head_line(head, "Lambda-Runtime-Deadline-Ms")))
        event->deadline_ms = 0;
}

static enum hapax_class handle(const struct runtime *runtime, struct hapax__invocation *invocation,
                               struct hapax__unit *unit)
{
    struct hapax_lambda_event event;
    enum hapax_class cls;

    describe(&event, invocation, unit);
    cls = runtime->handler(&unit->call->attempt, &event, runtime->arg);
    assert(cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    return cls;
}

/* ---- one event --------------------------------------------------------------------------- */

/* Makes an error for the invoker, with the handler's text. */
static bool make_error(struct hapax__lambda_reply *reply, const struct hapax_outcome *outcome)
{
    char message[MESSAGE_MAX + 1] = "the handler failed";
    struct hapax_span body = outcome->body;

    if (body.len > 0 && body.len <= MESSAGE_MAX && hapax__is_utf8(body) &&
        !memchr(body.ptr, '\0', body.len)) {
        memcpy(message, body.ptr, body.len);
        message[body.len] = '\0';
    }
    return hapax__reply_error(reply, "HandlerFailed", message, NULL);
}

static bool is_own(const struct hapax_answer *answer)
{
    return answer->kind == HAPAX_ANSWER_FRESH || answer->kind == HAPAX_ANSWER_BYPASS;
}

static bool answer_single(struct hapax__invocation *invocation, struct hapax__lambda_reply *reply)
{
    const struct hapax__unit *unit = &invocation->units[0];

    if (!is_own(&unit->answer))
        return hapax__reply_answer(reply, invocation->kind, invocation->root, &unit->answer, NULL,
                                   unit->identified ? &unit->id : NULL);
    if (hapax__event_is_http(invocation->kind))
        return hapax__reply_outcome(reply, invocation->kind, invocation->root, &unit->answer);
    return hapax__reply_text(reply, unit->answer.outcome.body.len > 0 ? unit->answer.outcome.body
                                                                      : hapax_str("null"));
}

static bool run_single(const struct runtime *runtime, struct hapax__invocation *invocation,
                       struct hapax__lambda_reply *reply)
{
    struct hapax__unit *unit = &invocation->units[0];
    enum hapax_class cls = handle(runtime, invocation, unit);
    const struct hapax_outcome *outcome = &unit->call->attempt.outcome;
    struct hapax__lambda_reply error = {.text = NULL};
    bool good;

    if (cls == HAPAX_CLASS_FINAL ||
        (hapax__event_is_http(invocation->kind) && outcome->status > 0)) {
        hapax__unit_end(unit, cls);
        hapax__units_finish(invocation);
        return answer_single(invocation, reply);
    }
    good = make_error(&error, outcome);
    hapax__unit_fail(unit, cls, hapax_str(error.error_type),
                     (struct hapax_span){(uint8_t *)error.text, error.len});
    hapax__units_finish(invocation);
    if (good && is_own(&unit->answer)) {
        *reply = error;
        return true;
    }
    hapax__reply_release(&error);
    return answer_single(invocation, reply);
}

/* ---- batches ------------------------------------------------------------------------------- */

static bool is_blocked(const struct hapax__invocation *invocation, const bool *failed, size_t k)
{
    for (size_t i = 0; i < k; i++)
        if (failed[i] && hapax__batch_is_behind(invocation, i, k))
            return true;
    return false;
}

static bool run_batch(const struct runtime *runtime, struct hapax__invocation *invocation,
                      struct hapax__lambda_reply *reply)
{
    bool *failed = calloc(invocation->unit_count, sizeof(*failed)), any = false;

    for (size_t i = 0; i < invocation->unit_count; i++) {
        struct hapax__unit *unit = &invocation->units[i];
        enum hapax_class cls = HAPAX_CLASS_NOT_RUN;

        if (unit->state != HAPAX__UNIT_RUN)
            continue;
        if (failed && !(any && is_blocked(invocation, failed, i)))
            cls = handle(runtime, invocation, unit);
        if (cls == HAPAX_CLASS_FINAL) {
            hapax__unit_end(unit, cls);
            continue;
        }
        hapax__unit_fail(unit, cls, hapax_str("Hapax.RecordFailed"), hapax_str("{}"));
        any = true;
        if (failed)
            failed[i] = true;
    }
    free(failed);
    hapax__units_finish(invocation);
    return hapax__batch_reply(reply, invocation, (struct hapax_span){NULL, 0});
}

/* ---- the loop ------------------------------------------------------------------------------ */

static void post(const struct runtime *runtime, struct hapax_span id,
                 const struct hapax__lambda_reply *reply)
{
    struct hapax__got got;

    if (!hapax__upstream_post(&got, runtime->upstream, id, reply)) {
        hapax__say(runtime->function.lambda, "an answer could not be posted", 0);
        return;
    }
    if (got.head.status >= 300)
        hapax__say(runtime->function.lambda, "an answer was refused", 0);
    hapax__got_release(&got);
}

static void run_one(struct runtime *runtime, struct hapax__got *got)
{
    struct hapax__invocation *invocation;
    struct hapax__lambda_reply reply;
    bool run = false, good;

    invocation = hapax__invocation_begin(&runtime->function, got, &run, &reply);
    good = invocation != NULL;
    if (invocation && run)
        good = (invocation->batch ? run_batch : run_single)(runtime, invocation, &reply);
    if (!good)
        good = hapax__reply_error(&reply, "OutOfMemory", "There is no memory for this event", NULL);
    if (good)
        post(runtime,
             invocation ? invocation->id
                        : hapax__head_line(&got->head, "Lambda-Runtime-Aws-Request-Id"),
             &reply);
    hapax__reply_release(&reply);
    if (invocation)
        hapax__invocation_free(invocation);
    else
        hapax__got_release(got);
}

/* False: there are no more events. */
static bool take_one(struct runtime *runtime)
{
    struct hapax__got got;

    hapax__function_tell(&runtime->function);
    if (hapax__upstream_next(&got, runtime->upstream, -1)) {
        if (got.head.status == 200) {
            run_one(runtime, &got);
            return true;
        }
        hapax__got_release(&got);
        errno = EPROTO;
    }
    if (errno == ECANCELED)
        return false;
    pthread_mutex_lock(&runtime->lock);
    runtime->error = hapax__fail(runtime->text, HAPAX_ERR_UNAVAILABLE,
                                 "cannot take an event from the Runtime API: %s", strerror(errno));
    pthread_mutex_unlock(&runtime->lock);
    return false;
}

static void *run_all(void *arg)
{
    while (take_one(arg))
        continue;
    return NULL;
}

static enum hapax_error run_threads(struct runtime *runtime, char text[HAPAX_TEXT_MAX])
{
    pthread_t threads[HAPAX_LAMBDA_CONCURRENCY_MAX];
    uint32_t n = 1;

    while (n < runtime->function.lambda->concurrency &&
           pthread_create(&threads[n], NULL, run_all, runtime) == 0)
        n++;
    if (n < runtime->function.lambda->concurrency)
        hapax__say(runtime->function.lambda, "there are fewer threads than invocations at once", 0);
    (void)run_all(runtime);
    for (uint32_t i = 1; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    memcpy(text, runtime->text, HAPAX_TEXT_MAX);
    return runtime->error;
}

enum hapax_error hapax_lambda_run(struct hapax *h, const struct hapax_lambda *lambda,
                                  hapax_lambda_handler *handler, void *arg,
                                  struct hapax_lambda_stats *stats, char text[HAPAX_TEXT_MAX])
{
    struct hapax_lambda_stats own = {0};
    struct runtime runtime = {.handler = handler, .arg = arg};
    struct hapax__ask ask;
    enum hapax_error error = hapax_lambda_check(lambda, text);

    assert(h && handler);
    if (error == HAPAX_ERR_NONE && !lambda->runtime_api)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "runtime_api is missing: there is no Lambda around");
    if (error == HAPAX_ERR_NONE)
        error = hapax__event_ask_read(&ask, lambda, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__upstream_open(&runtime.upstream, lambda->runtime_api, lambda->stop_fd, text);
    if (error == HAPAX_ERR_NONE) {
        runtime.function.lambda = lambda;
        runtime.function.ask = &ask;
        runtime.function.stats = stats ? stats : &own;
        atomic_store(&runtime.function.h, h);
        pthread_mutex_init(&runtime.lock, NULL);
        error = run_threads(&runtime, text);
        pthread_mutex_destroy(&runtime.lock);
    }
    hapax__upstream_close(runtime.upstream);
    return error;
}
