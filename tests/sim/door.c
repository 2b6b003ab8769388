/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes. Each drives its flows as any door does, runs handlers and hooks, and may pause, be
 * stopped or die. The operator's actions are here as well. Hook and operator tell the truth: they
 * look at the effects that happened, and make the upstream refuse every smaller fence from then on,
 * since an effect that is still to come could follow.
 */
#include "sim.h"

#include "core/drive.h"

#include <assert.h>
#include <string.h>

#define STEPS_MAX (50 * CALLS_MAX) /* of all flows, after one event */

int64_t local_us(const struct sim *s, const struct proc *proc)
{
    return proc->offset_us + s->now_us + s->now_us * proc->drift / 1024;
}

/* When the process's clock will first show local. */
static int64_t virtual_us(const struct sim *s, const struct proc *proc, int64_t local)
{
    int64_t wait_us = (local - local_us(s, proc)) * 1024 / (1024 + proc->drift);

    return s->now_us + (wait_us > 0 ? wait_us + 1 : 1);
}

static void plan_wake(struct sim *s, struct call *call)
{
    int64_t at_us = call->flow.wake_us;

    if (at_us < INT64_MAX)
        at_us = virtual_us(s, &s->procs[call->proc], at_us);
    /* A reply, or its absence, is an event as well. What follows is planned at that event. */
    if (at_us == INT64_MAX || (call->asking && at_us > s->now_us + s->reply_wait_us)) {
        call->wake_stamp++;
        call->wake_us = INT64_MAX;
        return;
    }
    if (call->wake_us == at_us)
        return;
    call->wake_us = at_us;
    sim_at(s, at_us, EVENT_WAKE, (int)(call - s->calls), ++call->wake_stamp);
}

static void run_handler(struct sim *s, struct call *call)
{
    int n = s->execs_count++;
    struct exec *exec = &s->execs[n];
    const struct shadow *shadow = &s->shadows[call->id];

    if (n >= EXECS_MAX) {
        s->execs_count--;
        sim_fail(s, "d bounded", "more than %d handlers", EXECS_MAX);
        return;
    }
    memset(exec, 0, sizeof(*exec));
    exec->call = (int)(call - s->calls);
    exec->id = call->id;
    exec->fence = call->flow.fence;
    exec->running = true;
    exec->life = -1;
    if (exec->fence != 0 && same_token(&shadow->holder, &call->flow.request.token)) {
        exec->life = shadow->life;
        exec->grant = shadow->grant;
        exec->held = shadow->held_before;
        exec->stale = shadow->stale_before;
    }
    TRACE(s, "p%d c%d RUN attempt %u fence %llu%s", call->proc, exec->call, call->flow.attempt,
          (unsigned long long)exec->fence, call->flow.stale ? " stale" : "");
    check_run(s, call);
    call->exec = n;
    draw_exec(s, exec, &call->policy);
}

static void ask_hook(struct sim *s, struct call *call)
{
    int64_t last_us = s->healed || sim_chance(s, 700) ? 10 * MS : 4 * call->policy.lease_ms * MS;

    TRACE(s, "p%d c%d RECONCILE attempt %u", call->proc, (int)(call - s->calls),
          call->flow.attempt);
    if (call->hook_no)
        sim_fail(s, "a the hook's no is final", "call %d asks its hook again",
                 (int)(call - s->calls));
    sim_at(s, s->now_us + sim_between(s, 0, last_us), EVENT_HOOK, (int)(call - s->calls), 0);
}

static void abandon(struct sim *s, struct call *call)
{
    struct exec *exec;

    TRACE(s, "p%d c%d ABANDON", call->proc, (int)(call - s->calls));
    if (call->flow.phase == HAPAX__FLOW_RECONCILING)
        return;
    exec = &s->execs[call->exec];
    exec->abandoned = true;
    if (!exec->obeys) {
        sim_mark(s, MARK_abandon_ignored);
        return;
    }
    sim_mark(s, MARK_abandon_obeyed);
    exec->dies = false;
    if (!exec->effected) {
        exec->cancelled = true;
        exec->cls = HAPAX_CLASS_NOT_RUN;
    }
    sim_at(s, s->now_us + sim_between(s, 0, MS), EVENT_END, call->exec, ++exec->stamp);
}

