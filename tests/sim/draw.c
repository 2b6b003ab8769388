/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed means. Each schedule first draws which faults and policies it may have at all, and
 * then each event from those. A schedule that is extreme in one way finds what an even mix hides.
 */
#include "sim.h"

#include <assert.h>
#include <string.h>

int new_result(struct sim *s, int id, int status)
{
    int n = s->results_count++;
    struct result *result = &s->results[n];

    assert(n < OUTCOMES_MAX);
    memset(result, 0, sizeof(*result));
    result->id = id;
    result->status = status;
    for (int i = 0; i < TEXT_LEN; i++) {
        result->headers[i] = (uint8_t)("h0000000"[i] + (i == 1 ? n / 64 : i == 2 ? n % 64 : 0));
        result->body[i] = (uint8_t)("b0000000"[i] + (i == 1 ? n / 64 : i == 2 ? n % 64 : 0));
    }
    return n;
}

struct hapax_outcome outcome_of(const struct sim *s, int result)
{
    const struct result *r = &s->results[result];

    return (struct hapax_outcome){
        .status = r->status,
        .body_kept = true,
        .headers = {r->headers, TEXT_LEN},
        .body = {r->body, TEXT_LEN},
    };
}

int result_of(const struct sim *s, const struct hapax_outcome *outcome)
{
    int n;

    if (outcome->headers.len != TEXT_LEN)
        return -1;
    n = (outcome->headers.ptr[1] - '0') * 64 + (outcome->headers.ptr[2] - '0');
    if (n < 0 || n >= s->results_count ||
        memcmp(s->results[n].headers, outcome->headers.ptr, TEXT_LEN) != 0 ||
        s->results[n].status != outcome->status)
        return -1;
    if (outcome->body_kept && (outcome->body.len != TEXT_LEN ||
                               memcmp(s->results[n].body, outcome->body.ptr, TEXT_LEN) != 0))
        return -1;
    return n;
}

static void draw_policy(struct sim *s, struct hapax_policy *policy)
{
    hapax_policy_init(policy);
    policy->lease_ms = sim_chance(s, 700) ? s->lease_ms : sim_between(s, 10, 2 * s->lease_ms);
    policy->run_max_ms = policy->lease_ms * sim_between(s, 1, sim_chance(s, 300) ? 3 : 60);
    policy->retention_ms = sim_chance(s, 750) ? 3600000 : policy->lease_ms * sim_between(s, 1, 20);
    policy->wait_ms = sim_chance(s, 450) ? 0 : sim_between(s, 20, 8 * s->lease_ms);
    policy->timeout_ms = sim_between(s, 10, sim_chance(s, 500) ? 100 : 2000);
    policy->save_wait_ms = sim_chance(s, 100) ? 0 : sim_between(s, 5, 2000);
    policy->on_expired = (enum hapax_on_expired)sim_between(s, 1, 3);
    policy->on_failed = (enum hapax_on_failed)sim_between(s, 0, 3); /* 0: by on_expired */
    policy->on_store_error = sim_chance(s, 250) ? HAPAX_STORE_OPEN : HAPAX_STORE_CLOSED;
    policy->attempts_max = sim_chance(s, 650) ? 0 : 1 + sim_below(s, 3);
    policy->max_response = sim_chance(s, 150) ? TEXT_LEN / 2 : 1u << 20;
    policy->rerun_completed = sim_chance(s, 80);
    policy->pass_token = sim_chance(s, 300);
}

