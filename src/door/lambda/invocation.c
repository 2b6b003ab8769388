/* SPDX-License-Identifier: Apache-2.0
 *
 * One invocation, from its event to the reply that is posted.
 *
 * The invariants: all claims of a batch are begun before the first is waited for. So they are one
 * batch of the store, and need no thread each. A reply is made only after all outcomes are stored.
 * If the flow says that another attempt's answer stands, the function's own is dropped.
 *
 * The lease: the sandbox is killed at the invocation's deadline, so no function runs on behind it.
 * A claim lasts until a little later, and needs no renewal while the sandbox may be frozen. Where a
 * sandbox lives on (Managed Instances), the settings name a lease, and it is renewed.
 */
#include "invocation.h"
#include "base/clock.h"
#include "base/time.h"
#include "json/raw.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN_MS      1000 /* between the deadline and the end of the lease */
#define LEASE_MIN_MS   1000
#define RETRY_AFTER_MS 1000

void hapax__say(const struct hapax_lambda *lambda, const char *what, int error)
{
    char line[HAPAX_TEXT_MAX];

    if (!lambda->log)
        return;
    (void)snprintf(line, sizeof(line), "%s%s%s", what, error ? ": " : "",
                   error ? strerror(error) : "");
    lambda->log(lambda->log_arg, line);
}

void hapax__function_tell(struct hapax__function *function)
{
    const struct hapax *h = function->h;

    hapax__emf_tell(function->lambda, h ? hapax__counts_of(h) : NULL, function->stats,
                    &function->told);
}