/* In the calm the store lives. Whoever is turned away asks again after the half second within which
 * nobody else may probe, and so has a verdict in the end. */
static void call_again(struct sim *s, struct call *call)
{
    bool away = s->calm && call->kind == HAPAX_ANSWER_STORE_DOWN && refused_unasked(call);
    struct call *next;
    int n;

    if (away && s->calls_count < CALLS_MAX) {
        n = draw_call(s, call->id, true);
        sim_at(s, s->now_us + 600 * MS, EVENT_CALL, n, 0);
        return;
    }
    if (call->again == 0 || s->calls_count >= CALLS_MAX - OPS_MIN - 2 * IDS_MAX)
        return;
    n = draw_call(s, call->id, false);
    next = &s->calls[n];
    next->again = call->again - 1;
    next->variant = call->variant;
    if (s->calm) {
        next->policy = call->policy;
        next->old = call->old;
    }
    sim_at(s, s->now_us + sim_between(s, MS, s->lease_ms * MS), EVENT_CALL, n, 0);
}

static void answer(struct sim *s, struct call *call)
{
    const struct hapax_answer *a = &call->flow.answer;

    TRACE(s, "p%d c%d ANSWER %s status %d%s", call->proc, (int)(call - s->calls),
          hapax_answer_name(a->kind), a->outcome.status, a->recorded ? " recorded" : "");
    sim_mix(s, (uint64_t)a->kind << 16 | (uint64_t)a->outcome.status);
    check_answer(s, call);
    call_again(s, call);
}

static int64_t flow_now(const struct hapax__flow *flow)
{
    const struct call *call = flow->door;

    return local_us(call->sim, &call->sim->procs[call->proc]);
}

/* The door finds that the owner is at a limit: true, and the flow goes on without a run. */
static bool refuse(struct sim *s, struct call *call)
{
    const struct hapax__over over = {HAPAX__LIMIT_IN_FLIGHT, 1000};

    if (!call->refused || call->keyless || call->exec >= 0 || call->hook_no)
        return false;
    TRACE(s, "p%d c%d REFUSED", call->proc, (int)(call - s->calls));
    sim_mark(s, call->flow.answer.unprotected ? MARK_limited_unprotected : MARK_limited_claim);
    if (call->flow.answer.unprotected)
        watch_gives_up(s, call);
    hapax__flow_refused(&call->flow, over, local_us(s, &s->procs[call->proc]));
    return true;
}

static bool flow_act(struct hapax__flow *flow, enum hapax__flow_do what, int64_t now_us)
{
    struct call *call = flow->door;
    struct sim *s = call->sim;

    (void)now_us;
    assert(call->state == CALL_LIVE);
    if (++s->steps > STEPS_MAX)
        sim_fail(s, "d bounded", "the flows never pause, the last is call %d",
                 (int)(call - s->calls));
    switch (what) {
    case HAPAX__FLOW_PAUSE:
        plan_wake(s, call);
        if (flow->waiter.head && flow->waiter.head != &flow->waiter)
            call->was_mate = true;
        break;
    case HAPAX__FLOW_ASK:
        TRACE(s, "p%d c%d ASK op%d phase %d", call->proc, (int)(call - s->calls),
              (int)call->flow.op.kind, (int)call->flow.phase);
        check_ask(s, call);
        network_ask(s, (int)(call - s->calls));
        break;
    case HAPAX__FLOW_RUN:
        if (!refuse(s, call))
            run_handler(s, call);
        break;
    case HAPAX__FLOW_RECONCILE:
        if (!refuse(s, call))
            ask_hook(s, call);
        break;
    case HAPAX__FLOW_ABANDON:
        abandon(s, call);
        break;
    case HAPAX__FLOW_ANSWER:
        answer(s, call);
        break;
    case HAPAX__FLOW_END:
        TRACE(s, "p%d c%d END", call->proc, (int)(call - s->calls));
        call->state = CALL_OVER;
        check_end(s, call);
        break;
    }
    return !s->failed;
}