static void draw_faults(struct sim *s)
{
    int64_t end_us = s->calm_us - 50 * MS;

    s->faults = (struct faults){
        .request_lost = sim_chance(s, 500) ? sim_below(s, 250) : 0,
        .reply_lost = sim_chance(s, 500) ? sim_below(s, 300) : 0,
        .twice = sim_chance(s, 400) ? sim_below(s, 300) : 0,
        .late = sim_chance(s, 400) ? sim_below(s, 300) : 0,
        .slow = sim_chance(s, 400) ? sim_below(s, 300) : 0,
        .hard = sim_chance(s, 60) ? sim_below(s, 60) : 0,
    };
    for (uint32_t n = sim_chance(s, 400) ? 1 + sim_below(s, 2) : 0; n > 0; n--)
        sim_at(s, sim_between(s, 1, end_us), EVENT_CRASH,
               (int)sim_below(s, (uint32_t)s->procs_count), 0);
    for (uint32_t n = sim_chance(s, 400) ? 1 + sim_below(s, 2) : 0; n > 0; n--)
        sim_at(s, sim_between(s, 1, end_us), EVENT_PAUSE,
               (int)sim_below(s, (uint32_t)s->procs_count), 0);
    for (uint32_t n = sim_chance(s, 350) ? 1 + sim_below(s, 2) : 0; n > 0; n--)
        sim_at(s, sim_between(s, 0, end_us), EVENT_OUTAGE, 0, 0);
    for (uint32_t n = sim_chance(s, 200) ? 1 : 0; n > 0; n--)
        sim_at(s, sim_between(s, 1, end_us), EVENT_RESTART, 0, 0);
    for (uint32_t n = sim_chance(s, 300) ? 1 + sim_below(s, 4) : 0; n > 0; n--)
        sim_at(s, sim_between(s, 1, end_us), EVENT_OPERATOR, 0, 0);
    for (uint32_t n = sim_chance(s, 500) ? 1 + sim_below(s, 6) : 0; n > 0; n--)
        sim_at(s, sim_between(s, 1, end_us), EVENT_PURGE, 0, 0);
}

void draw_world(struct sim *s)
{
    int calls;

    s->procs_count = 1 + (int)sim_below(s, PROCS_MAX);
    s->ids_count = sim_chance(s, 600) ? 1 : 1 + (int)sim_below(s, IDS_MAX);
    s->lease_ms = sim_between(s, 50, sim_chance(s, 500) ? 200 : 1000);
    s->reply_wait_us = sim_between(s, 10, sim_chance(s, 500) ? 50 : 400) * MS;
    s->calm_us = sim_between(s, 4 * s->lease_ms, 12 * s->lease_ms) * MS;
    s->store.drift = sim_chance(s, 500) ? 0 : (int)sim_between(s, -40, 40);
    s->store.body_max = sim_chance(s, 50) ? TEXT_LEN / 2 : HAPAX_BODY_MAX;
    for (int i = 0; i < s->procs_count; i++) {
        struct proc *proc = &s->procs[i];

        proc->offset_us = sim_between(s, 0, 4000000000);
        proc->drift = sim_chance(s, 400) ? 0 : (int)sim_between(s, -40, 40);
        proc->paused_until_us = 0;
        hapax__waiters_init(&proc->waiters, proc->buckets, BUCKETS);
        watch_start(proc);
    }
    for (int i = 0; i < 2; i++) {
        draw_policy(s, &s->policies[i]);
        s->reconciles[i] = sim_chance(s, 850);
    }
    if (sim_chance(s, 600)) { /* mostly doors agree; sometimes another door undoes, or tries to */
        s->policies[1] = s->policies[0];
        s->reconciles[1] = s->reconciles[0];
    }
    draw_faults(s);
    calls = (int)sim_between(s, 2, 8);
    for (int i = 0; i < calls; i++) {
        int call = draw_call(s, (int)sim_below(s, (uint32_t)s->ids_count), false);
        int64_t at_us =
            sim_chance(s, 500) ? sim_between(s, 0, 3 * MS) : sim_between(s, 0, s->calm_us * 3 / 4);

        sim_at(s, at_us, EVENT_CALL, call, 0);
        if (sim_chance(s, 30))
            sim_at(s, at_us + sim_between(s, 0, s->lease_ms * MS), EVENT_STOP, call, 0);
    }
}

int draw_call(struct sim *s, int id, bool last)
{
    int n = s->calls_count++, door = (int)sim_below(s, 2);
    struct call *call = &s->calls[n];

    assert(n < CALLS_MAX);
    memset((char *)call + sizeof(call->flow), 0, sizeof(*call) - sizeof(call->flow));
    call->state = CALL_PLANNED;
    call->exec = -1;
    call->id = id;
    call->proc = (int)sim_below(s, (uint32_t)s->procs_count);
    call->policy = s->policies[door];
    call->reconciles = s->reconciles[door];
    call->again = last ? 0 : (int)sim_below(s, 4);
    call->variant = sim_chance(s, 900) ? 0 : 1 + (int)sim_below(s, 2);
    call->keyless = sim_chance(s, 5);
    call->over = !last && sim_chance(s, 60);
    call->refused = !last && sim_chance(s, 40);
    call->old = !last && n % 13 == 5;
    call->policy.key_expires = call->old;
    if (last) {
        call->policy.wait_ms = sim_chance(s, 200) ? 0 : 60000;
        call->policy.timeout_ms = 5000;
    }
    return n;
}