static void count(uint64_t *counter)
{
    (void)__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* ---- the policy ------------------------------------------------------------------------ */

/* An invocation waits for another attempt no longer than it may live itself. */
static void set_policy(struct hapax__invocation *invocation)
{
    struct hapax_policy *policy = &invocation->policy;
    int64_t deadline_ms, left_ms;

    *policy = invocation->function->lambda->policy;
    if (invocation->batch)
        policy->wait_ms = 0;
    if (!hapax__raw_number(&deadline_ms,
                           hapax__head_line(&invocation->event.head, "Lambda-Runtime-Deadline-Ms")))
        return;
    left_ms = deadline_ms - hapax__wall_us() / US_PER_MS;
    if (left_ms < 0)
        left_ms = 0;
    policy->wait_ms = hapax__least(policy->wait_ms, left_ms - hapax__least(left_ms / 4, 1000));
    if (invocation->function->lambda->lease_set)
        return;
    policy->lease_ms = hapax__least(left_ms + MARGIN_MS, INT64_C(86400000));
    if (policy->lease_ms < LEASE_MIN_MS)
        policy->lease_ms = LEASE_MIN_MS;
    if (policy->lease_ms > policy->retention_ms)
        policy->lease_ms = policy->retention_ms;
    else
        policy->run_max_ms = policy->lease_ms / 4; /* nothing is renewed */
}

/* ---- units ----------------------------------------------------------------------------- */

static void take_answer(struct hapax__unit *unit)
{
    struct hapax__call *call = unit->call;
    char text[HAPAX_TEXT_MAX];

    unit->call = NULL;
    unit->identified = unit->asked.request.key.len > 0;
    unit->id = call->request.id;
    if (hapax__call_leave(call, &unit->answer, text) == HAPAX_ERR_NONE)
        return;
    /* The outcome is stored, and there is no memory to give it. A repeat gets it. */
    unit->answer = (struct hapax_answer){.kind = HAPAX_ANSWER_STORE_DOWN,
                                         .error = HAPAX_ERR_NOMEM,
                                         .retry_after_ms = RETRY_AFTER_MS};
}

/* Logs once that the store is dead, and once that it is asked again. */
static void see_store(struct hapax__function *function)
{
    struct hapax *h = function->h;
    bool dead = h && hapax_store_dead(h);

    if (atomic_exchange(&function->store_dead, dead) == dead)
        return;
    hapax__say(function->lambda,
               dead ? "the store does not answer, and is asked by one operation each half second; "
                      "no other waits for it"
                    : "the store is asked by each operation again",
               0);
}

/* Whether it has run, and its outcome was not stored. */
static bool is_unrecorded(const struct hapax__unit *unit)
{
    return unit->answer.kind == HAPAX_ANSWER_FRESH && !unit->answer.recorded;
}

static void count_answer(const struct hapax__invocation *invocation, const struct hapax__unit *unit)
{
    struct hapax_lambda_stats *stats = invocation->function->stats;

    count(&stats->answers[unit->answer.kind]);
    if (is_unrecorded(unit))
        count(&stats->not_recorded);
    if (unit->answer.unasked)
        count(&stats->unasked);
    see_store(invocation->function);
}

/* Sets the state of a unit that was answered without a run. */
static void judge(struct hapax__unit *unit)
{
    char type[8];

    switch (unit->answer.kind) {
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
        unit->state = hapax__outcome_is_error(type, sizeof(type), &unit->answer.outcome)
                          ? HAPAX__UNIT_BACK
                          : HAPAX__UNIT_DONE;
        return;
    case HAPAX_ANSWER_EXPIRED:
        unit->state = unit->answer.recorded ? HAPAX__UNIT_DONE : HAPAX__UNIT_BACK;
        return;
    default:
        unit->state = HAPAX__UNIT_BACK;
    }
}

static void refuse(struct hapax__unit *unit, enum hapax_answer_kind kind, enum hapax_error error)
{
    unit->answer = (struct hapax_answer){
        .kind = kind,
        .error = error,
        .retry_after_ms = kind == HAPAX_ANSWER_STORE_DOWN ? RETRY_AFTER_MS : -1,
    };
    unit->state = HAPAX__UNIT_BACK;
}

/* The store is not open yet: decides as the flow would. */
static void begin_without_store(struct hapax__invocation *invocation, struct hapax__unit *unit)
{
    const struct hapax_policy *policy = &invocation->policy;
    bool keyed = unit->asked.request.key.len > 0;

    if (!keyed && policy->key == HAPAX_KEY_REQUIRED) {
        refuse(unit, HAPAX_ANSWER_MISSING_KEY, HAPAX_ERR_NONE);
    } else if (keyed && unit->asked.key_len < policy->key_min) {
        refuse(unit, HAPAX_ANSWER_BAD_KEY, HAPAX_ERR_NONE);
        unit->answer.key_min = policy->key_min;
    } else if (keyed &&
               (policy->on_store_error == HAPAX_STORE_CLOSED ||
                hapax__key_age_ms(policy, unit->asked.request.key) > policy->retention_ms)) {
        refuse(unit, HAPAX_ANSWER_STORE_DOWN, HAPAX_ERR_UNAVAILABLE);
    } else {
        unit->answer = (struct hapax_answer){
            .kind = HAPAX_ANSWER_BYPASS, .unprotected = keyed, .retry_after_ms = -1};
        unit->state = HAPAX__UNIT_RUN;
    }
}

/* False: out of memory, or too many calls are under way. */
static bool call_begin(struct hapax__invocation *invocation, struct hapax__unit *unit,
                       struct hapax *h)
{
    char text[HAPAX_TEXT_MAX];

    unit->call = hapax__call_new(h, &invocation->policy, &unit->asked.request, NULL, false, text);
    if (!unit->call)
        return false;
    unit->call->request.key_len = unit->asked.key_len;
    unit->call->told = hapax__call_wake;
    if (hapax__call_begin(unit->call, text) == HAPAX_ERR_NONE)
        return true;
    unit->call = NULL;
    return false;
}

/* False: out of memory. */
static bool unit_begin(struct hapax__invocation *invocation, struct hapax__unit *unit)
{
    struct hapax *h = invocation->function->h;

    if (!hapax__event_ask(&unit->asked, invocation->function->ask,
                          &invocation->function->lambda->policy, invocation->kind, unit->json,
                          invocation->id))
        return false;
    if (unit >= invocation->units + HAPAX_LAMBDA_RECORDS_MAX)
        refuse(unit, HAPAX_ANSWER_STORE_DOWN, HAPAX_ERR_NOMEM);
    else if (unit->asked.refused)
        refuse(unit, unit->asked.refused, HAPAX_ERR_NONE);
    else if (!h)
        begin_without_store(invocation, unit);
    else if (!call_begin(invocation, unit, h))
        refuse(unit, HAPAX_ANSWER_STORE_DOWN, HAPAX_ERR_NOMEM);
    return true;
}

static void unit_await(struct hapax__invocation *invocation, struct hapax__unit *unit)
{
    if (unit->call) {
        if (hapax__call_wait(unit->call) == HAPAX__FLOW_RUN) {
            unit->state = HAPAX__UNIT_RUN;
            return;
        }
        take_answer(unit);
        judge(unit);
    }
    if (unit->state != HAPAX__UNIT_RUN)
        count_answer(invocation, unit);
}

void hapax__unit_end(struct hapax__unit *unit, enum hapax_class cls)
{
    assert(unit->state == HAPAX__UNIT_RUN && !unit->ended);
    unit->ended = true;
    unit->answer.cls = cls;
    if (unit->call)
        hapax__call_ended(unit->call, cls);
}

/* After a run: the unit is done if the completion of this run, or of another, stands. Under `rerun`
 * it is, too, where nothing could be stored: given back, it would run once more. */
static void judge_run(const struct hapax__invocation *invocation, struct hapax__unit *unit)
{
    bool held = is_unrecorded(unit) && invocation->batch &&
                invocation->policy.on_expired != HAPAX_EXPIRED_RERUN;

    if (unit->answer.kind != HAPAX_ANSWER_FRESH && unit->answer.kind != HAPAX_ANSWER_BYPASS)
        judge(unit);
    else
        unit->state =
            unit->answer.cls == HAPAX_CLASS_FINAL && !held ? HAPAX__UNIT_DONE : HAPAX__UNIT_BACK;
}

static void finish_ended(struct hapax__invocation *invocation)
{
    bool lost = false;

    for (size_t i = 0; i < invocation->unit_count; i++) {
        struct hapax__unit *unit = &invocation->units[i];

        if (!unit->ended)
            continue;
        unit->ended = false;
        if (unit->call) {
            enum hapax__flow_do told = hapax__call_wait(unit->call);

            assert(told == HAPAX__FLOW_ANSWER);
            take_answer(unit);
        }
        count_answer(invocation, unit);
        judge_run(invocation, unit);
        lost |= is_unrecorded(unit) &&
                unit->answer.cls != HAPAX_CLASS_UNKNOWN; /* of a death there is nothing to store */
    }
    if (lost)
        hapax__say(invocation->function->lambda,
                   "an outcome was not stored: a repeat of its event is not answered with it", 0);
}

void hapax__units_finish(struct hapax__invocation *invocation)
{
    finish_ended(invocation);
    for (size_t i = 0; i < invocation->unit_count; i++)
        if (invocation->units[i].state == HAPAX__UNIT_DUPLICATE)
            invocation->units[i].state = invocation->units[invocation->units[i].original].state;
}

/* Sets the outcome of a run. An outcome that cannot be kept loses its body. */
static void set_outcome(struct hapax__unit *unit, const struct hapax_outcome *outcome)
{
    static const struct hapax_span none = {NULL, 0};
    struct hapax_attempt *attempt;
    enum hapax_error error;

    if (!unit->call)
        return;
    attempt = &unit->call->attempt;
    error = hapax_attempt_outcome(attempt, outcome->status, outcome->headers, outcome->body);
    if (error != HAPAX_ERR_NONE && /* the header may say that it is an error */
        hapax_attempt_outcome(attempt, outcome->status, outcome->headers, none) != HAPAX_ERR_NONE)
        (void)hapax_attempt_outcome(attempt, outcome->status, none, none);
    attempt->outcome.body_kept = error == HAPAX_ERR_NONE && outcome->body_kept;
}

void hapax__invocation_pin(struct hapax__invocation *invocation)
{
    atomic_fetch_add(&invocation->references, 1);
}

void hapax__invocation_free(struct hapax__invocation *invocation)
{
    if (atomic_fetch_sub(&invocation->references, 1) > 1)
        return;
    for (size_t i = 0; i < invocation->unit_count; i++) {
        assert(!invocation->units[i].call);
        hapax_answer_release(&invocation->units[i].answer);
    }
    free(invocation->units);
    free(invocation->cut);
    hapax__reply_release(&invocation->reply);
    hapax__got_release(&invocation->event);
    free(invocation);
}

static void give_up(struct hapax__invocation *invocation, enum hapax_class cls)
{
    for (size_t i = 0; i < invocation->unit_count; i++)
        if (invocation->units[i].state == HAPAX__UNIT_RUN && !invocation->units[i].ended)
            hapax__unit_end(&invocation->units[i], cls);
    hapax__units_finish(invocation);
    hapax__invocation_free(invocation);
}

void hapax__unit_fail(struct hapax__unit *unit, enum hapax_class cls, struct hapax_span type,
                      struct hapax_span text)
{
    struct hapax__response response;

    if (!hapax__response_error(&response, type, text)) /* it ran: keep what is known */
        response.outcome = (struct hapax_outcome){.status = 500};
    set_outcome(unit, &response.outcome);
    hapax__unit_end(unit, cls);
    hapax__response_release(&response);
}

/* ---- beginning ------------------------------------------------------------------------- */

static bool single_unit(struct hapax__invocation *invocation)
{
    invocation->units = calloc(1, sizeof(*invocation->units));
    invocation->unit_count = invocation->units ? 1 : 0;
    if (invocation->units)
        invocation->units[0].json = invocation->root;
    return invocation->units != NULL;
}

/* False: out of memory, and the claims are given back. */
static bool claim(struct hapax__invocation *invocation)
{
    size_t n = 0;
    bool good = true;

    while (n < invocation->unit_count && good)
        good = unit_begin(invocation, &invocation->units[n++]);
    for (size_t i = 0; i < n; i++)
        unit_await(invocation, &invocation->units[i]);
    if (good)
        return true;
    invocation->unit_count = n;
    for (size_t i = 0; i < n; i++)
        if (invocation->units[i].state == HAPAX__UNIT_RUN)
            hapax__unit_end(&invocation->units[i], HAPAX_CLASS_NOT_RUN);
    hapax__units_finish(invocation);
    return false;
}

/* Gives back the claims of what must not run; those units are BACK then. */
static void give_back_blocked(struct hapax__invocation *invocation)
{
    for (size_t i = 0; i < invocation->unit_count; i++)
        if (invocation->units[i].blocked)
            hapax__unit_end(&invocation->units[i], HAPAX_CLASS_NOT_RUN);
    finish_ended(invocation);
}

static bool has_run(const struct hapax__invocation *invocation)
{
    for (size_t i = 0; i < invocation->unit_count; i++)
        if (invocation->units[i].state == HAPAX__UNIT_RUN)
            return true;
    return false;
}

static bool begin(struct hapax__invocation *invocation, bool *run,
                  struct hapax__lambda_reply *reply)
{
    const struct hapax__unit *unit;

    if (!(invocation->batch ? hapax__batch_units(invocation) : single_unit(invocation)) ||
        !claim(invocation))
        return false;
    if (invocation->batch) {
        hapax__batch_order(invocation);
        give_back_blocked(invocation);
    }
    *run = has_run(invocation);
    if (*run) {
        count(&invocation->function->stats->run);
        return !invocation->batch || hapax__batch_cut(invocation);
    }
    count(&invocation->function->stats->short_cut);
    if (invocation->batch)
        return hapax__batch_reply(reply, invocation, (struct hapax_span){NULL, 0});
    unit = &invocation->units[0];
    return hapax__reply_answer(reply, invocation->kind, invocation->root, &unit->answer,
                               unit->asked.why, unit->identified ? &unit->id : NULL);
}

struct hapax__invocation *hapax__invocation_begin(struct hapax__function *function,
                                                  struct hapax__got *got, bool *run,
                                                  struct hapax__lambda_reply *reply)
{
    struct hapax__invocation *invocation = calloc(1, sizeof(*invocation));

    memset(reply, 0, sizeof(*reply));
    if (!invocation)
        return NULL;
    count(&function->stats->invocations);
    atomic_init(&invocation->references, 1);
    invocation->function = function;
    invocation->event = *got;
    invocation->id = hapax__head_line(&invocation->event.head, "Lambda-Runtime-Aws-Request-Id");
    invocation->text = (struct hapax_span){got->body, got->len};
    if (!hapax__raw_check(&invocation->root, invocation->text))
        invocation->root = (struct hapax_span){NULL, 0};
    invocation->kind = hapax__event_kind(invocation->root);
    invocation->batch = hapax__event_is_batch(invocation->kind);
    set_policy(invocation);
    if (begin(invocation, run, reply)) {
        memset(got, 0, sizeof(*got));
        return invocation;
    }
    invocation->event.body = NULL;
    invocation->event.head.memory = NULL;
    give_up(invocation, HAPAX_CLASS_NOT_RUN);
    return NULL;
}

struct hapax_span hapax__invocation_event(const struct hapax__invocation *invocation)
{
    if (invocation->cut)
        return (struct hapax_span){(uint8_t *)invocation->cut, invocation->cut_len};
    return invocation->text;
}

/* ---- ending ---------------------------------------------------------------------------- */

static bool is_own(const struct hapax_answer *answer)
{
    return answer->kind == HAPAX_ANSWER_FRESH || answer->kind == HAPAX_ANSWER_BYPASS;
}

/* The function's own response: the runtime's headers go with it. */
static bool own(struct hapax__lambda_reply *reply, bool good)
{
    reply->own = good && !reply->error;
    return good;
}

static bool reply_error(struct hapax__lambda_reply *reply, struct hapax_span type,
                        struct hapax_span text)
{
    if (!hapax__reply_text(reply, text))
        return false;
    reply->error = reply->own = true;
    (void)snprintf(reply->error_type, sizeof(reply->error_type), "%.*s", (int)type.len,
                   (const char *)type.ptr);
    return true;
}

static bool reply_own(struct hapax__invocation *invocation, bool error, struct hapax_span type,
                      struct hapax_span text, struct hapax__lambda_reply *reply)
{
    const struct hapax__unit *unit = &invocation->units[0];

    if (!is_own(&unit->answer))
        return hapax__reply_answer(reply, invocation->kind, invocation->root, &unit->answer,
                                   unit->asked.why, unit->identified ? &unit->id : NULL);
    return error ? reply_error(reply, type, text)
                 : own(reply, hapax__reply_fresh(reply, invocation->kind, text, &unit->answer));
}

static void end_with_response(struct hapax__invocation *invocation, struct hapax_span text)
{
    struct hapax__response response;

    /* Without memory: it ran, so keep what is known. */
    if (!hapax__response_read(&response, &invocation->policy, invocation->kind, text))
        response.outcome =
            (struct hapax_outcome){.status = response.outcome.status, .body_kept = false};
    set_outcome(&invocation->units[0], &response.outcome);
    hapax__unit_end(&invocation->units[0], response.cls);
    hapax__response_release(&response);
}

/* Ends the units of a batch that failed as a whole, or whose failures were reported. */
static void end_batch(struct hapax__invocation *invocation, bool error, struct hapax_span type,
                      struct hapax_span text)
{
    struct hapax__report report = {.all = true};
    const struct hapax_outcome done = {.body_kept = true};

    if (!error)
        hapax__batch_report(&report, invocation, text);
    for (size_t i = 0; i < invocation->unit_count; i++) {
        struct hapax__unit *unit = &invocation->units[i];

        if (unit->state != HAPAX__UNIT_RUN)
            continue;
        if (report.all || hapax__batch_reports(&report, invocation, i)) {
            hapax__unit_fail(unit, HAPAX_CLASS_FAILED,
                             error ? type : hapax_str("Hapax.RecordFailed"), hapax_str("{}"));
        } else {
            set_outcome(unit, &done);
            hapax__unit_end(unit, HAPAX_CLASS_FINAL);
        }
    }
}

bool hapax__invocation_end(struct hapax__invocation *invocation, bool error, struct hapax_span type,
                           struct hapax_span text, struct hapax__lambda_reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    if (invocation->batch)
        end_batch(invocation, error, type, text);
    else if (error)
        hapax__unit_fail(&invocation->units[0], HAPAX_CLASS_FAILED, type, text);
    else
        end_with_response(invocation, text);
    hapax__units_finish(invocation);
    if (!invocation->batch)
        return reply_own(invocation, error, type, text, reply);
    return error ? reply_error(reply, type, text)
                 : own(reply, hapax__batch_reply(reply, invocation, text));
}

/* Reads the status from a prelude. The body of a stream is never kept. */
static void read_prelude(struct hapax__response *response, struct hapax__invocation *invocation,
                         struct hapax_span prelude)
{
    if (prelude.len == 0 ||
        !hapax__response_read(response, &invocation->policy,
                              hapax__event_is_http(invocation->kind) ? invocation->kind
                                                                     : HAPAX_LAMBDA_HTTP,
                              prelude)) {
        memset(response, 0, sizeof(*response));
        response->cls = HAPAX_CLASS_FINAL;
        response->outcome.status = hapax__event_is_http(invocation->kind) ? 200 : 0;
    }
    response->outcome.body_kept = false;
    response->outcome.body = (struct hapax_span){NULL, 0};
}

bool hapax__invocation_end_stream(struct hapax__invocation *invocation, struct hapax_span prelude,
                                  bool *own, struct hapax__lambda_reply *reply)
{
    struct hapax__unit *unit = &invocation->units[0];
    struct hapax__response response;

    memset(reply, 0, sizeof(*reply));
    *own = true;
    if (invocation->batch) { /* a stream reports nothing */
        end_batch(invocation, false, (struct hapax_span){NULL, 0}, (struct hapax_span){NULL, 0});
        hapax__units_finish(invocation);
        return hapax__reply_text(reply, prelude);
    }
    read_prelude(&response, invocation, prelude);
    set_outcome(unit, &response.outcome);
    hapax__unit_end(unit, response.cls);
    hapax__response_release(&response);
    hapax__units_finish(invocation);
    *own = is_own(&unit->answer);
    return reply_own(invocation, false, (struct hapax_span){NULL, 0}, prelude, reply);
}

void hapax__invocation_lost(struct hapax__invocation *invocation)
{
    give_up(invocation, HAPAX_CLASS_UNKNOWN);
}

void hapax__invocation_not_run(struct hapax__invocation *invocation)
{
    give_up(invocation, HAPAX_CLASS_NOT_RUN);
}
