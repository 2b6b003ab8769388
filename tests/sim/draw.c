/* SPDX-License-Identifier: Apache-2.0
 *
 * What a seed means. Each schedule first draws which faults and policies it may have at all, and
 * then each event from those. A schedule that is extreme in one way finds what an even mix hides.
 */
#include "sim.h"

#include <assert.h>
#include <string.h>

/* One schedule in five has everything. The others have each feature or not, at a density of their
 * own: what is rare in an even mix is frequent where little else happens, and the mixes of few
 * features are met, too. */
static void draw_swarm(struct sim *s)
{
    unsigned density = sim_chance(s, 200) ? 1000 : (unsigned)sim_between(s, 100, 900);
    struct swarm *swarm = &s->swarm;

#define DRAW(name, most)    (sim_chance(s, density) ? 1 + sim_below(s, most) : 0)
#define FAULT(name, most)   swarm->faults.name = DRAW(name, most);
#define EVENT(name, most)   swarm->events.name = DRAW(name, most);
#define FEATURE(name, most) swarm->name = DRAW(name, most);
    NETWORK(FAULT)
    EVENTS(EVENT)
    FEATURES(FEATURE)
    s->faults = swarm->faults;
}

static void draw_policy(struct sim *s, struct hapax_policy *policy)
{
    const struct swarm *swarm = &s->swarm;

    hapax_policy_init(policy);
    policy->lease_ms =
        sim_chance(s, swarm->other_lease) ? sim_between(s, 10, 2 * s->lease_ms) : s->lease_ms;
    policy->run_max_ms =
        policy->lease_ms * sim_between(s, 1, sim_chance(s, swarm->short_run_max) ? 3 : 60);
    policy->retention_ms =
        sim_chance(s, swarm->short_retention) ? policy->lease_ms * sim_between(s, 1, 20) : 3600000;
    policy->tombstone_ms =
        sim_chance(s, swarm->tombstones) ? policy->lease_ms * sim_between(s, 1, 20) : 0;
    policy->retention_4xx_ms =
        sim_chance(s, swarm->kept_by_class) ? policy->lease_ms * sim_between(s, 1, 10) : 0;
    policy->retention_failed_ms =
        sim_chance(s, swarm->kept_by_class) ? policy->lease_ms * sim_between(s, 1, 10) : 0;
    policy->wait_ms = sim_chance(s, swarm->impatient) ? 0 : sim_between(s, 20, 8 * s->lease_ms);
    policy->timeout_ms = sim_between(s, 10, sim_chance(s, swarm->slow_to_give_up) ? 2000 : 100);
    policy->save_wait_ms = sim_chance(s, swarm->saves_not_waited_for) ? 0 : sim_between(s, 5, 2000);
    policy->on_expired = (enum hapax_on_expired)sim_between(s, 1, 3);
    policy->on_failed = (enum hapax_on_failed)sim_between(s, 0, 3); /* 0: by on_expired */
    policy->on_store_error = sim_chance(s, swarm->opens) ? HAPAX_STORE_OPEN : HAPAX_STORE_CLOSED;
    policy->attempts_max = sim_chance(s, swarm->attempts_limited) ? 1 + sim_below(s, 3) : 0;
    policy->max_response = sim_chance(s, swarm->small_responses) ? TEXT_LEN / 2 : 1u << 20;
    policy->rerun_completed = sim_chance(s, swarm->reruns);
    policy->pass_token = sim_chance(s, swarm->passes_token);
}

/* An event of this kind, count times until the calm, each at one of `among`. */
static void draw_events(struct sim *s, enum event_kind kind, unsigned count, int among)
{
    for (unsigned i = 0; i < count; i++)
        sim_at(s, sim_between(s, 1, s->calm_us - 50 * MS), kind, (int)sim_below(s, (uint32_t)among),
               0);
}

void draw_world(struct sim *s)
{
    const struct swarm *swarm = &s->swarm;
    int calls;

    draw_swarm(s);
    s->procs_count = 1 + (int)sim_below(s, PROCS_MAX);
    s->ids_count = sim_chance(s, swarm->many_ids) ? 1 + (int)sim_below(s, IDS_MAX) : 1;
    s->lease_ms = sim_between(s, 50, sim_chance(s, 500) ? 200 : 1000);
    s->reply_wait_us = sim_between(s, 10, sim_chance(s, 500) ? 50 : 400) * MS;
    s->calm_us = sim_between(s, 4 * s->lease_ms, 12 * s->lease_ms) * MS;
    s->store.drift = sim_chance(s, swarm->store_drifts) ? (int)sim_between(s, -40, 40) : 0;
    s->store.body_max = sim_chance(s, swarm->small_store) ? TEXT_LEN / 2 : HAPAX_BODY_MAX;
    for (int i = 0; i < s->procs_count; i++) {
        struct proc *proc = &s->procs[i];

        proc->offset_us = sim_between(s, 0, 4000000000);
        proc->drift = sim_chance(s, swarm->clocks_drift) ? (int)sim_between(s, -40, 40) : 0;
        proc->paused_until_us = 0;
        hapax__waiters_init(&proc->waiters, proc->buckets, BUCKETS);
        watch_start(proc);
    }
    for (int i = 0; i < 2; i++) {
        draw_policy(s, &s->policies[i]);
        s->reconciles[i] = !sim_chance(s, swarm->no_hook);
    }
    if (!sim_chance(s, swarm->two_doors)) { /* otherwise one door undoes, or tries to */
        s->policies[1] = s->policies[0];
        s->reconciles[1] = s->reconciles[0];
    }
    draw_events(s, EVENT_CRASH, swarm->events.crash, s->procs_count);
    draw_events(s, EVENT_PAUSE, swarm->events.pause, s->procs_count);
    draw_events(s, EVENT_OUTAGE, swarm->events.outage, 1);
    draw_events(s, EVENT_RESTART, swarm->events.restart, 1);
    draw_events(s, EVENT_OPERATOR, swarm->events.operator_act, 1);
    draw_events(s, EVENT_PURGE, swarm->events.purge, 1);
    calls = (int)sim_between(s, 2, 8);
    for (int i = 0; i < calls; i++) {
        int call = draw_call(s, (int)sim_below(s, (uint32_t)s->ids_count), false);
        int64_t at_us =
            sim_between(s, 0, sim_chance(s, swarm->together) ? 3 * MS : s->calm_us * 3 / 4);

        sim_at(s, at_us, EVENT_CALL, call, 0);
        if (sim_chance(s, swarm->leaves))
            sim_at(s, at_us + sim_between(s, 0, s->lease_ms * MS), EVENT_STOP, call, 0);
    }
}