static int64_t draw_duration_us(struct sim *s, int64_t lease_us)
{
    uint32_t kind = sim_below(s, 100);

    if (kind < 60)
        return sim_between(s, 0, 20 * MS);
    if (kind < 85)
        return sim_between(s, lease_us / 4, lease_us * 3 / 2);
    return sim_between(s, lease_us, 7 * lease_us);
}

/* The answers of an upstream. The service tells the truth: whom it turns away with its own words,
 * for that one it did nothing. All else may be said after the effect: by the service when it fails,
 * and by whatever stands between the door and the service. */
static const struct said done[] = {{200, NULL, NULL},
                                   {200, NULL, NULL},
                                   {200, NULL, NULL},
                                   {302, NULL, NULL},
                                   {404, NULL, NULL},
                                   {409, NULL, NULL},
                                   {409, "stripe-should-retry", "false"},
                                   {423, NULL, NULL}};
static const struct said turned_away[] = {{401, NULL, NULL},
                                          {403, NULL, NULL},
                                          {425, NULL, NULL},
                                          {429, NULL, NULL},
                                          {408, "retry-after", "1"},
                                          {503, "retry-after", "1"},
                                          {409, "retry-after", "1"},
                                          {423, "retry-after", "1"},
                                          {409, "stripe-should-retry", "true"},
                                          {423, "stripe-should-retry", "true"}};
static const struct said broken[] = {
    {500, NULL, NULL}, {500, "retry-after", "1"}, {507, NULL, NULL}};
static const struct said lost[] = {{408, NULL, NULL}, {503, NULL, NULL}, {502, NULL, NULL},
                                   {504, NULL, NULL}, {0, NULL, NULL},   {0, NULL, NULL}};

#define ONE_OF(table) (&(table)[sim_below(s, sizeof(table) / sizeof((table)[0]))])

static struct hapax_span find_said(void *response, const char *name)
{
    const struct said *said = response;

    return said->header && strcmp(said->header, name) == 0 ? hapax_str(said->value)
                                                           : (struct hapax_span){NULL, 0};
}

static void draw_answer(struct sim *s, struct exec *exec, const struct hapax_policy *policy)
{
    uint32_t kind = sim_below(s, 100);
    struct said said;

    exec->said_by_it = kind < 58   ? ONE_OF(done)
                       : kind < 70 ? ONE_OF(turned_away)
                       : kind < 85 ? ONE_OF(broken)
                                   : ONE_OF(lost);
    said = *exec->said_by_it;
    exec->turned_away = kind >= 58 && kind < 70;
    exec->cls = said.status == 0 ? HAPAX_CLASS_UNKNOWN
                                 : hapax__class_of(policy, said.status, false, find_said, &said);
    exec->has_effect = kind < 58 || (kind >= 70 && sim_chance(s, 500));
}

void draw_exec(struct sim *s, struct exec *exec, const struct hapax_policy *policy)
{
    int64_t lease_us = policy->lease_ms * MS;
    int64_t end_us = s->now_us + draw_duration_us(s, lease_us), effect_us;
    int number = (int)(exec - s->execs);

    draw_answer(s, exec, policy);
    exec->remote = sim_chance(s, 500);
    exec->dies = !exec->remote && exec->said_by_it->status == 0 && sim_chance(s, 500);
    exec->obeys = sim_chance(s, 500);
    effect_us = sim_between(s, s->now_us, end_us);
    if (exec->cls == HAPAX_CLASS_UNKNOWN && exec->remote && sim_chance(s, 300))
        effect_us = end_us + sim_between(s, 0, 3 * lease_us);
    if (policy->pass_token && exec->fence != 0 && exec->has_effect &&
        (exec->cls == HAPAX_CLASS_FINAL || exec->cls == HAPAX_CLASS_UNKNOWN) && sim_chance(s, 600))
        exec->self = sim_chance(s, 500) ? SELF_SENDS : SELF_COMMITS;
    exec->result = new_result(s, exec->id, exec->said_by_it->status);
    exec->self_result = exec->self == SELF_NO ? exec->result : new_result(s, exec->id, 201);
    if (exec->has_effect)
        sim_at(s, effect_us, EVENT_EFFECT, number, 0);
    sim_at(s, end_us, EVENT_END, number, exec->stamp);
}