static void drive(struct sim *s, struct call *call)
{
    static const struct hapax__flow_door door = {flow_now, flow_act};

    s->steps = 0;
    (void)hapax__flow_drive(&call->flow, &door);
}

/* ---- events ------------------------------------------------------------------------ */

void door_call(struct sim *s, int n)
{
    struct call *call = &s->calls[n];
    struct proc *proc = &s->procs[call->proc];
    struct hapax__flow_request request = {.key = HAPAX__KEY_GIVEN, .scope = hapax_str("default")};

    request.reconciles = call->reconciles;
    if (call->keyless)
        request.key = HAPAX__KEY_NONE;
    if (call->over)
        request.over = (struct hapax__over){HAPAX__LIMIT_KEYS, 1000};
    if (call->old)
        request.key_age_ms = call->policy.retention_ms + 1;
    memset(&request.id, call->id + 1, sizeof(request.id));
    memset(&request.fingerprint, call->variant == 1 ? 0xf2 : 0xf1, sizeof(request.fingerprint));
    memset(&request.caller, call->variant == 2 ? 0xc2 : 0xc1, sizeof(request.caller));
    for (size_t i = 0; i < 14; i++)
        request.token.bytes[i] = (uint8_t)sim_random(s);
    request.token.bytes[15] = (uint8_t)(n + 1);
    call->state = CALL_LIVE;
    call->began_us = s->now_us;
    call->jump_us = s->store.jump_us;
    call->sim = s;
    call->flow.door = call;
    TRACE(s, "p%d c%d BEGIN id %d variant %d lease %lld wait %lld expired %d failed %d", call->proc,
          n, call->id, call->variant, (long long)call->policy.lease_ms,
          (long long)call->policy.wait_ms, (int)call->policy.on_expired,
          (int)call->policy.on_failed);
    watch_begins(s, call);
    hapax__flow_begin(&call->flow, &call->policy, &proc->waiters, &request, local_us(s, proc));
    drive(s, call);
    watch_begun(s, call);
    if (call->was_mate)
        sim_mark(s, MARK_shared_question);
}

void door_told(struct sim *s, int n)
{
    struct call *call = &s->calls[n];

    call->asking = false;
    check_told(s, call);
    TRACE(s, "p%d c%d TOLD %s%s", call->proc, n, hapax_verdict_name(call->flow.op.verdict),
          call->flow.op.verdict == HAPAX_NO_VERDICT ? hapax_error_name(call->flow.op.error) : "");
    hapax__flow_told(&call->flow, local_us(s, &s->procs[call->proc]));
    drive(s, call);
}

void door_wake(struct sim *s, int n)
{
    s->calls[n].wake_us = 0;
    drive(s, &s->calls[n]);
}

void door_stop(struct sim *s, int n)
{
    struct call *call = &s->calls[n];

    if (call->state != CALL_LIVE)
        return;
    sim_fault(s, MARK_stopped);
    TRACE(s, "p%d c%d STOP", call->proc, n);
    call->stopped = true;
    hapax__flow_stop(&call->flow, local_us(s, &s->procs[call->proc]));
    drive(s, call);
}

/* The upstream commits effect and completion in one transaction, or neither. */
static bool commit_itself(struct sim *s, struct exec *exec)
{
    struct hapax_op op = {.kind = HAPAX_OP_COMPLETE,
                          .id = s->calls[exec->call].flow.request.id,
                          .token = s->calls[exec->call].flow.request.token,
                          .outcome = outcome_of(s, exec->self_result)};

    if (s->store.down)
        return false;
    store_judge(s, &op, -1, 0);
    return op.verdict == HAPAX_OK;
}