int draw_call(struct sim *s, int id, bool last)
{
    int n = s->calls_count++, door = (int)sim_below(s, 2);
    struct call *call = &s->calls[n];
    const struct swarm *swarm = &s->swarm;

    assert(n < CALLS_MAX);
    memset((char *)call + sizeof(call->flow), 0, sizeof(*call) - sizeof(call->flow));
    call->state = CALL_PLANNED;
    call->exec = -1;
    call->id = id;
    call->proc = (int)sim_below(s, (uint32_t)s->procs_count);
    call->policy = s->policies[door];
    call->reconciles = s->reconciles[door];
    call->again = last ? 0 : (int)sim_below(s, 4);
    call->variant = sim_chance(s, swarm->other_request) ? 1 + (int)sim_below(s, 2) : 0;
    call->keyless = sim_chance(s, swarm->keyless);
    call->over = !last && sim_chance(s, swarm->over);
    call->refused = !last && sim_chance(s, swarm->refused);
    call->old = !last && sim_chance(s, swarm->old);
    call->policy.key_expires = call->old;
    if (last) {
        call->policy.wait_ms = sim_chance(s, 200) ? 0 : 60000;
        call->policy.timeout_ms = 5000;
    }
    return n;
}

/* What begins when all is healed ends well within its run_max, as it must be stored. */
static int64_t draw_duration_us(struct sim *s, const struct hapax_policy *policy)
{
    int64_t lease_us = policy->lease_ms * MS, most_us = 20 * MS;

    if (s->healed && policy->run_max_ms * MS < 2 * most_us)
        most_us = policy->run_max_ms * MS / 2;
    if (!s->healed && sim_chance(s, s->swarm.very_slow_runs))
        return sim_between(s, lease_us, RUN_LEASES * lease_us);
    if (!s->healed && sim_chance(s, s->swarm.slow_runs))
        return sim_between(s, lease_us / 4, lease_us * 3 / 2);
    return sim_between(s, 0, most_us);
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
static const struct said cut[] = {{408, NULL, NULL}, {503, NULL, NULL}, {502, NULL, NULL},
                                  {504, NULL, NULL}, {0, NULL, NULL},   {0, NULL, NULL}};

#define ONE_OF(table) (&(table)[sim_below(s, sizeof(table) / sizeof((table)[0]))])

static void draw_answer(struct sim *s, struct exec *exec, const struct hapax_policy *policy)
{
    bool fails = false;

    exec->turned_away = !s->healed && sim_chance(s, s->swarm.turned_away);
    if (exec->turned_away) {
        exec->said_by_it = ONE_OF(turned_away);
    } else if (!s->healed && sim_chance(s, s->swarm.broken)) {
        exec->said_by_it = ONE_OF(broken);
        fails = true;
    } else if (!s->healed && sim_chance(s, s->swarm.cut)) {
        exec->said_by_it = ONE_OF(cut);
        fails = true;
    } else {
        exec->said_by_it = ONE_OF(done);
    }
    exec->cls = class_of(policy, exec->said_by_it);
    exec->has_effect = fails ? sim_chance(s, 500) : !exec->turned_away;
}

void draw_exec(struct sim *s, struct exec *exec, const struct hapax_policy *policy)
{
    int64_t lease_us = policy->lease_ms * MS;
    int64_t end_us = s->now_us + draw_duration_us(s, policy), effect_us;
    int number = (int)(exec - s->execs);
    const struct swarm *swarm = &s->swarm;

    draw_answer(s, exec, policy);
    exec->remote = sim_chance(s, swarm->remote);
    exec->dies = !exec->remote && exec->said_by_it->status == 0 && sim_chance(s, swarm->dies);
    exec->obeys = sim_chance(s, swarm->obeys);
    effect_us = sim_between(s, s->now_us, end_us);
    if (exec->cls == HAPAX_CLASS_UNKNOWN && exec->remote && sim_chance(s, swarm->late_effects))
        effect_us = end_us + sim_between(s, 0, 3 * lease_us);
    if (policy->pass_token && exec->fence != 0 && exec->has_effect &&
        (exec->cls == HAPAX_CLASS_FINAL || exec->cls == HAPAX_CLASS_UNKNOWN) && !s->healed &&
        sim_chance(s, swarm->completes_itself))
        exec->self = sim_chance(s, 500) ? SELF_SENDS : SELF_COMMITS;
    exec->result = new_result(s, exec->id, exec->said_by_it->status);
    exec->self_result = exec->self == SELF_NO ? exec->result : new_result(s, exec->id, 201);
    if (exec->has_effect)
        sim_at(s, effect_us, EVENT_EFFECT, number, 0);
    sim_at(s, end_us, EVENT_END, number, exec->stamp);
}