void door_effect(struct sim *s, int n)
{
    struct exec *exec = &s->execs[n];
    const struct call *call = &s->calls[exec->call];

    if (exec->cancelled || (!exec->remote && call->state == CALL_DEAD))
        return;
    if ((exec->fence != 0 && exec->fence < s->upstream_fence[exec->id]) ||
        (exec->self == SELF_COMMITS && !commit_itself(s, exec))) {
        if (exec->self != SELF_COMMITS)
            sim_mark(s, MARK_effect_refused_by_fence);
        TRACE(s, "        effect of c%d refused", exec->call);
        if (exec->running && !exec->dies)
            exec->cls = HAPAX_CLASS_NOT_RUN;
        return;
    }
    exec->effected = true;
    TRACE(s, "        EFFECT of c%d", exec->call);
    check_effect(s, n);
    if (exec->self == SELF_SENDS) {
        struct hapax_op op = {.kind = HAPAX_OP_COMPLETE,
                              .id = call->flow.request.id,
                              .token = call->flow.request.token,
                              .outcome = outcome_of(s, exec->self_result)};

        network_send(s, &op);
    }
}

/* Which of the answers that must not be believed came after the effect, where none may repeat. */
static void mark_answer(struct sim *s, const struct exec *exec, const struct hapax_policy *policy)
{
    static const struct {
        int status;
        enum mark mark;
    } rows[] = {
        {408, MARK_held_after_408},  {503, MARK_held_after_503}, {502, MARK_held_after_502},
        {504, MARK_held_after_504},  {500, MARK_held_after_500}, {0, MARK_held_after_cut},
        {409, MARK_final_after_409},
    };

    if (exec->turned_away)
        sim_mark(s, MARK_turned_away);
    if (!exec->effected || policy->on_expired == HAPAX_EXPIRED_RERUN)
        return;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].status == exec->said_by_it->status)
            sim_mark(s, rows[i].mark);
}

void door_end(struct sim *s, int n, uint32_t stamp)
{
    struct exec *exec = &s->execs[n];
    struct call *call = &s->calls[exec->call];
    struct hapax_outcome outcome;

    if (call->state != CALL_LIVE || !exec->running || exec->stamp != stamp)
        return;
    exec->running = false;
    outcome = outcome_of(s, exec->result);
    TRACE(s, "p%d c%d HANDLED status %d class %d", call->proc, exec->call, outcome.status,
          (int)exec->cls);
    mark_answer(s, exec, &call->policy);
    if (call->flow.run_until_us > 0 && call->flow.run_until_us < local_us(s, &s->procs[call->proc]))
        sim_mark(s, MARK_outlived_run_max);
    if (exec->dies) {
        exec->cancelled = true;
        hapax__flow_died(&call->flow, local_us(s, &s->procs[call->proc]));
    } else {
        hapax__flow_handled(&call->flow, exec->cls, &outcome, local_us(s, &s->procs[call->proc]));
    }
    drive(s, call);
}

static void fence_off(struct sim *s, int id, uint64_t fence)
{
    if (s->upstream_fence[id] < fence)
        s->upstream_fence[id] = fence;
}

void door_hook(struct sim *s, int n)
{
    struct call *call = &s->calls[n];
    struct hapax_outcome outcome = {0};
    enum hapax_class cls = HAPAX_CLASS_NOT_RUN;
    int effect;

    if (call->state != CALL_LIVE)
        return;
    assert(call->flow.phase == HAPAX__FLOW_RECONCILING);
    fence_off(s, call->id, call->flow.fence);
    effect = effect_of(s, call->id, s->shadows[call->id].life);
    if (!s->healed && sim_chance(s, s->swarm.hook_unsure)) {
        cls = sim_chance(s, 500) ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_FAILED;
        sim_mark(s, MARK_reconcile_unsure);
    } else if (effect >= 0) {
        cls = HAPAX_CLASS_FINAL;
        outcome = outcome_of(s, effect);
        sim_mark(s, MARK_reconcile_yes);
    } else {
        call->hook_no = true;
        sim_mark(s, MARK_reconcile_no);
    }
    TRACE(s, "p%d c%d RECONCILED class %d", call->proc, n, (int)cls);
    hapax__flow_reconciled(&call->flow, cls, &outcome, local_us(s, &s->procs[call->proc]));
    drive(s, call);
}

void door_crash(struct sim *s, int n)
{
    struct proc *proc = &s->procs[n];

    TRACE(s, "p%d CRASH", n);
    s->faults_count++;
    for (int i = 0; i < s->execs_count; i++) {
        struct exec *exec = &s->execs[i];

        if (s->calls[exec->call].proc != n || s->calls[exec->call].state != CALL_LIVE ||
            !exec->running)
            continue;
        sim_mark(s, exec->effected ? MARK_crash_after_effect : MARK_crash_before_effect);
        exec->running = false;
    }
    for (int i = 0; i < s->calls_count; i++) {
        struct call *call = &s->calls[i];

        if (call->proc != n || call->state != CALL_LIVE)
            continue;
        call->state = CALL_DEAD;
        call_again(s, call); /* its client never got an answer */
    }
    proc->paused_until_us = 0;
    hapax__waiters_init(&proc->waiters, proc->buckets, BUCKETS);
    watch_start(proc);
}

/* ---- the operator ------------------------------------------------------------------ */

static void resolve_by_force(struct sim *s, struct hapax_op *op)
{
    op->force = true;
    op->resolve = (enum hapax_resolve)sim_between(s, 1, 3);
    network_send(s, op);
}

/* Reads which effects happened, keeps later ones from happening, and resolves accordingly. */
static void resolve_by_truth(struct sim *s, struct hapax_op *op, int id)
{
    const struct shadow *shadow = &s->shadows[id];
    int effect = effect_of(s, id, shadow->life);

    if (!shadow->present || shadow_live(s, shadow)) {
        op->resolve = HAPAX_RESOLVE_FAIL;
    } else if (shadow->state != HAPAX_STATE_COMPLETED && effect >= 0) {
        op->resolve = HAPAX_RESOLVE_COMPLETE;
        op->outcome = outcome_of(s, effect);
    } else {
        op->resolve = sim_chance(s, 500) ? HAPAX_RESOLVE_FAIL : HAPAX_RESOLVE_FORGET;
    }
    if (sim_chance(s, 500))
        op->if_attempt = shadow->attempt;
    if (shadow->present && shadow->state != HAPAX_STATE_COMPLETED && !shadow_live(s, shadow))
        fence_off(s, id, shadow->fence + 1);
    store_judge(s, op, -1, 0);
}

void operator_acts(struct sim *s)
{
    int id = (int)sim_below(s, (uint32_t)s->ids_count);
    struct hapax_op op = {.kind = HAPAX_OP_RESOLVE, .by = hapax_str("ann")};

    if (s->store.down || s->results_count >= OUTCOMES_MAX - 2 * EXECS_MAX)
        return;
    memset(&op.id, id + 1, sizeof(op.id));
    for (size_t i = 0; i < 14; i++)
        op.token.bytes[i] = (uint8_t)sim_random(s);
    op.token.bytes[14] = 0xff;
    op.token.bytes[15] = (uint8_t)++s->resolves;
    op.outcome = outcome_of(s, new_result(s, id, 202));
    TRACE(s, "        OPERATOR on id %d", id);
    if (sim_chance(s, 250))
        resolve_by_force(s, &op);
    else
        resolve_by_truth(s, &op, id);
}
